package vault

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Request is what a sandbox asks for, in canonical form: what is matched is what will be sent.
type Request struct {
	Session outboard.SessionID
	Sandbox outboard.SandboxID
	Scheme  string // http or https
	Method  string
	Host    string // lower case, without a final dot or port
	Port    int
	Path    string // decoded, clean, absolute
	Query   string // raw
	// Also are the requests that a server could take this one for, besides what it is. A rule covers them all,
	// or not this one.
	Also []Request
}

// matches reports whether a rule covers a request.
func matches(u *outboard.UseRule, r *Request) bool { return mismatch(u, r) == "" }

// mismatch says which part of a rule keeps it from covering a request, or "".
func mismatch(u *outboard.UseRule, r *Request) string {
	switch {
	case !u.AnyHost && !slices.ContainsFunc(u.Hosts, func(h string) bool { return hostMatches(h, r.Host) }):
		return "the host is none of its hosts"
	case len(u.Ports) == 0 && (r.Port != 443 || r.Scheme != "https"):
		return "it is for https on port 443, as it names no ports"
	case len(u.Ports) > 0 && !slices.Contains(u.Ports, r.Port):
		return "the port is none of its ports"
	case len(u.Methods) > 0 && !slices.Contains(u.Methods, r.Method):
		return "the method is none of its methods"
	case len(u.Paths) > 0 && !clean(r.Path):
		return "the path can be read in two ways"
	case len(u.Paths) > 0 && !slices.ContainsFunc(u.Paths, func(p string) bool { return globMatches(p, r.Path) }):
		return "the path matches none of its paths"
	}
	for i := range r.Also {
		if why := mismatch(u, &r.Also[i]); why != "" {
			return "a server could take it for " + r.Also[i].Method + " " + r.Also[i].Path + ": " + why
		}
	}
	return ""
}

// isFor reports whether a rule names the server of a request, whatever it says of methods and paths. A rule for
// every host names none.
func isFor(u *outboard.UseRule, r *Request) bool {
	return !u.AnyHost && slices.ContainsFunc(u.Hosts, func(h string) bool { return hostMatches(h, r.Host) }) &&
		(len(u.Ports) == 0 || slices.Contains(u.Ports, r.Port))
}

// Holds reports whether a session has a credential for the server of a request by name, which covers the
// request: what goes there goes to an account that whoever made the credential has chosen. Nothing is opened,
// and what cannot be read is a no.
func (k *Keeper) Holds(ctx context.Context, r Request) bool {
	k, err := k.of(ctx, r.Session)
	if err != nil {
		return false
	}
	_, h, err := k.view(ctx, r.Session)
	return err == nil && h != nil && slices.ContainsFunc(h.rows, func(c store.Credential) bool {
		return !c.Auth.Rule.AnyHost && len(surfaces(&c.Auth)) > 0 && matches(&c.Auth.Rule, &r)
	})
}

// RequestFor is the request that a method and an absolute URL make, as the gateway would see it.
func RequestFor(method, target string) (Request, error) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return Request{}, outboard.Errorf(outboard.Invalid, "%q is no absolute http or https URL", target)
	}
	r := Request{Method: strings.ToUpper(method), Scheme: u.Scheme,
		Host: strings.TrimSuffix(strings.ToLower(u.Hostname()), "."),
		Port: 443, Path: u.Path, Query: u.RawQuery}
	if r.Path == "" {
		r.Path = "/"
	}
	if u.Scheme == "http" {
		r.Port = 80
	}
	if p := u.Port(); p != "" {
		if r.Port, err = strconv.Atoi(p); err != nil {
			return r, outboard.Errorf(outboard.Invalid, "%q has no valid port", target)
		}
	}
	return r, nil
}

// hostMatches compares a host with a name or *.name. The wildcard stands for one or more labels, never for none.
func hostMatches(pattern, host string) bool {
	pattern = strings.ToLower(pattern)
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		return strings.HasSuffix(host, "."+suffix) && len(host) > len(suffix)+1
	}
	return pattern == host
}

// clean reports whether servers cannot read a path in two ways. The gateway hands over clean paths only; this is
// the second lock.
func clean(p string) bool {
	if !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\\\x00;%?#") {
		return false
	}
	for s := range strings.SplitSeq(strings.TrimSuffix(p[1:], "/"), "/") {
		if s == "." || s == ".." || s == "" && p != "/" {
			return false
		}
	}
	return true
}

// globMatches matches a path with a pattern in which * stands for any text within a segment, and a segment ** for any
// segments, at the end for at least one, which may be empty.
func globMatches(pattern, path string) bool {
	return segmentsMatch(strings.Split(pattern, "/"), strings.Split(path, "/"))
}

func segmentsMatch(pattern, path []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			if len(pattern) == 1 {
				return len(path) > 0
			}
			for i := range len(path) + 1 {
				if segmentsMatch(pattern[1:], path[i:]) {
					return true
				}
			}
			return false
		}
		if len(path) == 0 || !segmentMatches(pattern[0], path[0]) {
			return false
		}
		pattern, path = pattern[1:], path[1:]
	}
	return len(path) == 0
}

func segmentMatches(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	for _, p := range parts[1 : len(parts)-1] {
		_, after, ok := strings.Cut(s, p)
		if !ok {
			return false
		}
		s = after
	}
	return strings.HasSuffix(s, parts[len(parts)-1])
}

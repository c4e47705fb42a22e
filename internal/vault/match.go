package vault

import (
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
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
}

// matches reports whether a rule covers a request.
func matches(u *outboard.UseRule, r *Request) bool {
	if !u.AnyHost && !slices.ContainsFunc(u.Hosts, func(h string) bool { return hostMatches(h, r.Host) }) {
		return false
	}
	if len(u.Ports) == 0 && (r.Port != 443 || r.Scheme != "https") || len(u.Ports) > 0 && !slices.Contains(u.Ports, r.Port) {
		return false
	}
	if len(u.Methods) > 0 && !slices.Contains(u.Methods, r.Method) {
		return false
	}
	return len(u.Paths) == 0 || clean(r.Path) && slices.ContainsFunc(u.Paths, func(p string) bool { return globMatches(p, r.Path) })
}

// hostMatches compares a host with a name or *.name. The wildcard stands for one or more labels, never for none.
func hostMatches(pattern, host string) bool {
	pattern = strings.ToLower(pattern)
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		return strings.HasSuffix(host, "."+suffix) && len(host) > len(suffix)+1
	}
	return pattern == host
}

// clean reports whether servers cannot read a path in two ways. The gateway hands over clean paths only; this is the second lock.
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

// globMatches matches a path with a pattern in which * stands for any text within a segment, and a segment ** for any segments.
func globMatches(pattern, path string) bool {
	return segmentsMatch(strings.Split(pattern, "/"), strings.Split(path, "/"))
}

func segmentsMatch(pattern, path []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			if len(pattern) == 1 {
				return true
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

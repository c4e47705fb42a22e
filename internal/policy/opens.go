package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// workdir is where relative paths of tools begin unless the sandbox's system says otherwise.
const workdir = "/workspace"

// Opens returns the one form of what a call of a built-in tool opens: the absolute path of a file, or of the
// directory that a search begins in, or an address. It is what policies compare, what the log holds, and what
// the tool is given. Relative paths begin in base; "" is the workspace. Links are not followed: what they lead
// to is known in the sandbox only, and is judged there once more. "" = the tool opens nothing by name. An error
// is an address that has no such form.
func Opens(name string, input outboard.Raw, base string) (string, error) {
	t, _ := registry.Lookup(name)
	var in map[string]json.RawMessage
	if !opens(t) || json.Unmarshal(input, &in) != nil {
		return "", nil
	}
	p, ok := textOf(in[t.Target])
	switch {
	case !ok || p == "" && t.Subject == registry.File:
		return "", nil
	case t.Subject == registry.Address:
		return URL(p)
	}
	// it searches there, whatever its path says
	if pattern, _ := textOf(in["pattern"]); t.Globs && path.IsAbs(pattern) {
		p = path.Dir(pattern[:strings.IndexAny(pattern+"*", `*?[{\`)])
	}
	if base == "" {
		base = workdir
	}
	if !path.IsAbs(p) {
		p = path.Join(base, p)
	}
	return path.Clean(p), nil
}

// opens reports whether calls of a tool open what they name.
func opens(t registry.Tool) bool { return t.Opens() || t.Subject == registry.Address }

// textOf decodes a string. What is missing or null is "", as for whoever decodes it into a struct.
func textOf(raw json.RawMessage) (s string, ok bool) {
	return s, len(raw) == 0 || json.Unmarshal(raw, &s) == nil
}

// At puts what a call opens in the place of what it names.
func At(name string, args map[string]any, opened string) {
	if t, _ := registry.Lookup(name); opens(t) {
		args[t.Target] = opened
	}
}

// URL is an address in the one form that is judged and asked for: scheme and host in lower case, no dot at the
// end of the host, no port that the scheme implies, no dot segments, no escapes of what needs none, no fragment.
// An address without such a form is refused.
func URL(raw string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil {
		return "", fmt.Errorf("url is not valid: %s", clip(strings.TrimPrefix(err.Error(), "parse ")))
	}
	refuse := func(why string) (string, error) { return "", errors.New("url_not_allowed: " + why) }
	u.Scheme = strings.ToLower(u.Scheme)
	if u.Scheme != "http" && u.Scheme != "https" {
		return refuse("only http and https addresses can be fetched")
	}
	if u.User != nil {
		return refuse("an address must not carry a user name or password")
	}
	if u.Opaque != "" || u.Host == "" {
		return refuse("the address has the wrong form")
	}
	host, err := urlHost(u)
	if err != nil {
		return refuse(err.Error())
	}
	p, err := unescaped(u.EscapedPath())
	if err != nil {
		return refuse("the path " + err.Error())
	}
	if strings.Contains(p, `\`) {
		return refuse("the path has a backslash")
	}
	query, err := unescaped(u.RawQuery)
	if err != nil {
		return refuse("the query " + err.Error())
	}
	out := u.Scheme + "://" + host + dotless(p)
	if query != "" {
		out += "?" + query
	}
	return out, nil
}

// urlHost is the host with its port, where that is not the scheme's.
func urlHost(u *url.URL) (string, error) {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if host == "" {
		return "", errors.New("the address has no host")
	}
	for _, c := range []byte(host) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`%/\?#@`, c) >= 0 {
			return "", errors.New("the host is not a plain name (international names must be in their xn-- form)")
		}
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String()
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	text := u.Port()
	if text == "" {
		return host, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("%q is not a port", clip(text))
	}
	if int(n) == map[string]int{"http": 80, "https": 443}[u.Scheme] {
		return host, nil
	}
	return host + ":" + strconv.FormatUint(n, 10), nil
}

// unescaped has the percent escapes of what needs none taken away, and the others in capitals.
func unescaped(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '%' {
			if c <= ' ' || c >= 0x7f {
				fmt.Fprintf(&b, "%%%02X", c)
			} else {
				b.WriteByte(c)
			}
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("has a broken percent escape")
		}
		n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", errors.New("has a broken percent escape")
		}
		i += 2
		switch c := byte(n); {
		case c < 0x20 || c == 0x7f:
			return "", errors.New("has a control character")
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String(), nil
}

// dotless takes the dot segments out of the path of an address.
func dotless(p string) string {
	var out []string
	parts := strings.Split(strings.TrimPrefix(p, "/"), "/")
	for i, seg := range parts {
		last := i == len(parts)-1
		switch seg {
		case ".", "..":
			if seg == ".." && len(out) > 0 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, "")
			}
		default:
			out = append(out, seg)
		}
	}
	return "/" + strings.Join(out, "/")
}

// loose is a path of an address as the most generous server reads it: escapes decoded as often as there are any,
// backslashes as slashes, no parameters, no empty segments, no dot segments. A rule about paths must hold for
// both readings, since nobody knows which server answers.
func loose(p string) string {
	for range 4 {
		next, err := url.PathUnescape(p)
		if err != nil || next == p {
			break
		}
		p = next
	}
	var out []string
	for seg := range strings.SplitSeq(strings.ReplaceAll(p, `\`, "/"), "/") {
		seg, _, _ = strings.Cut(seg, ";")
		switch seg {
		case "", ".":
		case "..":
			out = out[:max(0, len(out)-1)]
		default:
			out = append(out, seg)
		}
	}
	return "/" + strings.Join(out, "/")
}

// readings are what a request may come to: itself, and the address as the most generous server reads it, where
// that is another one.
func (r *Request) readings() []*Request {
	c := &r.Context
	if t, _ := registry.Lookup(r.Action); t.Subject != registry.Address || c.URL == "" {
		return []*Request{r}
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return []*Request{r}
	}
	p := loose(c.Path)
	if p == c.Path || p+"/" == c.Path {
		return []*Request{r}
	}
	q := *r
	u.Path, u.RawPath = p, ""
	q.Context.Path, q.Context.URL = p, u.Scheme+"://"+u.Host+p
	if u.RawQuery != "" {
		q.Context.URL += "?" + u.RawQuery
	}
	return []*Request{r, &q}
}

// Sift returns which of the paths that a search found its request may tell of: each is judged as if the search
// had been about it.
func (e *Engine) Sift(ctx context.Context, r *Request, paths []string) map[string]bool {
	set := e.Set(ctx, r.Owner.Org, r.Agent, r.Session)
	may := map[string]bool{}
	for _, p := range paths {
		if _, known := may[p]; known {
			continue
		}
		q := *r
		q.Context.Path = p
		may[p] = set.Decide(&q).Decision == outboard.Allow
	}
	return may
}

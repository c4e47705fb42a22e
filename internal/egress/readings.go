package egress

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard/internal/netrule"
)

// A request can say that it is another one than its first line does: frameworks take a method from a header or a
// parameter, and proxies tell the servers behind them a path or a host. What a server could take a request for
// is judged beside what it is. What only proxies say is removed, since the gateway has it from a client.

// maxMethod is longer than any registered method.
const maxMethod = 32

// overriding are the headers, and parameters of a query, from which servers take the method, in lower case and
// with hyphens.
var overriding = []string{"x-http-method-override", "x-http-method", "x-method-override", "x-override-method",
	"http-method-override"}

// hidden reports whether a header is one by which proxies tell servers what was asked for. Some servers take an
// underscore for a hyphen.
func hidden(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	switch name {
	case "forwarded", "x-original-url", "x-rewrite-url", "x-override-url", "x-original-uri", "x-original-path", "x-original-host", "x-original-method",
		"x-host", "x-http-host-override", "x-envoy-original-path", "x-waws-unencoded-url", "x-url-scheme", "x-proxy-url", "x-request-uri", "request-uri",
		"x-script-name", "front-end-https":
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-") || name == "x-forwarded"
}

// overrides reports whether servers take a request's method from a parameter of a name. PHP makes an underscore
// of what else a name begins with, and an array of one with a bracket.
func overrides(name string) bool {
	name = strings.ToLower(strings.TrimLeft(name, " "))
	name, _, _ = strings.Cut(name, "\x00")
	if at := strings.IndexByte(name, '['); at > 0 {
		name = name[:at]
	}
	if name != "" && strings.ContainsRune(".[", rune(name[0])) {
		name = "_" + name[1:]
	}
	return name == "_method" || slices.Contains(overriding, strings.ReplaceAll(name, "_", "-"))
}

// readings are the requests that servers could take one for, besides what it is.
func readings(r *http.Request, req Request) (list []Request, no *refusal) {
	said := []string{}
	for name, values := range r.Header {
		if slices.Contains(overriding, strings.ReplaceAll(strings.ToLower(name), "_", "-")) {
			said = append(said, values...)
		}
	}
	for field := range strings.FieldsFuncSeq(req.Query, func(c rune) bool { return c == '&' || c == ';' }) {
		if name, value := pair(field); overrides(name) {
			said = append(said, value)
		}
	}
	for _, method := range said {
		if method = methodOf(method); !isMethod(method) {
			return nil, refuse(http.StatusForbidden, "form",
				"it names another method to be taken for, and that is none")
		}
		other := req
		other.Method = method
		if method != req.Method && !slices.ContainsFunc(list, func(r Request) bool { return r.Method == method }) {
			list = append(list, other)
		}
	}
	if len(list) > 1 {
		return nil, refuse(http.StatusForbidden, "form", "it names several other methods to be taken for")
	}
	if to := r.Header["Destination"]; to != nil && (req.Method == "COPY" || req.Method == "MOVE") { // of WebDAV
		other := req
		u, err := url.Parse(to[0])
		if err == nil && u.Host != "" {
			other.Port = map[bool]int{true: 443, false: 80}[u.Scheme == "https"]
			var port int
			if other.Host, port, err = netrule.Host(u.Host); port != 0 {
				other.Port = port
			}
		}
		if err == nil {
			other.Path, other.Odd, err = netrule.Path(u.EscapedPath())
		}
		if err != nil || len(to) > 1 {
			return nil, refuse(http.StatusBadRequest, "form", "its header Destination is no address")
		}
		list = append(list, other)
	}
	return list, nil
}

// pair splits a field of a query or a form, and decodes it as far as it can be.
func pair(field string) (name, value string) {
	name, value, _ = strings.Cut(field, "=")
	if plain, err := url.QueryUnescape(name); err == nil {
		name = plain
	}
	if plain, err := url.QueryUnescape(value); err == nil {
		value = plain
	}
	return name, value
}

// methodOf is a method as servers read one that a parameter holds.
func methodOf(s string) string { return strings.ToUpper(strings.TrimSpace(s)) }

// isMethod reports whether a text could be a method.
func isMethod(s string) bool {
	return len(s) > 0 && len(s) <= maxMethod && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == ""
}

// checkBody has the body of a request looked at for a method that the server could take the request for: of a
// POST, in which alone servers look for one, where the rules speak of methods.
func (p *port) checkBody(ctx context.Context, r *http.Request, req Request, inj *Injection) {
	may := p.reach.Load()
	if e := effectOf(ctx); e != nil && e.reach.Load() != nil {
		may = e.reach.Load()
	}
	if r.Method != http.MethodPost || !netrule.NamesMethods(may.rules, req.Host, req.Port) {
		return
	}
	inj.override = func(method string) bool {
		other := req
		other.Method = methodOf(method)
		return netrule.Judge(may.rules, other.rule()).Allow
	}
}

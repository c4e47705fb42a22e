package api

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// What a browser may do here: nothing on behalf of another page. There are no cookies, so no page has a right
// that it does not hold in its hands; what is here keeps pages from the routes that want no key, and from
// telling what a server on loopback is.

// hosted refuses requests that arrived under a name which is not this server's.
func (s *server) hosted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header() // of every answer, refusals too
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		if !s.knownHost(r.Host) {
			s.fail(w, r, outboard.Errorf(outboard.Denied, "this server is not known as %q", clip(r.Host)).
				WithHint("call it by its address, or name the host when starting the server"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *server) knownHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true // an address cannot be rebound
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.Contains(s.hosts, "*") || slices.ContainsFunc(s.hosts,
		func(h string) bool { return strings.EqualFold(h, host) })
}

// fromHere refuses what a page of another origin sends, whatever the method: reading is refused as well, and so
// are WebSockets, which begin with a GET that no preflight precedes. Pages of sandboxes count as another origin
// though they may be on this machine.
func (s *server) fromHere(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		as := *r
		as.Method = http.MethodPost // judged as what changes something
		if err := origin.Check(&as); err != nil {
			s.fail(w, r, outboard.Errorf(outboard.Denied, "cross-origin requests from browsers are refused"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// onlyJSON refuses bodies that a page can send anywhere without asking first.
func onlyJSON(r *http.Request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return bad("the body must have the content type application/json")
	}
	return nil
}

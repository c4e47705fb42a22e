package egress_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if the head of a request can be of any size, or its record does not say where it was to go because
// another part of it is long.
func TestHeadsAreBounded(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	many := http.Header{}
	for i := range 250 {
		many.Set(fmt.Sprint("X-", i), "1")
	}
	large := http.Header{}
	for i := range 5 {
		large.Set(fmt.Sprint("X-", i), strings.Repeat("x", 20_000))
	}
	for name, c := range map[string]struct {
		method, path string
		header       http.Header
		status       int
	}{
		"an honest one": {"PROPFIND", "/x?" + strings.Repeat("q", 8000),
			http.Header{"Cookie": {strings.Repeat("c", 16_000)}}, 200},
		"a long method":     {strings.Repeat("M", 60_000), "/x", nil, 400},
		"a longish method":  {strings.Repeat("M", 33), "/x", nil, 400},
		"a long query":      {"GET", "/x?" + strings.Repeat("q", 40_000), nil, 414},
		"a long path":       {"GET", "/" + strings.Repeat("p", 9_000), nil, 400},
		"a long header":     {"GET", "/x", http.Header{"X-Long": {strings.Repeat("x", 33<<10)}}, 431},
		"a long name":       {"GET", "/x", http.Header{"X" + strings.Repeat("x", 33<<10): {"1"}}, 431},
		"many headers":      {"GET", "/x", many, 431},
		"many long headers": {"GET", "/x", large, 431},
	} {
		for _, url := range []string{r.http("a.test", c.path), r.https("a.test", c.path)} {
			before, seen := r.hits.Load(), len(r.audit(t))
			code, body := do(t, r.client(false), c.method, url, c.header)
			if code != c.status || (r.hits.Load() == before+1) != (c.status == 200) {
				t.Errorf("%s: %d %.200s", name, code, body)
			}
			if list := r.audit(t); len(list) != seen+1 || len(list[seen].Resource) > 4<<10 ||
				strings.Contains(name, "method") && !strings.Contains(string(list[seen].Detail), "method") {
				t.Errorf("%s: %d records, %.300s", name, len(list)-seen, list[len(list)-1].Resource)
			} else if !strings.Contains(list[seen].Resource, "://a.test:") {
				t.Errorf("%s: the record does not say where: %.300s", name, list[seen].Resource)
			}
		}
	}
}

// Broken if a part of a request leaves that is not counted: its method, its host, or names that a client announces.
func TestEveryByteCounts(t *testing.T) {
	const room = 4000
	r := newRig(t, budgeted(outboard.NetBudget{Bytes: room}))
	r.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	sent := 0
	for range room {
		n := len("MKWORKSPACE-AND-SOMETHING-LONGER /x HTTP/1.1\r\nHost: a.test:12345\r\n\r\n")
		code, _ := do(t, r.client(false), "MKWORKSPACE-AND-SOMETHING-LONGER", r.http("a.test", "/x"),
			http.Header{"User-Agent": {""}})
		if code == 429 {
			break
		}
		sent += n
	}
	if sent == 0 || sent > room {
		t.Errorf("%d bytes left with a budget of %d", sent, room)
	}
	var trailer http.Header
	r = newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) { trailer = q.Trailer })
	c := r.wire(t, portOf(r.plain), false)
	c.say("POST /x", "Transfer-Encoding: chunked\r\nTrailer: X-Data\r\n\r\n1\r\nx\r\n0\r\nX-Data: 1\r\n\r\n")
	if resp, _ := c.hear("POST"); resp.StatusCode != 200 || len(trailer) != 0 {
		t.Errorf("%s, and the server got the trailers %v", resp.Status, trailer)
	}
}

// Broken if a server can bring a secret back in the name of a header, of an answer, an interim one, a trailer or
// a handshake, or in the words beside a status, or where it sends a client next.
func TestNamesAreCovered(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")), scrubbing())
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		secret := strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")
		w.Header().Set("X-"+secret, "1")
		w.Header().Set("X-Kept", "1")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Location", "https://"+strings.ToUpper(secret)+".example/"+secret)
		w.Header().Set("Trailer", "Z-"+secret)
		w.WriteHeader(http.StatusFound)
		fmt.Fprint(w, "ok")
		w.Header().Set("Z-"+secret, "1")
		w.Header().Set(http.TrailerPrefix+"Y-"+secret, secret)
	})
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
		secret := strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, strings.Replace(strings.TrimSuffix(opened, "\r\n"), "Switching Protocols", secret,
			1)+"X-"+secret+": 1\r\n\r\n")
	})
	seen := func(what string, status string, list ...http.Header) {
		t.Helper()
		if text := strings.ToLower(fmt.Sprint(status, list)); strings.Contains(text, streamSecret) ||
			!strings.Contains(text, strings.Repeat("*", len(streamSecret))) {
			t.Errorf("%s: %s", what, text)
		}
	}
	for _, proxy := range []bool{false, true} {
		for _, url := range []string{r.http("a.test", "/"), r.https("a.test", "/")} {
			for _, more := range []http.Header{{}, {"Te": {"trailers"}}} {
				q, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
				if err != nil {
					t.Fatal(err)
				}
				q.Header = more
				resp, err := r.client(proxy).Do(q)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = fmt.Fscan(resp.Body, new(string))
				_, _ = resp.Body.Read(make([]byte, 1)) // the end, with the trailers
				resp.Body.Close()
				seen(url, resp.Status, resp.Header, resp.Trailer)
				if resp.Header.Get("X-Kept") != "1" {
					t.Errorf("%s: the control is gone: %v", url, resp.Header)
				}
			}
		}
	}
	_, _, resp := r.head(t, "GET", opening)
	seen("a handshake", resp.Status, resp.Header)
}

// Broken if somebody is asked about the sandbox's own machine, or a program is not told that it must go there by
// itself.
func TestItselfIsNobodysQuestion(t *testing.T) {
	a := &asker{says: egress.Asked{Approval: "apr_1"}}
	r := newRig(t, rules(anyPort("a.test")), func(cfg *egress.Config, _ *outboard.SessionConfig) {
		cfg.Asker = a
		cfg.Guard.Private = nil
	})
	for _, host := range []string{"127.0.0.1", "127.0.1.1", "127.0.0.2", "0.0.0.0", "[::1]", "[::]", "localhost",
		"LOCALHOST.", "app.localhost",
		"ip6-localhost", "ip6-loopback", "outboard"} {
		code, body := get(t, r.client(true), "http://"+host+":8000/")
		if got := a.take(); code != 403 || len(got) != 0 || !strings.Contains(body, "your own machine") ||
			!strings.Contains(body, "no_proxy=") || strings.Contains(body, "net allow") {
			t.Errorf("%s: %d %s, asked %q", host, code, body, got)
		}
	}
	// no hosts
	for _, host := range []string{"127.1", "127.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "0",
		"[::ffff:127.0.0.1]"} {
		code, body := get(t, r.client(true), "http://"+host+":8000/")
		if got := a.take(); code != 400 || len(got) != 0 || !strings.Contains(body, "the host is not one") {
			t.Errorf("%s: %d %s, asked %q", host, code, body, got)
		}
	}
	if code, body := get(t, r.client(true), "https://localhost:8443/"); code != 0 ||
		!strings.Contains(body, "Forbidden") || len(a.take()) != 0 {
		t.Errorf("a tunnel: %d %s", code, body)
	}
	for _, host := range []string{"other.test", "localhost.test", "127.test", "127.0.0.1.test"} { // the controls
		if code, _ := get(t, r.client(true), "http://"+host+":8000/"); code != 403 || len(a.take()) != 1 {
			t.Errorf("%s: %d, and nobody was asked", host, code)
		}
	}
	open := newRig(t, func(cfg *egress.Config, s *outboard.SessionConfig) {
		cfg.Guard.Private, s.Env.Networking.Mode = nil, "unrestricted"
	})
	if code, body := get(t, open.client(true), "http://127.0.0.1:8000/"); code != 403 ||
		!strings.Contains(body, "your own machine") {
		t.Errorf("unrestricted: %d %s", code, body)
	}
}

// Broken if a placeholder in a path or a query is not replaced where its credential says so, is taken away,
// comes out in another way than it must be written there, is on record with its value, or leaves unreplaced.
func TestPlaceholdersInPathAndQuery(t *testing.T) {
	const ph, value = "outboard0123456789abcdef0123456789abcdef01234567", "12:a/b c?&%.."
	injection := func(p egress.Placeholder) option {
		p.Placeholder, p.Value, p.Name = ph, value, "BOT"
		return credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			Replace:    []egress.Placeholder{p},
			StripQuery: []string{"key", "access_token"}, Scrub: []string{value}}})
	}
	for name, c := range map[string]struct {
		at           egress.Placeholder
		path, arrive string // what arrives, escaped; "" = it is refused
	}{
		"in the path": {egress.Placeholder{Path: true}, "/bot" + ph + "/getMe",
			"/bot12:a%2Fb%20c%3F&%25%2E%2E/getMe"},
		"in a parameter": {egress.Placeholder{Query: true}, "/x?p=" + ph + "&q=1",
			"/x?p=12%3Aa%2Fb+c%3F%26%25..&q=1"},
		"in one that holds keys": {egress.Placeholder{Query: true}, "/x?key=" + ph + "&access_token=" + ph,
			"/x?key=12%3Aa%2Fb+c%3F%26%25..&access_token=12%3Aa%2Fb+c%3F%26%25.."},
		"another key beside it": {egress.Placeholder{Query: true}, "/x?key=their-own-key-0123456789abc&p=" + ph,
			"/x?p=12%3Aa%2Fb+c%3F%26%25.."},
		"none":                       {egress.Placeholder{Header: true}, "/x?p=1", "/x?p=1"},
		"in a path that is not for":  {egress.Placeholder{Header: true, Query: true}, "/bot" + ph + "/getMe", ""},
		"in a query that is not for": {egress.Placeholder{Header: true, Path: true}, "/x?p=" + ph, ""},
		"in a key that is not for":   {egress.Placeholder{Header: true}, "/x?key=" + ph, ""},
		"in another spelling":        {egress.Placeholder{Query: true}, "/x?p=%6F" + ph[1:], ""},
	} {
		r := newRig(t, rules(anyPort("a.test")), injection(c.at))
		got := ""
		r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) { got = q.RequestURI })
		for _, more := range []http.Header{{}, {"Te": {"trailers"}}} {
			got = ""
			code, body := do(t, r.client(false), "GET", r.http("a.test", c.path), more)
			if got != c.arrive || (code == 200) != (c.arrive != "") {
				t.Errorf("%s: %d %s, %q arrived, want %q", name, code, body, got, c.arrive)
			}
			if c.arrive == "" && (code != 403 || !strings.Contains(body, "BOT")) {
				t.Errorf("%s: it is not told why: %d %s", name, code, body)
			}
		}
		for _, a := range r.audit(t) {
			if strings.Contains(a.Resource+string(a.Detail), "12:a") ||
				strings.Contains(a.Resource+string(a.Detail), "12%3Aa") {
				t.Errorf("%s: on record is %s", name, a.Resource)
			}
		}
	}
	// A header that a credential of bodies alone does not replace.
	r := newRig(t, rules(anyPort("a.test")), injection(egress.Placeholder{Body: true}))
	if code, body := do(t, r.client(false), "GET", r.http("a.test", "/x"), http.Header{"X-Key": {ph}}); code != 403 ||
		!strings.Contains(body, "headers") {
		t.Errorf("a header: %d %s", code, body)
	}
}

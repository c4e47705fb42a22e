package egress_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if a request can ask for a method, by a header or a parameter, that the rules would not let it have by
// its first line; or one that asks for what they allow is refused.
func TestMethodOverrides(t *testing.T) {
	r := newRig(t, rules(outboard.NetRule{Host: "a.test", Port: -1, Methods: []string{"GET", "POST"}},
		anyPort("b.test"),
		outboard.NetRule{Host: "c.test", Port: -1}, outboard.NetRule{Host: "c.test", Port: -1,
			Methods: []string{"DELETE"}, Deny: true}))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) })
	const form, parts, text = "application/x-www-form-urlencoded", "multipart/form-data; boundary=bb", "application/json"
	part := func(name, value string) string {
		return "--bb\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n--bb--\r\n"
	}
	send := func(host, query, kind, body string, header http.Header) (int, string) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), "POST", r.http(host, "/x"+query), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header = header.Clone()
		if q.Header == nil {
			q.Header = http.Header{}
		}
		if kind != "" {
			q.Header.Set("Content-Type", kind)
		}
		resp, err := r.client(false).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, "a=1&_method=DELETE")
	z.Close()
	for name, c := range map[string]struct {
		query, kind, body string
		header            http.Header
	}{
		"X-HTTP-Method-Override":    {header: http.Header{"X-Http-Method-Override": {"DELETE"}}},
		"X-Method-Override":         {header: http.Header{"X-Method-Override": {"DELETE"}}},
		"X-HTTP-Method":             {header: http.Header{"X-Http-Method": {"DELETE"}}},
		"in another case":           {header: http.Header{"x-http-METHOD-override": {" delete "}}},
		"with underscores":          {header: http.Header{"X_HTTP_Method_Override": {"DELETE"}}},
		"the second of two":         {header: http.Header{"X-Http-Method-Override": {"POST", "DELETE"}}},
		"what is no method":         {header: http.Header{"X-Http-Method-Override": {"GET, DELETE"}}},
		"in the query":              {query: "?a=1&_method=DELETE"},
		"in the query, escaped":     {query: "?%5fmethod=%44ELETE"},
		"in the query, a semicolon": {query: "?a=1;_method=DELETE"},
		"the header in the query":   {query: "?X-HTTP-Method-Override=DELETE"},
		"in a form":                 {kind: form, body: "a=1&_method=DELETE"},
		"in a form, lower case":     {kind: form, body: "_method=delete&a=1"},
		"in a form, as PHP reads":   {kind: form, body: ".method=DELETE"},
		"in a form, an array":       {kind: form, body: "_method%5B%5D=DELETE"},
		"in a long form":            {kind: form, body: "a=" + strings.Repeat("x", 40_000) + "&_method=DELETE"},
		"in a compressed form": {kind: form, body: packed.String(),
			header: http.Header{"Content-Encoding": {"gzip"}}},
		"in parts":               {kind: parts, body: part("_method", "DELETE")},
		"in JSON":                {kind: text, body: `{"a":1,"_method":"DELETE"}`},
		"in JSON, escaped":       {kind: text, body: `{"\u005fmethod":"DELETE"}`},
		"a form nobody can read": {kind: form, body: "xxx", header: http.Header{"Content-Encoding": {"br"}}},
	} {
		before := r.hits.Load()
		for _, host := range []string{"a.test", "c.test"} {
			if code, why := send(host, c.query, c.kind, c.body, c.header); code != 403 && code != 415 ||
				!strings.HasPrefix(why, "outboard: ") {
				t.Errorf("%s, %s: %d %s", name, host, code, why)
			}
		}
		if n := r.hits.Load() - before; n != 0 && len(c.body) < 32<<10 {
			t.Errorf("%s: %d arrived", name, n)
		}
	}
	for name, c := range map[string]struct {
		host, query, kind, body string
		header                  http.Header
	}{
		"where no rule names methods": {host: "b.test", query: "?_method=DELETE", kind: form, body: "_method=DELETE",
			header: http.Header{"X-Http-Method-Override": {"DELETE"}}},
		"an allowed method": {host: "a.test", query: "?_method=post", kind: form, body: "_method=GET",
			header: http.Header{"X-Http-Method-Override": {"GET"}}},
		"another form": {host: "a.test", query: "?method=DELETE", kind: form,
			body: "method=DELETE&the_method=DELETE"},
		"another kind of body": {host: "a.test", kind: "application/octet-stream", body: "_method=DELETE",
			header: http.Header{"Content-Encoding": {"br"}}},
		"a long body": {host: "a.test", kind: text, body: `{"a":"` + strings.Repeat("_method", 10_000) +
			`"}`},
		"a form in parts": {host: "a.test", kind: parts, body: part("file", "_method=DELETE")},
	} {
		before := r.hits.Load()
		if code, why := send(c.host, c.query, c.kind, c.body, c.header); code != 200 || r.hits.Load() != before+1 {
			t.Errorf("%s: %d %s", name, code, why)
		}
	}
}

// Broken if a client can tell a server, by a header that is a proxy's word, that another path, host or method
// was asked for than was judged.
func TestHeadersOfProxiesAreRemoved(t *testing.T) {
	r := newRig(t, rules(outboard.NetRule{Host: "a.test", Port: -1, Path: "/pub/**"}))
	seen := make(chan http.Header, 1)
	r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) { seen <- q.Header.Clone() })
	for _, name := range []string{"X-Original-URL", "X-Rewrite-URL", "X-Original-URI", "X_Original_URL",
		"X-Forwarded-Host", "X-Forwarded-Uri", "X-Forwarded-Path",
		"X-Forwarded-Prefix", "X-Forwarded-Method", "X-Forwarded-Port", "x_forwarded_host", "Forwarded", "X-Host", "X-Original-Host", "X-HTTP-Host-Override",
		"X-Envoy-Original-Path"} {
		for _, more := range []http.Header{{}, {"Te": {"trailers"}}} { // by either way through the gateway
			h := more.Clone()
			h[name], h["X-Kept"] = []string{"/admin"}, []string{"1"}
			if code, body := do(t, r.client(false), "GET", r.http("a.test", "/pub/x"), h); code != 200 {
				t.Fatalf("%s: %d %s", name, code, body)
			}
			got := <-seen
			for k, v := range got {
				if strings.Contains(strings.Join(v, ""), "admin") {
					t.Errorf("%s: %s arrived", name, k)
				}
			}
			if got.Get("X-Kept") != "1" {
				t.Errorf("%s: the control is gone: %v", name, got)
			}
		}
	}
}

// Broken if COPY and MOVE of WebDAV take something to where no rule lets the sandbox.
func TestDestinations(t *testing.T) {
	r := newRig(t, rules(outboard.NetRule{Host: "a.test", Port: -1, Path: "/pub/**"}))
	r.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	for to, want := range map[string]int{"/pub/y": 200, r.http("a.test", "/pub/y"): 200, "/admin/y": 403,
		r.http("a.test", "/admin/y"): 403,
		r.http("b.test", "/pub/y"):   403, "/pub/../admin": 400, "x": 400} {
		if code, body := do(t, r.client(false), "MOVE", r.http("a.test", "/pub/x"),
			http.Header{"Destination": {to}}); code != want {
			t.Errorf("%s: %d %s, want %d", to, code, body, want)
		}
	}
}

// Broken if a policy or a credential is not asked about what else a server could take a request for.
func TestReadingsAreJudgedByPolicies(t *testing.T) {
	var asked []string
	r := newRig(t, rules(anyPort("a.test")),
		func(c *egress.Config, _ *outboard.SessionConfig) { c.Policy = methods{"DELETE", &asked} })
	r.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	for method, want := range map[string]int{"PUT": 200, "DELETE": 403} {
		if code, body := do(t, r.client(false), "POST", r.http("a.test", "/"),
			http.Header{"X-Http-Method-Override": {method}}); code != want {
			t.Errorf("%s: %d %s, want %d", method, code, body, want)
		}
	}
	if got := fmt.Sprint(asked); !strings.Contains(got, "PUT") || !strings.Contains(got, "POST") {
		t.Errorf("asked about %s", got)
	}
	last := r.audit(t)
	if !strings.Contains(string(last[0].Detail)+string(last[1].Detail), `"also_as":"`) {
		t.Errorf("no record says what else it was: %s %s", last[0].Detail, last[1].Detail)
	}
}

// methods is a policy that denies one, and remembers what it was asked about.
type methods struct {
	deny  string
	asked *[]string
}

func (m methods) Decide(_ context.Context, r egress.Request) (egress.Verdict, error) {
	*m.asked = append(*m.asked, r.Method)
	return egress.Verdict{Allow: r.Method != m.deny, Rule: "methods", Reason: "not this method"}, nil
}

package egress_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if a redirect takes a credential to another host, past the rules, or is followed by the gateway itself.
func TestRedirects(t *testing.T) {
	const secret = "s3cret-value-of-the-vault"
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			Set: map[string]string{"Authorization": "Bearer " + secret}, Scrub: []string{secret}}}))
	var mu sync.Mutex
	seen := map[string]string{}
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		host, _, _ := strings.Cut(q.Host, ":")
		mu.Lock()
		seen[host+q.URL.Path] = q.Header.Get("Authorization")
		mu.Unlock()
		if to := q.URL.Query().Get("to"); to != "" {
			http.Redirect(w, q, to, http.StatusTemporaryRedirect)
		}
	})
	for _, proxy := range []bool{true, false} {
		clear(seen)
		c := r.client(proxy)
		if status, _ := get(t, c, r.http("a.test", "/start?to="+r.http("b.test", "/next"))); status != 307 ||
			len(seen) != 1 {
			t.Errorf("proxy %v: the gateway answered %d and made %d requests", proxy, status, len(seen))
		}
		c.CheckRedirect = nil // a client that follows, through two hosts and back
		chain := r.http("a.test", "/start?to="+r.http("b.test", "/next?to="+r.http("a.test", "/end")))
		if status, body := get(t, c, chain); status != 200 {
			t.Errorf("proxy %v: the chain ends with %d %s", proxy, status, body)
		}
		if seen["a.test/start"] != "Bearer "+secret || seen["a.test/end"] != "Bearer "+secret {
			t.Errorf("proxy %v, the control: where it belongs the credential is %q, %q", proxy, seen["a.test/start"],
				seen["a.test/end"])
		}
		if got, ok := seen["b.test/next"]; !ok || got != "" {
			t.Errorf("proxy %v: the other host was sent %q (reached: %v)", proxy, got, ok)
		}
		before := r.hits.Load()
		if status, _ := get(t, c, r.http("a.test", "/start?to="+r.http("evil.test", "/"))); status != 403 ||
			r.hits.Load() != before+1 {
			t.Errorf("proxy %v: a redirect to a denied host: %d, %d arrived", proxy, status, r.hits.Load()-before)
		}
	}
}

// Broken if a client can resolve names by itself at a public resolver, over HTTPS or TLS, by its name or its
// address: what it asks for would leave in its questions.
func TestPublicResolvers(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	for _, host := range []string{"dns.google", "cloudflare-dns.com", "dns.quad9.net", "8.8.8.8", "1.1.1.1",
		"9.9.9.9"} {
		for _, port := range []string{"443", "853", "53"} {
			for _, proxy := range []bool{true, false} {
				if proxy || port == "443" { // no other port leads anywhere without the proxy
					if status, body := get(t, r.client(proxy),
						"https://"+host+":"+port+"/dns-query?dns=c2VjcmV0"); status == 200 ||
						strings.Contains(body, "served") {
						t.Errorf("%s:%s, proxy %v: %d %s", host, port, proxy, status, body)
					}
				}
			}
		}
	}
	if n := r.hits.Load(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
	refused := map[string]int{}
	for _, rec := range r.audit(t) {
		if rec.Decision == outboard.Refused {
			refused[rec.Resource]++
		}
	}
	if refused["CONNECT https://dns.google/"] != 1 || refused["CONNECT https://1.1.1.1:853/"] != 1 {
		t.Errorf("the audit has %v", refused)
	}
	if status, body := get(t, r.client(true), r.https("a.test", "/dns-query")); status != 200 || body != "served" {
		t.Errorf("the control: %d %s", status, body)
	}
}

// Broken if a name that no rule allows is looked up: what is asked for reaches whoever answers for the domain,
// data in its labels included.
func TestDeniedNamesAreNotResolved(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	r := newRig(t, rules(anyPort("a.test")), func(c *egress.Config, _ *outboard.SessionConfig) {
		usual := c.Guard.Resolve
		c.Guard.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			mu.Lock()
			asked = append(asked, host)
			mu.Unlock()
			return usual(ctx, host)
		}
	})
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	for _, proxy := range []bool{true, false} {
		for _, host := range []string{"b.test", "c2VjcmV0.x.evil.test", "secret.a.test", "a.test.evil.test"} {
			if status, body := get(t, r.client(proxy), r.http(host, "/")); status != 403 {
				t.Errorf("%s: %d %s", host, status, body)
			}
			if _, body := get(t, r.client(proxy), r.https(host, "/")); strings.Contains(body, "served") {
				t.Errorf("%s over TLS is served", host)
			}
		}
	}
	if len(asked) != 0 {
		t.Errorf("looked up: %v", asked)
	}
	if status, body := get(t, r.client(true), r.http("a.test", "/")); status != 200 || body != "served" ||
		len(asked) == 0 {
		t.Errorf("the control: %d %s, looked up %v", status, body, asked)
	}
}

// Broken if a tool inside uses an account of its own at a host that the session has a credential for, or if text
// that only looks like a placeholder is changed or refused.
func TestForeignTokens(t *testing.T) {
	const ph, foreign = "sk-outboard0123456789abcdef0123456789abcdef01234567", "sk-attackers-own-key-0123456789"
	headers, query := []string{"Authorization", "X-Api-Key", "Cookie"}, []string{"access_token", "key"}
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			Strip: headers, StripQuery: query, Replace: []egress.Placeholder{{Placeholder: ph, Value: "the-real-key",
				Header: true}}, Scrub: []string{"the-real-key"}}}))
	var seen http.Header
	var rest, body string
	r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		seen, rest, body = q.Header.Clone(), q.URL.RawQuery, string(b)
	})
	basic := func(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }
	for _, c := range []struct{ name, value, want string }{
		{"Authorization", "Bearer " + ph, "Bearer the-real-key"}, // the controls
		{"Authorization", basic("me:" + ph), basic("me:the-real-key")},
		{"Authorization", `Token token="` + ph + `"`, `Token token="the-real-key"`},
		{"Authorization", basic("somebody.of-us@mail.example.com:" + ph),
			basic("somebody.of-us@mail.example.com:the-real-key")},
		{"X-Api-Key", ph, "the-real-key"},
		{"X-Other", "any text of any length at all", "any text of any length at all"},
		{"Authorization", "Bearer " + foreign, ""},
		{"authorization", "bearer " + foreign, ""},
		{"Authorization", basic("me:" + foreign), ""},
		{"Authorization", basic(foreign + ":" + ph), ""},
		{"Authorization", "Bearer " + foreign + ", Bearer " + ph, ""},
		{"Cookie", "session=" + foreign + "; x=" + ph, ""},
		{"X-Api-Key", foreign, ""},
		{"X-Api-Key", ph[:len(ph)-1], ""}, // a placeholder that was cut is none
	} {
		for _, proxy := range []bool{true, false} {
			status, text := do(t, r.client(proxy), "GET", r.http("a.test", "/?q=1"), http.Header{c.name: {c.value}})
			if got := seen.Get(c.name); status != 200 || got != c.want {
				t.Errorf("%s: %s: %d %s, the server saw %q, want %q", c.name, c.value, status, text, got, c.want)
			}
		}
	}
	if status, _ := get(t, r.client(true),
		r.http("a.test", "/?q=1&access_token="+foreign+"&KEY="+foreign+"&%6bey="+foreign)); status != 200 ||
		rest != "q=1" {
		t.Errorf("in the query: %d, the server saw %q", status, rest)
	}
	// some servers end a parameter by a semicolon
	for query, want := range map[string]string{"a=1;key=" + foreign: "a=1", "key=x;a=1;;b&c=%3b": "a=1;;b&c=%3b",
		"&a;": "&a;", "keys=1;a": "keys=1;a"} {
		w := r.wire(t, portOf(r.plain), false)
		w.say("GET /?"+query, "\r\n")
		if w.hear("GET"); rest != want {
			t.Errorf("in the query %q: the server saw %q, want %q", query, rest, want)
		}
	}
	if do(t, r.client(true), "GET", r.http("b.test", "/"),
		http.Header{"Authorization": {"Bearer " + foreign}}); seen.Get("Authorization") != "Bearer "+foreign {
		t.Errorf("the control: at a host without a credential the server saw %q", seen.Get("Authorization"))
	}
	// A prompt that speaks of placeholders, or has one in it, is text.
	prompt := `{"text":"sk-outboard is how they begin, such as ` + ph + ` or sk-outboard0123"}`
	resp, err := r.client(true).Post(r.http("a.test", "/"), "application/json", strings.NewReader(prompt))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || body != prompt {
		t.Errorf("text: %d, the server saw %s", resp.StatusCode, body)
	}
}

// Broken if a request with a key of the client's own in its body reaches a host that has a placeholder, or an
// honest one does not, short or streamed.
func TestForeignKeyInABody(t *testing.T) {
	const ph, foreign = "sk-outboard0123456789abcdef0123456789abcdef01234567", "sk-attackers-own-key-0123456789"
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			RefuseBody: []string{"api_key"}, Replace: []egress.Placeholder{{Placeholder: ph, Value: "the-real-key",
				Body: true}}}}))
	var mu sync.Mutex
	got := map[string]string{} // by path: what of a refused body has got through may be read after the refusal
	r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		mu.Lock()
		got[q.URL.Path] += string(b)
		mu.Unlock()
	})
	filler := strings.Repeat("x", 200_000)
	for i, c := range []struct {
		name, host, body string
		streamed         bool
		status           int
	}{
		{"short", "a.test", `{"api_key":"` + foreign + `"}`, false, 403},
		{"streamed", "a.test", `{"x":"` + filler + `","api_key":"` + foreign + `"}`, true, 403},
		{"the placeholder", "a.test", `{"api_key":"` + ph + `"}`, false, 200},
		{"the placeholder, streamed", "a.test", `{"x":"` + filler + `","api_key":"` + ph + `"}`, true, 200},
		{"a host without one", "b.test", `{"api_key":"` + foreign + `"}`, false, 200},
	} {
		plain, sealed := fmt.Sprintf("/%s/%d/plain", c.host, i), fmt.Sprintf("/%s/%d/sealed", c.host, i)
		for path, at := range map[string]string{plain: r.http(c.host, plain), sealed: r.https(c.host, sealed)} {
			var body io.Reader = strings.NewReader(c.body)
			if c.streamed {
				body = io.MultiReader(body) // of no known length
			}
			resp, err := r.client(true).Post(at, "application/json", body)
			if err != nil {
				t.Fatal(c.name, err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			mu.Lock()
			arrived := got[path]
			mu.Unlock()
			if resp.StatusCode != c.status || strings.Contains(arrived, foreign[:6]) && c.host == "a.test" {
				t.Errorf("%s: %d %.200s; %d bytes arrived", c.name, resp.StatusCode, text, len(arrived))
			}
			if want := strings.ReplaceAll(c.body, ph, "the-real-key"); c.status == 200 && arrived != want {
				t.Errorf("%s: %.200s arrived", c.name, arrived)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for path, body := range got { // now also what came late
		if strings.HasPrefix(path, "/a.test/") && strings.Contains(body, foreign[:6]) {
			t.Errorf("a key of the client's own came to %s", path)
		}
	}
}

package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// wire sends a request as it is written, over a connection of its own, and returns the answer: what a browser
// sends, no client library would.
func (b *bench) wire(method, path, host, body string, headers ...string) *http.Response {
	b.t.Helper()
	u, err := url.Parse(b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	if host == "" {
		host = u.Host
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", method, path, host, len(body))
	for _, h := range headers {
		text.WriteString(h + "\r\n")
	}
	if _, err := io.WriteString(conn, text.String()+"\r\n"+body); err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	b.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// Fails if a page whose name was pointed at this machine (DNS rebinding) gets an answer. The page is its own
// origin, so nothing but the name tells.
func TestRebinding(t *testing.T) {
	b := newBench(t)
	own, _ := url.Parse(b.url)
	_, port, _ := net.SplitHostPort(own.Host)
	key := "X-Api-Key: " + b.key
	// the control
	for _, host := range []string{own.Host, "localhost:" + port, "LOCALHOST:" + port, "localhost.:" + port, "[::1]:" +
		port} {
		if resp := b.wire("GET", "/v1/agents", host, "", key, "Sec-Fetch-Site: same-origin"); resp.StatusCode != 200 {
			t.Errorf("the control %s: %d", host, resp.StatusCode)
		}
	}
	for _, host := range []string{"evil.test:" + port, "evil.test", "localhost.evil.test:" + port,
		"127.0.0.1.evil.test:" + port, "evil.test.:" + port,
		"127.0.0.1.nip.io:" + port, "notlocalhost:" + port, "localhost:80:80", "1.evil", "0x7f.1:" +
			port, "2130706433:" + port, "localhost%2eevil.test"} {
		for _, path := range []string{"/healthz", "/v1/agents", "/v1/outboard/login", "/nowhere"} {
			resp := b.wire("GET", path, host, "", key, "Origin: http://"+host, "Sec-Fetch-Site: same-origin",
				"X-Forwarded-Host: localhost", "Forwarded: host=localhost")
			if resp.StatusCode != 403 && resp.StatusCode != 400 { // 400 is net/http's own for a name that is none
				t.Errorf("%s at %s: %d", path, host, resp.StatusCode)
			}
		}
	}
	if resp := b.wire("GET", "http://evil.test/v1/agents", "localhost", "", key); resp.StatusCode != 403 {
		t.Errorf("an address in the request line: %d", resp.StatusCode)
	}
}

// Fails if a page of another origin can change something, read something, or open a WebSocket, at any route and
// by any method; or if an answer allows it to.
func TestCrossSite(t *testing.T) {
	b := newBench(t)
	own, _ := url.Parse(b.url)
	key := "X-Api-Key: " + b.key // held by no page: with it, only the origin is wrong
	text := "Content-Type: text/plain"
	if resp := b.wire("POST", "/v1/agents", "", `{"name":"a","model":"script/steps"}`, key, text, "Origin: "+b.url,
		"Sec-Fetch-Site: same-origin"); resp.StatusCode != 200 {
		t.Fatalf("the control: %d", resp.StatusCode)
	}
	// typed into the address bar
	if resp := b.wire("GET", "/v1/agents", "", "", key, "Sec-Fetch-Site: none"); resp.StatusCode != 200 {
		t.Fatalf("the control: %d", resp.StatusCode)
	}
	upgrade := []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}
	pages := map[string][]string{
		"another site":                 {"Origin: https://evil.test", "Sec-Fetch-Site: cross-site"},
		"another site, an old browser": {"Origin: https://evil.test"},
		"a sandboxed frame":            {"Origin: null"},
		"a sandboxed frame, new":       {"Origin: null", "Sec-Fetch-Site: cross-site"},
		"another port of this host":    {"Origin: http://127.0.0.1:1", "Sec-Fetch-Site: same-site"},
		"a page of a sandbox":          {"Origin: http://3000-box.localhost:7170", "Sec-Fetch-Site: same-site"},
		"an image or a form, no-cors":  {"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"},
		"another scheme":               {"Origin: https://" + own.Host + ".evil.test"},
		"a WebSocket":                  append([]string{"Origin: https://evil.test"}, upgrade...),
		"a WebSocket, new": append([]string{"Origin: https://evil.test", "Sec-Fetch-Site: cross-site",
			"Sec-Fetch-Mode: websocket"}, upgrade...),
	}
	routes := []string{"POST /v1/agents", "GET /v1/agents", "GET /v1/sessions/sesn_1/events/stream",
		"DELETE /v1/agents/agent_1", "PUT /v1/boxes/sbx_1/files/content",
		"POST /v1/outboard/login/start", "POST /v1/outboard/login", "GET /healthz", "HEAD /healthz", "OPTIONS /v1/agents", "POST /v1/kills", "GET /nowhere"}
	for name, headers := range pages {
		for _, route := range routes {
			method, path, _ := strings.Cut(route, " ")
			resp := b.wire(method, path, "", `{}`, append([]string{key, text}, headers...)...)
			if resp.StatusCode != 403 {
				t.Errorf("%s, %s: %d", name, route, resp.StatusCode)
			}
			for h := range resp.Header {
				if strings.HasPrefix(h, "Access-Control-") || h == "Set-Cookie" {
					t.Errorf("%s, %s: the answer has %s", name, route, h)
				}
			}
			if resp.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" ||
				resp.Header.Get("X-Content-Type-Options") != "nosniff" ||
				!strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
				t.Errorf("%s, %s: headers %v", name, route, resp.Header)
			}
		}
	}
	preflight := b.wire("OPTIONS", "/v1/agents", "", "", "Origin: https://evil.test",
		"Access-Control-Request-Method: POST",
		"Access-Control-Request-Headers: x-api-key,content-type", "Access-Control-Request-Private-Network: true")
	if preflight.StatusCode != 403 || preflight.Header.Get("Access-Control-Allow-Origin") != "" ||
		preflight.Header.Get("Access-Control-Allow-Private-Network") != "" {
		t.Errorf("preflight: %d %v", preflight.StatusCode, preflight.Header)
	}
	if resp := b.wire("GET", "/v1/agents", "", "", append([]string{key, "Origin: " + b.url},
		upgrade...)...); resp.StatusCode == http.StatusSwitchingProtocols {
		t.Error("a WebSocket was opened, and nobody speaks one")
	}
}

// Fails if the routes without a key take a body that a page sends anywhere without asking first, or a key is
// read from an address, which pages, logs and histories see.
func TestSimpleRequests(t *testing.T) {
	b := newBench(t)
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
		"", "text/plain; application/json", "application/jsonx"} {
		for _, path := range []string{"/v1/outboard/login/start", "/v1/outboard/login"} {
			resp := b.wire("POST", path, "", `{}`, "Content-Type: "+kind)
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != 400 || !strings.Contains(string(body), "content type") {
				t.Errorf("%s as %q: %d %s", path, kind, resp.StatusCode, body)
			}
		}
	}
	// the control: past that check
	resp := b.wire("POST", "/v1/outboard/login", "", `{}`, "Content-Type: application/json; charset=utf-8")
	if body, _ := io.ReadAll(resp.Body); strings.Contains(string(body), "content type") {
		t.Errorf("JSON: %s", body)
	}
	for _, q := range []string{"api_key=", "key=", "x-api-key=", "access_token=", "token="} {
		if resp := b.wire("GET", "/v1/agents?"+q+url.QueryEscape(b.key), "", ""); resp.StatusCode != 401 {
			t.Errorf("a key in the query as %s: %d", q, resp.StatusCode)
		}
	}
	for _, cookie := range []string{"x-api-key=", "session=", "Authorization=Bearer "} {
		if resp := b.wire("GET", "/v1/agents", "", "", "Cookie: "+cookie+b.key); resp.StatusCode != 401 {
			t.Errorf("a key in a cookie: %d", resp.StatusCode)
		}
	}
}

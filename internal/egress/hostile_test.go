package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// exchange writes text to a connection and returns the status of each answer, until the other side closes or
// none comes.
func exchange(t *testing.T, c net.Conn, text string) (codes []int, last string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return nil, err.Error()
	}
	for r := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return codes, last
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		codes, last = append(codes, resp.StatusCode), string(b)
		if resp.Close {
			return codes, last
		}
		_ = c.SetDeadline(time.Now().Add(time.Second)) // another answer would be there at once
	}
}

// raw sends bytes to the port of the plain server.
func (r *rig) raw(t *testing.T, text string) ([]int, string) {
	t.Helper()
	c, err := r.dial(portOf(r.plain))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return exchange(t, c, text)
}

// Broken if a request can be judged under one name and sent under another.
func TestOneName(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "served ", q.Host) })
	securePort, plainPort := portOf(r.secure), portOf(r.plain)
	for _, c := range []struct {
		tunnel, sni, host string
		status            int
	}{
		{"a.test", "a.test", "a.test", 200}, // the control
		{"a.test", "a.test", "A.Test.", 200},
		{"a.test", "b.test", "b.test", 421},
		{"a.test", "a.test", "b.test", 421},
		{"", "a.test", "a.test", 200}, // the control without a tunnel
		{"", "a.test", "b.test", 421},
		{"", "", "a.test", 0}, // no name at all: the handshake fails
	} {
		conn, err := r.dial(map[bool]int{true: 3128, false: securePort}[c.tunnel != ""])
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
		if c.tunnel != "" {
			fmt.Fprintf(conn, "CONNECT %s:%d HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", c.tunnel, securePort)
			if resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "CONNECT"}); err != nil ||
				resp.StatusCode != 200 {
				t.Fatalf("CONNECT: %v, %v", resp, err)
			}
		}
		before := r.hits.Load()
		tc := tls.Client(conn, &tls.Config{ServerName: c.sni, InsecureSkipVerify: true,
			NextProtos: []string{"http/1.1"}})
		status := 0
		if err := tc.Handshake(); err == nil {
			codes, _ := exchange(t, tc, fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n",
				c.host, securePort))
			if len(codes) == 1 {
				status = codes[0]
			}
		}
		conn.Close()
		if status != c.status && (c.status != 421 || status != 0) { // a handshake that fails is as good
			t.Errorf("tunnel %q, TLS name %q, Host %q: %d, want %d", c.tunnel, c.sni, c.host, status, c.status)
		}
		if n := r.hits.Load() - before; n != 0 && c.status != 200 {
			t.Errorf("tunnel %q, TLS name %q, Host %q: it was sent", c.tunnel, c.sni, c.host)
		}
	}
	for request, want := range map[string]int{
		// the control
		fmt.Sprintf("GET / HTTP/1.1\r\nHost: a.test:%d\r\nConnection: close\r\n\r\n",
			plainPort): 200,
		fmt.Sprintf("GET / HTTP/1.1\r\nHost: a.test:%d\r\nConnection: close\r\n\r\n",
			plainPort+1): 421,
		// HTTP: the line counts, and is judged
		fmt.Sprintf("GET http://b.test:%d/ HTTP/1.1\r\nHost: a.test:%[1]d\r\nConnection: close\r\n\r\n",
			plainPort): 200,
		fmt.Sprintf("GET http://u:p@a.test:%d/ HTTP/1.1\r\nHost: a.test:%[1]d\r\nConnection: close\r\n\r\n",
			plainPort): 400,
		fmt.Sprintf("CONNECT a.test:%d HTTP/1.1\r\nHost: a.test:%[1]d\r\nConnection: close\r\n\r\n",
			plainPort): 400,
		fmt.Sprintf("GET / HTTP/1.1\r\nHost: a.test\x00.b.test:%d\r\nConnection: close\r\n\r\n",
			plainPort): 400,
		fmt.Sprintf("GET / HTTP/1.1\r\nHost: a.test%%00.b.test:%d\r\nConnection: close\r\n\r\n",
			plainPort): 400,
		fmt.Sprintf("GET / HTTP/1.1\r\nHost: a.test:%d\r\nHost: c.test:%[1]d\r\nConnection: close\r\n\r\n",
			plainPort): 400,
		fmt.Sprintf("GET / HTTP/1.1\r\nHost : a.test:%d\r\nConnection: close\r\n\r\n",
			plainPort): 400,
		fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s.a.test:%d\r\nConnection: close\r\n\r\n", strings.Repeat("x", 300),
			plainPort): 400,
	} {
		before := r.hits.Load()
		codes, body := r.raw(t, request)
		if len(codes) != 1 || codes[0] != want {
			t.Errorf("%q: %v %s, want %d", request, codes, body, want)
		}
		if n := r.hits.Load() - before; n != 0 && want != 200 {
			t.Errorf("%q was sent", request)
		}
	}
}

// Broken if one connection carries a request that nobody judged.
func TestSmuggling(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/ok", func(_ http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) })
	r.mux.HandleFunc("/smuggled", func(http.ResponseWriter, *http.Request) { t.Error("a smuggled request arrived") })
	host := fmt.Sprintf("Host: a.test:%d\r\n", portOf(r.plain))
	other := "GET /smuggled HTTP/1.1\r\nHost: b.test\r\n\r\n"
	for name, text := range map[string]string{
		"CL and TE": "POST /ok HTTP/1.1\r\n" + host + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: "+
			"chunked\r\n\r\n0\r\n\r\n%s", 5+len(other), other),
		"two CL":        "POST /ok HTTP/1.1\r\n" + host + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + other,
		"odd TE":        "POST /ok HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + other,
		"folded header": "GET /ok HTTP/1.1\r\n" + host + "X: a\r\n b\r\nConnection: close\r\n\r\n",
		"second one":    "GET /ok HTTP/1.1\r\n" + host + "\r\n" + other,
	} {
		codes, _ := r.raw(t, text)
		if len(codes) == 0 || name == "second one" && (len(codes) != 2 || codes[0] != 200 || codes[1]/100 != 4) {
			t.Errorf("%s: %v", name, codes)
		}
	}
	if codes, _ := r.raw(t, "GET /ok HTTP/1.1\r\n"+host+"X: "+strings.Repeat("x", 1<<20)+"\r\n\r\n"); len(codes) != 1 ||
		codes[0] != 431 {
		t.Errorf("a header of a megabyte: %v", codes)
	}
}

// Broken if a name leads to an address that is nobody's business: private, of the host, or of a cloud's metadata
// service.
func TestAddresses(t *testing.T) {
	r := newRig(t, rules(outboard.NetRule{Host: "*", Port: -1}))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	for i, list := range [][]string{
		{"10.0.0.1"}, {"192.168.1.1"}, {"172.16.0.1"}, {"100.64.0.1"}, {"169.254.169.254"}, {"100.100.100.200"}, {"168.63.129.16"},
		{"0.0.0.0"}, {"224.0.0.1"}, {"fe80::1"}, {"fc00::1"}, {"fd00:ec2::254"}, {"::ffff:10.0.0.1"}, {"64:ff9b::a00:1"}, {"2002:a00:1::"},
		{"127.0.0.1", "10.0.0.1"}, // one good and one bad: neither
	} {
		name := fmt.Sprintf("n%d.test", i)
		r.mu.Lock()
		r.names[name] = list
		r.mu.Unlock()
		if status, body := get(t, r.client(true), r.http(name, "/")); status != 403 || strings.Contains(body, list[0]) {
			t.Errorf("%v: %d %s", list, status, body)
		}
	}
	for _, host := range []string{"169.254.169.254", "[fd00:ec2::254]", "2852039166", "0xa9fea9fe",
		"metadata.google.internal", "10.0.0.1"} {
		if status, body := get(t, r.client(true), r.http(host, "/")); status == 200 ||
			strings.Contains(body, "served") {
			t.Errorf("%s: %d %s", host, status, body)
		}
	}
	if n := r.hits.Load(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
	// The control, and what resolved well once does not count for the next connection.
	if status, body := get(t, r.client(true), r.http("turn.test", "/")); status != 200 || body != "served" {
		t.Errorf("control: %d %s", status, body)
	}
}

// Broken if a rule about paths can be got around by spelling a path in another way.
func TestPathTricks(t *testing.T) {
	r := newRig(t, rules(outboard.NetRule{Host: "a.test", Port: -1, Path: "/v1/**"}))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "served ", q.URL.Path) })
	send := func(path string) ([]int, string) {
		return r.raw(t, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: a.test:%d\r\nConnection: close\r\n\r\n", path,
			portOf(r.plain)))
	}
	if codes, body := send("/v1/x"); len(codes) != 1 || codes[0] != 200 || body != "served /v1/x" {
		t.Fatalf("control: %v %s", codes, body)
	}
	before := r.hits.Load()
	for _, path := range []string{"/admin", "/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E./admin", "/v1/..;/admin",
		"//admin", "/v1//../admin", "/v1%2f..%2fadmin",
		`/v1\..\admin`, "/v1/%5c..%5cadmin", "/v1/%252e%252e/admin", "/v1/%00", "/v1/x%0d%0aX: y", "/V1/x", "/v1/" +
			strings.Repeat("a", 300<<10)} {
		if codes, body := send(path); len(codes) != 1 || codes[0]/100 != 4 {
			t.Errorf("%.40q: %v %.100s", path, codes, body)
		}
	}
	if n := r.hits.Load() - before; n != 0 {
		t.Errorf("%d of them arrived", n)
	}
}

// fixed is the same injection for one host, and an error when it has none.
type fixed struct {
	host string
	inj  egress.Injection
	err  error
}

func (f fixed) For(_ context.Context, r egress.Request) (egress.Injection, error) {
	if r.Host != f.host {
		return egress.Injection{}, nil
	}
	return f.inj, f.err
}

func credentials(f fixed) option {
	return func(c *egress.Config, _ *outboard.SessionConfig) { c.Credentials = f }
}

// Broken if a client can keep a credential from being set, add one of its own, or see the secret in an answer.
func TestInjectedHeader(t *testing.T) {
	const secret = "s3cret-value-of-the-vault"
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			Set: map[string]string{"Authorization": "Bearer " +
				secret}, Strip: []string{"X-Api-Key"}, StripQuery: []string{"key"}, Refuse: []string{"placeholder-of-b"},
			Scrub: []string{secret}}}))
	var seen http.Header
	var query string
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		seen, query = q.Header.Clone(), q.URL.RawQuery
		w.Header().Set("X-Echo", q.Header.Get("Authorization"))
		auth := q.Header.Get("Authorization")
		fmt.Fprintln(w, auth, base64.StdEncoding.EncodeToString([]byte(auth)), hex.EncodeToString([]byte(auth)))
	})
	for _, h := range []http.Header{
		{}, {"Authorization": {"Bearer mine"}}, {"Authorization": {"Bearer mine",
			"Basic bWU6"}}, {"Connection": {"Authorization"}},
		{"Connection": {"close, authorization"}, "Authorization": {"Bearer mine"}}, {"X-Api-Key": {"mine"},
			"Proxy-Authorization": {"Bearer mine"}, "Outboard-Session": {"x"}},
	} {
		for _, proxy := range []bool{true, false} {
			status, body := do(t, r.client(proxy), "GET", r.http("a.test", "/?key=mine&q=1"), h)
			if status != 200 || len(seen["Authorization"]) != 1 || seen.Get("Authorization") != "Bearer "+secret {
				t.Errorf("%v: %d, the server saw %q", h, status, seen["Authorization"])
			}
			if query != "q=1" || seen.Get("X-Api-Key") != "" || seen.Get("Proxy-Authorization") != "" ||
				seen.Get("Outboard-Session") != "" {
				t.Errorf("%v: the server saw %q, %v", h, query, seen)
			}
			for _, form := range []string{secret, hex.EncodeToString([]byte("s3cret-value")),
				base64.StdEncoding.EncodeToString([]byte("Bearer " + secret))[12:30]} {
				if strings.Contains(body, form) {
					t.Errorf("the answer has the secret as %q: %s", form, body)
				}
			}
		}
	}
	// Controls: what is not the secret is not touched, and another host gets nothing of it.
	if status, body := do(t, r.client(true), "GET", r.http("b.test", "/"),
		http.Header{"Authorization": {"Bearer mine"}}); status != 200 || !strings.Contains(body, "Bearer mine") {
		t.Errorf("another host: %d %s", status, body)
	}
	before := r.hits.Load()
	if status, _ := do(t, r.client(true), "GET", r.http("a.test", "/"),
		http.Header{"X": {"placeholder-of-b"}}); status != 403 || r.hits.Load() != before {
		t.Errorf("a placeholder of another place: %d", status)
	}
}

// Broken if a request leaves though its credential or its record cannot be had.
func TestFailsClosed(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", err: errors.New("the vault is locked")}))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	if status, body := get(t, r.client(true), r.http("a.test", "/")); status != 503 ||
		!strings.Contains(body, "the vault is locked") {
		t.Errorf("without its credential: %d %s", status, body)
	}
	if status, _ := get(t, r.client(true), r.http("b.test", "/")); status != 200 || r.hits.Load() != 1 {
		t.Errorf("control: %d, %d arrived", status, r.hits.Load())
	}
	r.store.Close()
	if status, body := get(t, r.client(true), r.http("b.test", "/")); status != 503 || r.hits.Load() != 1 {
		t.Errorf("without a record: %d %s, %d arrived", status, body, r.hits.Load())
	}
}

package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// oldServer is a server that speaks HTTP/1.1 only, over TLS, and counts its connections.
func (r *rig) oldServer(t *testing.T) (port int, conns *atomic.Int64, s *httptest.Server) {
	t.Helper()
	conns = new(atomic.Int64)
	s = r.tlsServer(t, func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	})
	return portOf(s), conns, s
}

// tlsServer is a server that speaks HTTP/1.1 only, over TLS, and tells state of its connections.
func (r *rig) tlsServer(t *testing.T, state func(net.Conn, http.ConnState)) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(r.mux)
	s.TLS = &tls.Config{GetCertificate: r.world.leaf}
	s.Config.ConnState = state
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// wire is a connection inside, to a.test, on which requests are written by hand.
type wire struct {
	net.Conn
	t    *testing.T
	port int
	in   *bufio.Reader
}

func (r *rig) wire(t *testing.T, port int, secure bool) *wire {
	t.Helper()
	c, err := r.dial(port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if secure {
		c = tls.Client(c, &tls.Config{RootCAs: r.roots, ServerName: "a.test"})
	}
	return &wire{c, t, port, bufio.NewReader(c)}
}

// say writes a request: a method and a path, then header lines and body as they are.
func (w *wire) say(line, rest string) {
	w.t.Helper()
	if _, err := fmt.Fprintf(w, "%s HTTP/1.1\r\nHost: a.test:%d\r\n%s", line, w.port, rest); err != nil {
		w.t.Fatal(err)
	}
}

// hear reads an answer to a request with a method.
func (w *wire) hear(method string) (*http.Response, string) {
	w.t.Helper()
	resp, err := http.ReadResponse(w.in, &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		b = append(b, " then "+err.Error()...)
	}
	return resp, string(b)
}

func echo(w http.ResponseWriter, q *http.Request) {
	b, _ := io.ReadAll(q.Body)
	if q.URL.Path == "/none" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Trailer", "X-Sum")
	if q.URL.Path == "/stream" {
		_ = http.NewResponseController(w).Flush()
	}
	fmt.Fprintf(w, "%s %s [%s] %v", q.Method, q.RequestURI, b, q.Header["X-Twice"])
	w.Header().Set("X-Sum", "7")
}

// Broken if requests on one kept connection are mixed up, lose a part, or leave something behind for the next:
// one after the other or at once, with and without a body or trailers.
func TestKeptConnection(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", echo)
	old, conns, _ := r.oldServer(t)
	for name, at := range map[string]struct {
		port   int
		secure bool
	}{"tls": {old, true}, "plain": {portOf(r.plain), false}} {
		t.Run(name, func(t *testing.T) {
			w := r.wire(t, at.port, at.secure)
			check := func(method string, status int, want string) *http.Response {
				t.Helper()
				resp, body := w.hear(method)
				if resp.StatusCode != status || body != want {
					t.Errorf("%d %q, want %d %q", resp.StatusCode, body, status, want)
				}
				return resp
			}
			for range 3 {
				w.say("GET /a?b=c%20d", "X-Twice: 1\r\nX-Twice: 2\r\nConnection: keep-alive\r\n\r\n")
				check("GET", 200, "GET /a?b=c%20d [] [1 2]")
				w.say("POST /p", "Content-Length: 5\r\n\r\nhello")
				check("POST", 200, "POST /p [hello] []")
			}
			w.say("HEAD /h", "\r\n")
			check("HEAD", 200, "")
			w.say("DELETE /none", "\r\n")
			check("DELETE", 204, "")
			w.say("GET /stream", "\r\n")
			if resp := check("GET", 200, "GET /stream [] []"); resp.Trailer.Get("X-Sum") != "7" {
				t.Errorf("trailers %v", resp.Trailer)
			}
			w.say("GET /1", "\r\n"+fmt.Sprintf("GET /2 HTTP/1.1\r\nHost: a.test:%d\r\n\r\n", at.port)) // two at once
			check("GET", 200, "GET /1 [] []")
			check("GET", 200, "GET /2 [] []")
			w.say("GET /other", "Via: x\r\nProxy-Authorization: y\r\n\r\n")
			check("GET", 200, "GET /other [] []")
			w.say("POST /chunks", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
			check("POST", 200, "POST /chunks [abcde] []")
			w.say("GET /after", "\r\n")
			check("GET", 200, "GET /after [] []")
		})
	}
	if n := conns.Load(); n > 3 {
		t.Errorf("%d connections to the server for one client that has one", n)
	}
	for _, a := range r.audit(t) {
		if a.Decision != outboard.Allowed {
			t.Errorf("refused: %+v", a)
		}
	}
	if n := len(r.audit(t)); n != 2*14 {
		t.Errorf("%d records of 28 requests", n)
	}
}

// Broken if a server goes on with a request whose client is gone: a model's answer is paid for.
func TestClientGone(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	begun, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	r.mux.HandleFunc("/", echo)
	r.mux.HandleFunc("/think", func(_ http.ResponseWriter, q *http.Request) {
		begun <- struct{}{}
		<-q.Context().Done()
		ended <- struct{}{}
	})
	w := r.wire(t, portOf(r.plain), false)
	w.say("GET /", "\r\n")
	w.hear("GET")
	w.say("GET /think", "\r\n")
	within(t, begun, "the request did not arrive")
	select {
	case <-ended:
		t.Fatal("it ended while the client was there")
	case <-time.After(100 * time.Millisecond): // longer than it takes until somebody looks
	}
	w.Close()
	within(t, ended, "the request goes on without a client")
}

func within(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case <-c:
	case <-ctx.Done():
		t.Fatal(what)
	}
}

// Broken if a connection cannot be used any more after a request that lasted, because somebody still looks
// whether the client is there.
func TestAfterALongRequest(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", echo)
	r.mux.HandleFunc("/slow", func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-time.After(100 * time.Millisecond): // longer than it takes until somebody looks
		case <-q.Context().Done():
			t.Error("it was ended")
		}
		fmt.Fprint(w, "slow")
	})
	w := r.wire(t, portOf(r.plain), false)
	for _, early := range []bool{false, true} {
		w.say("GET /slow", "\r\n")
		if early { // the next comes while the first is under way
			w.say("GET /next", "\r\n")
		}
		if _, body := w.hear("GET"); body != "slow" {
			t.Errorf("%q", body)
		}
		if !early {
			w.say("GET /next", "\r\n")
		}
		if _, body := w.hear("GET"); body != "GET /next [] []" {
			t.Errorf("%q", body)
		}
	}
}

// Broken if a server that closes kept connections, as all do after a while, makes requests fail.
func TestServerClosesKeptConnections(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", echo)
	var last atomic.Pointer[tls.Conn]
	conns, closed := 0, make(chan struct{}, 4)
	s := r.tlsServer(t, func(c net.Conn, st http.ConnState) {
		switch st {
		case http.StateNew:
			conns++ // one at a time: each is closed before the next
			last.Store(c.(*tls.Conn))
		case http.StateClosed:
			closed <- struct{}{}
		}
	})
	w := r.wire(t, portOf(s), true)
	for i := range 4 {
		method := []string{"GET", "POST"}[i%2]
		for range 2 {
			w.say(method+" /", "Content-Length: 0\r\n\r\n")
			if resp, body := w.hear(method); resp.StatusCode != 200 {
				t.Fatalf("%s: %d %s", method, resp.StatusCode, body)
			}
		}
		// The server says that nothing follows, and waits until the gateway has closed its side in turn. A POST that
		// crosses such an end is not sent again, and gets a 502: the server may have read it.
		if err := last.Load().NetConn().(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		within(t, closed, "the gateway keeps a connection that its server has ended")
	}
	if conns != 4 {
		t.Errorf("%d connections for 4 that were ended", conns)
	}
}

// oddServer is a server that answers each connection's first request with a text and closes.
func (r *rig) oddServer(t *testing.T, answer string) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, answer)
			}
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// Broken if what a server says against the protocol reaches a client as if it were an answer, or costs more
// memory than a head may.
func TestOddAnswers(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	long := strings.Repeat("a", 8<<10) // more than is held back until an answer ends
	for name, tc := range map[string]struct {
		answer, want string
		status       int
	}{
		"fine":       {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", 200},
		"to its end": {"HTTP/1.0 200 OK\r\n\r\nas long as it lasts", "as long as it lasts", 200},
		"early": {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
			"ok", 200},
		"short": {"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + long, long + " then unexpected EOF", 200},
		"torn": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "ok then unexpected EOF",
			200},
		"switched": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello", "", 502},
		"long head": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 300<<10) + "\r\nContent-Length: 2\r\n\r\nok", "",
			502},
		"interim":    {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 300_000) + "HTTP/1.1 200 OK\r\n\r\n", "", 502},
		"two bodies": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!", "", 502},
		"no http":    {"SSH-2.0-OpenSSH\r\n", "", 502},
		"nothing":    {"", "", 502},
	} {
		t.Run(name, func(t *testing.T) {
			w := r.wire(t, r.oddServer(t, tc.answer), false)
			w.say("GET /", "\r\n")
			resp, body := w.hear("GET")
			for resp.StatusCode < 200 {
				resp, body = w.hear("GET")
			}
			if resp.StatusCode != tc.status || tc.want != "" && body != tc.want {
				t.Errorf("%d %q, want %d %q", resp.StatusCode, body, tc.status, tc.want)
			}
		})
	}
}

// Broken if a long answer of unknown length that stands still is kept back: what a server has sent is for the
// client to see at once.
func TestLongAnswerThatStops(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	port, _, _ := r.oldServer(t)
	arrived := make(chan struct{})
	const part = 300<<10 + 77
	r.mux.HandleFunc("/long", func(w http.ResponseWriter, q *http.Request) {
		for range 2 {
			_, _ = w.Write(append(make([]byte, part-5), "0\r\n\r\n"...)) // as an answer in chunks ends
			_ = http.NewResponseController(w).Flush()
			select {
			case <-arrived: // only when it has is there more
			case <-q.Context().Done():
				return
			}
		}
	})
	w := r.wire(t, port, true)
	for range 3 {
		w.say("GET /long", "\r\n")
		resp, err := http.ReadResponse(w.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := io.CopyN(io.Discard, resp.Body, part); err != nil {
				t.Fatal(err)
			}
			arrived <- struct{}{}
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != 0 || err != nil {
			t.Fatalf("%d more bytes, %v", n, err)
		}
	}
}

// Broken if a sandbox with many connections has the next one cut off, where it could wait for one of them to end.
func TestConnectionsWaitForEachOther(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	var all []*wire
	for range 512 {
		w := r.wire(t, portOf(r.plain), false)
		w.say("GET /", "\r\n")
		if resp, _ := w.hear("GET"); resp.StatusCode != 200 {
			t.Fatalf("the control: %d", resp.StatusCode)
		}
		all = append(all, w)
	}
	last := r.wire(t, portOf(r.plain), false)
	last.say("GET /", "\r\n")
	_ = last.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := last.in.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("one more than there are places for: %v", err)
	}
	_ = last.SetReadDeadline(time.Now().Add(30 * time.Second))
	all[0].Close()
	if resp, _ := last.hear("GET"); resp.StatusCode != 200 {
		t.Errorf("with a place: %d", resp.StatusCode)
	}
}

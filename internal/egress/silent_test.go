package egress_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// If this fails, whoever opens tunnels and says nothing in them holds the server's connections for ever: after
// CONNECT, within the TLS handshake, or after it. A tunnel that is used stays.
func TestSilentTunnelsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("waits ten seconds of the kernel's own deadlines")
	}
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	tunnel := func() net.Conn {
		t.Helper()
		c, err := r.dial(3128)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "CONNECT a.test:%d HTTP/1.1\r\nHost: a.test:%[1]d\r\n\r\n", portOf(r.secure))
		if resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "CONNECT"}); err != nil ||
			resp.StatusCode != 200 {
			t.Fatalf("CONNECT: %v, %v", resp, err)
		}
		return c
	}
	over := func(protocols ...string) *tls.Conn {
		t.Helper()
		c := tls.Client(tunnel(), &tls.Config{RootCAs: r.roots, ServerName: "a.test", NextProtos: protocols})
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ask := func(c net.Conn) error {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a.test:%d\r\n\r\n", portOf(r.secure))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		return err
	}
	begun := tunnel()
	_, _ = begun.Write([]byte{0x16, 3, 1}) // of a TLS record
	half := over()
	fmt.Fprint(half, "GET / HTTP/1.1\r\nHo")
	used := over()
	if err := ask(used); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]net.Conn{"nothing at all": tunnel(), "the begin of TLS": begun,
		"TLS and nothing in it": over(),
		"half a request":        half, "the proxy itself": func() net.Conn { c, _ := r.dial(3128); return c }()} {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: still open after 30 s", name)
		}
	}
	if err := ask(used); err != nil {
		t.Errorf("the tunnel that is used: %v", err)
	}
}

// Broken if a tunnel or a WebSocket in which something is said now and then lasts for ever, or one ends before
// its time.
func TestConnectionsHaveALifetime(t *testing.T) {
	for life := time.Second; ; life *= 4 {
		lasted, said, err := lifetime(t, life)
		if said == 0 && lasted >= life && life < time.Minute {
			continue // a busy machine may need all of it until there is a WebSocket
		}
		if lasted < life*9/10 || errors.Is(err, os.ErrDeadlineExceeded) || said == 0 {
			t.Errorf("it lasted %v and %d words: %v", lasted, said, err)
		}
		return
	}
}

// lifetime talks over a WebSocket in a tunnel of a gateway whose connections last for life, until that fails with err.
func lifetime(t *testing.T, life time.Duration) (lasted time.Duration, said int, err error) {
	t.Helper()
	r := newRig(t, rules(anyPort("a.test")), func(c *egress.Config, _ *outboard.SessionConfig) { c.Life = life })
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, _ *http.Request) {
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, opened)
		for b := make([]byte, len(masks("x"))); ; { // one word for each
			if _, err := io.ReadFull(buf, b); err != nil {
				return
			}
			_, _ = io.WriteString(c, frame("x"))
		}
	})
	begun := time.Now()
	tunnel, err := r.dial(3128)
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	_ = tunnel.SetDeadline(begun.Add(2 * time.Minute))
	over := func(err error) (time.Duration, int, error) { return time.Since(begun), said, err }
	fmt.Fprintf(tunnel, "CONNECT a.test:%d HTTP/1.1\r\nHost: a.test:%[1]d\r\n\r\n", portOf(r.secure))
	resp, err := http.ReadResponse(bufio.NewReader(tunnel), &http.Request{Method: "CONNECT"})
	if err != nil {
		return over(err)
	}
	if resp.StatusCode != 200 {
		t.Fatalf("CONNECT: %v", resp)
	}
	c := tls.Client(tunnel, &tls.Config{RootCAs: r.roots, ServerName: "a.test", NextProtos: []string{"http/1.1"}})
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: a.test:%d\r\n"+opening, portOf(r.secure))
	in := bufio.NewReader(c)
	if resp, err = http.ReadResponse(in, nil); err != nil {
		return over(err)
	}
	if resp.StatusCode != 101 {
		t.Fatalf("the handshake: %v", resp)
	}
	for ; ; said++ { // one word after the other, so that it is never idle
		if _, err = io.WriteString(c, masks("x")); err == nil {
			_, err = texts{in}.Read(make([]byte, 1))
		}
		if err != nil {
			return over(err)
		}
	}
}

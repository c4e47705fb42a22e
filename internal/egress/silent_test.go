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
)

// If this fails, whoever opens tunnels and says nothing in them holds the server's connections for ever: after CONNECT, within the TLS
// handshake, or after it. A tunnel that is used stays.
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
		if resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
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
	for name, c := range map[string]net.Conn{"nothing at all": tunnel(), "the begin of TLS": begun, "TLS and nothing in it": over(),
		"half a request": half, "the proxy itself": func() net.Conn { c, _ := r.dial(3128); return c }()} {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: still open after 30 s", name)
		}
	}
	if err := ask(used); err != nil {
		t.Errorf("the tunnel that is used: %v", err)
	}
}

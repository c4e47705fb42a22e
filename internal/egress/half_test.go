package egress_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if the end of what one side says over a connection that has switched protocols is not passed on, or
// takes what the other side still has to say with it; with and without TLS, and with the looks at what is sent
// and what comes back.
func TestUpgradedConnectionsCloseOneWay(t *testing.T) {
	guarding := credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
		RefuseBody: []string{"api_key"},
		Set:        map[string]string{"Authorization": "Bearer " + streamSecret}, Scrub: []string{streamSecret}}})
	for name, options := range map[string][]option{"plain": nil, "looked at": {guarding}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, append(options, rules(anyPort("a.test")))...)
			rest := make(chan error, 1) // of the server's own reading, after it has closed its side
			r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
				c, buf, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				fmt.Fprint(c, opened)
				if q.URL.Path == "/server" { // it ends first
					fmt.Fprint(c, frame("all"))
					if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
						t.Error(err)
					}
				}
				said, err := io.ReadAll(buf)
				rest <- err
				if q.URL.Path == "/client" {
					fmt.Fprint(c, frame(fmt.Sprint(len(said))))
				}
			})
			for _, secure := range []bool{false, true} {
				for _, path := range []string{"/client", "/server"} {
					c := r.upgrade(t, path, secure)
					got := make([]byte, len(frame("all")))
					if path == "/server" {
						if _, err := io.ReadFull(c.in, got); err != nil || string(got) != frame("all") {
							t.Fatalf("%s, TLS %v: %q, %v", path, secure, got, err)
						}
						if _, err := c.in.ReadByte(); err != io.EOF {
							t.Errorf("%s, TLS %v: the server's end did not arrive: %v", path, secure, err)
						}
					}
					if _, err := c.Write([]byte(masked)); err != nil {
						t.Errorf("%s, TLS %v: %v", path, secure, err)
					}
					if err := c.half.CloseWrite(); err != nil {
						t.Fatal(err)
					}
					if err := <-rest; err != nil {
						t.Errorf("%s, TLS %v: what the client said ended with %v", path, secure, err)
					}
					if path == "/client" {
						answer, err := io.ReadAll(c.in)
						if want := frame(fmt.Sprint(len(masked))); string(answer) != want || err != nil {
							t.Errorf("%s, TLS %v: %q, %v, want %q", path, secure, answer, err, want)
						}
					}
				}
			}
		})
	}
}

// masked is a whole text message of a client.
const masked = "\x81\x82\x00\x00\x00\x00{}"

// halved is a client's connection that can be closed one way.
type halved struct {
	net.Conn
	in   *bufio.Reader
	half interface{ CloseWrite() error }
}

// upgrade opens one that has switched protocols, at a server with TLS or without.
func (r *rig) upgrade(t *testing.T, path string, secure bool) halved {
	t.Helper()
	to := portOf(r.plain)
	if secure {
		to = portOf(r.secure)
	}
	c, err := r.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	h := halved{Conn: c, half: c.(*net.TCPConn)}
	if secure {
		over := tls.Client(c, &tls.Config{RootCAs: r.roots, ServerName: "a.test"})
		h.Conn, h.half = over, over
	}
	fmt.Fprintf(h, "GET %s HTTP/1.1\r\nHost: a.test:%d\r\n"+opening, path, to)
	h.in = bufio.NewReader(h.Conn)
	if resp, err := http.ReadResponse(h.in, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	return h
}

package egress_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/egress"
)

// flooding serves answers that never end, and tells when a write waits for whoever reads, and when it is over.
func flooding(r *rig, path string, upgrade bool) (stuck, gone chan struct{}) {
	stuck, gone = make(chan struct{}), make(chan struct{})
	r.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		var out io.Writer = w
		if upgrade {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprint(c, opened)
			out = c
		}
		var once sync.Once // a busy machine may seem to be stuck before it is
		late := time.AfterFunc(time.Hour, func() { once.Do(func() { close(stuck) }) })
		defer late.Stop()
		b := make([]byte, 64<<10)
		copy(b, "\x82\x7f\x00\x00\x00\x00\x00\x00\xff\xf6") // a whole binary message, behind an upgrade
		for {
			late.Reset(300 * time.Millisecond)
			if _, err := out.Write(b); err != nil {
				return
			}
		}
	})
	return stuck, gone
}

// Broken if a client that does not read, as one that is frozen cannot, keeps a request that was ended under way,
// with its connection to the server.
func TestWhoDoesNotReadIsNotWaitedFor(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	old, _, _ := r.oldServer(t)
	for path, open := range map[string]func() error{
		"/plain":  func() error { r.wire(t, portOf(r.plain), false).say("GET /plain", "\r\n"); return nil },
		"/tls":    func() error { r.wire(t, old, true).say("GET /tls", "\r\n"); return nil },
		"/std":    func() error { r.wire(t, old, true).say("GET /std", "Te: trailers\r\n\r\n"); return nil },
		"/socket": func() error { r.wire(t, portOf(r.plain), false).say("GET /socket", opening); return nil },
		"/h2": func() error {
			resp, err := r.client(false).Get(r.https("a.test", "/h2"))
			if err == nil {
				t.Cleanup(func() { resp.Body.Close() })
			}
			return err
		},
		"/frozen": func() error { return frozen(t, r) },
	} {
		t.Run(path, func(t *testing.T) {
			stuck, gone := flooding(r, path, path == "/socket")
			if err := open(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-stuck:
			case <-gone:
				t.Fatal("the control: it was over before anybody ended it")
			case <-time.After(20 * time.Second):
				t.Fatal("the control: somebody reads")
			}
			everybody := func(egress.Subject) bool { return true }
			if n := r.gateway.Flows(everybody); n != 1 {
				t.Fatalf("%d under way", n)
			}
			r.gateway.End(everybody, errors.New("killed"))
			select {
			case <-gone:
			case <-time.After(3 * time.Second):
				t.Error("its server has it still")
			}
			for over := time.Now().Add(3 * time.Second); r.gateway.Flows(everybody) != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(over) {
					t.Fatal("it is under way still")
				}
			}
		})
	}
}

// frozen begins a request of HTTP/2 with windows that never fill, and reads nothing of the answer, as a client
// that is frozen.
func frozen(t *testing.T, r *rig) error {
	c, err := r.dial(portOf(r.secure))
	if err != nil {
		return err
	}
	t.Cleanup(func() { c.Close() })
	over := tls.Client(c, &tls.Config{RootCAs: r.roots, ServerName: "a.test", NextProtos: []string{"h2"}})
	field := func(name, value string) string {
		return "\x00" + string(rune(len(name))) + name + string(rune(len(value))) + value
	}
	// GET, https
	head := "\x82\x87" + field(":path", "/frozen") + field(":authority", "a.test:"+strconv.Itoa(portOf(r.secure)))
	_, err = io.WriteString(over, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff"+ // the window of a stream
		"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x70\x00\x00\x00"+ // and of the connection
		"\x00\x00"+string(rune(len(head)))+"\x01\x05\x00\x00\x00\x01"+head)
	return err
}

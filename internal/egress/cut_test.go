package egress_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// barrier is a gate that a test closes.
type barrier struct{ down atomic.Bool }

// May implements egress.Gate.
func (b *barrier) May(context.Context, egress.Subject) error {
	if b.down.Load() {
		return errors.New("the kill switch is thrown")
	}
	return nil
}

// stream is one that a program inside holds open: what reads it, and what its server sees of its end.
type stream struct {
	name string
	in   io.Reader
	gone chan struct{}
}

// ticking serves a stream that never ends, and closes gone when its client has left.
func ticking(r *rig, path string, upgrade bool) chan struct{} {
	gone := make(chan struct{})
	r.mux.HandleFunc(path, func(w http.ResponseWriter, q *http.Request) {
		defer close(gone)
		if upgrade {
			c, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprint(c, opened+frame("tick\n"))
			_, _ = io.Copy(io.Discard, buf)
			return
		}
		fmt.Fprint(w, "tick\n")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(io.Discard, q.Body) // an upload is read for as long as it comes
		<-q.Context().Done()
	})
	return gone
}

// openStreams opens one stream of each kind.
func openStreams(t *testing.T, r *rig) (list []stream) {
	t.Helper()
	add := func(name string, body io.Reader, gone chan struct{}) {
		in := bufio.NewReader(body)
		if line, err := in.ReadString('\n'); err != nil || line != "tick\n" {
			t.Fatalf("%s: %q, %v", name, line, err)
		}
		list = append(list, stream{name, in, gone})
	}
	open := func(name string, c *http.Client, method, url string, body io.Reader, gone chan struct{}) {
		q, err := http.NewRequestWithContext(t.Context(), method, url, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(q)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		add(name, resp.Body, gone)
	}
	events, tunnel, upload := ticking(r, "/events", false), ticking(r, "/tunnel", false), ticking(r, "/upload", false)
	open("events", r.client(false), "GET", r.http("a.test", "/events"), nil, events)
	open("a tunnel", r.client(true), "GET", r.https("a.test", "/tunnel"), nil, tunnel)
	endless, feed := io.Pipe()
	t.Cleanup(func() { feed.Close() })
	go func() {
		for {
			if _, err := feed.Write([]byte("more")); err != nil {
				return
			}
		}
	}()
	open("an upload", r.client(false), "POST", r.https("a.test", "/upload"), endless, upload)
	ws := ticking(r, "/ws", true)
	c, err := r.dial(portOf(r.plain))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: a.test:%d\r\n"+opening, portOf(r.plain))
	in := bufio.NewReader(c)
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	add("a WebSocket", texts{in}, ws)
	return list
}

// Broken if a kill leaves a stream of any kind open on either side for a second, cuts what is not killed, or
// lets a request through a connection that was there before.
func TestStreamsAreCut(t *testing.T) {
	for _, how := range []string{"recheck", "end"} {
		t.Run(how, func(t *testing.T) {
			gate := &barrier{}
			r := newRig(t, rules(anyPort("a.test")),
				func(c *egress.Config, _ *outboard.SessionConfig) { c.Gate = gate })
			kept := r.client(true)
			r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
			if code, body := get(t, kept, r.https("a.test", "/")); code != http.StatusOK {
				t.Fatalf("the control: %d %s", code, body)
			}
			list := openStreams(t, r)
			everybody := func(egress.Subject) bool { return true }
			if n := r.gateway.Recheck(); n != 0 || r.gateway.Flows(everybody) != len(list) {
				t.Fatalf("the control: %d ended, %d of %d are open", n, r.gateway.Flows(everybody), len(list))
			}
			r.gateway.End(func(s egress.Subject) bool { return s.Session != r.session }, errors.New("others"))
			if n := r.gateway.Flows(everybody); n != len(list) {
				t.Fatalf("the end of others ended %d of %d", len(list)-n, len(list))
			}
			gate.down.Store(true)
			if how == "recheck" {
				r.gateway.Recheck()
			} else {
				r.gateway.End(everybody, errors.New("killed"))
			}
			cut := time.After(time.Second)
			for _, s := range list {
				select {
				case <-s.gone:
				case <-cut:
					t.Errorf("%s: its server has it after a second", s.name)
				}
				ended := make(chan struct{})
				go func() {
					_, _ = io.Copy(io.Discard, s.in)
					close(ended)
				}()
				select {
				case <-ended:
				case <-time.After(time.Second):
					t.Errorf("%s: whoever reads it still waits", s.name)
				}
			}
			before := r.hits.Load()
			if code, body := get(t, kept, r.https("a.test", "/")); code != http.StatusForbidden ||
				!strings.Contains(body, "kill switch") || r.hits.Load() != before {
				t.Errorf("a request through an old tunnel: %d %s", code, body)
			}
			gate.down.Store(false)
			if code, body := get(t, kept, r.https("a.test", "/")); code != http.StatusOK {
				t.Errorf("after it was lifted: %d %s", code, body)
			}
		})
	}
}

// Broken if anybody can use the drill's host without a rule for it, or the end of its stream is not on record.
func TestSelftestHost(t *testing.T) {
	url := "http://" + egress.SelftestHost
	if code, _ := get(t, newRig(t, rules(anyPort("a.test"))).client(false), url+"/"); code != http.StatusForbidden {
		t.Errorf("without a rule: %d", code)
	}
	gate := &barrier{}
	r := newRig(t, rules(outboard.NetRule{Host: egress.SelftestHost}),
		func(c *egress.Config, _ *outboard.SessionConfig) { c.Gate = gate })
	if code, _ := get(t, r.client(false), url+"/beat"); code != http.StatusNoContent {
		t.Fatalf("with one: %d", code)
	}
	resp, err := r.client(false).Get(url + egress.SelftestStream)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	for range 3 {
		if line, err := in.ReadString('\n'); err != nil || strings.TrimSpace(line) != "data: tick" {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	gate.down.Store(true)
	r.gateway.Recheck()
	_, _ = io.Copy(io.Discard, in) // it has an end
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		for _, a := range r.audit(t) {
			if a.Action == egress.ActionSelftestEnd {
				if !strings.Contains(string(a.Detail), "kill switch") {
					t.Errorf("on record is %s", a.Detail)
				}
				return
			}
		}
		if time.Now().After(end) {
			t.Fatal("the end of the stream is not on record")
		}
	}
}

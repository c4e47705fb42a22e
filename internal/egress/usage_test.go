package egress_test

import (
	"bufio"
	"bytes"
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

// budgeted gives a session a budget, and three hosts.
func budgeted(b outboard.NetBudget) option {
	return func(_ *egress.Config, s *outboard.SessionConfig) {
		s.Env.Networking.Rules = []outboard.NetRule{anyPort("a.test"), anyPort("b.test"), anyPort("c.test")}
		s.Env.Networking.Budget = b
	}
}

func (r *rig) used(t *testing.T) outboard.NetBudget {
	t.Helper()
	u, err := r.store.NetUsage(t.Context(), string(r.session))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Broken if a restart or a second server gives a session its budget once more, or a crash gives back what was used.
func TestBudgetSurvives(t *testing.T) {
	budget := outboard.NetBudget{Requests: 5, Hosts: 2}
	one := newRig(t, budgeted(budget))
	ok := func(r *rig, host string, want int) {
		t.Helper()
		if code, body := get(t, r.client(true), r.http(host, "/")); code != want {
			t.Errorf("%s: %d %s, want %d", host, code, body, want)
		}
	}
	serve := func(r *rig) {
		r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) })
	}
	serve(one)
	ok(one, "a.test", 200)
	ok(one, "a.test", 200)
	one.gateway.Stop()
	two := one.again(t, budgeted(budget))
	ok(two, "a.test", 200)
	ok(two, "b.test", 200)
	ok(two, "c.test", 429)                  // a third host
	three := one.again(t, budgeted(budget)) // while the second one serves
	ok(three, "b.test", 200)
	ok(three, "b.test", 429)
	ok(two, "a.test", 429)
	if u := one.used(t); u.Requests != 5 || u.Hosts != 2 {
		t.Errorf("used: %+v", u)
	}

	// Of a larger budget a part is taken at a time: what a crash loses of it stays used, what a stop leaves is
	// given back.
	budget = outboard.NetBudget{Requests: 640, Bytes: 64 << 10}
	crashed := newRig(t, budgeted(budget))
	serve(crashed)
	ok(crashed, "a.test", 200)
	if u := crashed.used(t); u.Requests != 10 || u.Bytes < 1<<10 {
		t.Errorf("taken: %+v", u)
	}
	after := crashed.again(t, budgeted(budget))
	ok(after, "a.test", 200)
	after.gateway.Stop()
	if u := crashed.used(t); u.Requests != 11 {
		t.Errorf("after a stop: %+v", u)
	}

	// Bytes of bodies count before they go.
	last := crashed.again(t, budgeted(budget))
	resp, err := last.client(true).Post(last.http("a.test", "/"), "text/plain", bytes.NewReader(make([]byte, 32<<10)))
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("control: %v, %v", resp, err)
	}
	resp.Body.Close()
	if resp, err := last.client(true).Post(last.http("a.test", "/"), "text/plain",
		bytes.NewReader(make([]byte, 48<<10))); err == nil {
		if resp.Body.Close(); resp.StatusCode == 200 {
			t.Error("more bytes than the budget has were sent")
		}
	}
	if u := crashed.used(t); u.Bytes > budget.Bytes {
		t.Errorf("used: %+v", u)
	}
}

// If this fails, the gateway's records say the time of a host's clock that was set back, and a server that
// starts then goes on from there.
func TestRecordsGoByTheStoresClock(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")), func(cfg *egress.Config, _ *outboard.SessionConfig) {
		cfg.Now = func() time.Time { return time.Now().Add(-time.Hour) }
	})
	begun := r.store.Now()
	get(t, r.client(true), r.http("a.test", "/"))
	list := r.audit(t)
	if len(list) == 0 || list[0].At.Before(begun.Truncate(time.Microsecond)) {
		t.Errorf("at %v: %+v", begun, list)
	}
}

// Broken if what a client sends over a WebSocket does not count against the session's bytes, goes
// beyond them, or leaves no record when it ends there.
func TestBudgetOfAnUpgradedConnection(t *testing.T) {
	const room, message = 1000, 125 // of which the handshake takes more than one message, and less than two
	for name, c := range map[string]struct {
		budget outboard.NetBudget
		sends  int // messages, of which arrive bytes come
		arrive int
	}{
		"over it":             {outboard.NetBudget{Bytes: room}, 8, 6 * message},
		"within it":           {outboard.NetBudget{Bytes: room}, 6, 6 * message},
		"the control, larger": {outboard.NetBudget{Bytes: 10 * room}, 8, 8 * message},
	} {
		r := newRig(t, budgeted(c.budget))
		heard := make(chan int, 1)
		r.mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, opened)
			n := 0
			for buf := make([]byte, message); ; n += message {
				if _, err := io.ReadFull(rw, buf); err != nil {
					break
				}
				fmt.Fprint(conn, frame("+")) // one at a time
			}
			heard <- n
		})
		conn, err := r.dial(portOf(r.plain))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
		fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: a.test:%d\r\n"+opening, portOf(r.plain))
		in := bufio.NewReader(conn)
		if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 101 {
			t.Fatal(name, resp, err)
		}
		for range c.sends {
			_, _ = io.WriteString(conn, masks(strings.Repeat("x", message-6)))
			if _, err := (texts{in}).Read(make([]byte, 1)); err != nil {
				break
			}
		}
		conn.Close()
		if got := <-heard; got != c.arrive {
			t.Errorf("%s: %d bytes arrived, want %d", name, got, c.arrive)
		}
		refused := 0
		for _, rec := range r.audit(t) {
			if rec.Decision == outboard.Refused && rec.Rule == "budget" {
				refused++
			}
		}
		if over := c.arrive < c.sends*message; over != (refused == 1) || refused > 1 {
			t.Errorf("%s: %d refusals are in the audit", name, refused)
		}
		if u := r.used(t); u.Bytes < int64(c.arrive) || u.Bytes > c.budget.Bytes {
			t.Errorf("%s: %d bytes are counted of %d that left, and %d that may", name, u.Bytes, c.arrive,
				c.budget.Bytes)
		}
	}
}

// Broken if a session that makes many requests waits for the database again and again to count them, or one that
// makes few has taken more of its budget than it did before.
func TestBusySessionsTakeMore(t *testing.T) {
	clock := time.Now()
	var ahead atomic.Int64
	r := newRig(t, budgeted(outboard.NetBudget{Requests: 1 << 30}), func(c *egress.Config, _ *outboard.SessionConfig) {
		c.Now = func() time.Time { return clock.Add(time.Duration(ahead.Load())) }
	})
	r.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	made, client := 0, r.client(true)
	until := func(n int, want int64) {
		t.Helper()
		for ; made < n; made++ {
			if code, body := get(t, client, r.http("a.test", "/")); code != 200 {
				t.Fatal(code, body)
			}
		}
		if u := r.used(t); u.Requests != want {
			t.Errorf("after %d requests %d are taken, want %d", n, u.Requests, want)
		}
	}
	until(256, 256)
	until(257, 256+512)
	ahead.Store(int64(2 * time.Second))
	until(768, 256+512)
	until(769, 256+512+256)
}

package egress_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if a stream goes on after the grant that let it begin was taken back, be it used up or not, or if one
// ends that something else allows.
func TestTakenBackGrantsEndTheirStreams(t *testing.T) {
	r := newRig(t, rules(anyPort("rule.test")))
	gone := make(chan string, 8)
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.WriteString(w, "tick\n")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
		gone <- q.Host
	})
	grant := func(host string, port, uses int) {
		t.Helper()
		err := r.store.AllowNet(t.Context(),
			outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant), Session: r.session,
				Host: host,
				Port: port, Uses: uses, By: "k", CreatedAt: time.Now()}, outboard.Answer{}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func(url string) {
		t.Helper()
		resp, err := r.client(false).Get(url)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %v, %v", url, resp, err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	plain := portOf(r.plain)
	take := func(host string, ended int) {
		t.Helper()
		if n, err := r.store.EndNetGrants(t.Context(), r.session, host, plain); err != nil || n != 1 {
			t.Fatalf("%d grants of %s, %v", n, host, err)
		}
		before := r.gateway.Flows(func(egress.Subject) bool { return true })
		for range ended { // by itself: nobody calls Recheck
			select {
			case got := <-gone:
				if got != fmt.Sprintf("%s:%d", host, plain) {
					t.Errorf("the stream to %s ended", got)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("the stream to %s goes on", host)
			}
		}
		if ended == 0 {
			if n := r.gateway.Recheck(); n != 0 ||
				r.gateway.Flows(func(egress.Subject) bool { return true }) != before {
				t.Errorf("%d ended with the grant of %s", n, host)
			}
		}
	}
	for _, g := range []struct {
		host string
		uses int
	}{{"session.test", -1}, {"once.test", 1}, {"*.two.test", -1}, {"a.two.test", 1}, {"kept.test", 1}} {
		grant(g.host, plain, g.uses)
	}
	for _, host := range []string{"rule.test", "session.test", "once.test", "kept.test"} {
		open(r.http(host, "/"))
	}
	if n := r.gateway.Recheck(); n != 0 {
		t.Errorf("%d ended though nothing was taken back", n)
	}
	take("session.test", 1)
	take("once.test", 1)
	open(r.http("a.two.test", "/"))
	take("a.two.test", 0) // another grant is for it
	if code, _ := get(t, r.client(false), r.http("session.test", "/")); code != 403 {
		t.Errorf("a request after it: %d", code)
	}
}

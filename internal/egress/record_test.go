package egress_test

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// leaving is a policy that denies what its client has left meanwhile.
type leaving struct{ asked, left chan struct{} }

// Decide implements egress.Policy.
func (l leaving) Decide(ctx context.Context, r egress.Request) (egress.Verdict, error) {
	if r.Path != "/leave" {
		return egress.Verdict{Allow: true}, nil
	}
	l.asked <- struct{}{}
	<-l.left
	if err := ctx.Err(); err != nil {
		return egress.Verdict{}, err
	}
	return egress.Verdict{Rule: "forbid", Reason: "no"}, nil
}

// Broken if a client keeps what it was denied off the record, or makes its judgement fail, by going away before
// it is answered; or a request that the kill switch ended under way is not on record as that.
func TestRecordsDoNotNeedTheClient(t *testing.T) {
	gate, l := new(barrier), leaving{make(chan struct{}), make(chan struct{})}
	r := newRig(t, rules(anyPort("a.test")),
		func(cfg *egress.Config, _ *outboard.SessionConfig) { cfg.Gate, cfg.Policy = gate, l })
	held := make(chan struct{})
	r.mux.HandleFunc("/hold", func(_ http.ResponseWriter, q *http.Request) { held <- struct{}{}; <-q.Context().Done() })
	for _, url := range []string{r.https("a.test", "/leave"), r.http("a.test", "/leave")} {
		ctx, leave := context.WithCancel(t.Context())
		q, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan error)
		go func() {
			_, err := r.client(true).Do(q)
			gone <- err
		}()
		<-l.asked
		leave()
		if err := <-gone; err == nil {
			t.Error("the client got an answer")
		}
		l.left <- struct{}{}
	}
	r.recorded(t, "forbid", 2)
	ended := make(chan string)
	go func() {
		_, text := get(t, r.client(true), r.https("a.test", "/hold"))
		ended <- text
	}()
	<-held
	gate.down.Store(true)
	r.gateway.Recheck()
	if text := <-ended; !strings.Contains(text, "kill switch") {
		t.Errorf("the client was told %q", text)
	}
	r.recorded(t, "gate", 1)
}

// recorded waits until no request is under way, and looks for refusals by a rule.
func (r *rig) recorded(t *testing.T, rule string, want int) {
	t.Helper()
	for r.gateway.Flows(func(egress.Subject) bool { return true }) > 0 {
		if t.Context().Err() != nil {
			t.Fatal("requests are under way for ever")
		}
		runtime.Gosched()
	}
	n := 0
	for _, a := range r.audit(t) {
		if a.Decision == outboard.Refused && a.Rule == rule {
			n++
		}
	}
	if n != want {
		t.Errorf("%d refusals by %q are on record, want %d", n, rule, want)
	}
}

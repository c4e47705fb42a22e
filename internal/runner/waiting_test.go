//go:build linux

package runner

import (
	"context"
	"log/slog"
	"runtime"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// If this fails, a session that is idle, or waits for a person, a client or a time, costs the server a goroutine
// or a lease.
func TestWaitingIsRowsOnly(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.log = slog.New(slog.DiscardHandler)
	r.start(nil)
	r.rests(r.steps("- say: warm"), "end_turn")
	base := runtime.NumGoroutine()
	const each = 50
	kinds := []struct {
		phase outboard.Phase
		stop  string
		step  string
	}{
		{outboard.PhaseIdle, "end_turn", "- say: done"},
		{outboard.PhaseIdle, "requires_action", "- bash: " + r.mark()},
		{outboard.PhaseIdle, "requires_action", "- call: {name: ticket, input: {}}"},
		{outboard.PhaseRetrying, "", "- fail: {status: 529, retry_after: 10m}"},
	}
	ids := make([][]outboard.SessionID, len(kinds))
	for range each {
		for i, k := range kinds {
			id := r.session("script/steps", asks("bash"))
			r.say(id, k.step)
			ids[i] = append(ids[i], id)
		}
	}
	for i, k := range kinds {
		for _, id := range ids[i] {
			s := r.until(id, "waiting", func(s *outboard.State) bool {
				return s.Turn == 1 && s.Phase == k.phase && (k.stop == "" || s.Stop != nil && s.Stop.Type == k.stop)
			})
			if h := r.row(id, func(outboard.Header) bool { return true }); h.Worker != "" || h.Head != s.Head {
				t.Errorf("%s: lease of %q, head %d of %d", k.step, h.Worker, h.Head, s.Head)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for runtime.NumGoroutine() > base+each/10 { // the last turns are being put away
		if err := r.store.WaitRunnable(ctx); err != nil { // returns within PollFallback
			t.Fatalf("%d goroutines for %d waiting sessions: %v", runtime.NumGoroutine()-base, each*len(kinds), err)
		}
	}
}

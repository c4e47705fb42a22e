//go:build linux

package runner

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// If this fails, the order in which a client sees a turn, or the number of its commits, is not what was promised.
func TestOneCallTurn(t *testing.T) {
	r := newRig(t, llm.Config{})
	id := r.session("script/steps", allTools)
	var commits atomicInt
	r.start(func(c *Config) {
		c.fault = func(point string) error {
			if point == "before commit" {
				commits.add(1)
			}
			return nil
		}
	})
	r.say(id, "- think: let me see", "- bash: echo hello", "- say: done")
	r.rests(id, "end_turn")
	want := []string{"input.message", "turn.started", "input.processed", "model.started", "agent.thinking", "call.requested",
		"model.finished", "sandbox.ready", "call.started", "call.finished", "checkpoint.created", "model.started", "agent.message", "model.finished", "turn.ended"}
	if got := r.types(id); !slices.Equal(got, want) {
		t.Errorf("log = %v\nwant  %v", got, want)
	}
	if out := r.outcomes(id); len(out) != 1 || out[0].Outcome != outboard.OutcomeOK || text(out[0]) != "hello\n" || *out[0].ExitCode != 0 {
		t.Errorf("outcome = %+v", out)
	}
	if n := commits.get(); n != 5 {
		t.Errorf("first turn took %d commits, want 5: one more than a turn on a live sandbox", n)
	}
	commits.add(-commits.get())
	r.say(id, "- bash: echo again", "- say: done")
	r.until(id, "second turn", func(s *outboard.State) bool { return s.Turn == 2 && s.Phase == outboard.PhaseIdle })
	if n := commits.get(); n != 4 {
		t.Errorf("a turn on a live sandbox took %d commits, want 4\n%s", n, r.dump(id))
	}
	h, err := r.store.Session(t.Context(), id)
	if err != nil || h.Worker != "" {
		t.Errorf("after the turn the lease is %q, %v; want none", h.Worker, err)
	}
}

// If this fails, a shell forgets its state between calls, or parallel calls are lost.
func TestCallsOfOneThreadShareAShell(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- bash: export A=1; mkdir -p d && cd d", "- parallel:", "  - bash: echo $A > f", "  - bash: pwd",
		"  - read: {path: /workspace/none}", "- read: {path: /workspace/d/f}", "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if len(out) != 5 || !strings.HasSuffix(strings.TrimSpace(text(out[2])), "/d") || !out[3].IsError || !strings.Contains(text(out[4]), "1") {
		t.Errorf("outcomes:\n%s", r.dump(id))
	}
}

//go:build linux

package runner

import (
	"slices"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/kill"
	"github.com/outboard-dev/outboard/internal/llm"
)

// throw puts a kill in force and has a runner look.
func (r *rig) throw(n *Runner, s *kill.Switch, scope outboard.KillScope, target string,
	level outboard.KillLevel) outboard.KillID {
	r.t.Helper()
	k := outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill), Scope: scope, Target: target,
		Level: level, Reason: "too much", At: r.now()}
	if err := r.store.PutKill(r.t.Context(), k); err != nil {
		r.t.Fatal(err)
	}
	s.Refresh(r.t.Context())
	n.Recheck(r.t.Context())
	return k.ID
}

func (r *rig) lift(n *Runner, s *kill.Switch, id outboard.KillID) {
	r.t.Helper()
	if err := r.store.LiftKill(r.t.Context(), id, "me", r.now()); err != nil {
		r.t.Fatal(err)
	}
	s.Refresh(r.t.Context())
	n.Recheck(r.t.Context())
}

// If this fails, a stopped session goes on, calls have no outcome, asks stay open, a restart resurrects
// something, or others are hit.
func TestKillStops(t *testing.T) {
	r := newRig(t, llm.Config{})
	s := kill.New(kill.Config{Source: r.store})
	n := r.start(func(c *Config) { c.Kill = s })
	thinks, works, asked, other := r.session("script/steps", allTools), r.session("script/steps",
		allTools), r.session("script/steps", asks("bash")), r.session("script/steps", allTools)
	r.say(thinks, "- sleep: 1h", "- bash: "+r.mark())
	r.say(works, "- parallel:", "  - bash: sleep 1000", "- bash: "+r.mark())
	r.say(asked, "- bash: "+r.mark(), "- say: done")
	r.until(thinks, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	r.until(works, "a call runs", func(s *outboard.State) bool { return len(s.Calls) > 0 && s.Calls[0].Started != nil })
	parked := r.rests(asked, "requires_action")

	var ids []outboard.KillID
	for _, id := range []outboard.SessionID{thinks, works, asked} {
		ids = append(ids, r.throw(n, s, outboard.KillSession, string(id), outboard.KillStop))
	}
	r.send(asked, &outboard.InputInterrupt{}) // as control does
	for _, id := range []outboard.SessionID{thinks, works, asked} {
		r.rests(id, "retries_exhausted")
	}
	if out := r.outcomes(works); len(out) != 1 || out[0].Outcome != outboard.OutcomeUnknown {
		t.Errorf("the running call ended as %+v", out)
	}
	if a := r.approval(asked, parked.Calls[0].ID); a.State != outboard.ApprovalClosed || a.Answer == nil ||
		a.Answer.Name != "kill "+string(ids[2]) || a.Answer.Message != "too much" {
		t.Errorf("the ask of a killed session is %s, by %+v", a.State, a.Answer)
	}
	r.say(other, "- bash: "+r.mark(), "- say: done")
	r.rests(other, "end_turn")
	if m := r.marks(); len(m) != 1 {
		t.Errorf("effects: %v", m)
	}

	n.Stop()
	again := kill.New(kill.Config{Source: r.store})
	n = r.start(func(c *Config) { c.Kill = again })
	said := r.say(works, "- bash: "+r.mark()) // past control, which refuses it
	r.until(works, "it is taken away", func(*outboard.State) bool {
		return slices.ContainsFunc(payloads[*outboard.InputProcessed](r, works),
			func(p *outboard.InputProcessed) bool { return p.Input == said })
	})
	for _, id := range ids {
		r.lift(n, again, id)
	}
	r.say(works, "- say: back")
	r.rests(works, "end_turn")
	if m := r.marks(); len(m) != 1 {
		t.Errorf("effects after a restart: %v", m)
	}
}

// If this fails, a paused session goes on, loses its turn, or does not go on when the kill is lifted, in this
// process or another.
func TestKillPauses(t *testing.T) {
	r := newRig(t, llm.Config{})
	s := kill.New(kill.Config{Source: r.store})
	n := r.start(func(c *Config) { c.Kill = s })
	id := r.session("script/steps", allTools)
	r.say(id, "- sleep: 6s", "- bash: "+r.mark(), "- say: done")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	k := r.throw(n, s, outboard.KillAll, "", outboard.KillPause)
	r.holds(n, id)
	if len(r.marks()) != 0 {
		t.Error("it went on")
	}
	n.Stop()
	again := kill.New(kill.Config{Source: r.store})
	n = r.start(func(c *Config) { c.Kill = again })
	r.holds(n, id)
	r.lift(n, again, k)
	st := r.rests(id, "end_turn")
	if st.Turn != 1 || len(r.marks()) != 1 || slices.Contains(r.types(id), string(outboard.TypeTurnFailed)) {
		t.Errorf("lifted: turn %d, effects %v", st.Turn, r.marks())
	}
}

// holds waits until a runner has the session and keeps it paused.
func (r *rig) holds(n *Runner, id outboard.SessionID) {
	r.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // a pause writes no event
		n.mu.Lock()
		_, ok := n.paused[id]
		n.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			r.t.Fatal("it is not paused")
		}
	}
}

package harness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"pgregory.net/rapid"
)

// world is a session whose model, tools and clients do whatever the test draws. Everything the plan appends is
// checked against the state it is appended to.
type world struct {
	failer
	t   *rapid.T // for draws
	l   *loop
	s   *outboard.State
	now time.Time
}

type failer interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

func newWorld(t *rapid.T, model llm.Model) *world {
	w := &world{failer: t, t: t, s: new(outboard.State), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.l = &loop{Builtin: &Builtin{Now: func() time.Time { return w.now }}, model: model}
	e := outboard.NewEvent("sthr_1", &outboard.SessionCreated{})
	e.Session, e.Seq, e.Time = "sesn_1", 1, w.now
	if err := w.s.Apply(&e); err != nil {
		w.Fatal(err)
	}
	return w
}

// add appends an event of anybody's; the plan's own go through check first.
func (w *world) add(p outboard.Payload) outboard.EventID {
	e := outboard.NewEvent("sthr_1", p)
	w.s.Assume(e)
	w.now = w.now.Add(time.Second)
	return e.ID
}

func open(s *outboard.State) bool {
	return slices.ContainsFunc(s.Calls, func(c *outboard.Call) bool { return c.Finished == nil })
}

// check refuses an event that the rules of docs/reference/events.md do not allow in this state.
func (w *world) check(e outboard.Event) {
	s := w.s
	p, err := e.Decode()
	if err != nil {
		w.Fatal(err)
	}
	ok := true
	switch p := p.(type) {
	case *outboard.TurnStarted:
		ok = s.Phase == outboard.PhaseIdle && !s.InTurn && p.Turn == s.Turn+1 && len(s.Waiting) > 0
	case *outboard.TurnResumed:
		ok = s.InTurn && p.Turn == s.Turn && (s.Parked() || s.Phase == outboard.PhaseRetrying && !s.WakeAt.After(w.now))
	case *outboard.InputProcessed:
		i := slices.IndexFunc(s.Waiting,
			func(in outboard.Input) bool { return in.Event.ID == p.Input && in.Event.Type == p.Of })
		ok = i >= 0 && !slices.ContainsFunc(s.Waiting[:max(i, 0)],
			func(in outboard.Input) bool { return in.Event.Type.IsUrgent() == p.Of.IsUrgent() })
	case *outboard.ModelStarted:
		ok = s.Phase == outboard.PhaseRunning && s.Request == "" && !open(s)
	case *outboard.ModelFailed:
		ok = p.Request == s.Request && s.Request != ""
	case *outboard.CallFinished:
		c := s.Call(p.Call)
		ok = c != nil && c.Finished == nil && (p.Outcome == outboard.OutcomeUnknown) == (c.Started != nil) &&
			(p.Outcome != outboard.OutcomeDenied || c.Answer != nil && !c.Answer.Allow)
		if ran := p.Outcome == outboard.OutcomeOK || p.Outcome == outboard.OutcomeError; ran && c != nil {
			ok = ok && c.ForClient() // what the plan ends by an outcome, a client ran
		}
	case *outboard.TurnEnded:
		ok = s.InTurn && p.Turn == s.Turn && s.Request == ""
		if p.Stop.Type == "requires_action" {
			ok = ok && len(p.Stop.EventIDs) > 0 && slices.Equal(p.Stop.EventIDs, pending(s))
		} else {
			ok = ok && !open(s)
		}
	case *outboard.TurnFailed:
		ok = s.Phase == outboard.PhaseRunning && s.Failed == nil
	default:
		ok = false
	}
	if !ok {
		w.Fatalf("%s %s is not allowed in phase %s (stop %v), turn %d (in turn %v), request %q, %d waiting, %d calls",
			e.Type, e.Data,
			s.Phase, s.Stop, s.Turn, s.InTurn, s.Request, len(s.Waiting), len(s.Calls))
	}
}

// client lets a client do something.
func (w *world) client() {
	calls := []outboard.CallID{"sevt_none"}
	for _, c := range w.s.Calls {
		calls = append(calls, c.ID)
	}
	id := rapid.SampledFrom(calls).Draw(w.t, "call")
	switch rapid.IntRange(0, 5).Draw(w.t, "input") {
	case 0:
		w.add(&outboard.InputInterrupt{})
	case 1:
		w.add(&outboard.InputSystem{Content: []outboard.Content{outboard.Text("s")}})
	case 2:
		w.add(&outboard.InputConfirmation{Call: id, Allow: rapid.Bool().Draw(w.t, "allow")})
	case 3:
		w.add(&outboard.InputToolResult{Call: id, Custom: true, IsError: rapid.Bool().Draw(w.t, "error")})
	default:
		w.add(&outboard.InputMessage{Content: []outboard.Content{outboard.Text("m")}})
	}
}

// answer lets the model answer, or fail.
func (w *world) answer() {
	request := w.s.Request
	failure := outboard.Failure{Type: llm.Overloaded}
	switch rapid.IntRange(0, 6).Draw(w.t, "model") {
	case 0:
		w.add(&outboard.ModelFailed{Request: request, Error: failure})
		w.add(&outboard.TurnRetrying{Turn: w.s.Turn, Attempt: w.s.Attempt + 1, Error: failure,
			At: w.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(w.t, "wait")) * time.Second)})
		return
	case 1:
		w.add(&outboard.ModelFailed{Request: request, Error: failure})
		w.add(&outboard.TurnFailed{Turn: w.s.Turn, Error: failure})
		return
	}
	for range rapid.IntRange(0, 4).Draw(w.t, "calls") {
		c := outboard.CallRequested{Kind: "builtin", Name: "bash", Input: outboard.Raw(`{}`),
			Decision: rapid.SampledFrom([]outboard.Decision{outboard.Allow, outboard.Ask}).Draw(w.t, "decision")}
		if rapid.Bool().Draw(w.t, "custom") {
			c.Kind = "custom"
		}
		w.add(&c)
	}
	stop := rapid.SampledFrom([]string{"end_turn", "max_tokens", "refusal"}).Draw(w.t, "stop")
	w.add(&outboard.ModelFinished{Request: request, Stop: stop, Usage: outboard.Usage{Input: rapid.Int64Range(0, 1000).
		Draw(w.t, "tokens")}})
}

// run lets the runner run calls, or die in between: then some have only an intent.
func (w *world) run(outcome outboard.Outcome) {
	for _, c := range slices.Clone(w.s.Calls) {
		if !c.Runnable() || outcome == outboard.OutcomeCanceled && c.Started == nil {
			continue
		}
		if c.Requested.Kind == "custom" {
			w.s.Assume(outboard.NewOffer(w.s.Thread, c.ID))
			continue
		}
		if c.Started == nil {
			w.add(&outboard.CallStarted{Call: c.ID, Class: outboard.ClassEffect, Attempt: 1})
		}
		if outcome == outboard.OutcomeOK && rapid.IntRange(0, 3).Draw(w.t, "dies") == 0 {
			return
		}
		w.add(&outboard.CallFinished{Call: c.ID, Outcome: outcome})
	}
}

// step plans once and does what the plan says. It reports whether the session rests.
func (w *world) step() bool {
	events, act := w.l.plan(w.s)
	if len(events) > outboard.MaxAppend-(maxBlocks+maxCalls+1)+maxBatch {
		w.Fatalf("a plan of %d events", len(events))
	}
	for _, e := range events {
		w.check(e)
		w.s.Assume(e)
	}
	w.now = w.now.Add(time.Second)
	if len(events) > 0 && act != actRun && act != actStop {
		return false // durable first; then it is planned again
	}
	switch act {
	case actGenerate:
		w.answer()
	case actRun:
		w.run(outboard.OutcomeOK)
	case actStop:
		w.run(outboard.OutcomeCanceled)
	case actCompact:
		w.add(&outboard.ContextCompacted{Summary: "s"})
	case actRest:
		return true
	}
	return false
}

func script(t testing.TB, window int64) llm.Model {
	t.Helper()
	r, err := llm.NewRegistry(llm.Config{Scripts: llm.Scripts{Context: window}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Resolve("script/steps")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// If this fails, some order of messages, answers, interrupts, failures and deaths brings a session into a state
// that the rules of the log forbid, or from which it does not come to rest.
func TestPlanKeepsTheRules(t *testing.T) {
	model := script(t, 1100)
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, model)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			if rapid.IntRange(0, 2).Draw(rt, "who") == 0 {
				w.client()
			} else {
				w.step()
			}
		}
		w.add(&outboard.InputInterrupt{}) // whatever is going on, this ends it
		rested := false
		for range 2000 {
			if rested = w.step(); rested {
				break
			}
		}
		if s := w.s; !rested || s.Phase == outboard.PhaseRunning || len(s.Waiting) > 0 && s.Runnable(w.now) {
			rt.Fatalf("does not come to rest: phase %s, %d waiting, %d calls", s.Phase, len(s.Waiting), len(s.Calls))
		}
	})
}

// If this fails, two processes that read the same log would do different things next.
func TestPlanFollowsFromTheState(t *testing.T) {
	model := script(t, 1100)
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, model)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "client") {
				w.client()
			} else {
				w.step()
			}
			before := fmt.Sprintf("%+v", w.s.Header)
			a, actA := w.l.plan(w.s)
			b, actB := w.l.plan(w.s)
			if actA != actB || !slices.EqualFunc(a, b,
				func(x, y outboard.Event) bool { return x.Type == y.Type && string(x.Data) == string(y.Data) }) {
				rt.Fatalf("two plans of one state differ: %v %v", a, b)
			}
			if after := fmt.Sprintf("%+v", w.s.Header); after != before {
				rt.Fatalf("planning changed the state from %s to %s", before, after)
			}
		}
	})
}

// If this fails, a thousand waiting inputs break the limit of one append, or some of them are never taken in.
func TestPlanSplitsAFullInbox(t *testing.T) {
	w := newWorld(nil, script(t, 1<<40))
	w.failer = t
	for range outboard.MaxInbox {
		w.add(&outboard.InputMessage{Content: []outboard.Content{outboard.Text("m")}})
	}
	for range outboard.MaxInbox / 10 {
		w.add(&outboard.InputInterrupt{})
	}
	for appends := 0; ; appends++ {
		events, act := w.l.plan(w.s)
		if len(events) > outboard.MaxAppend-20 {
			t.Fatalf("%d events in one plan", len(events))
		}
		for _, e := range events {
			w.check(e)
			w.s.Assume(e)
		}
		if act != actGenerate || len(events) > 0 {
			continue
		}
		if len(w.s.Waiting) > 0 || appends < 10 {
			t.Errorf("%d inputs wait after %d appends", len(w.s.Waiting), appends)
		}
		return
	}
}

// If this fails, an overloaded provider is hammered, or a user waits longer than the provider asked for.
func TestWaitBeforeARetry(t *testing.T) {
	b := &Builtin{}
	for attempt := 1; attempt < 100; attempt++ {
		want := min(retryBase<<min(attempt-1, 16), retryMax)
		for range 20 {
			if d := b.wait(attempt, 0); d < want/2 || d > want*3/2 {
				t.Fatalf("attempt %d waits %v, want %v and half of it either way", attempt, d, want)
			}
		}
	}
	if d := b.wait(3, 7*time.Second); d != 7*time.Second {
		t.Errorf("the provider asked for 7s, the wait is %v", d)
	}
}

// If this fails, a response that the log cannot hold is appended and ends the turn in an internal error.
func TestGarbageIsNamed(t *testing.T) {
	calls := slices.Repeat([]llm.Block{{Kind: "tool_use", Name: "bash"}}, maxCalls+1)
	cases := map[string]llm.Response{
		"65 tool calls":   {Blocks: calls},
		"121 blocks":      {Blocks: make([]llm.Block, maxBlocks+1)},
		"not JSON":        {Raw: []byte("{")},
		"details are not": {Details: []byte("nope")},
	}
	for want, r := range cases {
		why := garbage(&r)
		if first, rest, _ := strings.Cut(want, " of "); !strings.Contains(why, first) || !strings.Contains(why, rest) {
			t.Errorf("garbage = %q, want it to name %q", why, want)
		}
	}
	if why := garbage(&llm.Response{Blocks: calls[1:], Raw: []byte(`[]`)}); why != "" {
		t.Errorf("a good response is called garbage: %s", why)
	}
}

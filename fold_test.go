package outboard_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"pgregory.net/rapid"
)

// log builds the log of one session, event by event, as the store would number and time it.
type log struct {
	events []outboard.Event
	at     time.Time
}

func newLog() *log {
	l := &log{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	l.add(&outboard.SessionCreated{})
	return l
}

func (l *log) add(p outboard.Payload) outboard.EventID {
	e := outboard.NewEvent("sthr_1", p)
	l.at = l.at.Add(time.Second)
	e.Session, e.Seq, e.Time = "sesn_1", int64(len(l.events))+1, l.at
	l.events = append(l.events, e)
	return e.ID
}

func (l *log) fold(t testing.TB) *outboard.State {
	t.Helper()
	s, err := outboard.Fold(l.events)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (l *log) message(text string) outboard.EventID {
	return l.add(&outboard.InputMessage{Content: []outboard.Content{outboard.Text(text)}})
}

func (l *log) take(id outboard.EventID, of outboard.EventType) {
	l.add(&outboard.InputProcessed{Input: id, Of: of})
}

// respond adds a model call whose response asks for the calls.
func (l *log) respond(calls ...outboard.CallRequested) []outboard.CallID {
	request := l.add(&outboard.ModelStarted{Model: "script/x", Attempt: 1})
	l.add(&outboard.AgentMessage{Content: []outboard.Content{outboard.Text("hm")}})
	var ids []outboard.CallID
	for i := range calls {
		ids = append(ids, l.add(&calls[i]))
	}
	l.add(&outboard.ModelFinished{Request: request, Provider: "script", Stop: "tool_use",
		Usage: outboard.Usage{Input: 7, Output: 3}})
	return ids
}

func call(kind string, d outboard.Decision) outboard.CallRequested {
	return outboard.CallRequested{ToolUseID: "tu", Name: "bash", Kind: kind, Input: outboard.Raw(`{}`), Decision: d}
}

func (l *log) finish(id outboard.CallID, text string) {
	l.add(&outboard.CallFinished{Call: id, Outcome: outboard.OutcomeOK,
		Content: []outboard.Content{outboard.Text(text)}})
}

func roles(s *outboard.State) []string {
	var out []string
	for _, m := range s.History {
		out = append(out, m.Role)
	}
	return out
}

// If this fails, a model sees its tool results in the wrong place: a message or a note that arrived while calls
// ran must come after the results of the response that asked for them.
func TestFoldKeepsResultsNextToTheirCalls(t *testing.T) {
	l := newLog()
	m := l.message("go")
	l.add(&outboard.TurnStarted{Turn: 1})
	l.take(m, outboard.TypeInputMessage)
	ids := l.respond(call("builtin", outboard.Allow), call("builtin", outboard.Allow))
	l.finish(ids[1], "two")
	l.add(&outboard.SandboxLost{Sandbox: "sbx_1", Reason: "died"})
	if s := l.fold(t); len(s.Calls) != 2 || s.Calls[0].Finished != nil {
		t.Fatalf("one call is open, fold has %d calls", len(s.Calls))
	}
	l.finish(ids[0], "one")
	s := l.fold(t)
	if got, want := roles(s), []string{"user", "assistant", "tool", "note"}; !slices.Equal(got, want) {
		t.Fatalf("roles = %v, want %v", got, want)
	}
	if r := s.History[2].Results; len(r) != 2 || r[0].Call != ids[1] || r[1].Call != ids[0] {
		t.Errorf("results = %+v", r)
	}
	if s.Calls != nil || s.Request != "" || !s.InTurn || s.Phase != outboard.PhaseRunning {
		t.Errorf("after all results: calls %v, request %q, in turn %v, phase %s", s.Calls, s.Request, s.InTurn, s.Phase)
	}
}

// If this fails, a second outcome or a second answer could change what a call did, or a stray answer could
// settle another call.
func TestFoldTakesTheFirstAnswerAndOutcome(t *testing.T) {
	l := newLog()
	l.add(&outboard.TurnStarted{Turn: 1})
	ids := l.respond(call("builtin", outboard.Ask), call("builtin", outboard.Ask))
	for _, a := range []outboard.InputConfirmation{{Call: ids[0], Allow: false}, {Call: ids[0], Allow: true},
		{Call: "sevt_none", Allow: true}} {
		l.take(l.add(&a), outboard.TypeInputConfirmation)
	}
	s := l.fold(t)
	if c := s.Call(ids[0]); c.Answer == nil || c.Answer.Allow || c.Allowed() {
		t.Errorf("first answer was deny, call has %+v", c.Answer)
	}
	if c := s.Call(ids[1]); c.Answer != nil || !c.WaitsForClient() || c.Runnable() {
		t.Errorf("the other call has answer %+v", c.Answer)
	}
	l.finish(ids[0], "first")
	l.finish(ids[0], "second")
	if got := l.fold(t).Call(ids[0]).Finished.Content[0].Text; got != "first" {
		t.Errorf("outcome = %q, want the first", got)
	}
}

// If this fails, a session is claimed when it has nothing to do (and spins), or is not claimed when it has.
func TestRunnable(t *testing.T) {
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	turn := func(l *log) { l.add(&outboard.TurnStarted{Turn: 1}) }
	park := func(l *log) {
		turn(l)
		l.respond(call("custom", outboard.Allow))
		l.add(&outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: "requires_action"}})
	}
	cases := []struct {
		name string
		want bool
		log  func(*log)
	}{
		{"new", false, func(*log) {}},
		{"message waits", true, func(l *log) { l.message("x") }},
		{"interrupt of an idle session", true, func(l *log) { l.add(&outboard.InputInterrupt{}) }},
		{"running", true, turn},
		{"ended", false, func(l *log) {
			turn(l)
			l.add(&outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: "end_turn"}})
		}},
		{"parked", false, park},
		{"parked, message waits", false, func(l *log) { park(l); l.message("x") }},
		{"parked, answer waits", true, func(l *log) { park(l); l.add(&outboard.InputToolResult{}) }},
		{"retry later", false, func(l *log) {
			turn(l)
			l.add(&outboard.TurnRetrying{Turn: 1, Attempt: 1, At: now.Add(1)})
			l.message("x")
		}},
		{"retry now", true, func(l *log) { turn(l); l.add(&outboard.TurnRetrying{Turn: 1, Attempt: 1, At: now}) }},
		{"archived", false, func(l *log) { l.message("x"); l.add(&outboard.SessionArchived{}) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newLog()
			c.log(l)
			if got := l.fold(t).Runnable(now); got != c.want {
				t.Errorf("runnable = %v, want %v", got, c.want)
			}
		})
	}
}

// If this fails, a turn that keeps compacting without getting anywhere is not noticed, or one that does get
// somewhere is stopped.
func TestFoldCountsFruitlessCompactions(t *testing.T) {
	l := newLog()
	l.add(&outboard.TurnStarted{Turn: 1})
	compact := func() { l.add(&outboard.ContextCompacted{Summary: "so far"}) }
	compact()
	l.respond()
	compact()
	if s := l.fold(t); s.Compactions != 2 || s.Context != 0 || !slices.Equal(roles(s), []string{"summary"}) {
		t.Fatalf("compactions = %d, context %d, roles %v; want 2, 0, [summary]", s.Compactions, s.Context, roles(s))
	}
	l.respond()
	l.respond()
	if s := l.fold(t); s.Compactions != 0 || s.Context != 10 || s.Final == nil {
		t.Errorf("after two model calls: compactions = %d, context %d, final %v", s.Compactions, s.Context, s.Final)
	}
}

// If this fails, a state and its clone write over each other's history: a model is shown what was only planned.
func TestCloneAndOriginalKeepTheirOwnHistory(t *testing.T) {
	fin := func(id outboard.CallID, text string) outboard.Event {
		return outboard.NewEvent("sthr_1", &outboard.CallFinished{Call: id,
			Content: []outboard.Content{outboard.Text(text)}})
	}
	note := func(why string) outboard.Event {
		return outboard.NewEvent("sthr_1", &outboard.SandboxLost{Reason: why})
	}
	for name, before := range map[string]func(l *log, ids []outboard.CallID){
		"no result yet": func(*log, []outboard.CallID) {},
		"one result":    func(l *log, ids []outboard.CallID) { l.finish(ids[2], "first") },
		"notes stand there": func(l *log,
			_ []outboard.CallID) {
			l.add(&outboard.SandboxLost{})
			l.add(&outboard.SandboxLost{})
		},
	} {
		l := newLog()
		ids := l.respond(call("builtin", outboard.Allow), call("builtin", outboard.Allow),
			call("builtin", outboard.Allow))
		before(l, ids)
		s := l.fold(t)
		a, b, c := s.Clone(), s.Clone(), s.Clone()
		c.Assume(fin(ids[1], "c"))
		b.Assume(fin(ids[1], "b"))
		a.Assume(note("of a"))
		s.Assume(note("of s"))
		if last := a.History[len(a.History)-1]; !strings.Contains(last.Content[0].Text, "of a") {
			t.Errorf("%s: the clone's note is %q", name, last.Content[0].Text)
		}
		s.Assume(fin(ids[0], "s"))
		a.Assume(fin(ids[1], "a"))
		want := map[*outboard.State]string{s: "s", a: "a", b: "b", c: "c"}
		for st, text := range want {
			i := slices.IndexFunc(st.History, func(m *outboard.Message) bool { return m.Role == "tool" })
			if r := st.History[i].Results; r[len(r)-1].Content[0].Text != text || i != 1 {
				t.Errorf("%s: results at %d are %+v, want the last to be %q", name, i, r, text)
			}
		}
		if len(s.Calls) != len(b.Calls) || s.Call(ids[1]).Finished != nil || b.Call(ids[0]).Finished != nil {
			t.Errorf("%s: the calls of original and clone are mixed up", name)
		}
	}
}

// anyLog draws a log of arbitrary events that refer to each other at random: sense is not required, only that
// each is well formed.
func anyLog(t *rapid.T) *log {
	l := newLog()
	ids, calls := []outboard.EventID{"sevt_none"}, []outboard.CallID{"sevt_none"}
	pick := func() outboard.EventID { return rapid.SampledFrom(ids).Draw(t, "id") }
	pickCall := func() outboard.CallID { return rapid.SampledFrom(calls).Draw(t, "call") }
	inputs := []outboard.EventType{outboard.TypeInputMessage, outboard.TypeInputSystem, outboard.TypeInputInterrupt,
		outboard.TypeInputConfirmation, outboard.TypeInputToolResult}
	makers := []func() outboard.Payload{
		func() outboard.Payload {
			return &outboard.InputMessage{Content: []outboard.Content{outboard.Text("m")}}
		},
		func() outboard.Payload { return &outboard.InputSystem{} },
		func() outboard.Payload { return &outboard.InputInterrupt{} },
		func() outboard.Payload {
			return &outboard.InputConfirmation{Call: pickCall(), Allow: rapid.Bool().Draw(t, "allow")}
		},
		func() outboard.Payload { return &outboard.InputToolResult{Call: pickCall(), Custom: true} },
		func() outboard.Payload {
			return &outboard.InputProcessed{Input: pick(), Of: rapid.SampledFrom(inputs).Draw(t, "of")}
		},
		func() outboard.Payload { return &outboard.TurnStarted{Turn: 1} },
		func() outboard.Payload { return &outboard.TurnResumed{Turn: 1} },
		func() outboard.Payload { return &outboard.TurnRetrying{Turn: 1, Attempt: 2, At: l.at} },
		func() outboard.Payload { return &outboard.TurnFailed{Turn: 1} },
		func() outboard.Payload {
			stop := rapid.SampledFrom([]string{"end_turn", "requires_action"}).Draw(t, "stop")
			return &outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: stop,
				EventIDs: []outboard.EventID{pick()}}}
		},
		func() outboard.Payload { return &outboard.ModelStarted{Model: "m"} },
		func() outboard.Payload {
			return &outboard.ModelFinished{Request: pick(), Raw: outboard.Raw(`[]`),
				Usage: outboard.Usage{Input: 3, Output: 1}}
		},
		func() outboard.Payload {
			return &outboard.ModelFailed{Request: pick(), Usage: outboard.Usage{Input: 1}}
		},
		func() outboard.Payload { return &outboard.AgentThinking{Text: "t"} },
		func() outboard.Payload {
			return &outboard.AgentMessage{Content: []outboard.Content{outboard.Text("a")}}
		},
		func() outboard.Payload {
			return &outboard.ContextCompacted{Summary: "s", Usage: outboard.Usage{Output: 2}}
		},
		func() outboard.Payload {
			d := rapid.SampledFrom([]outboard.Decision{outboard.Allow, outboard.Ask, outboard.Deny}).Draw(t, "decision")
			c := call(rapid.SampledFrom([]string{"builtin", "custom"}).Draw(t, "kind"), d)
			return &c
		},
		func() outboard.Payload {
			return &outboard.CallStarted{Call: pickCall(), Sandbox: "sbx_1", Generation: "g"}
		},
		func() outboard.Payload { return &outboard.CallOffered{Call: pickCall()} },
		func() outboard.Payload { return &outboard.CallFinished{Call: pickCall(), Outcome: outboard.OutcomeOK} },
		func() outboard.Payload { return &outboard.SandboxReady{Sandbox: "sbx_1", Generation: "g"} },
		func() outboard.Payload { return &outboard.SandboxLost{Sandbox: "sbx_1", Restore: "ckpt_1"} },
		func() outboard.Payload { return &outboard.CheckpointCreated{Checkpoint: "ckpt_2", Call: pickCall()} },
		func() outboard.Payload { return &outboard.FileHarvested{} },
		func() outboard.Payload {
			return &outboard.SessionUpdated{Title: new("t"), Metadata: map[string]string{"k": "v"}}
		},
		func() outboard.Payload { return &outboard.SessionArchived{} },
	}
	for range rapid.IntRange(0, 60).Draw(t, "events") {
		p := rapid.SampledFrom(makers).Draw(t, "event")()
		id := l.add(p)
		ids = append(ids, id)
		if p.EventType() == outboard.TypeCallRequested {
			calls = append(calls, id)
		}
	}
	return l
}

// If this fails, the row a claim or a permission check looks at tells another story than the log it stands for.
func TestProjectAgreesWithFold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := anyLog(rt)
		h := outboard.Header{ID: "sesn_1", Thread: "sthr_1", Phase: outboard.PhaseIdle}
		for i := range l.events {
			if err := outboard.Project(&h, &l.events[i]); err != nil {
				rt.Fatal(err)
			}
		}
		s, err := outboard.Fold(l.events)
		if err != nil {
			rt.Fatal(err)
		}
		if !reflect.DeepEqual(s.Header, h) {
			rt.Fatalf("folded header   %+v\nprojected header %+v", s.Header, h)
		}
	})
}

// If this fails, looking ahead changes the state it looks from, and a harness decides on events that never
// became durable.
func TestAssumingOnACloneLeavesTheOriginal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := anyLog(rt)
		cut := rapid.IntRange(0, len(l.events)).Draw(rt, "cut")
		s, err := outboard.Fold(l.events[:cut])
		if err != nil {
			rt.Fatal(err)
		}
		before := snapshot(rt, s)
		c, still := s.Clone(), s.Clone()
		for _, e := range l.events[cut:] {
			c.Assume(e)
		}
		if after := snapshot(rt, s); after != before {
			rt.Fatalf("the original changed\nfrom %s\nto   %s", before, after)
		}
		for i := range l.events[cut:] {
			if err := s.Apply(&l.events[cut+i]); err != nil {
				rt.Fatal(err)
			}
		}
		if after := snapshot(rt, still); after != before {
			rt.Fatalf("a clone changed with the original\nfrom %s\nto   %s", before, after)
		}
		if !slices.Equal(roles(s), roles(c)) || len(s.Calls) != len(c.Calls) || s.Phase != c.Phase ||
			s.Request != c.Request {
			rt.Fatalf("assumed and applied differ: %v %v, %d %d calls", roles(s), roles(c), len(s.Calls), len(c.Calls))
		}
	})
}

func snapshot(t *rapid.T, s *outboard.State) string {
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// If this fails, a log with a gap or a foreign event is folded as if it were whole.
func TestFoldRefusesABrokenLog(t *testing.T) {
	l := newLog()
	l.message("x")
	if _, err := outboard.Fold(l.events); err != nil {
		t.Fatalf("the whole log does not fold: %v", err)
	}
	for name, change := range map[string]func([]outboard.Event) []outboard.Event{
		"gap":          func(e []outboard.Event) []outboard.Event { return e[1:] },
		"unknown type": func(e []outboard.Event) []outboard.Event { e[1].Type = "x.y"; return e },
		"bad payload":  func(e []outboard.Event) []outboard.Event { e[1].Data = outboard.Raw(`{"content":1}`); return e },
	} {
		if _, err := outboard.Fold(change(slices.Clone(l.events))); outboard.KindOf(err) != outboard.Internal {
			t.Errorf("%s: error = %v, want kind internal", name, err)
		}
	}
}

// If this fails, a payload that some process wrote, however odd, crashes every process that reads the log after it.
func FuzzApply(f *testing.F) {
	l := newLog()
	ids := l.respond(call("builtin", outboard.Ask))
	l.finish(ids[0], "x")
	for _, e := range l.events {
		f.Add(string(e.Type), []byte(e.Data))
	}
	f.Fuzz(func(t *testing.T, kind string, data []byte) {
		l := newLog()
		l.message("x")
		l.add(&outboard.TurnStarted{Turn: 1})
		l.respond(call("builtin", outboard.Allow), call("custom", outboard.Allow))
		s := l.fold(t)
		e := outboard.Event{ID: "sevt_f", Session: "sesn_1", Thread: "sthr_1", Seq: s.Head + 1,
			Type: outboard.EventType(kind), Data: data}
		if err := s.Apply(&e); err != nil && outboard.KindOf(err) != outboard.Internal &&
			!errors.Is(err, outboard.ErrRewound) {
			t.Errorf("error of kind %s: %v", outboard.KindOf(err), err)
		}
	})
}

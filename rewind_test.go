package outboard_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"pgregory.net/rapid"
)

// turn adds a whole turn: a message, a call, its result with a checkpoint, and an end.
func (l *log) turn(n int, text string, ckpt outboard.CheckpointID) {
	id := l.message(text)
	l.add(&outboard.TurnStarted{Turn: n})
	l.take(id, outboard.TypeInputMessage)
	calls := l.respond(call("builtin", outboard.Allow))
	l.add(&outboard.CallFinished{Call: calls[0], Outcome: outboard.OutcomeOK,
		Content: []outboard.Content{outboard.Text(text + "!")}, Checkpoint: ckpt})
	l.add(&outboard.CheckpointCreated{Checkpoint: ckpt, Call: calls[0]})
	l.respond()
	l.add(&outboard.TurnEnded{Turn: n, Stop: outboard.StopReason{Type: "end_turn"}})
}

func (l *log) head() int64 { return int64(len(l.events)) }

// said is what users said, as the model sees it now.
func said(s *outboard.State) string {
	var out []string
	for _, m := range s.History {
		if m.Role == "user" || m.Role == "summary" {
			out = append(out, outboard.PlainText(m.Content))
		}
	}
	return strings.Join(out, " ")
}

// If this fails, the model still acts on what the user took back, or forgets more than that, or does not know
// where its files are.
func TestRewind(t *testing.T) {
	l := newLog()
	l.add(&outboard.SandboxReady{Sandbox: "sbx_1", Generation: "g"})
	l.turn(1, "one", "ckpt_1")
	one := l.head()
	l.turn(2, "two", "ckpt_2")
	l.add(&outboard.ContextCompacted{Summary: "sum"})
	two := l.head()
	if s := l.fold(t); said(s) != "sum" || s.Checkpoint != "ckpt_2" {
		t.Fatalf("before: the model sees %q at %s", said(s), s.Checkpoint)
	}
	plain, base := l.fold(t), len(l.events)
	try := func(p outboard.SessionRewound, sees string, at outboard.CheckpointID, machine bool, note string) {
		t.Helper()
		l.events = l.events[:base]
		l.add(&p)
		s := l.fold(t)
		last := s.History[len(s.History)-1]
		if said(s) != sees || s.Checkpoint != at || (s.Sandbox != nil) != machine || last.Role != "note" ||
			!strings.Contains(outboard.PlainText(last.Content), note) {
			t.Errorf("%+v: the model sees %q at %s, machine %v, last %+v", p, said(s), s.Checkpoint, s.Sandbox, last)
		}
		if s.Turn != 2 || s.InTurn || !s.Settled() || s.Usage != plain.Usage {
			t.Errorf("%+v: turn %d (in it: %v), settled %v, usage %+v", p, s.Turn, s.InTurn, s.Settled(), s.Usage)
		}
	}
	try(outboard.SessionRewound{To: one, Conversation: true, Machine: true, Checkpoint: "ckpt_1"}, "one", "ckpt_1",
		false, "Processes and shell")
	try(outboard.SessionRewound{To: one, Conversation: true}, "one", "ckpt_2", true, "files may have changed")
	try(outboard.SessionRewound{To: one, Machine: true, Checkpoint: "ckpt_1"}, "sum", "ckpt_1", false, "is undone")
	try(outboard.SessionRewound{To: 1, Conversation: true, Machine: true}, "", "", false,
		"as it was when the session began")

	l.events = l.events[:base]
	l.add(&outboard.SessionRewound{To: one, Conversation: true})
	l.turn(3, "three", "ckpt_3")
	if s := l.fold(t); said(s) != "one three" || s.Turn != 3 {
		t.Errorf("after a rewind and a turn the model sees %q in turn %d", said(s), s.Turn)
	}
	l.add(&outboard.SessionRewound{To: two, Conversation: true})
	if s := l.fold(t); said(s) != "sum" {
		t.Errorf("a rewind that is taken back shows %q", said(s))
	}
	if err := plain.Apply(&l.events[base]); !errors.Is(err, outboard.ErrRewound) || plain.Head != int64(base) {
		t.Errorf("a fold that cannot go back went on to %d: %v", plain.Head, err)
	}
}

// If this fails, some sequence of rewinds leaves the model with a conversation that nobody had at the position
// rewound to.
func TestRewindsAgreeWithHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newLog()
		seen := []string{"", ""} // by seq: what users had said, as the model saw it then
		n := 0
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "rewind") {
				to := rapid.Int64Range(1, l.head()).Draw(rt, "to")
				l.add(&outboard.SessionRewound{To: to, Conversation: true})
				seen = append(seen, seen[to])
				continue
			}
			n++
			id := l.message(string(rune('a' + n)))
			l.take(id, outboard.TypeInputMessage)
			before := seen[len(seen)-1]
			seen = append(seen, before, strings.TrimSpace(before+" "+string(rune('a'+n))))
		}
		s, err := outboard.Fold(l.events)
		if err != nil {
			rt.Fatal(err)
		}
		// A message whose arrival alone is in the conversation was not taken in there: seen says so, and so must
		// the fold.
		if said(s) != seen[len(seen)-1] || len(s.Waiting) != 0 {
			rt.Fatalf("the model sees %q, waiting %d, want %q", said(s), len(s.Waiting), seen[len(seen)-1])
		}
	})
}

// If this fails, a fork goes on with what belongs to its parent: its machine, its open calls, its inbox, its
// vaults or its bill.
func TestForkStartsClean(t *testing.T) {
	l := newLog()
	l.add(&outboard.SandboxReady{Sandbox: "sbx_1", Generation: "g"})
	l.turn(1, "one", "ckpt_1")
	l.message("waiting")
	l.add(&outboard.TurnStarted{Turn: 2})
	l.respond(call("builtin", outboard.Ask))
	if s := l.fold(t); len(s.Calls) != 1 || len(s.Waiting) != 1 || s.Inbox != 1 || s.Settled() ||
		s.Usage == (outboard.Usage{}) {
		t.Fatalf("the parent is %+v", s)
	}
	l.add(&outboard.SessionForked{Parent: "sesn_0", Seq: l.head(), Checkpoint: "ckpt_1",
		Config: outboard.SessionConfig{Environment: "env_fork"}})
	s := l.fold(t)
	if s.Sandbox != nil || s.Checkpoint != "ckpt_1" || len(s.Calls) != 0 || len(s.Waiting) != 0 || s.InTurn ||
		s.Config.Environment != "env_fork" {
		t.Errorf("the fork is %+v", s)
	}
	if s.Phase != outboard.PhaseIdle || s.Stop != nil || s.Inbox != 0 || s.Usage != (outboard.Usage{}) ||
		s.Active != 0 || s.Turn != 2 {
		t.Errorf("its header is %+v", s.Header)
	}
	if said(s) != "one" || !slices.Contains(roles(s), "note") {
		t.Errorf("its model sees %q in %v", said(s), roles(s))
	}
}

// If this fails, a log with a rewind into the future is folded in a circle, or as if nothing had been said.
func TestImpossibleRewinds(t *testing.T) {
	for _, rs := range [][]outboard.Rewind{{{Seq: 5, To: 5}}, {{Seq: 5, To: 9}}, {{Seq: 5, To: 0}},
		{{Seq: 5, To: 2}, {Seq: 4, To: 1}}} {
		if _, err := outboard.NewState(rs); outboard.KindOf(err) != outboard.Internal {
			t.Errorf("%v: %v", rs, err)
		}
	}
	if _, err := outboard.NewState([]outboard.Rewind{{Seq: 5, To: 2}, {Seq: 7, To: 6}}); err != nil {
		t.Errorf("rewinds that are possible: %v", err)
	}
}

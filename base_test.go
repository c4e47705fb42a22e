package outboard_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"pgregory.net/rapid"
)

// put replaces an event by another of the same id, place and time.
func (l *log) put(i int, p outboard.Payload) {
	old := l.events[i]
	e := outboard.NewEvent(old.Thread, p)
	e.ID, e.Session, e.Seq, e.Time = old.ID, old.Session, old.Seq, old.Time
	e.Data = append(outboard.Raw(nil), e.Data...)
	l.events[i] = e
}

// rebased folds a log from its newest summary that can be folded from. It returns nil when there is none.
func (l *log) rebased(t *rapid.T, rewinds []outboard.Rewind) *outboard.State {
	for i := len(l.events) - 1; i >= 0; i-- {
		b, err := l.events[i].Base()
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			continue
		}
		s, err := outboard.NewState(rewinds)
		if err != nil {
			t.Fatal(err)
		}
		var waiting []outboard.Event
		for _, seq := range b.Waiting {
			waiting = append(waiting, l.events[seq-1])
		}
		ok, err := s.Rebase(&l.events[i], b, waiting)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		for k := int(s.Head); k < len(l.events); k++ {
			if err := s.Apply(&l.events[k]); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	return nil
}

// noneWaits makes an empty list of inputs a nil one: which it is says only whether there were any before.
func noneWaits(s *outboard.State) *outboard.State {
	if len(s.Waiting) == 0 {
		s.Waiting = nil
	}
	return s
}

// If this fails, a process that folds a long log from its last summary decides from something else than what the
// log says: after rewinds, in forks, with inputs that waited.
func TestFoldFromASummary(t *testing.T) {
	logs, tried := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		logs++
		l := anyLog(rt)
		var rewinds []outboard.Rewind
		for i := 2; i < len(l.events); i++ {
			seq := int64(i + 1)
			switch rapid.IntRange(0, 9).Draw(rt, "instead") {
			case 0:
				to := rapid.Int64Range(1, seq-1).Draw(rt, "to")
				r := outboard.SessionRewound{To: to, Conversation: rapid.Bool().Draw(rt, "conversation"),
					Machine: rapid.Bool().Draw(rt, "machine")}
				if l.put(i, &r); r.Conversation {
					rewinds = append(rewinds, outboard.Rewind{Seq: seq, To: to})
				}
			case 1:
				l.put(i, &outboard.SessionForked{Seq: seq - 1, Checkpoint: "ckpt_f",
					Config: outboard.SessionConfig{Environment: "env_f"}})
			case 2, 3:
				at := rapid.IntRange(max(1, i-3), i).Draw(rt, "at")
				s, err := outboard.Fold(l.events[:at])
				if err != nil {
					rt.Fatal(err)
				}
				l.put(i, &outboard.ContextCompacted{Summary: "so far", Usage: outboard.Usage{Output: 2},
					Base: s.Base()})
			}
		}
		want, err := outboard.Fold(l.events)
		if err != nil {
			rt.Fatal(err)
		}
		got := l.rebased(rt, rewinds)
		if got == nil {
			return
		}
		tried++
		if got, want := got.Clone(), want.Clone(); !reflect.DeepEqual(noneWaits(got), noneWaits(want)) {
			rt.Fatalf("from the summary %s\nfrom the beginning %s", snapshot(rt, got), snapshot(rt, want))
		}
	})
	if tried < logs/5 {
		t.Errorf("only %d of %d logs could be folded from a summary: this tests nothing", tried, logs)
	}
}

// If this fails, a log that somebody made up sends a fold into the future, or a state says it can be gone on
// from when it cannot.
func TestBaseOnlyWhereThereIsOne(t *testing.T) {
	l := newLog()
	if l.fold(t).Base() == nil {
		t.Error("a new session has no base")
	}
	for range 33 {
		l.message("waits")
	}
	if l.fold(t).Base() != nil {
		t.Error("a base names any number of inputs")
	}
	l = newLog()
	l.respond(call("builtin", outboard.Allow))
	if l.fold(t).Base() != nil {
		t.Error("a session with an open call has a base")
	}
	l = newLog()
	c := call("builtin", outboard.Allow)
	l.finish(l.add(&c), "ok") // before the response that asked for it has ended
	if l.fold(t).Base() != nil {
		t.Error("half a response with a call has a base")
	}
	l.add(&outboard.ModelFinished{Provider: "script", Stop: "tool_use"})
	if l.fold(t).Base() == nil {
		t.Error("a session whose response has ended has no base")
	}
	for head, want := range map[int64]bool{-1: false, 0: false, 1: true, 4: true, 5: false, 6: false} {
		e := outboard.NewEvent("",
			&outboard.ContextCompacted{Base: &outboard.Base{Header: outboard.Header{Head: head}}})
		e.Seq = 5
		if b, err := e.Base(); err != nil || (b != nil) != want {
			t.Errorf("the summary at 5 with a base at %d: %v, %v", head, b, err)
		}
	}
}

// If this fails, what a session keeps in memory is counted as less than it is, or does not shrink with a summary.
func TestSizeOfAState(t *testing.T) {
	l := newLog()
	text := strings.Repeat("x", 1000)
	empty := l.fold(t).Size()
	l.turn(1, text, "ckpt_1")
	l.add(&outboard.AgentThinking{Text: strings.Repeat(text, 100)}) // which a state does not keep
	if n := l.fold(t).Size() - empty; n < 2000 || n > 10_000 {
		t.Errorf("a turn of 2000 bytes takes %d", n)
	}
	waits := l.message(text)
	if n := l.fold(t).Size(); n < empty+3000 {
		t.Errorf("with an input that waits it takes %d", n)
	}
	l.take(waits, outboard.TypeInputMessage)
	l.add(&outboard.ContextCompacted{Summary: "short"})
	if n := l.fold(t).Size() - empty; n > 1000 {
		t.Errorf("after the summary it takes %d bytes more than nothing", n)
	}
}

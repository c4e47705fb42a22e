//go:build linux

package runner

import (
	"context"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
)

// converse fills the log of a session with turns until it has at least n events.
func (r *rig) converse(id outboard.SessionID, n int) (head int64) {
	r.t.Helper()
	h, err := r.store.Session(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	text := strings.Repeat("x", 300)
	for turn := 1; h.Head < int64(n); {
		var events []outboard.Event
		add := func(p outboard.Payload) outboard.EventID {
			e := outboard.NewEvent(h.Thread, p)
			events = append(events, e)
			return e.ID
		}
		for len(events) < 250 {
			in := add(&outboard.InputMessage{Content: []outboard.Content{outboard.Text("- say: " + text)}})
			add(&outboard.TurnStarted{Turn: turn, Harness: "outboard", Version: "1"})
			add(&outboard.InputProcessed{Input: in, Of: outboard.TypeInputMessage})
			req := add(&outboard.ModelStarted{Model: "script/steps", Attempt: 1})
			add(&outboard.AgentThinking{Text: text})
			add(&outboard.AgentMessage{Content: []outboard.Content{outboard.Text(text)}})
			add(&outboard.ModelFinished{Request: req, Provider: "script", Stop: "end_turn"})
			add(&outboard.TurnEnded{Turn: turn, Stop: outboard.StopReason{Type: "end_turn"}})
			turn++
		}
		if _, err := r.store.Append(r.t.Context(), id, 0, store.Any, events...); err != nil {
			r.t.Fatal(err)
		}
		h.Head += int64(len(events))
	}
	return h.Head
}

// inUse is the memory that is in use.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one put out of pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// answered waits for the end of a turn behind an event. It returns the log's head and what the model said.
func (r *rig) answered(id outboard.SessionID, after int64) (head int64, said string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for e, err := range r.store.Follow(ctx, id, after) {
		if err != nil {
			r.t.Fatal(err)
		}
		switch p, _ := e.Decode(); p := p.(type) {
		case *outboard.AgentMessage:
			said += outboard.PlainText(p.Content)
		case *outboard.TurnEnded:
			return e.Seq, said
		}
	}
	r.t.Fatal("the turn did not end")
	return 0, ""
}

// turnRows runs a turn of a session and returns the new head of its log and how many rows of it were read
// meanwhile, those apart that the test itself reads.
func (r *rig) turnRows(id outboard.SessionID, head int64, text string) (now, rows int64) {
	r.t.Helper()
	began := r.store.EventsRead()
	r.say(id, "- bash: echo "+text, "- say: "+text)
	now, said := r.answered(id, head)
	if said != text {
		r.t.Errorf("the model said %q, want %q", said, text)
	}
	rows = r.store.EventsRead() - began
	r.t.Logf("turn %s of a log of %d events: %d rows read for %d new ones", text, head, rows, now-head)
	return now, rows
}

// slack is how many rows a turn may read beyond those it needs: each new one a few times, by the turn, by its
// watchers and by the test.
func slack(fresh int64) int64 { return 4*fresh + 50 }

// If this fails, a turn of a long session reads its log more than once, one right behind another reads what that
// one had read, or the session stays in memory when it is idle.
func TestLongSession(t *testing.T) {
	r := newRig(t, llm.Config{Scripts: llm.Scripts{Context: 1 << 40}}) // or the conversation is summarised
	r.log = slog.New(slog.DiscardHandler)
	id := r.session("script/steps", allTools)
	long := r.converse(id, 100_000)
	idle := inUse()
	n := r.start(nil)
	head, rows := r.turnRows(id, long, "first")
	if rows > long+slack(head-long) {
		t.Errorf("the first turn read %d rows of a log of %d", rows, long)
	}
	if rows < long {
		t.Errorf("the first turn read %d rows of a log of %d, all of which the model is shown: this counts "+
			"something else", rows, long)
	}
	for _, text := range []string{"second", "third"} {
		was := head
		if head, rows = r.turnRows(id, was, text); rows > slack(head-was) {
			t.Errorf("turn %s read %d rows, when %d were new", text, rows, head-was)
		}
	}
	if kept := inUse() - idle; kept < long*100 || kept > maxStateBytes {
		t.Errorf("right after its turn the session takes %d bytes", kept)
	}
	n.Stop()
	n.states.expire(time.Now().Add(2 * stateTTL)) // as the runner does each second
	if more := inUse() - idle; more > 1<<20 {
		t.Errorf("an idle session of %d events keeps %d bytes in memory", head, more)
	}
	runtime.KeepAlive(n)
}

// If this fails, a process that takes up a long session reads what its summary stands for, or goes on with
// something else than what the whole log says.
func TestLongSummarisedSession(t *testing.T) {
	r := newRig(t, llm.Config{Scripts: llm.Scripts{Context: 200_000}})
	r.log = slog.New(slog.DiscardHandler)
	id := r.session("script/steps", allTools)
	long := r.converse(id, 20_000)
	n := r.start(nil)
	head, rows := r.turnRows(id, long, "first") // which begins with a summary
	if rows < long {
		t.Errorf("the first turn read %d rows of a log of %d without a summary: this counts something else", rows, long)
	}
	if n := len(payloads[*outboard.ContextCompacted](r, id)); n != 1 {
		t.Fatalf("%d summaries, want 1", n)
	}
	for _, text := range []string{"second", "third"} {
		n.Stop()
		n = r.start(nil) // another process
		was := head
		if head, rows = r.turnRows(id, was, text); rows > slack(head-long) {
			t.Errorf("turn %s read %d rows, when %d came after the summary", text, rows, head-long)
		}
	}
	n.Stop()
	want, err := outboard.Fold(r.events(id))
	if err != nil {
		t.Fatal(err)
	}
	got := n.states.take(t.Context(), id).Clone()
	if want = want.Clone(); len(got.Waiting)+len(want.Waiting) == 0 {
		got.Waiting, want.Waiting = nil, nil // not how many there were before
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the session goes on from\n%+v\nits log says\n%+v", got, want)
	}
}

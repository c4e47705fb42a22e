//go:build linux

package runner

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"

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

// bytesRead is what this process has read so far, from its database above all.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err == nil {
		_, err = fmt.Sscanf(string(b), "rchar: %d", &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
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

// If this fails, a turn of a long session reads its log more than once, or the session stays in memory when it is idle.
func TestLongSession(t *testing.T) {
	r := newRig(t, llm.Config{Scripts: llm.Scripts{Context: 1 << 40}}) // or the conversation is summarised
	r.log = slog.New(slog.DiscardHandler)
	id := r.session("script/steps", allTools)
	head := r.converse(id, 100_000)
	began, data := bytesRead(t), int64(0)
	for e, err := range r.store.Read(t.Context(), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		data += int64(len(e.Data))
	}
	once := bytesRead(t) - began
	if once < data {
		t.Fatalf("reading %d bytes of events took %d bytes from the database: this measures nothing", data, once)
	}
	idle := inUse()
	n := r.start(nil)
	for _, text := range []string{"first", "second"} {
		began := bytesRead(t)
		r.say(id, "- bash: echo "+text, "- say: "+text)
		var said string
		if head, said = r.answered(id, head); said != text {
			t.Errorf("the model said %q, want %q", said, text)
		}
		took := bytesRead(t) - began
		if took > once*3/2 {
			t.Errorf("turn %s read %d bytes; reading the log once takes %d", text, took, once)
		}
		t.Logf("turn %s: %d bytes read, the log once is %d", text, took, once)
	}
	n.Stop() // the turns have been put away; what n keeps of them it still has
	if more := inUse() - idle; more > data/10 {
		t.Errorf("an idle session of %d bytes keeps %d bytes in memory", data, more)
	}
	runtime.KeepAlive(n)
}

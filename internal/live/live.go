// Package live broadcasts model output, and the newest lines of running commands, while they are
// produced.
//
// Invariants: it is best effort and bounded. What it carries is never the only copy of anything, a
// slow reader loses deltas, and other processes see none. The log gets whole messages.
//
// It never blocks the producer and never writes. Start reading at Hub.
package live

import (
	"context"
	"sync"

	"github.com/outboard-dev/outboard"
)

// CallOutput is the kind of a delta about a tool call that runs: Event is the call, Text the newest line of its
// output, cleaned as its
// result will be; "" when it runs no longer. The log has no such event.
const CallOutput outboard.EventType = "outboard.call.output"

// Delta is a piece of a message that is still being produced. Event is the id that the finished agent.message or
// agent.thinking event will have. Of CallOutput each delta is complete by itself.
type Delta struct {
	Session outboard.SessionID
	Thread  outboard.ThreadID
	Event   outboard.EventID
	Kind    outboard.EventType // TypeAgentMessage, TypeAgentThinking or CallOutput
	// the log's last event when this was produced: readers of both are shown that event first
	After int64
	Start bool // the first delta of its event; Text is empty
	Text  string
}

// readerBuffer is how many deltas a reader may lag behind before it loses some.
const readerBuffer = 256

// Hub connects producers and readers of one process. The zero value is ready; all methods may be called from any
// goroutine.
type Hub struct {
	mu      sync.Mutex
	readers map[outboard.SessionID]map[chan Delta]bool        // true once the reader has lost a delta
	lines   map[outboard.SessionID]map[outboard.EventID]Delta // of calls that run, for readers that come later
}

// Publish hands d to the session's readers. It never blocks. A reader that is full loses the rest of that event:
// deltas of one event are always a contiguous prefix.
func (h *Hub) Publish(d Delta) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.Kind == CallOutput {
		h.line(d)
		return
	}
	for ch, lost := range h.readers[d.Session] {
		if lost && !d.Start {
			continue
		}
		select {
		case ch <- d:
			h.readers[d.Session][ch] = false
		default:
			h.readers[d.Session][ch] = true
		}
	}
}

// line hands a call's newest line to readers that are not behind: text, which cannot have a hole, comes first.
func (h *Hub) line(d Delta) {
	running := h.lines[d.Session]
	if d.Text == "" {
		if delete(running, d.Event); len(running) == 0 {
			delete(h.lines, d.Session)
		}
		return
	}
	if running == nil {
		running = map[outboard.EventID]Delta{}
		if h.lines == nil {
			h.lines = map[outboard.SessionID]map[outboard.EventID]Delta{}
		}
		h.lines[d.Session] = running
	}
	running[d.Event] = d
	for ch := range h.readers[d.Session] {
		if len(ch) < readerBuffer/2 { // this is the only sender
			ch <- d
		}
	}
}

// Follow returns a channel of the session's deltas from now on, after the newest lines of the calls that run. It is
// closed when ctx
// ends.
func (h *Hub) Follow(ctx context.Context, s outboard.SessionID) <-chan Delta {
	ch := make(chan Delta, readerBuffer)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readers == nil {
		h.readers = map[outboard.SessionID]map[chan Delta]bool{}
	}
	if h.readers[s] == nil {
		h.readers[s] = map[chan Delta]bool{}
	}
	h.readers[s][ch] = false
	for _, d := range h.lines[s] { // at most outboard.MaxParallelCalls
		ch <- d
	}
	context.AfterFunc(ctx, func() { h.drop(s, ch) })
	return ch
}

func (h *Hub) drop(s outboard.SessionID, ch chan Delta) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers[s], ch)
	if len(h.readers[s]) == 0 {
		delete(h.readers, s)
	}
	close(ch)
}

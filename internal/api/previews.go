package api

import (
	"errors"
	"net/http"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// keptDone is how many finished events a stream remembers, so that a delta which arrives after its event is
// dropped. A reader of live deltas lags at most 256 behind.
const keptDone = 1024

// previews decides which live deltas a connection may see: one start per event, then a contiguous prefix of its
// text, and nothing once the event itself, or the end of its model request, has been written. A line of a tool
// call's output is shown until its result.
type previews struct {
	kinds []string
	open  map[outboard.EventID]bool
	done  map[outboard.EventID]bool
	ring  []outboard.EventID // done, oldest first
}

func newPreviews(kinds []string) *previews {
	return &previews{kinds: kinds, open: map[outboard.EventID]bool{}, done: map[outboard.EventID]bool{}}
}

func (p *previews) wanted() bool { return len(p.kinds) > 0 }

// delta returns the frame of a delta, nil when it must not be shown.
func (p *previews) delta(d control.Delta) map[string]any {
	if !slices.Contains(p.kinds, string(d.Kind)) || p.done[d.Event] {
		return nil
	}
	if d.Kind == control.CallOutput {
		return map[string]any{"type": d.Kind, "tool_use_id": d.Event, "line": d.Text}
	}
	if d.Start {
		if p.open[d.Event] {
			return nil
		}
		p.open[d.Event] = true
		return map[string]any{"type": "event_start", "event": map[string]any{"type": d.Kind, "id": d.Event}}
	}
	if !p.open[d.Event] || d.Kind != outboard.TypeAgentMessage || d.Text == "" {
		return nil // the beginning was missed, or it is reasoning, of which the wire shows only that it happens
	}
	return map[string]any{"type": "event_delta", "event_id": d.Event, "delta": map[string]any{"type": "content_delta",
		"index":   0,
		"content": map[string]any{"type": "text", "text": d.Text}}}
}

// close ends the previews that a log event ends: its own, or all when a model request is over.
func (p *previews) close(e *outboard.Event) {
	if !p.wanted() {
		return
	}
	switch e.Type {
	case outboard.TypeAgentMessage, outboard.TypeAgentThinking:
		p.finish(e.ID)
	case outboard.TypeCallFinished:
		if fin, err := e.Decode(); err == nil { // a line too many is no reason to end a stream
			p.finish(fin.(*outboard.CallFinished).Call)
		}
	case outboard.TypeModelFinished, outboard.TypeModelFailed:
		for id := range p.open {
			p.finish(id)
		}
	}
}

func (p *previews) finish(id outboard.EventID) {
	delete(p.open, id)
	if p.done[id] {
		return
	}
	p.done[id] = true
	if p.ring = append(p.ring, id); len(p.ring) > keptDone {
		delete(p.done, p.ring[0])
		p.ring = slices.Delete(p.ring, 0, 1)
	}
}

// isUnsupported reports that a connection has no write deadlines, as one inside a test may not.
func isUnsupported(err error) bool { return errors.Is(err, http.ErrNotSupported) }

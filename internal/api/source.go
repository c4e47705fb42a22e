package api

import (
	"context"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// keptEvents bounds the events a translation remembers; what refers to an event usually follows it soon.
const keptEvents = 256

// logSource answers the translator from a session's log. It belongs to one request.
type logSource struct {
	ctl   *control.Control
	by    outboard.Caller
	id    outboard.SessionID
	total outboard.Header // of a stream: the sums up to the event in hand; Head 0 on a list, which looks them up
	kept  map[outboard.EventID]outboard.Event
}

// Event implements source.
func (s *logSource) Event(ctx context.Context, id outboard.EventID) (outboard.Event, error) {
	if e, ok := s.kept[id]; ok {
		return e, nil
	}
	e, err := s.ctl.Event(ctx, s.by, s.id, id)
	if err != nil {
		return e, err
	}
	if s.kept == nil || len(s.kept) >= keptEvents {
		s.kept = map[outboard.EventID]outboard.Event{}
	}
	s.kept[id] = e
	return e, nil
}

// UsageAt implements source.
func (s *logSource) UsageAt(ctx context.Context, seq int64) (outboard.Header, error) {
	if s.total.Head == seq {
		return s.total, nil
	}
	return s.ctl.UsageAt(ctx, s.id, seq)
}

// ConfigAt implements source.
func (s *logSource) ConfigAt(ctx context.Context, seq int64) (outboard.SessionConfig, error) {
	return s.ctl.ConfigAt(ctx, s.id, seq)
}

// Load implements source.
func (s *logSource) Load(ctx context.Context, ref outboard.BlobRef) ([]byte, error) {
	return s.ctl.Load(ctx, ref)
}

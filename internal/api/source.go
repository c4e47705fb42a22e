package api

import (
	"cmp"
	"context"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// keptEvents bounds the events a translation remembers; what refers to an event usually follows it soon.
const keptEvents = 256

// logSource answers the translator from a session's log. It belongs to one request.
type logSource struct {
	ctl  *control.Control
	by   outboard.Caller
	id   outboard.SessionID
	head int64 // of the log when the request came
	// where all events are read in order: the sums up to the one in hand; else Head is 0, and they are looked up
	total outboard.Header
	kept  map[outboard.EventID]outboard.Event

	loaded  int64                // bytes of content, in events and from blobs
	configs []control.ConfigFrom // all up to the event known
	known   int64
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
	s.keep(e)
	return e, nil
}

// keep remembers an event that others may refer to.
func (s *logSource) keep(e outboard.Event) {
	if s.kept == nil || len(s.kept) >= keptEvents {
		s.kept = map[outboard.EventID]outboard.Event{}
	}
	s.kept[e.ID] = e
}

// next tells the source of the next event, where all are read in order: the sums need not be looked up but
// before the first one.
func (s *logSource) next(ctx context.Context, e *outboard.Event) error {
	if s.total.Head == 0 && e.Seq > 1 {
		var err error
		if s.total, err = s.ctl.UsageAt(ctx, s.id, e.Seq-1); err != nil {
			return err
		}
	}
	return outboard.Project(&s.total, e)
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
	if seq > s.known {
		var last control.ConfigFrom
		if n := len(s.configs); n > 0 {
			last = s.configs[n-1]
		}
		upto := max(seq, s.head)
		more, err := s.ctl.Configs(ctx, s.id, last, upto)
		if err != nil {
			return outboard.SessionConfig{}, err
		}
		s.configs, s.known = append(s.configs, more...), upto
	}
	after, _ := slices.BinarySearchFunc(s.configs, seq+1,
		func(c control.ConfigFrom, seq int64) int { return cmp.Compare(c.Seq, seq) })
	if after == 0 {
		return outboard.SessionConfig{}, nil
	}
	return s.configs[after-1].Config, nil
}

// Load implements source.
func (s *logSource) Load(ctx context.Context, ref outboard.BlobRef) ([]byte, error) {
	s.loaded += ref.Size
	return s.ctl.Load(ctx, ref)
}

package store

import (
	"context"
	"iter"
	"time"

	"github.com/outboard-dev/outboard"
)

// Follow yields the session's events with seq > after, past and future, without gaps or duplicates, until ctx
// ends (then the sequence just stops) or the session is deleted (NotFound). It is woken by commits of this
// process at once and by those of other processes within PollFallback (Postgres: a coalesced notification, sent
// after the commit).
func (s *Store) Follow(ctx context.Context, id outboard.SessionID, after int64) iter.Seq2[outboard.Event, error] {
	return func(yield func(outboard.Event, error) bool) {
		sub, stop := s.hub.subscribe(id, true) // before the first look, so that nothing falls between
		defer stop()
		for look := true; ; {
			if look {
				var ok bool
				if after, ok = s.catchUp(ctx, id, after, yield); !ok {
					return
				}
			}
			select {
			case <-sub.woken:
			case <-ctx.Done():
				return
			case <-s.closing:
				if ctx.Err() == nil {
					yield(outboard.Event{}, errClosed)
				}
				return
			}
			var events []outboard.Event
			events, look = s.hub.take(sub, after)
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
				after = e.Seq
			}
		}
	}
}

// catchUp yields what the log has after a position and returns the position reached; ok is false when that was
// the end of it.
func (s *Store) catchUp(ctx context.Context, id outboard.SessionID, after int64,
	yield func(outboard.Event, error) bool) (pos int64, ok bool) {
	l, err := s.lookup(ctx, id)
	if err != nil {
		if ctx.Err() == nil {
			yield(outboard.Event{}, err)
		}
		return after, ctx.Err() != nil
	}
	return s.pages(ctx, l, after, func(e outboard.Event, err error) bool {
		return (err == nil || ctx.Err() == nil) && yield(e, err)
	})
}

// Watch returns a channel that gets a value (never blocking, capacity 1) after commits of any process to the
// session; stop releases it.
func (s *Store) Watch(id outboard.SessionID) (ch <-chan struct{}, stop func()) {
	sub, stop := s.hub.subscribe(id, false)
	return sub.woken, stop
}

const nextTimerSQL = `SELECT COALESCE(MIN(ready_at), 0) FROM sessions WHERE ready_at > ? AND worker = '' AND ready_at > 0`

// WaitRunnable returns when something may have become runnable: a commit made a session runnable, a timer is due, or
// PollFallback passed. It may return for nothing.
func (s *Store) WaitRunnable(ctx context.Context) error {
	woken, stop := s.hub.waitWork()
	if woken == nil {
		return nil
	}
	defer stop()
	now := s.now()
	var next int64
	if err := s.queryRow(ctx, nextTimerSQL, micros(now)).Scan(&next); err != nil {
		return s.fail("looking for timers", err)
	}
	wait := outboard.PollFallback
	if next > 0 {
		wait = min(wait, timeOf(next).Sub(now))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-woken:
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return s.fail("waiting for work", ctx.Err())
	case <-s.closing:
		return errClosed
	}
}

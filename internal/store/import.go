package store

import (
	"context"
	"iter"
	"time"

	"github.com/outboard-dev/outboard"
)

// importBatch bounds the events of one transaction of an import, so that other sessions are not held up.
const importBatch = 256

// Import is a session that comes with its whole log.
type Import struct {
	Header outboard.Header // ID, Thread, Title, Metadata, AgentID, AgentVersion, EnvironmentID
	Config outboard.SessionConfig
	// from seq 1, without gaps, each later than the one before by EventSpacing
	Log         iter.Seq2[outboard.Event, error]
	Events      []outboard.Event // to append to it, a session.forked first
	Checkpoints []outboard.Checkpoint
	Files       []outboard.File
}

// A hidden row is as young as the last thing that its import wrote: Purge takes it for what an import left that
// has ended.
const hideNewSQL = `UPDATE sessions SET deleted_at = ? WHERE num = ? AND purge = 0`

const showNewSQL = `UPDATE sessions SET ` + setHeader + `, deleted_at = 0 WHERE num = ? AND purge = 0`

// Import makes a session from its log. The session appears at the end, whole, or never: until then its row is
// hidden, and what an import that failed has inserted stays hidden until Purge removes it. Invalid for a log
// that is none.
func (s *Store) Import(ctx context.Context, m Import) (outboard.Header, error) {
	c := Commit{Session: m.Header.ID, Expect: Any, Events: m.Events}
	if err := c.check(); err != nil {
		return m.Header, err
	}
	r := newRow(m.Header, s.now())
	err := s.update(ctx, "importing session", func(t tx) error {
		if err := r.insert(ctx, t, m.Config, nil); err != nil {
			return err
		}
		return s.hide(ctx, t, r)
	})
	if err == nil {
		err = s.importLog(ctx, r, m.Log)
	}
	if err == nil {
		err = s.finish(ctx, r, &c, m)
	}
	if s.d.unique(err) {
		return m.Header, outboard.Errorf(outboard.Invalid, "the log has an event, an outcome or an answer twice")
	}
	if err != nil {
		return m.Header, err
	}
	s.announce(map[outboard.SessionID]*row{r.ID: r})
	return r.Header, nil
}

// hide hides the row of an import under way from everybody, and from Purge for purgeGrace.
func (s *Store) hide(ctx context.Context, t tx, r *row) error {
	n, err := t.exec(ctx, hideNewSQL, micros(s.now()), r.num)
	return importing(n, err)
}

// importing is what a statement about the row of an import came to, which changes one while nobody has begun to
// purge it.
func importing(rows int64, err error) error {
	if err == nil && rows == 0 {
		return outboard.Errorf(outboard.Conflict,
			"the import was idle for so long that what it had stored was removed").WithHint("import the file again")
	}
	return err
}

// Follows refuses an event that cannot stand in an imported log behind event head of the time at.
func Follows(head int64, at time.Time, e *outboard.Event) error {
	if e.Seq != head+1 || len(e.Data) > e.Type.MaxData() || head > 0 && e.Time.Sub(at) < outboard.EventSpacing ||
		micros(e.Time) <= 0 {
		return outboard.Errorf(outboard.Invalid, "event %d cannot follow event %d of the log", e.Seq, head)
	}
	return nil
}

// importLog inserts a log in batches and leaves its end in r.
func (s *Store) importLog(ctx context.Context, r *row, log iter.Seq2[outboard.Event, error]) error {
	batch := make([]outboard.Event, 0, importBatch)
	flush := func() error {
		err := s.update(ctx, "importing events", func(t tx) error {
			if err := s.hide(ctx, t, r); err != nil {
				return err
			}
			for i := range batch {
				if _, err := t.exec(ctx, insertEventSQL, eventArgs(r.num, &batch[i])...); err != nil {
					return err
				}
			}
			return nil
		})
		batch = batch[:0]
		return err
	}
	for e, err := range log {
		if err != nil {
			return err
		}
		if err := Follows(r.Head, r.LastAt, &e); err != nil {
			return err
		}
		e.Session = r.ID
		r.Head, r.LastAt = e.Seq, e.Time.UTC().Truncate(time.Microsecond)
		if batch = append(batch, e); len(batch) == importBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// finish appends what the import adds and shows the session.
func (s *Store) finish(ctx context.Context, r *row, c *Commit, m Import) error {
	base, now := *r, s.now()
	return s.update(ctx, "importing session", func(t tx) error {
		*r = base
		events, err := r.apply(c, now)
		if err != nil {
			return err
		}
		for i := range events {
			if _, err := t.exec(ctx, insertEventSQL, eventArgs(r.num, &events[i])...); err != nil {
				return err
			}
		}
		for i := range m.Checkpoints {
			k := &m.Checkpoints[i]
			if _, err := t.exec(ctx, insertCheckpointSQL, checkpointArgs(k, r.ID, k.Seq)...); err != nil {
				return err
			}
		}
		for i := range m.Files {
			if _, err := t.exec(ctx, insertFileSQL, fileArgs(&m.Files[i])...); err != nil {
				return err
			}
		}
		n, err := t.exec(ctx, showNewSQL, append(r.headerArgs(), r.num)...)
		return importing(n, err)
	})
}

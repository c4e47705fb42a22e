package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"iter"
	"time"

	"github.com/outboard-dev/outboard"
)

const insertEventSQL = `INSERT INTO events (key, session, seq, id, thread, type, ref, at, data) VALUES ` + eventValues

// eventValues is one row of insertEventSQL, of eventColumns columns.
const (
	eventValues  = `(?, ?, ?, ?, ?, ?, ?, ?, ?)`
	eventColumns = 9
)

// eventArgs are the values of insertEventSQL.
func eventArgs(num int64, e *outboard.Event) []any {
	return []any{eventKey(num, e.Seq), num, e.Seq, string(e.ID), string(e.Thread), string(e.Type), string(e.Ref),
		e.Time.UnixMicro(), []byte(e.Data)}
}

// maxSeq is beyond the last event a log may have; see eventKey.
const maxSeq = 1 << 32

// eventKey is the place of an event among all: the events of a session are neighbours. A position that no log
// has is brought to the nearest end, so that it never names an event of another session.
func eventKey(num, seq int64) int64 { return num<<32 + max(0, min(seq, maxSeq)) }

// onceKey names an event of which a session may have only one.
type onceKey struct {
	session outboard.SessionID
	ref     outboard.EventID
	typ     outboard.EventType
}

// onceKeys yields the keys of the commit's once-only events; the unique index events_ref is the backstop.
func (p *pending) onceKeys() iter.Seq[onceKey] {
	return func(yield func(onceKey) bool) {
		for i := range p.commit.Events {
			e := &p.commit.Events[i]
			switch e.Type {
			case outboard.TypeCallFinished, outboard.TypeInputProcessed, outboard.TypeInputConfirmation, outboard.TypeInputToolResult:
				if !yield(onceKey{p.commit.Session, e.Ref, e.Type}) {
					return
				}
			}
		}
	}
}

// plan decides each commit of a group, in order, against the rows as they stand in the transaction: it sets
// events or err, and advances the rows. It reports whether it refused any. taken holds the once-only events that
// exist; k may be nil.
func plan(group []*pending, rows map[outboard.SessionID]*row, taken map[onceKey]bool, k *taking,
	now time.Time) (refused bool) {
	for _, p := range group {
		r := rows[p.commit.Session]
		if r == nil {
			p.err, refused = notFound("session", p.commit.Session), true
			continue
		}
		next := *r // maps and pointers in it are replaced, never written through
		if p.events, p.err = next.apply(&p.commit, now); p.err == nil {
			p.err = take(p, taken)
		}
		if p.err != nil {
			p.events, refused = nil, true
			continue
		}
		p.head, p.now = next.Head, micros(now)
		k.take(&next, &p.commit, now)
		*r = next
	}
	return refused
}

// savedAt is where the log has come to have a checkpoint of this commit: with the last call that says so, else
// with the event that says that it was made. What follows in the commit, such as the next request, comes after
// it: a fork in between has it.
func (p *pending) savedAt(k outboard.CheckpointID) int64 {
	at := int64(0)
	for i := range p.events {
		e := &p.events[i]
		call := e.Type == outboard.TypeCallFinished
		if !call && (e.Type != outboard.TypeCheckpointCreated || at > 0) || !bytes.Contains(e.Data, []byte(k)) {
			continue
		}
		switch v, _ := e.Decode(); v := v.(type) { // what cannot be decoded names nothing
		case *outboard.CallFinished:
			if v.Checkpoint == k {
				at = e.Seq
			}
		case *outboard.CheckpointCreated:
			if v.Checkpoint == k {
				at = e.Seq
			}
		}
	}
	return cmp.Or(at, p.head)
}

// take marks the commit's once-only events as existing, or changes nothing.
func take(p *pending, taken map[onceKey]bool) error {
	var mine []onceKey
	for k := range p.onceKeys() {
		if taken[k] {
			for _, m := range mine {
				delete(taken, m)
			}
			return ErrDuplicate
		}
		taken[k] = true
		mine = append(mine, k)
	}
	return nil
}

// apply checks c against the row, advances the row by its events, and returns them as they will be stored.
func (r *row) apply(c *Commit, now time.Time) ([]outboard.Event, error) {
	switch {
	case c.Epoch > 0 && c.Epoch != r.Epoch:
		return nil, ErrFenced
	case r.Phase == outboard.PhaseTerminated && len(c.Events) > 0:
		return nil, ErrTerminated
	case c.Expect != Any && c.Expect != r.Head:
		return nil, ErrMoved
	}
	old := *r
	out := make([]outboard.Event, len(c.Events))
	for i, e := range c.Events {
		e.Session, e.Seq, e.Time = r.ID, r.Head+1, r.nextTime(now)
		if e.Thread == "" {
			e.Thread = r.Thread
		}
		if err := r.admit(&e); err != nil {
			return nil, err
		}
		if err := outboard.Project(&r.Header, &e); err != nil {
			return nil, err
		}
		r.placed = r.placed || e.Type == outboard.TypeSessionUpdated
		out[i] = e
	}
	if c.Release && c.Epoch > 0 {
		r.Worker, r.released = "", true
	}
	r.setReady(now)
	r.placed = r.placed || r.released || len(out) == 0 || r.moved(&old)
	r.full = r.full || r.placed || r.differs(&old)
	r.dirty = true
	return out, nil
}

// nextTime is the time of the next event: now, but never too close to the one before, whatever the clock does.
func (r *row) nextTime(now time.Time) time.Time {
	t := now.UTC().Truncate(time.Microsecond)
	if least := r.LastAt.Add(outboard.EventSpacing); r.Head > 0 && t.Before(least) {
		return least
	}
	return t
}

// admit bounds the inbox. Messages and urgent inputs are counted apart, so that a full inbox can still be interrupted.
func (r *row) admit(e *outboard.Event) error {
	n := r.Inbox
	if e.Type.IsUrgent() {
		n = r.Urgent
	}
	if e.Type.IsInput() && n >= outboard.MaxInbox {
		return outboard.Errorf(outboard.Exhausted, "session %s has %d inputs waiting, which is the limit", r.ID, n).
			WithHint("wait until it has taken some, or interrupt it")
	}
	return nil
}

const updateConfigSQL = `UPDATE session_configs SET config = ? WHERE session = ?`

// extras are the statements of a commit beyond its events and the header.
func (p *pending) extras(num int64) []statement {
	var out []statement
	c := &p.commit
	if k := c.Checkpoint; k != nil {
		out = append(out, statement{insertCheckpointSQL, checkpointArgs(k, c.Session, p.savedAt(k.ID))})
	}
	for i := range c.Files {
		out = append(out, statement{insertFileSQL, fileArgs(&c.Files[i])})
	}
	if c.Config != nil {
		out = append(out, statement{updateConfigSQL, []any{mustJSON(c.Config), num}})
	}
	out = append(out, c.charges(p.now)...)
	return append(out, c.approvals()...)
}

// mustJSON encodes one of our own structs as a column.
func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("store: encoding a column: " + err.Error())
	}
	return string(b)
}

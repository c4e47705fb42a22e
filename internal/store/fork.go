package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
)

// maxParts bounds the sessions whose rows one log may consist of: a fork of a fork of a fork.... Each read of a
// fork looks into as many as its range touches.
const maxParts = 64

// log is what a session's events are read by.
type log struct {
	id     outboard.SessionID
	thread outboard.ThreadID
	head   int64
	parts  []part // in order, without gaps; the last is the session's own and has no end
}

// part is a stretch of a log, after < seq <= upto, with the session whose rows it consists of.
type part struct {
	num         int64
	after, upto int64
	session     outboard.SessionID
	thread      outboard.ThreadID // of that session
}

// own is the part that the session itself has written.
func (l *log) own() part { return l.parts[len(l.parts)-1] }

// adopt makes an event of one of its parts an event of the log.
func (l *log) adopt(p part, e *outboard.Event) {
	if e.Session = l.id; e.Thread == p.thread {
		e.Thread = l.thread
	}
}

const lookupSQL = `SELECT num, head, thread, shared FROM sessions WHERE id = ? AND deleted_at = 0`

// lookup returns how to read a session's log.
func (s *Store) lookup(ctx context.Context, id outboard.SessionID) (*log, error) {
	l := &log{id: id}
	var num, shared int64
	var thread string
	err := s.queryRow(ctx, lookupSQL, string(id)).Scan(&num, &l.head, &thread, &shared)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound("session", id)
	}
	if err != nil {
		return nil, s.fail("reading session", err)
	}
	l.thread = outboard.ThreadID(thread)
	if shared > 0 {
		if l.parts, err = collect(ctx, s, "reading the ancestors of a fork", scanPart, lineageSQL, num); err != nil {
			return nil, err
		}
		chain(l.parts)
	}
	l.parts = append(l.parts, part{num: num, after: shared, upto: l.head, session: id, thread: l.thread})
	return l, nil
}

const lineageSQL = `SELECT l.source, l.upto, s.id, s.thread FROM lineage AS l JOIN sessions AS s ON s.num = l.source
	WHERE l.session = ? ORDER BY l.upto`

func scanPart(sc scanner) (part, error) {
	var p part
	var id, thread string
	err := sc.Scan(&p.num, &p.upto, &id, &thread)
	p.session, p.thread = outboard.SessionID(id), outboard.ThreadID(thread)
	return p, err
}

// chain lets each part begin where the one before it ends.
func chain(parts []part) {
	for i := 1; i < len(parts); i++ {
		parts[i].after = parts[i-1].upto
	}
}

// at returns the part that holds the event after a position, which is before the head.
func (l *log) at(after int64) part {
	for _, p := range l.parts {
		if after < p.upto {
			return p
		}
	}
	return l.own()
}

// between returns the parts that have events with after < seq < before; before 0 is no bound.
func (l *log) between(after, before int64) []part {
	var out []part
	for _, p := range l.parts {
		if p.upto > after && (before == 0 || p.after+1 < before) {
			out = append(out, p)
		}
	}
	return out
}

// nums are the numbers of all parts, for an IN list.
func (l *log) nums() []any {
	out := make([]any, len(l.parts))
	for i, p := range l.parts {
		out[i] = p.num
	}
	return out
}

// scanOwned reads a row that begins with the number of its session.
func scanOwned(sc scanner) (owned, error) {
	var o owned
	var at int64
	var data []byte
	err := sc.Scan(&o.num, &o.Seq, &o.ID, &o.Thread, &o.Type, &o.Ref, &at, &data)
	o.Time, o.Data = timeOf(at), data
	return o, err
}

// owned is an event with the number of the session that wrote it.
type owned struct {
	num int64
	outboard.Event
}

// mine keeps those rows that are the log's: an ancestor may have written more after the fork.
func (l *log) mine(rows []owned) []outboard.Event {
	var out []outboard.Event
	for _, o := range rows {
		i := slices.IndexFunc(l.parts,
			func(p part) bool { return p.num == o.num && o.Seq > p.after && o.Seq <= p.upto })
		if i >= 0 {
			l.adopt(l.parts[i], &o.Event)
			out = append(out, o.Event)
		}
	}
	return out
}

// Fork is a session to be made from another one's log.
type Fork struct {
	// ID, Thread, Title, Metadata, AgentID, AgentVersion, EnvironmentID; the rest follows from the events
	Header outboard.Header
	Config outboard.SessionConfig
	Events []outboard.Event // its own, a session.forked first
	Files  []outboard.File  // its copies
}

const shareSQL = `SELECT num, head, shared FROM sessions WHERE id = ? AND deleted_at = 0`

const eventAtSQL = `SELECT at FROM events WHERE key = ?`

const setParentSQL = `UPDATE sessions SET parent = ?, shared = ? WHERE num = ?`

const insertLineageSQL = `INSERT INTO lineage (session, upto, source) VALUES (?, ?, ?)`

// Fork makes sessions whose logs are the parent's up to seq, read through, and their own from there on: all of
// them, or none. It returns their headers. Invalid for a position the parent does not have, or a fork of too
// many forks.
func (s *Store) Fork(ctx context.Context, parent outboard.SessionID, seq int64,
	forks []Fork) ([]outboard.Header, error) {
	now := s.now()
	var made map[outboard.SessionID]*row
	out := make([]outboard.Header, len(forks))
	err := s.update(ctx, "forking session", func(t tx) error {
		made = map[outboard.SessionID]*row{}
		parts, at, err := s.shared(ctx, t, parent, seq)
		if err != nil {
			return err
		}
		for i := range forks {
			r, err := forks[i].insert(ctx, t, parent, parts, at, now)
			if err != nil {
				return err
			}
			made[r.ID], out[i] = r, r.Header
		}
		return nil
	})
	if s.d.unique(err) {
		return nil, ErrDuplicate
	}
	if err != nil {
		return nil, err
	}
	s.announce(made)
	return out, nil
}

// shared returns what the first seq events of a session consist of, and the time of the last of them.
func (s *Store) shared(ctx context.Context, t tx, id outboard.SessionID,
	seq int64) (parts []part, at time.Time, err error) {
	var num, head, shared int64
	err = t.queryRow(ctx, shareSQL, string(id)).Scan(&num, &head, &shared)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, at, notFound("session", id)
	}
	if err != nil {
		return nil, at, err
	}
	if seq < 1 || seq > head {
		return nil, at, outboard.Errorf(outboard.Invalid, "session %s has no event %d, only 1 to %d", id, seq, head)
	}
	if shared > 0 {
		if parts, err = collectTx(ctx, t, scanPart, lineageSQL, num); err != nil {
			return nil, at, err
		}
		chain(parts)
	}
	parts = append(parts, part{num: num, after: shared, upto: head})
	parts = slices.DeleteFunc(parts, func(p part) bool { return p.after >= seq })
	last := &parts[len(parts)-1]
	last.upto = seq
	if len(parts) >= maxParts {
		return nil, at, outboard.Errorf(outboard.Invalid, "session %s is a fork of forks, %d deep, which is the limit",
			id, len(parts)).
			WithHint("export it and import the file: that makes a session without ancestors")
	}
	var us int64
	err = t.queryRow(ctx, eventAtSQL, eventKey(last.num, seq)).Scan(&us)
	return parts, timeOf(us), err
}

// insert writes a fork. at is the time of the last event it shares.
func (f *Fork) insert(ctx context.Context, t tx, parent outboard.SessionID, parts []part, at,
	now time.Time) (*row, error) {
	seq := parts[len(parts)-1].upto
	r := newRow(f.Header, now)
	r.Head, r.LastAt = seq, at
	c := Commit{Session: r.ID, Expect: seq, Events: f.Events}
	if err := c.check(); err != nil {
		return nil, err
	}
	events, err := r.apply(&c, now)
	if err != nil {
		return nil, err
	}
	if err := r.insert(ctx, t, f.Config, events); err != nil {
		return nil, err
	}
	if _, err := t.exec(ctx, setParentSQL, string(parent), seq, r.num); err != nil {
		return nil, err
	}
	for _, p := range parts {
		if _, err := t.exec(ctx, insertLineageSQL, r.num, p.upto, p.num); err != nil {
			return nil, err
		}
	}
	for i := range f.Files {
		if _, err := t.exec(ctx, insertFileSQL, fileArgs(&f.Files[i])...); err != nil {
			return nil, err
		}
	}
	return r, nil
}

const parentSQL = `SELECT parent, shared FROM sessions WHERE id = ? AND deleted_at = 0`

// Parent returns the session that one was forked from and the last event they share; "" and 0 for one that was
// not. The parent may have been deleted since.
func (s *Store) Parent(ctx context.Context, id outboard.SessionID) (outboard.SessionID, int64, error) {
	var parent string
	var seq int64
	err := s.queryRow(ctx, parentSQL, string(id)).Scan(&parent, &seq)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, notFound("session", id)
	}
	return outboard.SessionID(parent), seq, s.fail("reading session", err)
}

const rewoundSQL = `SELECT session, ` + eventCols + ` FROM events WHERE type = 'session.rewound' AND session IN (`

// Rewinds returns the rewinds of the conversation that a session's log has up to an event, in order: what
// outboard.NewState takes.
func (s *Store) Rewinds(ctx context.Context, id outboard.SessionID, upto int64) ([]outboard.Rewind, error) {
	l, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	rows, err := collect(ctx, s, "reading rewinds", scanOwned, rewoundSQL+marks(len(l.parts))+`) ORDER BY seq`,
		l.nums()...)
	if err != nil {
		return nil, err
	}
	var out []outboard.Rewind
	for _, e := range l.mine(rows) {
		p, err := e.Decode()
		if err != nil {
			return nil, err
		}
		if r, ok := p.(*outboard.SessionRewound); ok && r.Conversation && e.Seq <= upto {
			out = append(out, outboard.Rewind{Seq: e.Seq, To: r.To})
		}
	}
	return out, nil
}

// A checkpoint of a deleted session stays while a fork that lives shares the log up to it.
const deleteCheckpointsSQL = `DELETE FROM checkpoints WHERE session IN (
	SELECT id FROM sessions WHERE id = ? UNION
	SELECT a.id FROM sessions AS f JOIN lineage AS l ON l.session = f.num JOIN sessions AS a ON a.num = l.source
		WHERE f.id = ? AND a.deleted_at > 0)
	AND NOT EXISTS (SELECT 1 FROM lineage AS l JOIN sessions AS f ON f.num = l.session JOIN sessions AS a ON a.num = l.source
		WHERE a.id = checkpoints.session AND f.deleted_at = 0 AND l.upto >= checkpoints.seq)`

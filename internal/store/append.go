package store

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"iter"
	"time"

	"github.com/outboard-dev/outboard"
)

// Limits of the writer.
const (
	// maxGroup bounds the commits that share one transaction, and so how long the first of them waits for the last.
	maxGroup = 256
	// queueSize bounds commits waiting for each writer; senders block beyond it.
	queueSize = 1024
	// commitWait bounds one group's transaction, against a database that hangs.
	commitWait = 60 * time.Second
)

// Commit is one atomic change of one session.
type Commit struct {
	Session    outboard.SessionID
	Epoch      int64 // the lease's epoch; 0 for appends that need no lease (inputs, updates, archive)
	Expect     int64 // the head it was decided on; Any to append wherever the head is
	Events     []outboard.Event
	Release    bool                    // give up the lease in the same transaction
	Checkpoint *outboard.Checkpoint    // row to insert; its Seq is set to the new head
	Files      []outboard.File         // rows to insert
	Config     *outboard.SessionConfig // replaces the stored config (after session.updated)
}

// pending is a commit on its way through a writer. The sender owns it until it is queued and after done is closed.
type pending struct {
	commit Commit
	events []outboard.Event // as stored
	head   int64            // of the session after it
	err    error
	done   chan struct{}
}

// Append is the plain form of Commit. It returns the events as stored, with Seq and Time.
func (s *Store) Append(ctx context.Context, id outboard.SessionID, epoch, expectSeq int64, events ...outboard.Event) ([]outboard.Event, error) {
	return s.Commit(ctx, Commit{Session: id, Epoch: epoch, Expect: expectSeq, Events: events})
}

// Commit applies c, or nothing. Errors: ErrFenced, ErrMoved, ErrTerminated, ErrDuplicate, NotFound, Unavailable, TooLarge or
// Invalid for events that cannot be stored, Exhausted when the inbox is full. A commit whose ctx ends while it is queued may
// still become durable; callers that care read the log.
func (s *Store) Commit(ctx context.Context, c Commit) ([]outboard.Event, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &pending{commit: c, done: make(chan struct{})}
	select {
	case s.queues[maphash.String(s.seed, string(c.Session))%uint64(len(s.queues))] <- p:
	case <-s.closing:
		return nil, errClosed
	case <-ctx.Done():
		return nil, s.fail("appending", ctx.Err())
	}
	select {
	case <-p.done:
		return p.events, p.err
	case <-ctx.Done():
		return nil, s.fail("appending", ctx.Err())
	case <-s.stopped: // no writer is left; p was done, or nobody took it
		select {
		case <-p.done:
			return p.events, p.err
		default:
			return nil, errClosed
		}
	}
}

// check refuses what no state of the session would allow.
func (c *Commit) check() error {
	if len(c.Events) > outboard.MaxAppend {
		return outboard.Errorf(outboard.TooLarge, "an append of %d events is over the limit of %d", len(c.Events), outboard.MaxAppend)
	}
	for i := range c.Events {
		switch e := &c.Events[i]; {
		case e.ID == "" || e.Type == "" || len(e.Data) == 0:
			return outboard.Errorf(outboard.Invalid, "event %d of the append lacks an id, a type or data", i)
		case len(e.Data) > outboard.MaxEventData:
			return outboard.Errorf(outboard.TooLarge, "the data of event %s (%s) is %d bytes, over the limit of %d",
				e.ID, e.Type, len(e.Data), outboard.MaxEventData)
		}
	}
	return nil
}

// writer commits what arrives on queue, in groups, until the store closes and the queue is empty.
func (s *Store) writer(queue <-chan *pending) {
	for {
		select {
		case p := <-queue:
			s.commitGroup(drain(queue, p))
		case <-s.closing:
			select {
			case p := <-queue:
				s.commitGroup(drain(queue, p))
			default:
				return
			}
		}
	}
}

// drain takes what waits behind first, up to a group.
func drain(queue <-chan *pending, first *pending) []*pending {
	group := []*pending{first}
	for len(group) < maxGroup {
		select {
		case p := <-queue:
			group = append(group, p)
		default:
			return group
		}
	}
	return group
}

// commitGroup makes the group durable and wakes those who wait: for the outcome, for the session, for work. A member that is
// refused does not touch its neighbours; should the database refuse the whole, each member is tried alone.
func (s *Store) commitGroup(group []*pending) {
	rows, err := s.tryGroup(group)
	if err != nil && len(group) > 1 && s.d.unique(err) {
		for _, p := range group {
			s.commitGroup([]*pending{p})
		}
		return
	}
	if err != nil && s.d.unique(err) {
		err = ErrDuplicate
	}
	for _, p := range group {
		if err != nil {
			p.events, p.err = nil, s.fail("appending to "+string(p.commit.Session), err)
		}
		close(p.done)
	}
	if err == nil {
		s.announce(rows)
	}
}

// tryGroup runs the transaction, again where it lost against another one.
func (s *Store) tryGroup(group []*pending) (rows map[outboard.SessionID]*row, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commitWait)
	defer cancel()
	for range maxRetries {
		for _, p := range group {
			p.events, p.err = nil, nil
		}
		if rows, err = s.d.commit(ctx, group, s.now()); err == nil || !s.d.again(err) {
			break
		}
	}
	return rows, err
}

// announce tells followers, claimers and other processes what was committed.
func (s *Store) announce(rows map[outboard.SessionID]*row) {
	runnable := false
	for id, r := range rows {
		if !r.dirty {
			delete(rows, id)
			continue
		}
		s.hub.wake(id, r.Head)
		runnable = runnable || r.Worker == "" && r.readyAt > 0
	}
	if runnable {
		s.hub.wakeClaimers()
	}
	s.d.ring(rows)
}

const insertEventSQL = `INSERT INTO events (session, seq, id, thread, type, ref, at, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

// eventArgs are the values of insertEventSQL.
func eventArgs(num int64, e *outboard.Event) []any {
	return []any{num, e.Seq, string(e.ID), string(e.Thread), string(e.Type), string(e.Ref), e.Time.UnixMicro(), []byte(e.Data)}
}

// onceKey names an event of which a session may have only one.
type onceKey struct {
	session outboard.SessionID
	ref     outboard.EventID
	typ     outboard.EventType
}

// onceKeys yields the keys of the commit's once-only events; the unique index events_once is the backstop.
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

// plan decides each commit of a group, in order, against the rows as they stand in the transaction: it sets events or err,
// and advances the rows. taken holds the once-only events that exist.
func plan(group []*pending, rows map[outboard.SessionID]*row, taken map[onceKey]bool, now time.Time) {
	for _, p := range group {
		r := rows[p.commit.Session]
		if r == nil {
			p.err = notFound("session", p.commit.Session)
			continue
		}
		next := *r // maps and pointers in it are replaced, never written through
		if p.events, p.err = next.apply(&p.commit, now); p.err == nil {
			p.err = take(p, taken)
		}
		if p.err != nil {
			p.events = nil
			continue
		}
		next.dirty, p.head = true, next.Head
		*r = next
	}
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
		out[i] = e
	}
	if c.Release && c.Epoch > 0 {
		r.Worker = ""
	}
	r.setReady(now)
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
		out = append(out, statement{insertCheckpointSQL, []any{string(k.ID), string(c.Session), p.head, string(k.Call),
			string(k.Parent), k.Depth, k.Delta.Digest, k.Delta.Size, micros(k.CreatedAt)}})
	}
	for i := range c.Files {
		out = append(out, statement{insertFileSQL, fileArgs(&c.Files[i])})
	}
	if c.Config != nil {
		out = append(out, statement{updateConfigSQL, []any{mustJSON(c.Config), num}})
	}
	return out
}

// mustJSON encodes one of our own structs as a column.
func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("store: encoding a column: " + err.Error())
	}
	return string(b)
}

package store

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// Limits of readers.
const (
	// pageRows and pageBytes bound what Read and Follow hold at a time: a page ends at whichever comes first.
	pageRows  = 512
	pageBytes = 4 << 20
	// defaultEvents is a page of Events without a limit.
	defaultEvents = 1000
	// maxPage bounds any page a caller asks for.
	maxPage = 10_000
)

const eventCols = `seq, id, thread, type, ref, at, data`

// scanEvent reads one row of eventCols.
func scanEvent(sc scanner) (outboard.Event, error) {
	var e outboard.Event
	var at int64
	var data []byte
	err := sc.Scan(&e.Seq, &e.ID, &e.Thread, &e.Type, &e.Ref, &at, &data)
	e.Time, e.Data = timeOf(at), data
	return e, err
}

const pageSQL = `SELECT ` + eventCols + ` FROM events WHERE key > ? AND key <= ? ORDER BY key LIMIT ?`

// page returns the next events after a position, at most a page of them.
func (s *Store) page(ctx context.Context, l *log, after int64) ([]outboard.Event, error) {
	from := l.at(after)
	rows, err := s.query(ctx, pageSQL, eventKey(from.num, after), eventKey(from.num, from.upto), pageRows)
	if err != nil {
		return nil, s.fail("reading events", err)
	}
	defer rows.Close()
	var out []outboard.Event
	defer func() { s.events.Add(int64(len(out))) }()
	for size := 0; size < pageBytes && rows.Next(); {
		e, err := scanEvent(rows)
		if err != nil {
			return nil, s.fail("reading events", err)
		}
		l.adopt(from, &e)
		size += len(e.Data)
		out = append(out, e)
	}
	return out, s.fail("reading events", rows.Err())
}

// pages yields the events after a position up to the head and returns the position reached; ok is false when the
// consumer stopped or an error was yielded.
func (s *Store) pages(ctx context.Context, l *log, after int64,
	yield func(outboard.Event, error) bool) (pos int64, ok bool) {
	for after < l.head {
		events, err := s.page(ctx, l, after)
		if err == nil && len(events) == 0 {
			err = outboard.Errorf(outboard.Internal, "session %s has no event %d, though its head is %d", l.id, after+1,
				l.head)
		}
		if err != nil {
			yield(outboard.Event{}, err)
			return after, false
		}
		for _, e := range events {
			if !yield(e, nil) {
				return after, false
			}
			after = e.Seq
		}
	}
	return after, true
}

// Read yields the session's events with seq > after, in order, up to the head at the time of the call; it pages
// and never holds the whole log. No connection is held while the consumer works.
func (s *Store) Read(ctx context.Context, id outboard.SessionID, after int64) iter.Seq2[outboard.Event, error] {
	return func(yield func(outboard.Event, error) bool) {
		l, err := s.lookup(ctx, id)
		if err != nil {
			yield(outboard.Event{}, err)
			return
		}
		s.pages(ctx, l, after, yield)
	}
}

// isInput is the condition of the partial index events_inputs. A query that repeats it word for word may use
// that. It has no IN, of which SQLite makes a table for each statement.
const isInput = `(type = 'input.message' OR type = 'input.system' OR type = 'input.interrupt' OR type = 'input.confirmation' OR type = 'input.tool_result')`

// common are the types, inputs apart, of which nearly every turn has events: a list of them is found by reading
// along the log.
var common = []outboard.EventType{
	outboard.TypeInputProcessed, outboard.TypeTurnStarted, outboard.TypeTurnEnded, outboard.TypeModelStarted, outboard.TypeModelFinished,
	outboard.TypeAgentMessage, outboard.TypeAgentThinking, outboard.TypeCallRequested, outboard.TypeCallStarted, outboard.TypeCallFinished,
	outboard.TypeCheckpointCreated,
}

// isRare is the condition of the partial index events_rare, of all other types but inputs, in the same way.
const isRare = `type <> 'call.requested' AND type <> 'call.started' AND type <> 'call.finished' AND type <> 'model.started' AND
    type <> 'model.finished' AND type <> 'agent.message' AND type <> 'agent.thinking' AND type <> 'checkpoint.created' AND
    type <> 'input.message' AND type <> 'input.processed' AND type <> 'turn.started' AND type <> 'turn.ended' AND type <> 'input.system' AND
    type <> 'input.interrupt' AND type <> 'input.confirmation' AND type <> 'input.tool_result'`

const headSQL = `SELECT head FROM sessions WHERE id = ? AND deleted_at = 0`

// Head returns the number of a session's newest event. A log with the same head is the same log.
func (s *Store) Head(ctx context.Context, id outboard.SessionID) (head int64, err error) {
	return one(ctx, s, "session", id, scanCount, headSQL, string(id))
}

// HeadSeen returns the head of a session's log as this process last wrote or read it, and whether it knows one.
// Another process may have appended since: what is decided by it is recorded with AuditWhile.
func (s *Store) HeadSeen(id outboard.SessionID) (head int64, ok bool) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	r, ok := s.cache.rows[id]
	return r.Head, ok
}

// EventQuery selects events of one session by position. Zero values select everything in ascending order.
type EventQuery struct {
	After, Before int64     // exclusive bounds on seq; 0 = none
	Since, Until  time.Time // both inclusive
	Types         []outboard.EventType
	Desc          bool
	Limit         int // 0 = 1000
	Bytes         int // a page ends with the event whose data makes it this many; 0 = no bound. See Ends.
}

// Ends reports whether a page that the query returned is the last one.
func (q *EventQuery) Ends(page []outboard.Event) bool { return !q.full(page) }

// full reports whether a page takes no further event.
func (q *EventQuery) full(page []outboard.Event) bool {
	if len(page) >= limitOr(q.Limit, defaultEvents) {
		return true
	}
	if q.Bytes == 0 {
		return false
	}
	size := 0
	for i := range page {
		size += len(page[i].Data)
	}
	return size >= q.Bytes
}

// Events returns one page of events.
func (s *Store) Events(ctx context.Context, id outboard.SessionID, q EventQuery) ([]outboard.Event, error) {
	l, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	var out []outboard.Event
	parts := l.between(q.After, q.Before)
	if q.Desc {
		slices.Reverse(parts)
	}
	for ; len(parts) > 0 && !q.full(out); parts = parts[1:] {
		from := len(out)
		if out, err = s.fill(ctx, &q, parts[0], out); err != nil {
			return nil, err
		}
		for i := from; i < len(out); i++ {
			l.adopt(parts[0], &out[i])
		}
		s.events.Add(int64(len(out) - from))
	}
	return out, nil
}

// fill appends the events of one part of a log to a page until it is full.
func (s *Store) fill(ctx context.Context, q *EventQuery, p part, page []outboard.Event) ([]outboard.Event, error) {
	query, args := q.of(p, limitOr(q.Limit, defaultEvents)-len(page))
	rows, err := s.query(ctx, query, args...)
	if err != nil {
		return nil, s.fail("reading events", err)
	}
	defer rows.Close()
	for !q.full(page) && rows.Next() {
		e, err := scanEvent(rows)
		if err != nil {
			return nil, s.fail("reading events", err)
		}
		page = append(page, e)
	}
	return page, s.fail("reading events", rows.Err())
}

// of is the query for the events of one part of a log.
func (q *EventQuery) of(p part, limit int) (string, []any) {
	var b strings.Builder
	b.WriteString(`SELECT ` + eventCols + ` FROM events WHERE `)
	after, upto, place := max(p.after, q.After), p.upto, "key"
	if q.Before > 0 {
		upto = min(upto, q.Before-1)
	}
	var args []any
	add := func(cond string, vs ...any) {
		b.WriteString(cond)
		args = append(args, vs...)
	}
	if index := q.index(); index != "" {
		place = "seq" // which the index is in the order of
		add(`session = ? AND seq > ? AND seq <= ? AND `+index, p.num, after, upto)
	} else {
		add(`key > ? AND key <= ?`, eventKey(p.num, after), eventKey(p.num, upto))
	}
	if !q.Since.IsZero() {
		add(` AND at >= ?`, micros(q.Since))
	}
	if !q.Until.IsZero() {
		add(` AND at <= ?`, micros(q.Until))
	}
	if len(q.Types) > 0 {
		add(` AND type IN (`+marks(len(q.Types))+`)`, texts(q.Types)...)
	}
	b.WriteString(order(place, !q.Desc) + ` LIMIT ?`)
	return b.String(), append(args, limit)
}

// index is the condition of the partial index that holds all the types asked for, "" when none does.
func (q *EventQuery) index() string {
	all := func(in func(outboard.EventType) bool) bool {
		return len(q.Types) > 0 && !slices.ContainsFunc(q.Types, func(t outboard.EventType) bool { return !in(t) })
	}
	switch {
	case all(outboard.EventType.IsInput):
		return isInput
	case all(func(t outboard.EventType) bool { return !t.IsInput() && !slices.Contains(common, t) }):
		return isRare
	}
	return ""
}

const eventSQL = `SELECT session, ` + eventCols + ` FROM events WHERE id = ? AND session IN (`

// Event returns one event by id. NotFound if the session has none such.
func (s *Store) Event(ctx context.Context, id outboard.SessionID, ev outboard.EventID) (outboard.Event, error) {
	out, err := s.owned(ctx, id, eventSQL, string(ev), `)`)
	if err == nil && len(out) == 0 {
		err = notFound("event", ev)
	}
	if err != nil {
		return outboard.Event{}, err
	}
	return out[0], nil
}

const aboutSQL = `SELECT session, ` + eventCols + ` FROM events WHERE ref = ? AND ref <> '' AND session IN (`

// EventsAbout returns the events whose Ref is ref, in order.
func (s *Store) EventsAbout(ctx context.Context, id outboard.SessionID,
	ref outboard.EventID) ([]outboard.Event, error) {
	return s.owned(ctx, id, aboutSQL, string(ref), `) ORDER BY seq`)
}

// owned runs a query with one argument over all parts of a log.
func (s *Store) owned(ctx context.Context, id outboard.SessionID, query, arg, tail string) ([]outboard.Event, error) {
	l, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	rows, err := collect(ctx, s, "reading events", scanOwned, query+marks(len(l.parts))+tail,
		append([]any{arg}, l.nums()...)...)
	if err != nil {
		return nil, err
	}
	s.events.Add(int64(len(rows)))
	return l.mine(rows), nil
}

// The header says how many inputs wait, so the search, newest first, ends with the oldest that does.
const waitingSQL = `SELECT ` + eventCols + ` FROM events AS e WHERE session = ? AND ` + isInput + `
	AND NOT EXISTS (SELECT 1 FROM events AS p WHERE p.session = e.session AND p.ref = e.id AND p.type = 'input.processed'
		AND p.ref <> '')
	ORDER BY seq DESC
	LIMIT (SELECT inbox + urgent FROM sessions WHERE num = ?)`

// Waiting returns the inputs that no input.processed names yet, in order. What waited where a fork begins is not
// the fork's.
func (s *Store) Waiting(ctx context.Context, id outboard.SessionID) ([]outboard.Event, error) {
	l, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	out, err := collect(ctx, s, "reading events", scanEvent, waitingSQL, l.own().num, l.own().num)
	for i := range out {
		out[i].Session = id
	}
	slices.Reverse(out)
	return out, err
}

// order is an ORDER BY clause.
func order(cols string, asc bool) string {
	if asc {
		return ` ORDER BY ` + cols
	}
	return ` ORDER BY ` + strings.ReplaceAll(cols, ",", " DESC,") + ` DESC`
}

// limitOr is a caller's limit within bounds.
func limitOr(n, dflt int) int {
	if n <= 0 {
		return dflt
	}
	return min(n, maxPage)
}

// texts are typed strings as arguments.
func texts[T ~string](vs []T) []any {
	out := make([]any, len(vs))
	for i, v := range vs {
		out[i] = string(v)
	}
	return out
}

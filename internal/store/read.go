package store

import (
	"context"
	"database/sql"
	"errors"
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

const lookupSQL = `SELECT num, head FROM sessions WHERE id = ? AND deleted_at = 0`

// lookup returns what events are read by: the session's number and its head.
func (s *Store) lookup(ctx context.Context, id outboard.SessionID) (num, head int64, err error) {
	err = s.queryRow(ctx, lookupSQL, string(id)).Scan(&num, &head)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, 0, notFound("session", id)
	}
	return num, head, s.fail("reading session", err)
}

const pageSQL = `SELECT ` + eventCols + ` FROM events WHERE session = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?`

// page returns the next events after a position, at most a page of them.
func (s *Store) page(ctx context.Context, id outboard.SessionID, num, after, head int64) ([]outboard.Event, error) {
	rows, err := s.query(ctx, pageSQL, num, after, head, pageRows)
	if err != nil {
		return nil, s.fail("reading events", err)
	}
	defer rows.Close()
	var out []outboard.Event
	for size := 0; size < pageBytes && rows.Next(); {
		e, err := scanEvent(rows)
		if err != nil {
			return nil, s.fail("reading events", err)
		}
		e.Session = id
		size += len(e.Data)
		out = append(out, e)
	}
	return out, s.fail("reading events", rows.Err())
}

// pages yields the events after a position up to head and returns the position reached; ok is false when the consumer
// stopped or an error was yielded.
func (s *Store) pages(ctx context.Context, id outboard.SessionID, num, after, head int64, yield func(outboard.Event, error) bool) (pos int64, ok bool) {
	for after < head {
		events, err := s.page(ctx, id, num, after, head)
		if err == nil && len(events) == 0 {
			err = outboard.Errorf(outboard.Internal, "session %s has no event %d, though its head is %d", id, after+1, head)
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

// Read yields the session's events with seq > after, in order, up to the head at the time of the call; it pages and never
// holds the whole log. No connection is held while the consumer works.
func (s *Store) Read(ctx context.Context, id outboard.SessionID, after int64) iter.Seq2[outboard.Event, error] {
	return func(yield func(outboard.Event, error) bool) {
		num, head, err := s.lookup(ctx, id)
		if err != nil {
			yield(outboard.Event{}, err)
			return
		}
		s.pages(ctx, id, num, after, head, yield)
	}
}

// The conditions of the partial indexes events_inputs and events_once. A query that repeats one word for word may use its index.
const (
	isInput = `type IN ('input.message', 'input.system', 'input.interrupt', 'input.confirmation', 'input.tool_result')`
	isOnce  = `type IN ('call.finished', 'input.processed', 'input.confirmation', 'input.tool_result')`
)

// EventQuery selects events of one session by position. Zero values select everything in ascending order.
type EventQuery struct {
	After, Before int64     // exclusive bounds on seq; 0 = none
	Since, Until  time.Time // both inclusive
	Types         []outboard.EventType
	Desc          bool
	Limit         int // 0 = 1000
}

// Events returns one page of events.
func (s *Store) Events(ctx context.Context, id outboard.SessionID, q EventQuery) ([]outboard.Event, error) {
	num, _, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(`SELECT ` + eventCols + ` FROM events WHERE session = ?`)
	args := []any{num}
	add := func(cond string, vs ...any) {
		b.WriteString(cond)
		args = append(args, vs...)
	}
	if q.After > 0 {
		add(` AND seq > ?`, q.After)
	}
	if q.Before > 0 {
		add(` AND seq < ?`, q.Before)
	}
	if !q.Since.IsZero() {
		add(` AND at >= ?`, micros(q.Since))
	}
	if !q.Until.IsZero() {
		add(` AND at <= ?`, micros(q.Until))
	}
	if len(q.Types) > 0 {
		add(` AND type IN (`+marks(len(q.Types))+`)`, texts(q.Types)...)
		if !slices.ContainsFunc(q.Types, func(t outboard.EventType) bool { return !t.IsInput() }) {
			add(` AND ` + isInput)
		}
	}
	b.WriteString(order("seq", !q.Desc) + ` LIMIT ?`)
	args = append(args, limitOr(q.Limit, defaultEvents))
	return s.events(ctx, id, b.String(), args...)
}

// events runs a query of eventCols.
func (s *Store) events(ctx context.Context, id outboard.SessionID, query string, args ...any) ([]outboard.Event, error) {
	out, err := collect(ctx, s, "reading events", scanEvent, query, args...)
	for i := range out {
		out[i].Session = id
	}
	return out, err
}

const eventSQL = `SELECT ` + eventCols + ` FROM events WHERE session = ? AND id = ?`

// Event returns one event by id. NotFound if the session has none such.
func (s *Store) Event(ctx context.Context, id outboard.SessionID, ev outboard.EventID) (outboard.Event, error) {
	num, _, err := s.lookup(ctx, id)
	if err != nil {
		return outboard.Event{}, err
	}
	e, err := one(ctx, s, "event", ev, scanEvent, eventSQL, num, string(ev))
	e.Session = id
	return e, err
}

const aboutSQL = `SELECT ` + eventCols + ` FROM events WHERE session = ? AND ref = ? AND ref <> '' ORDER BY seq`

// EventsAbout returns the events whose Ref is ref, in order.
func (s *Store) EventsAbout(ctx context.Context, id outboard.SessionID, ref outboard.EventID) ([]outboard.Event, error) {
	num, _, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.events(ctx, id, aboutSQL, num, string(ref))
}

// The header says how many inputs wait, so the search, newest first, ends with the oldest that does.
const waitingSQL = `SELECT ` + eventCols + ` FROM events AS e WHERE session = ? AND ` + isInput + `
	AND NOT EXISTS (SELECT 1 FROM events AS p WHERE p.session = e.session AND p.ref = e.id AND p.type = 'input.processed'
		AND p.` + isOnce + `)
	ORDER BY seq DESC
	LIMIT (SELECT inbox + urgent FROM sessions WHERE num = ?)`

// Waiting returns the inputs that no input.processed names yet, in order.
func (s *Store) Waiting(ctx context.Context, id outboard.SessionID) ([]outboard.Event, error) {
	num, _, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	out, err := s.events(ctx, id, waitingSQL, num, num)
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

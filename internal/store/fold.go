package store

import (
	"context"
	"math"

	"github.com/outboard-dev/outboard"
)

// summaryPage is how many summaries FoldStart looks at at a time. The newest one serves, unless the conversation
// was rewound behind it.
const summaryPage = 4

// FoldStart returns the state from which a session's log is folded on, with what comes after its Head: where it
// stood at its newest summary, else the state before the first event. It reads a few rows, however long the log
// is.
func (s *Store) FoldStart(ctx context.Context, id outboard.SessionID) (*outboard.State, error) {
	rewinds, err := s.Rewinds(ctx, id, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	st, err := outboard.NewState(rewinds)
	if err != nil {
		return nil, err
	}
	q := EventQuery{Types: []outboard.EventType{outboard.TypeContextCompacted}, Desc: true, Limit: summaryPage}
	for {
		page, err := s.Events(ctx, id, q)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if ok, err := s.rebase(ctx, st, &page[i]); ok || err != nil {
				return st, err
			}
		}
		if len(page) < q.Limit {
			return st, nil
		}
		q.Before = page[len(page)-1].Seq
	}
}

// rebase takes a state to the base of a summary, and reports whether it can be.
func (s *Store) rebase(ctx context.Context, st *outboard.State, summary *outboard.Event) (bool, error) {
	b, err := summary.Base()
	if err != nil || b == nil {
		return false, err
	}
	var waiting []outboard.Event
	for _, seq := range b.Waiting {
		found, err := s.Events(ctx, summary.Session, EventQuery{After: seq - 1, Before: seq + 1})
		if err != nil {
			return false, err
		}
		waiting = append(waiting, found...)
	}
	if len(waiting) != len(b.Waiting) {
		return false, nil // no position of an input: not what we wrote
	}
	return st.Rebase(summary, b, waiting)
}

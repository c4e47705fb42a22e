package store_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// foldOn folds a log from where the store says, and returns how many rows that took.
func foldOn(t *testing.T, s *store.Store, id outboard.SessionID) (st *outboard.State, rows int64) {
	t.Helper()
	began := s.EventsRead()
	st, err := s.FoldStart(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range s.Read(t.Context(), id, st.Head) {
		if err == nil {
			err = st.Apply(&e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return st, s.EventsRead() - began
}

// foldAll folds a whole log.
func foldAll(t *testing.T, s *store.Store, id outboard.SessionID) *outboard.State {
	t.Helper()
	st, err := outboard.Fold(readAll(t, s, id))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// If this fails, a long session is folded from something else than what its log says, or all of it is read: in a
// fork whose summary is its parent's, after a rewind behind the summary or to after it, with inputs that waited
// then.
func TestFoldStart(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		check := func(what string, id outboard.SessionID, most int64) {
			t.Helper()
			got, rows := foldOn(t, s, id)
			got, want := got.Clone(), foldAll(t, s, id).Clone()
			if len(got.Waiting)+len(want.Waiting) == 0 {
				got.Waiting, want.Waiting = nil, nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: folded from the summary\n%+v\nfrom the beginning\n%+v", what, got, want)
			}
			if rows > most {
				t.Errorf("%s: %d rows were read, want at most %d", what, rows, most)
			}
		}
		talk := func(n int) {
			for range n {
				in := mustAppend(t, s, a.ID, message("m"), started(1))[0]
				mustAppend(t, s, a.ID, processed(in), ended(1, "end_turn"))
			}
		}
		sum := func() outboard.Event {
			return outboard.NewEvent("", &outboard.ContextCompacted{Summary: "so far", Base: foldAll(t, s, a.ID).
				Base()})
		}
		talk(50)
		if _, rows := foldOn(t, s, a.ID); rows < 200 {
			t.Fatalf("a log of 200 events without a summary was folded from %d: this counts something else", rows)
		}
		waits := mustAppend(t, s, a.ID, message("waits"), message("waits too"))[0]
		mustAppend(t, s, a.ID, started(1))
		summary := sum()
		mustAppend(t, s, a.ID, message("between")) // somebody else's, while the summary was written
		at := mustAppend(t, s, a.ID, summary, processed(waits), ended(1, "end_turn"))[0].Seq
		check("after a summary", a.ID, 10)
		f := forkOf(t, s, a.ID, at+2)
		check("a fork after it", f.ID, 10)
		g := forkOf(t, s, a.ID, 150)
		check("a fork before it", g.ID, 160)

		rewound := func(to int64) outboard.Event {
			return outboard.NewEvent("", &outboard.SessionRewound{To: to, Conversation: true})
		}
		talk(50)
		mustAppend(t, s, a.ID, sum())
		talk(2)
		check("after another summary", a.ID, 20)
		mustAppend(t, s, a.ID, rewound(at+1))
		check("after a rewind to before that", a.ID, 240)
		mustAppend(t, s, a.ID, rewound(100))
		talk(1)
		check("after a rewind to before both", a.ID, 1000)
		mustAppend(t, s, a.ID, sum())
		check("after a summary since", a.ID, 10)
		if _, err := s.FoldStart(t.Context(), "sesn_none"); outboard.KindOf(err) != outboard.NotFound || err == nil {
			t.Errorf("no session: %v", err)
		}
	})
}

// If this fails, a fold that meets a rewind which came while it read goes on as if there had been none.
func TestFoldStartBeforeARewind(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		mustAppend(t, s, a.ID, said("one"))
		st, err := s.FoldStart(t.Context(), a.ID)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, s, a.ID, outboard.NewEvent("", &outboard.SessionRewound{To: 1, Conversation: true}))
		for e, err := range s.Read(t.Context(), a.ID, st.Head) {
			if err != nil {
				t.Fatal(err)
			}
			if err = st.Apply(&e); e.Type == outboard.TypeSessionRewound {
				if !errors.Is(err, outboard.ErrRewound) {
					t.Errorf("the rewind was folded: %v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
}

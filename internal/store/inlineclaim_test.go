package store_test

import (
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// inlineClaimed is a worker that takes what it is given, while it has room.
type inlineClaimed struct {
	room, canceled int
	taken          []outboard.Header
	tails          [][]outboard.Event
}

func (o *inlineClaimed) add(w outboard.WorkerID) *store.InlineClaim {
	return &store.InlineClaim{
		Worker:  w,
		Reserve: func(outboard.OrgID) bool { o.room--; return o.room >= 0 },
		Cancel:  func(outboard.OrgID) { o.canceled++ },
		Take: func(h outboard.Header, tail []outboard.Event) {
			o.taken, o.tails = append(o.taken, h), append(o.tails, tail)
		},
	}
}

// A session that two workers hold, or that nobody takes though it has work, would run twice or never.
func TestInlineClaim(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		s := storetest.Open(t, cfg)
		w, other := newWorker(t, s), newWorker(t, s)
		o := &inlineClaimed{room: 1}
		stop := s.AddInlineClaim(o.add(w))
		id := newSession(t, s).ID
		mustAppend(t, s, id, said("nothing to do"))
		if len(o.taken) != 0 {
			t.Fatalf("a session at rest was taken: %+v", o.taken)
		}
		in := mustAppend(t, s, id, message("a"), message("b"))
		if cfg.URL != "" { // PostgreSQL makes no inline claims: the positive control of the claims below
			if got, err := s.Claim(t.Context(), other, 1); err != nil || len(got) != 1 || len(o.taken) != 0 {
				t.Errorf("claimed %v, %v, taken %v", got, err, o.taken)
			}
			return
		}
		if len(o.taken) != 1 || o.taken[0].Worker != w || o.taken[0].Epoch != 1 || o.taken[0].Head != 4 ||
			len(o.tails[0]) != 2 || o.tails[0][1].ID != in[1].ID || o.tails[0][1].Seq != 4 {
			t.Fatalf("taken %+v with %+v", o.taken, o.tails)
		}
		if h := mustSession(t, s, id); h.Worker != w || h.Epoch != 1 || h.Inbox != 2 {
			t.Errorf("the session is %+v", h)
		}
		if got, err := s.Claim(t.Context(), other, 1); err != nil || len(got) != 0 {
			t.Errorf("a session was claimed that is taken: %v, %v", got, err)
		}
		mustAppend(t, s, id, message("c"))
		if _, err := s.Append(t.Context(), id, 2, store.Any, started(1)); err != store.ErrFenced {
			t.Errorf("an append with a later epoch: %v", err)
		}
		if _, err := s.Append(t.Context(), id, 1, 5, started(1)); err != nil || len(o.taken) != 1 {
			t.Errorf("an append of the holder: %v; taken %d times", err, len(o.taken))
		}

		full := newSession(t, s).ID // no room: it is left for a claim
		mustAppend(t, s, full, message("a"))
		claimed, err := s.Claim(t.Context(), other, 1)
		if err != nil || len(claimed) != 1 || claimed[0].ID != full || len(o.taken) != 1 {
			t.Errorf("claimed %v, %v", claimed, err)
		}

		o.room = 1
		if _, err := s.Append(t.Context(), "sesn_none", 0, store.Any,
			message("x")); outboard.KindOf(err) != outboard.NotFound || o.room != 1 {
			t.Errorf("an append to no session: %v, room %d", err, o.room)
		}
		c.advance(outboard.LeaseTTL + time.Second) // the worker's lease is over: it takes nothing more
		late := newSession(t, s).ID
		mustAppend(t, s, late, message("a"))
		if len(o.taken) != 1 || mustSession(t, s, late).Worker != "" {
			t.Errorf("a worker whose lease is over has taken %+v", o.taken)
		}
		heir := newWorker(t, s)
		if got, err := s.Claim(t.Context(), heir, 9); err != nil || len(got) != 3 {
			t.Errorf("after the lease %v, %v", got, err)
		}

		stop()
		mustAppend(t, s, newSession(t, s).ID, message("a"))
		if len(o.taken) != 1 || o.canceled != 0 {
			t.Errorf("after stop: taken %d, given back %d", len(o.taken), o.canceled)
		}
	})
}

// A turn appends as soon as it is begun, by the commit of the message. If it found that commit still under way
// it would have to hand its own to the writer, and wait for whoever sent the message to tell everybody else.
func TestBegunTurnFindsNobodyCommitting(t *testing.T) {
	s := storetest.Open(t, storetest.SQLite(t))
	o := &inlineClaimed{room: 1}
	defer s.AddInlineClaim(o.add(newWorker(t, s)))()
	id := newSession(t, s).ID
	free, err := s.CommitUntold(store.Commit{Session: id, Expect: store.Any, Events: []outboard.Event{message("go")}})
	if err != nil || len(o.taken) != 1 {
		t.Fatalf("taken %v, %v", o.taken, err)
	}
	if !free {
		t.Error("the commit that began the turn is still under way")
	}
}

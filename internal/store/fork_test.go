package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// forkOf is a fork of a session at seq, with one event of its own after session.forked.
func forkOf(tb testing.TB, s *store.Store, parent outboard.SessionID, seq int64) outboard.Header {
	tb.Helper()
	hs, err := s.Fork(tb.Context(), parent, seq, []store.Fork{newFork(parent, seq)})
	if err != nil {
		tb.Fatalf("forking: %v", err)
	}
	return hs[0]
}

func newFork(parent outboard.SessionID, seq int64) store.Fork {
	return store.Fork{Header: blank(), Config: outboard.SessionConfig{Environment: "env_fork"},
		Events: []outboard.Event{outboard.NewEvent("", &outboard.SessionForked{Parent: parent, Seq: seq}), said("own")}}
}

// ids are the ids of events.
func ids(events []outboard.Event) (out []string) {
	for _, e := range events {
		out = append(out, string(e.ID))
	}
	return out
}

// A fork's log is its parent's up to the fork and its own after it, whatever either does later, through forks of forks.
func TestForkReadsThrough(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		for i := range 9 {
			mustAppend(t, s, a.ID, said(fmt.Sprint("a", i)))
		}
		b := forkOf(t, s, a.ID, 6) // b: a1..a6, own 7 8
		mustAppend(t, s, a.ID, said("a later"))
		mustAppend(t, s, b.ID, said("b later")) // 9
		c := forkOf(t, s, b.ID, 8)              // c: a1..a6, b7 b8, own 9 10
		d := forkOf(t, s, c.ID, 3)              // d: a1..a3, own 4 5
		al, bl, cl, dl := ids(readAll(t, s, a.ID)), ids(readAll(t, s, b.ID)), ids(readAll(t, s, c.ID)), ids(readAll(t,
			s, d.ID))
		if len(al) != 11 || len(bl) != 9 || len(cl) != 10 || len(dl) != 5 {
			t.Fatalf("the logs have %d %d %d %d events", len(al), len(bl), len(cl), len(dl))
		}
		if !slices.Equal(bl[:6], al[:6]) || !slices.Equal(cl[:8], bl[:8]) || !slices.Equal(dl[:3], al[:3]) ||
			bl[6] == al[6] || cl[8] == bl[8] {
			t.Errorf("the logs do not share what they should:\n%v\n%v\n%v\n%v", al, bl, cl, dl)
		}
		if e := readAll(t, s, c.ID); e[0].Thread != c.Thread || e[7].Thread != c.Thread || e[9].Thread != c.Thread {
			t.Error("events of a fork are not on its own thread")
		}
		for after := range int64(11) {
			var got []string
			for e, err := range s.Read(t.Context(), c.ID, after) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(e.ID))
			}
			if want := cl[min(int(after), len(cl)):]; !slices.Equal(got, want) {
				t.Errorf("read after %d: %v, want %v", after, got, want)
			}
		}
		for _, x := range []struct {
			id     outboard.SessionID
			parent outboard.SessionID
			seq    int64
		}{{a.ID, "", 0}, {b.ID, a.ID, 6}, {c.ID, b.ID, 8}, {d.ID, c.ID, 3}} {
			if p, seq, err := s.Parent(t.Context(), x.id); err != nil || p != x.parent || seq != x.seq {
				t.Errorf("parent of %s: %s at %d, %v", x.id, p, seq, err)
			}
		}
	})
}

// Pages of a fork's log, both ways and with every kind of bound, must not stop, skip or repeat where one
// session's rows end.
func TestForkEventPages(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		for range 4 {
			mustAppend(t, s, a.ID, message("m"), said("x"))
		}
		c := forkOf(t, s, forkOf(t, s, a.ID, 5).ID, 6)
		all := readAll(t, s, c.ID)
		for _, q := range []store.EventQuery{{}, {After: 3}, {Before: 7}, {After: 2, Before: 8}, {After: 5},
			{Before: 6}, {After: 6, Before: 7},
			{Types: []outboard.EventType{outboard.TypeAgentMessage}}, {Types: []outboard.EventType{outboard.TypeInputMessage}},
			{Types: []outboard.EventType{outboard.TypeSessionForked}}, {Since: all[3].Time,
				Until: all[6].Time}, {After: 99}} {
			var want []string
			for _, e := range all {
				if e.Seq > q.After && (q.Before == 0 || e.Seq < q.Before) &&
					(len(q.Types) == 0 || slices.Contains(q.Types, e.Type)) &&
					(q.Since.IsZero() || !e.Time.Before(q.Since) && !e.Time.After(q.Until)) {
					want = append(want, string(e.ID))
				}
			}
			for _, desc := range []bool{false, true} {
				for limit := range 4 {
					q.Desc, q.Limit = desc, limit
					got, err := s.Events(t.Context(), c.ID, q)
					exp := slices.Clone(want)
					if desc {
						slices.Reverse(exp)
					}
					if limit > 0 {
						exp = exp[:min(limit, len(exp))]
					}
					if err != nil || !slices.Equal(ids(got), exp) {
						t.Errorf("%+v: %v, %v, want %v", q, ids(got), err, exp)
					}
					for _, e := range got {
						if e.Session != c.ID || e.Thread != c.Thread {
							t.Errorf("event %d is of session %s, thread %s", e.Seq, e.Session, e.Thread)
						}
					}
				}
			}
		}
	})
}

// A fork must not see what its parent did after it, by id and by reference as little as by position.
func TestForkSeesNothingLater(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		in := mustAppend(t, s, a.ID, message("before"))[0]
		f := forkOf(t, s, a.ID, 2)
		later := mustAppend(t, s, a.ID, processed(in))[0]
		if e, err := s.Event(t.Context(), f.ID, in.ID); err != nil || e.Session != f.ID || e.Seq != 2 {
			t.Errorf("the shared event: %+v, %v", e, err)
		}
		if _, err := s.Event(t.Context(), a.ID, later.ID); err != nil {
			t.Errorf("the parent's own: %v", err)
		}
		_, err := s.Event(t.Context(), f.ID, later.ID)
		mustKind(t, err, outboard.NotFound)
		if about, err := s.EventsAbout(t.Context(), f.ID, in.ID); err != nil || len(about) != 0 {
			t.Errorf("about it: %v, %v", about, err)
		}
		if about, err := s.EventsAbout(t.Context(), a.ID, in.ID); err != nil || len(about) != 1 {
			t.Errorf("about it in the parent: %v, %v", about, err)
		}
	})
}

// What waits in the parent's inbox must not wait in the fork's, and its header counts from zero.
func TestForkHeader(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		mustAppend(t, s, a.ID, message("waits"), started(1),
			outboard.NewEvent("", &outboard.ModelFinished{Usage: outboard.Usage{Input: 5}}))
		if h := mustSession(t, s, a.ID); h.Inbox != 1 || h.Phase != outboard.PhaseRunning || h.Usage.Input != 5 {
			t.Fatalf("the parent is %+v", h)
		}
		f := forkOf(t, s, a.ID, 4)
		if h := mustSession(t, s, f.ID); h.Head != 6 || h.Inbox != 0 || h.Phase != outboard.PhaseIdle ||
			h.Usage.Input != 0 || !h.RunningSince.IsZero() {
			t.Errorf("the fork is %+v", h)
		}
		if ws, err := s.Waiting(t.Context(), f.ID); err != nil || len(ws) != 0 {
			t.Errorf("waiting in the fork: %v, %v", ws, err)
		}
		mine := mustAppend(t, s, f.ID, message("mine"))[0]
		if ws, err := s.Waiting(t.Context(), f.ID); err != nil || len(ws) != 1 || ws[0].ID != mine.ID ||
			ws[0].Session != f.ID {
			t.Errorf("waiting in the fork: %v, %v", ws, err)
		}
		if c, err := s.SessionConfig(t.Context(), f.ID); err != nil || c.Environment != "env_fork" {
			t.Errorf("its config: %+v, %v", c, err)
		}
		fold, err := outboard.Fold(readAll(t, s, f.ID))
		if err != nil || fold.Inbox != 1 || len(fold.Waiting) != 1 {
			t.Errorf("its fold: %+v, %v", fold, err)
		}
	})
}

// A parent that is archived or deleted must not take its forks with it: neither their logs nor the checkpoints
// they start from. When the last fork is gone, so are the checkpoints.
func TestForkOutlivesItsParent(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		save := func(id outboard.SessionID, k outboard.CheckpointID) {
			t.Helper()
			_, err := s.Commit(t.Context(), store.Commit{Session: id, Expect: store.Any,
				Events:     []outboard.Event{said(string(k))},
				Checkpoint: &outboard.Checkpoint{ID: k, Session: id, CreatedAt: time.Now()}})
			if err != nil {
				t.Fatal(err)
			}
		}
		save(a.ID, "ckpt_a2")
		save(a.ID, "ckpt_a3")
		f := forkOf(t, s, a.ID, 2)
		save(f.ID, "ckpt_f5")
		g := forkOf(t, s, f.ID, 5)
		list := func(id outboard.SessionID, want ...string) {
			t.Helper()
			ks, err := s.Checkpoints(t.Context(), id)
			var got []string
			for _, k := range ks {
				got = append(got, string(k.ID))
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("checkpoints: %v, %v, want %v", got, err, want)
			}
		}
		list(a.ID, "ckpt_a2", "ckpt_a3")
		list(f.ID, "ckpt_a2", "ckpt_f5")
		list(g.ID, "ckpt_a2", "ckpt_f5")
		before := ids(readAll(t, s, g.ID))
		for _, id := range []outboard.SessionID{a.ID, f.ID} {
			if err := s.DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if after := ids(readAll(t, s, g.ID)); !slices.Equal(before, after) {
			t.Errorf("the log was %v and is %v", before, after)
		}
		list(g.ID, "ckpt_a2", "ckpt_f5")
		_, err := s.Checkpoint(t.Context(), "ckpt_a3")
		mustKind(t, err, outboard.NotFound)
		if err := s.DeleteSession(t.Context(), g.ID); err != nil {
			t.Fatal(err)
		}
		for _, k := range []outboard.CheckpointID{"ckpt_a2", "ckpt_f5"} {
			_, err := s.Checkpoint(t.Context(), k)
			mustKind(t, err, outboard.NotFound)
		}
	})
}

// A commit may go on after the events that name its checkpoint: the next model call begins in it. A fork at
// those events, after which the conversation can be taken up, begins with the checkpoint and must have it, also
// when the parent is gone.
func TestForkAtItsCheckpoint(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		for what, c := range map[string]struct {
			events []outboard.Event
			want   int64
		}{
			"after two calls": {[]outboard.Event{said("x"),
				outboard.NewEvent("", &outboard.CallFinished{Call: "c1", Outcome: outboard.OutcomeOK,
					Checkpoint: "ckpt_1"}),
				outboard.NewEvent("", &outboard.CallFinished{Call: "c2", Outcome: outboard.OutcomeOK,
					Checkpoint: "ckpt_1"}),
				outboard.NewEvent("", &outboard.CheckpointCreated{Checkpoint: "ckpt_1"}), said("next")}, 4},
			"at rest": {[]outboard.Event{outboard.NewEvent("",
				&outboard.CheckpointCreated{Checkpoint: "ckpt_1"}), said("next")}, 2},
			"without its events": {[]outboard.Event{said("x"),
				outboard.NewEvent("", &outboard.CheckpointCreated{Checkpoint: "ckpt_0"})}, 3},
		} {
			a := newSession(t, s)
			at := time.UnixMicro(5).UTC()
			if _, err := s.Commit(t.Context(), store.Commit{Session: a.ID, Expect: store.Any, Events: c.events,
				Checkpoint: &outboard.Checkpoint{ID: "ckpt_1", CreatedAt: at}}); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if k, err := s.Checkpoint(t.Context(), "ckpt_1"); err != nil || k.Seq != c.want {
				t.Errorf("%s: %+v, %v, want it at %d", what, k, err, c.want)
			}
			before, f := forkOf(t, s, a.ID, c.want-1), forkOf(t, s, a.ID, c.want)
			if err := s.DeleteSession(t.Context(), a.ID); err != nil {
				t.Fatal(err)
			}
			if list, err := s.Checkpoints(t.Context(), f.ID); err != nil || len(list) != 1 {
				t.Errorf("%s: a fork there has %v, %v", what, list, err)
			}
			if list, err := s.Checkpoints(t.Context(), before.ID); err != nil || len(list) != 0 {
				t.Errorf("%s: control: a fork before it has %v, %v", what, list, err)
			}
			for _, id := range []outboard.SessionID{f.ID, before.ID} {
				if err := s.DeleteSession(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// A follower of a fork gets the shared events, its own, and those that come, once each.
func TestForkFollow(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		f := forkOf(t, s, a.ID, 1)
		n := int64(0)
		ctx, cancel := context.WithCancel(within(t))
		defer cancel()
		for e, err := range s.Follow(ctx, f.ID, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; e.Seq != n {
				t.Fatalf("event %d came as number %d", e.Seq, n)
			}
			if n == 3 {
				mustAppend(t, s, a.ID, said("not yours"))
				mustAppend(t, s, f.ID, said("yours"))
			}
			if n == 4 {
				break
			}
		}
		if n != 4 {
			t.Fatalf("got %d events", n)
		}
	})
}

// Several forks are made together or not at all, and only from a position that exists.
func TestForkRefusals(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		for _, seq := range []int64{0, -1, 2} {
			_, err := s.Fork(t.Context(), a.ID, seq, []store.Fork{newFork(a.ID, seq)})
			mustKind(t, err, outboard.Invalid, "has no event")
		}
		_, err := s.Fork(t.Context(), "sesn_none", 1, []store.Fork{newFork("sesn_none", 1)})
		mustKind(t, err, outboard.NotFound)
		good, twice := newFork(a.ID, 1), newFork(a.ID, 1)
		twice.Header.ID = a.ID
		_, err = s.Fork(t.Context(), a.ID, 1, []store.Fork{good, twice})
		mustBe(t, err, store.ErrDuplicate)
		_, err = s.Session(t.Context(), good.Header.ID)
		mustKind(t, err, outboard.NotFound)
		hs, err := s.Fork(t.Context(), a.ID, 1, []store.Fork{good, newFork(a.ID, 1)})
		if err != nil || len(hs) != 2 || hs[0].ID != good.Header.ID {
			t.Fatalf("two forks: %v, %v", hs, err)
		}
		for id, n := a.ID, 1; ; n++ {
			h, err := s.Fork(t.Context(), id, mustSession(t, s, id).Head, []store.Fork{newFork(id, 1)})
			if err != nil {
				mustKind(t, err, outboard.Invalid, "deep")
				if n < 32 {
					t.Errorf("only %d forks of forks", n)
				}
				if got := readAll(t, s, id); !strings.Contains(string(got[len(got)-1].Data), "own") {
					t.Errorf("the deepest fork ends with %s", got[len(got)-1].Data)
				}
				break
			}
			id = h[0].ID
		}
	})
}

// The rewinds of a log are those of the conversation, in order, the shared ones among them.
func TestRewinds(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newSession(t, s)
		back := func(id outboard.SessionID, to int64, conversation bool) {
			mustAppend(t, s, id, outboard.NewEvent("", &outboard.SessionRewound{To: to, Conversation: conversation,
				Machine: true}))
		}
		back(a.ID, 1, true)
		back(a.ID, 1, false)
		f := forkOf(t, s, a.ID, 3)
		back(a.ID, 3, true)
		back(f.ID, 2, true)
		for id, want := range map[outboard.SessionID][]outboard.Rewind{a.ID: {{Seq: 2, To: 1}, {Seq: 4, To: 3}},
			f.ID: {{Seq: 2, To: 1}, {Seq: 6, To: 2}}} {
			if got, err := s.Rewinds(t.Context(), id, 100); err != nil || !slices.Equal(got, want) {
				t.Errorf("rewinds of %s: %v, %v, want %v", id, got, err, want)
			}
		}
		if got, err := s.Rewinds(t.Context(), f.ID, 5); err != nil || len(got) != 1 {
			t.Errorf("rewinds up to 5: %v, %v", got, err)
		}
	})
}

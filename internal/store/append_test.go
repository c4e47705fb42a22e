package store_test

import (
	"bytes"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// An append must land only where it was decided on, else two writers interleave decisions that exclude each other.
func TestAppendAtExpectedHeadOnly(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		out, err := s.Append(t.Context(), h.ID, 0, 1, said("a"), said("b"))
		if err != nil || len(out) != 2 || out[0].Seq != 2 || out[1].Seq != 3 || out[1].Thread != h.Thread {
			t.Fatalf("got %+v, %v", out, err)
		}
		_, err = s.Append(t.Context(), h.ID, 0, 1, said("late"))
		mustBe(t, err, store.ErrMoved)
		_, err = s.Append(t.Context(), h.ID, 0, 9, said("early"))
		mustBe(t, err, store.ErrMoved)
		if n := len(readAll(t, s, h.ID)); n != 3 {
			t.Fatalf("%d events after two refused appends, want 3", n)
		}
	})
}

// A worker that lost its session must not write any more, whatever it remembers, else one turn runs twice.
func TestAppendFencedByEpoch(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		h := newSession(t, s)
		mustAppend(t, s, h.ID, message("go"))
		old := newWorker(t, s)
		held, err := s.Claim(t.Context(), old, 1)
		if err != nil || len(held) != 1 {
			t.Fatalf("claimed %v, %v", held, err)
		}
		if _, err := s.Append(t.Context(), h.ID, held[0].Epoch, 2, started(1)); err != nil {
			t.Fatalf("the owner's append: %v", err)
		}
		c.advance(outboard.LeaseTTL + time.Second)
		taken, err := other.Claim(t.Context(), newWorker(t, other), 1)
		if err != nil || len(taken) != 1 || taken[0].Epoch <= held[0].Epoch {
			t.Fatalf("taken over %v, %v", taken, err)
		}
		_, err = s.Append(t.Context(), h.ID, held[0].Epoch, store.Any, said("zombie"))
		mustBe(t, err, store.ErrFenced)
		if _, err = other.Append(t.Context(), h.ID, taken[0].Epoch, 3, said("mine")); err != nil {
			t.Fatalf("the new owner's append: %v", err)
		}
		mustBe(t, s.Release(t.Context(), h.ID, held[0].Epoch), store.ErrFenced)
		mustBe(t, s.Renew(t.Context(), old), store.ErrFenced)
	})
}

// A call with two outcomes, or an input taken twice, would show the model something that did not happen.
func TestOnceOnlyEvents(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		h := newSession(t, s)
		in := message("go")
		call := outboard.NewEvent("", &outboard.CallRequested{Name: "bash"})
		mustAppend(t, s, h.ID, in, call)
		for name, mk := range map[string]func() outboard.Event{
			"processed": func() outboard.Event { return processed(in) },
			"finished": func() outboard.Event {
				return outboard.NewEvent("",
					&outboard.CallFinished{Call: call.ID})
			},
			"confirmation": func() outboard.Event {
				return outboard.NewEvent("",
					&outboard.InputConfirmation{Call: call.ID})
			},
			"result": func() outboard.Event {
				return outboard.NewEvent("",
					&outboard.InputToolResult{Call: call.ID})
			},
		} {
			mustAppend(t, s, h.ID, mk())
			head := mustSession(t, s, h.ID).Head
			for _, st := range []*store.Store{s, other, s} {
				_, err := st.Append(t.Context(), h.ID, 0, store.Any, said("with it"), mk())
				mustBe(t, err, store.ErrDuplicate)
			}
			if now := mustSession(t, s, h.ID).Head; now != head {
				t.Fatalf("%s: a refused append moved the head from %d to %d", name, head, now)
			}
		}
		_, err := s.Append(t.Context(), h.ID, 0, store.Any, outboard.NewEvent("", &outboard.CallFinished{Call: "x"}),
			outboard.NewEvent("", &outboard.CallFinished{Call: "x"}))
		mustBe(t, err, store.ErrDuplicate)
		mustAppend(t, s, h.ID, outboard.NewEvent("", &outboard.CallFinished{Call: "x"}))
	})
}

// A refused commit must not take down those that share its transaction, else one bad client fails every session.
func TestRefusedNeighbours(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		good, bad := newSession(t, s), newSession(t, s)
		same := said("the same event, with the same id")
		mustAppend(t, s, bad.ID, same)
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				if _, err := s.Append(t.Context(), good.ID, 0, store.Any, said("fine")); err != nil {
					t.Errorf("a good append: %v", err)
				}
			})
			wg.Go(func() {
				_, err := s.Append(t.Context(), bad.ID, 0, store.Any, same)
				if err != store.ErrDuplicate {
					t.Errorf("an event with a known id: %v", err)
				}
			})
			wg.Go(func() {
				_, err := s.Append(t.Context(), "sesn_none", 0, store.Any, said("nowhere"))
				if outboard.KindOf(err) != outboard.NotFound {
					t.Errorf("an append to no session: %v", err)
				}
			})
		}
		wg.Wait()
		if n := len(readAll(t, s, good.ID)); n != 41 {
			t.Fatalf("%d events in the good session, want 41", n)
		}
		if n := len(readAll(t, s, bad.ID)); n != 2 {
			t.Fatalf("%d events in the bad session, want 2", n)
		}
	})
}

// What the header says must be what the log says, else lists, claims and budgets go by something else than the truth.
func TestHeaderIsProjectionOfLog(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		h := newSession(t, s)
		title := "new title"
		in := message("go")
		for i, evs := range [][]outboard.Event{
			{in},
			{started(1), processed(in)},
			{outboard.NewEvent("",
				&outboard.ModelFinished{Usage: outboard.Usage{Input: 10, Output: 5, CacheRead: 1, CacheWrite5m: 2,
					CacheWrite1h: 3}})},
			{outboard.NewEvent("", &outboard.SessionUpdated{Title: &title, Metadata: map[string]string{"a": "b"}})},
			{outboard.NewEvent("", &outboard.InputInterrupt{})},
			{retrying(time.Now().Add(time.Hour))},
			{outboard.NewEvent("", &outboard.TurnResumed{Turn: 1}), ended(1, "requires_action")},
			{said("after")},
			{outboard.NewEvent("", &outboard.SessionArchived{})},
		} {
			mustAppend(t, []*store.Store{s, other}[i%2], h.ID, evs...) // each finds its cached header out of date
			want := h
			want.Phase = outboard.PhaseIdle
			for _, e := range readAll(t, s, h.ID) {
				if err := outboard.Project(&want, &e); err != nil {
					t.Fatal(err)
				}
			}
			if got := mustSession(t, s, h.ID); !reflect.DeepEqual(got, want) {
				t.Fatalf("after step %d:\n got %+v\nwant %+v", i, got, want)
			}
		}
		_, err := s.Append(t.Context(), h.ID, 0, store.Any, said("too late"))
		mustBe(t, err, store.ErrTerminated)
	})
}

// Events that cannot be stored are refused by name before anything is written; an inbox without bound would fill
// the disk.
func TestAppendLimits(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		big := said("")
		big.Data = outboard.Raw(`"` + strings.Repeat("x", outboard.MaxEventData) + `"`)
		_, err := s.Append(t.Context(), h.ID, 0, store.Any, big)
		mustKind(t, err, outboard.TooLarge, string(big.ID))
		big.Data = big.Data[:outboard.MaxEventData-1]
		big.Data = append(big.Data, '"')
		got := mustAppend(t, s, h.ID, big)
		if e, err := s.Event(t.Context(), h.ID, got[0].ID); err != nil || !bytes.Equal(e.Data, big.Data) {
			t.Fatalf("an event of the largest size came back as %d bytes, %v", len(e.Data), err)
		}
		_, err = s.Append(t.Context(), h.ID, 0, store.Any, make([]outboard.Event, outboard.MaxAppend+1)...)
		mustKind(t, err, outboard.TooLarge)
		_, err = s.Append(t.Context(), h.ID, 0, store.Any, outboard.Event{})
		mustKind(t, err, outboard.Invalid)
		full := newSession(t, s)
		for range outboard.MaxInbox / 200 {
			batch := make([]outboard.Event, 200)
			for i := range batch {
				batch[i] = message("again")
			}
			mustAppend(t, s, full.ID, batch...)
		}
		_, err = s.Append(t.Context(), full.ID, 0, store.Any, message("one too many"))
		mustKind(t, err, outboard.Exhausted, "inputs waiting")
		mustAppend(t, s, full.ID, outboard.NewEvent("", &outboard.InputInterrupt{}))
	})
}

// A checkpoint, a file and a new config must appear together with the events that speak of them, or not at all.
func TestCommitIsWhole(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		c := store.Commit{
			Session: h.ID, Expect: 1, Events: []outboard.Event{said("a"), said("b")},
			Checkpoint: &outboard.Checkpoint{ID: "ckpt_1", Delta: outboard.BlobRef{Digest: "d", Size: 7},
				CreatedAt: time.UnixMicro(5).UTC()},
			Files:  []outboard.File{{ID: "file_1", Filename: "x", Session: h.ID, Downloadable: true}},
			Config: &outboard.SessionConfig{Environment: "env_2"},
		}
		late := c
		late.Expect = 0
		_, err := s.Commit(t.Context(), late)
		mustBe(t, err, store.ErrMoved)
		if _, err := s.Checkpoint(t.Context(), "ckpt_1"); outboard.KindOf(err) != outboard.NotFound {
			t.Fatalf("a refused commit left a checkpoint: %v", err)
		}
		if _, err := s.Commit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		k, err := s.Checkpoint(t.Context(), "ckpt_1")
		want := *c.Checkpoint
		want.Session, want.Seq = h.ID, 3
		if err != nil || k != want {
			t.Fatalf("got checkpoint %+v, %v, want %+v", k, err, want)
		}
		file := c.Files[0]
		file.Org = h.Org // a session's file is its organization's
		if f, err := s.File(t.Context(), "file_1"); err != nil || f != file {
			t.Fatalf("got file %+v, %v", f, err)
		}
		if cfg, err := s.SessionConfig(t.Context(), h.ID); err != nil || cfg.Environment != "env_2" {
			t.Fatalf("got config %+v, %v", cfg, err)
		}
	})
}

// The clock may jump back; the log's times must not, because positions on the wire are derived from them.
func TestTimesKeepDistance(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		s := storetest.Open(t, cfg)
		h := newSession(t, s)
		mustAppend(t, s, h.ID, said("a"), said("b"))
		c.advance(-time.Hour)
		mustAppend(t, s, h.ID, said("c"))
		c.advance(2 * time.Hour)
		last := mustAppend(t, s, h.ID, said("d"))
		if n := len(readAll(t, s, h.ID)); n != 5 || !last[0].Time.Equal(c.at) {
			t.Fatalf("%d events, the last at %v instead of %v", n, last[0].Time, c.at)
		}
	})
}

// A statement of a commit that fails is not undone by itself, which the control shows. An event of it that
// stayed would be one that its sender was told is not there.
func TestFailedInsertLeavesNothing(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		h, e := newSession(t, s), said("again")
		mustAppend(t, s, h.ID, e)
		if cfg.URL == "" {
			one := said("twice")
			one.Session, one.Seq, one.Thread = h.ID, 1, h.Thread
			if failed, more, err := s.InsertTwice(t.Context(), one); failed == nil || more != 1 || err != nil {
				t.Errorf("the control failed with %v, left %d rows: %v", failed, more, err)
			}
		}
		_, err := s.Append(t.Context(), h.ID, 0, store.Any, said("before it"), e, said("after it"))
		mustBe(t, err, store.ErrDuplicate)
		next := mustAppend(t, s, h.ID, said("next"), said("and next"))
		if all := readAll(t, s, h.ID); len(all) != 4 || next[0].Seq != 3 || all[2].ID != next[0].ID {
			t.Fatalf("the log is %+v", all)
		}
	})
}

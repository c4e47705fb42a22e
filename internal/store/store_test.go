package store_test

import (
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// A session that is created, appended to, claimed and released reads back as it was written; else nothing else here matters.
func TestRoundTrip(t *testing.T) {
	storetest.Each(t, roundTrip)
}

func roundTrip(t *testing.T, s *store.Store) {
	ctx := t.Context()
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread)}
	h, err := s.CreateSession(ctx, h, outboard.SessionConfig{Environment: "env_x"}, outboard.NewEvent(h.Thread, &outboard.SessionCreated{}))
	if err != nil {
		t.Fatal(err)
	}
	in := outboard.NewEvent(h.Thread, &outboard.InputMessage{Content: []outboard.Content{outboard.Text("hi")}})
	evs, err := s.Append(ctx, h.ID, 0, store.Any, in)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", evs)
	w := outboard.NewID[outboard.WorkerID](outboard.PrefixWorker)
	if err := s.Register(ctx, w, "host"); err != nil {
		t.Fatal(err)
	}
	hs, err := s.Claim(ctx, w, 10)
	if err != nil || len(hs) != 1 || hs[0].Epoch != 1 || hs[0].Worker != w {
		t.Fatal(hs, err)
	}
	ws, err := s.Waiting(ctx, h.ID)
	if err != nil || len(ws) != 1 {
		t.Fatal(ws, err)
	}
	if _, err := s.Append(ctx, h.ID, 1, 2, outboard.NewEvent(h.Thread, &outboard.TurnStarted{Turn: 1}), outboard.NewEvent(h.Thread, &outboard.InputProcessed{Input: in.ID, Of: in.Type})); err != nil {
		t.Fatal(err)
	}
	ws, err = s.Waiting(ctx, h.ID)
	if err != nil || len(ws) != 0 {
		t.Fatal(ws, err)
	}
	if _, err := s.Append(ctx, h.ID, 1, 4, outboard.NewEvent(h.Thread, &outboard.InputProcessed{Input: in.ID, Of: in.Type})); err != store.ErrDuplicate {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, store.Commit{Session: h.ID, Epoch: 1, Expect: 4, Release: true, Events: []outboard.Event{outboard.NewEvent(h.Thread, &outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: "end_turn"}})}}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Session(ctx, h.ID)
	t.Logf("%+v %v", got, err)
	n := 0
	for e, err := range s.Read(ctx, h.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if e.Seq != int64(n) {
			t.Fatal(e)
		}
	}
	if n != 5 {
		t.Fatal(n)
	}
	if hs, err := s.Claim(ctx, w, 10); err != nil || len(hs) != 0 {
		t.Fatal(hs, err)
	}
}

package store_test

import (
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// history is a log of n events from another server, more than a batch of them.
func history(n int) []outboard.Event {
	at := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	out := []outboard.Event{outboard.NewEvent("sthr_old", &outboard.SessionCreated{})}
	for len(out) < n {
		out = append(out, said("x"))
	}
	for i := range out {
		out[i].Seq, out[i].Time = int64(i)+1, at.Add(time.Duration(i)*time.Millisecond)
	}
	return out
}

func each(events []outboard.Event, end error) iter.Seq2[outboard.Event, error] {
	return func(yield func(outboard.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
		if end != nil {
			yield(outboard.Event{}, end)
		}
	}
}

func newImport(log iter.Seq2[outboard.Event, error], n int64) store.Import {
	h := blank()
	return store.Import{Header: h, Config: outboard.SessionConfig{Environment: "env_i"}, Log: log,
		Events: []outboard.Event{outboard.NewEvent("", &outboard.SessionForked{Parent: "sesn_old", Seq: n,
			Import: "d"})},
		Checkpoints: []outboard.Checkpoint{{ID: outboard.CheckpointID("ckpt_" + h.ID), Seq: 2, CreatedAt: time.Now()}},
		Files:       []outboard.File{{ID: outboard.FileID("file_" + h.ID), Session: h.ID, CreatedAt: time.Now()}}}
}

// An imported session must have its whole log under its own id, and go on from there; one whose log is broken
// must never be seen.
func TestImport(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		const n = 700
		m := newImport(each(history(n), nil), n)
		h, err := s.Import(t.Context(), m)
		if err != nil || h.Head != n+1 || h.Phase != outboard.PhaseIdle {
			t.Fatalf("imported %+v, %v", h, err)
		}
		if got := mustSession(t, s, h.ID); got.Head != n+1 || got.ID != m.Header.ID {
			t.Errorf("the header is %+v", got)
		}
		if log := readAll(t, s, h.ID); len(log) != n+1 || log[n].Type != outboard.TypeSessionForked ||
			log[5].Time.Year() != 2020 {
			t.Errorf("the log has %d events", len(log))
		}
		if ks, err := s.Checkpoints(t.Context(), h.ID); err != nil || len(ks) != 1 || ks[0].Session != h.ID {
			t.Errorf("its checkpoints: %v, %v", ks, err)
		}
		if _, err := s.File(t.Context(), m.Files[0].ID); err != nil {
			t.Error(err)
		}
		in := mustAppend(t, s, h.ID, message("on"))[0]
		if in.Seq != n+2 {
			t.Errorf("it goes on at %d", in.Seq)
		}
		if hs, err := s.Claim(t.Context(), newWorker(t, s), 9); err != nil || len(hs) != 1 || hs[0].ID != h.ID {
			t.Errorf("claimed %v, %v", hs, err)
		}

		gap := history(n)
		gap[600].Seq++
		early := history(n)
		early[600].Time = early[599].Time
		twice := history(n)
		twice[600].ID = twice[3].ID
		failed := errors.New("the file ended")
		for name, log := range map[string]iter.Seq2[outboard.Event, error]{"gap": each(gap, nil),
			"time": each(early, nil), "twice": each(twice, nil),
			"end": each(history(600), failed)} {
			m := newImport(log, n)
			_, err := s.Import(t.Context(), m)
			if name == "end" {
				mustBe(t, err, failed)
			} else {
				mustKind(t, err, outboard.Invalid)
			}
			_, err = s.Session(t.Context(), m.Header.ID)
			mustKind(t, err, outboard.NotFound)
		}
		if hs, err := s.Sessions(t.Context(), store.SessionFilter{}); err != nil || len(hs) != 1 {
			t.Errorf("listed %d sessions, %v", len(hs), err)
		}
	})
}

// If this fails, what removes deleted sessions takes the log of one that is being imported, which then comes in
// without it; or what an import left that was refused stays for ever.
func TestPurgeBesideAnImport(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		const n = 700
		purging := func(before time.Time) iter.Seq2[outboard.Event, error] {
			return func(yield func(outboard.Event, error) bool) {
				for e := range each(history(n), nil) {
					if e.Seq == 600 {
						if _, err := s.Purge(t.Context(), before); err != nil {
							t.Error(err)
						}
					}
					if !yield(e, nil) {
						return
					}
				}
			}
		}
		h, err := s.Import(t.Context(), newImport(purging(time.Now().Add(-time.Hour)), n))
		if err != nil {
			t.Fatal(err)
		}
		if log := readAll(t, s, h.ID); len(log) != n+1 {
			t.Errorf("it came in with %d events of %d", len(log), n+1)
		}
		m := newImport(purging(time.Now().Add(time.Hour)), n) // as one that was idle for longer than the grace
		_, err = s.Import(t.Context(), m)
		mustKind(t, err, outboard.Conflict, "was idle for so long")
		_, err = s.Session(t.Context(), m.Header.ID)
		mustKind(t, err, outboard.NotFound)

		failed := errors.New("the file ended")
		_, err = s.Import(t.Context(), newImport(each(history(300), failed), n))
		mustBe(t, err, failed)
		for _, c := range []struct {
			before time.Time
			want   int
		}{{time.Now().Add(-time.Hour), 0}, {time.Now().Add(time.Hour), 1}} {
			if got, err := s.Purge(t.Context(), c.before); err != nil || got != c.want {
				t.Errorf("%d left-overs removed, %v; want %d", got, err, c.want)
			}
		}
	})
}

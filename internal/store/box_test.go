package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Boxes would outlive their time, change under two hands, or be found under another machine or name.
func TestBoxes(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := time.UnixMicro(1_000_000).UTC()
		b := outboard.Box{ID: outboard.NewBoxID(), Host: "h", State: outboard.BoxRunning, Machine: "sbx_1",
			EndAt: now.Add(time.Second), CreatedAt: now,
			Metadata: map[string]string{"a": "b"}}
		if err := s.AddBox(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if err := s.AddBox(t.Context(), b); !errors.Is(err, store.ErrDuplicate) {
			t.Errorf("a second box of one id: %v", err)
		}
		got, err := s.BoxOf(t.Context(), "sbx_1")
		if err != nil || got.ID != b.ID || got.Metadata["a"] != "b" || !got.EndAt.Equal(b.EndAt) {
			t.Errorf("by its machine: %+v, %v", got, err)
		}
		for at, want := range map[time.Time]int{now: 0, now.Add(time.Second): 1} {
			if due, err := s.DueBoxes(t.Context(), "h", at); err != nil || len(due) != want {
				t.Errorf("due at %v: %v, %v", at, due, err)
			}
		}
		refused := errors.New("no")
		if _, err := s.ChangeBox(t.Context(), b.ID,
			func(b *outboard.Box) error { b.State = "x"; return refused }); !errors.Is(err, refused) {
			t.Errorf("a refused change: %v", err)
		}
		changed, err := s.ChangeBox(t.Context(), b.ID,
			func(b *outboard.Box) error { b.State, b.Machine = outboard.BoxPaused, ""; return nil })
		if err != nil || changed.State != outboard.BoxPaused || changed.Version != 1 {
			t.Errorf("a change: %+v, %v", changed, err)
		}
		if due, err := s.DueBoxes(t.Context(), "h", now.Add(time.Hour)); err != nil || len(due) != 0 {
			t.Errorf("a paused box is due: %v, %v", due, err)
		}
		if list, err := s.Boxes(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("the list: %v, %v", list, err)
		}
		for want := range 2 {
			if err := s.DeleteBox(t.Context(), b.ID); (outboard.KindOf(err) == outboard.NotFound) != (want == 1) {
				t.Errorf("deleting, %d: %v", want, err)
			}
		}
	})
}

// A snapshot would be found under a name that another one has taken over.
func TestSnapshots(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		var ids []outboard.SnapshotID
		for _, name := range []string{"", "", "n", "n"} {
			n := outboard.BoxSnapshot{ID: outboard.NewSnapshotID(), Name: name,
				CreatedAt: time.UnixMicro(int64(len(ids) + 1))}
			if err := s.PutSnapshot(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, n.ID)
		}
		if got, err := s.Snapshot(t.Context(), outboard.DefaultOrg, "n"); err != nil || got.ID != ids[3] {
			t.Errorf("by name: %+v, %v", got, err)
		}
		if list, err := s.Snapshots(t.Context(), outboard.DefaultOrg); err != nil || len(list) != 3 ||
			list[0].ID != ids[3] {
			t.Errorf("the list: %v, %v", list, err)
		}
		if err := s.DeleteSnapshot(t.Context(), ids[3]); err != nil {
			t.Error(err)
		}
		if _, err := s.Snapshot(t.Context(), outboard.DefaultOrg, "n"); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("a deleted one: %v", err)
		}
	})
}

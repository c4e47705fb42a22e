package store_test

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// A commit that returns before its sync may be lost with the power; one that syncs twice takes twice as long.
func TestCommitIsOneSyncOfTheLog(t *testing.T) {
	s := storetest.Open(t, store.Config{Path: filepath.Join(t.TempDir(), "sync.db")})
	id := newSession(t, s).ID
	const commits = 20
	before := store.WALSyncs()
	for i := range commits {
		at := store.WALSyncs()
		if _, err := s.Append(t.Context(), id, 0, store.Any, said("synced")); err != nil {
			t.Fatal(err)
		}
		if store.WALSyncs() == at {
			t.Fatalf("append %d returned, and the log was not synced", i)
		}
	}
	if n := store.WALSyncs() - before; n != commits {
		t.Errorf("%d commits were %d syncs", commits, n)
	}
}

// When the disk cannot say that data is there, nobody may be told that it is.
func TestCommitFailsWithItsSync(t *testing.T) {
	cfg := store.Config{Path: filepath.Join(t.TempDir(), "sync.db")}
	s := storetest.Open(t, cfg)
	id := newSession(t, s).ID
	if _, err := s.Append(t.Context(), id, 0, store.Any, said("before")); err != nil {
		t.Fatal(err)
	}
	restore := store.SetWALSync(func(int) error { return unix.EIO })
	defer restore()
	if _, err := s.Append(t.Context(), id, 0, store.Any, said("lost")); outboard.KindOf(err) != outboard.Unavailable {
		t.Errorf("append without a sync: %v", err)
	}
	interrupted := false
	store.SetWALSync(func(fd int) error {
		if !interrupted {
			interrupted = true
			return unix.EINTR
		}
		return unix.Fdatasync(fd)
	})
	after, err := s.Append(t.Context(), id, 0, store.Any, said("after"))
	if err != nil || !interrupted {
		t.Fatalf("append after the repair: %v; interrupted %v", err, interrupted)
	}
	log := readAll(t, s, id)
	if n := int64(len(log)); n != 3 || log[n-1].ID != after[0].ID || after[0].Seq != n {
		t.Errorf("the log has %d events, want the three that were acknowledged", n)
	}
	if err := s.Close(); err != nil && !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
	if n := len(readAll(t, storetest.Open(t, cfg), id)); n != 3 {
		t.Errorf("opened again the log has %d events, want 3", n)
	}
}

package store_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If what is held of the log does not reach the file before it is synced, or another connection sees less than
// what was committed, events are lost. The commits here are smaller and larger than what is held, and some are
// refused halfway.
func TestHeldLogIsWhole(t *testing.T) {
	cfg := store.Config{Path: filepath.Join(t.TempDir(), "held.db")}
	s := storetest.Open(t, cfg)
	id := newSession(t, s).ID
	var last outboard.Event
	for i := range 60 {
		events := []outboard.Event{said("small")}
		if i%10 == 0 { // some 3 MiB, in one transaction
			for range 50 {
				events = append(events, said(strings.Repeat("x", 60<<10)))
			}
		}
		got, err := s.Append(t.Context(), id, 0, store.Any, events...)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if _, err := s.Append(t.Context(), id, 0, store.Any, said("never"), last); err == nil {
				t.Fatal("an event was appended twice")
			}
		}
		last = got[0]
	}
	want := len(readAll(t, s, id)) // by the connections that only read
	if want != 1+60+6*50 {
		t.Errorf("the log has %d events", want)
	}
	if got := integrity(t, cfg.Path); got != "ok" {
		t.Errorf("beside the open store: %s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(readAll(t, storetest.Open(t, cfg), id)); n != want {
		t.Errorf("opened again the log has %d events, want %d", n, want)
	}
}

// A file that a process left behind when it was killed, zeros at its end included, must open to what was
// committed. The copy is such a file.
func TestLogThatWasGrownAheadOpens(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, store.Config{Path: filepath.Join(dir, "ahead.db")})
	id := newSession(t, s).ID
	for range 5 {
		if _, err := s.Append(t.Context(), id, 0, store.Any, said("committed")); err != nil {
			t.Fatal(err)
		}
	}
	grown, err := os.Stat(filepath.Join(dir, "ahead.db-wal"))
	if err != nil || grown.Size() < 1<<20 {
		t.Fatalf("the log was not grown ahead: %v %v", grown, err)
	}
	again := storetest.Open(t, store.Config{Path: copyOf(t, dir, "ahead.db")})
	if n := len(readAll(t, again, id)); n != 6 {
		t.Errorf("the log has %d events, want 6", n)
	}
	if _, err := again.Append(t.Context(), id, 0, store.Any, said("goes on")); err != nil {
		t.Error(err)
	}
}

// What cannot be written is not committed, and the log is whole once there is room again.
func TestCommitFailsWithItsWrite(t *testing.T) {
	s := storetest.Open(t, store.Config{Path: filepath.Join(t.TempDir(), "full.db")})
	id := newSession(t, s).ID
	if _, err := s.Append(t.Context(), id, 0, store.Any, said("before")); err != nil {
		t.Fatal(err)
	}
	for errno, words := range map[error]string{unix.ENOSPC: "is full", unix.EIO: "fails"} {
		restore := store.SetWALWrite(func(int, []byte, int64) (int, error) { return 0, errno })
		_, err := s.Append(t.Context(), id, 0, store.Any, said("lost"))
		restore()
		mustKind(t, err, outboard.Unavailable, words)
		if full := errno == unix.ENOSPC; outboard.DiskFull(err) != full {
			t.Errorf("%v: %v is a full disk: %v", errno, err, !full)
		}
	}
	restore := store.SetWALSync(func(int) error { return unix.EDQUOT })
	_, err := s.Append(t.Context(), id, 0, store.Any, said("lost"))
	restore()
	if mustKind(t, err, outboard.Unavailable, "is full"); !outboard.DiskFull(err) {
		t.Errorf("a sync without room: %v", err)
	}
	if _, err := s.Append(t.Context(), id, 0, store.Any, said("after")); err != nil {
		t.Fatal(err)
	}
	if n := len(readAll(t, s, id)); n != 3 {
		t.Errorf("the log has %d events, want 3", n)
	}
}

// integrity asks another connection whether the database is sound.
func integrity(t *testing.T, path string) (answer string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(context.Background(), "PRAGMA integrity_check").Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// What the call that writes and syncs does not do has to be done by the two that it stands for, or a commit is
// told of that is lost.
func TestWriteAndSyncInOneCall(t *testing.T) {
	short := func(fd int, b []byte, off int64) (int, error) { return unix.Pwrite(fd, b[:len(b)/2], off) }
	for name, both := range map[string]func(fd int, b []byte, off int64) (int, error){
		"whole": func(fd int, b []byte, off int64) (int, error) {
			return unix.Pwritev2(fd, [][]byte{b}, off, unix.RWF_DSYNC)
		},
		"short":       short,
		"interrupted": func(int, []byte, int64) (int, error) { return 0, unix.EINTR },
		"unknown":     func(int, []byte, int64) (int, error) { return 0, unix.EOPNOTSUPP },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := storetest.Open(t, store.Config{Path: filepath.Join(dir, "both.db")})
			id := newSession(t, s).ID
			for range 2 { // the log is synced, and grown ahead
				if _, err := s.Append(t.Context(), id, 0, store.Any, said("before")); err != nil {
					t.Fatal(err)
				}
			}
			calls, syncs := 0, 0
			defer store.SetWALWriteSync(func(fd int, b []byte, off int64) (int, error) {
				calls++
				return both(fd, b, off)
			}, func() { syncs++ })()
			for range 3 {
				if _, err := s.Append(t.Context(), id, 0, store.Any, said("small")); err != nil {
					t.Fatal(err)
				}
			}
			want := map[string][2]int{"whole": {3, 0}, "short": {3, 3}, "interrupted": {3, 3}, "unknown": {1, 3}}[name]
			if calls != want[0] || syncs != want[1] {
				t.Errorf("three commits were %d calls that write and sync, and %d syncs, want %v", calls, syncs, want)
			}
			if n := len(readAll(t, storetest.Open(t, store.Config{Path: copyOf(t, dir, "both.db")}), id)); n != 6 {
				t.Errorf("the file has %d events, want 6", n)
			}
		})
	}
}

// A commit of several pieces is durable only with the pieces that were written before the last one.
func TestLargeCommitIsSyncedWhole(t *testing.T) {
	s := storetest.Open(t, store.Config{Path: filepath.Join(t.TempDir(), "large.db")})
	id := newSession(t, s).ID
	large := make([]outboard.Event, 0, 50)
	for range cap(large) { // some 3 MiB, so that the second time the log is long enough
		large = append(large, said(strings.Repeat("x", 60<<10)))
	}
	if _, err := s.Append(t.Context(), id, 0, store.Any, large...); err != nil {
		t.Fatal(err)
	}
	syncs := 0
	defer store.SetWALWriteSync(func(fd int, b []byte, off int64) (int, error) {
		return unix.Pwritev2(fd, [][]byte{b}, off, unix.RWF_DSYNC)
	}, func() { syncs++ })()
	for i := range large {
		large[i] = said(strings.Repeat("y", 60<<10))
	}
	if _, err := s.Append(t.Context(), id, 0, store.Any, large...); err != nil {
		t.Fatal(err)
	}
	if syncs == 0 {
		t.Error("only the last piece of a commit was synced")
	}
	if _, err := s.Append(t.Context(), id, 0, store.Any, said("small")); err != nil {
		t.Fatal(err)
	}
}

// copyOf copies a database as a process leaves it that was killed, and returns its path.
func copyOf(t *testing.T, dir, name string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), name)
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, name+suffix))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

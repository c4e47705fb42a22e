package store_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// tightDisk mounts a file system in memory for as long as the test takes.
func tightDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts a small disk")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk takes all the room of a directory's disk, with a file that it returns the path of.
func fillDisk(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(page)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, io.ErrShortWrite) {
		t.Fatalf("filling the disk: %v", err)
	}
	return f.Name()
}

// Fails if nothing can be removed on a full disk, so that it stays full; if what is kept for that is used up by
// something else, by this process or another; or if nothing is kept again once there is room.
func TestReserve(t *testing.T) {
	const size = 512 << 10
	dir := tightDisk(t)
	cfg := store.Config{Path: filepath.Join(dir, "outboard.db"), Reserve: size}
	kept := func() int64 {
		t.Helper()
		fi, err := os.Stat(cfg.Path + "-ballast")
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	open := func() *store.Store {
		t.Helper()
		s, err := store.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	first, second, third := newSession(t, s).ID, newSession(t, s).ID, newSession(t, s).ID
	if n := kept(); n != size {
		t.Fatalf("%d bytes are kept", n)
	}
	filler := fillDisk(t, dir)
	ordinary := func(s *store.Store, when string) {
		t.Helper()
		var err error
		for range 200 { // what is left of the last page of the log may hold a few
			if _, err = s.Append(t.Context(), second, 0, store.Any, said("no room for this")); err != nil {
				break
			}
		}
		if !outboard.DiskFull(err) || outboard.HintOf(err) != outboard.HintFullDisk {
			t.Fatalf("%s an event was stored: %v", when, err)
		}
		if err := s.PutEnvironment(t.Context(), outboard.Environment{ID: "env_1"}); !outboard.DiskFull(err) {
			t.Errorf("%s an environment was stored: %v", when, err)
		}
	}
	record := outboard.AuditRecord{Org: outboard.DefaultOrg, Action: "session.delete", Decision: outboard.Allowed}
	ordinary(s, "on a full disk")
	if err := s.DeleteSession(t.Context(), first); !outboard.DiskFull(err) {
		t.Errorf("control: what is not marked as a removal: %v", err)
	}
	if n := kept(); n != size {
		t.Fatalf("%d bytes are kept after what is no removal", n)
	}
	removing := store.Removing(t.Context())
	if err := errors.Join(s.Audit(removing, record), s.DeleteSession(removing, first)); err != nil {
		t.Fatal(err)
	}
	if n := kept(); n != 0 {
		t.Errorf("%d bytes are kept after a removal", n)
	}
	ordinary(s, "with the reserve dropped")
	if err := s.Audit(t.Context(), record); !outboard.DiskFull(err) {
		t.Errorf("a record of what is no removal was written: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open() // on the full disk
	ordinary(s, "by the next process")
	if err := s.DeleteSession(removing, third); err != nil {
		t.Errorf("by the next process: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s = open()
	defer s.Close()
	if n := kept(); n != size {
		t.Errorf("%d bytes are kept with room again", n)
	}
	mustAppend(t, s, second, said("with room again"))
}

// Control of TestReserve: without a reserve a full disk keeps what is on it.
func TestWithoutReserve(t *testing.T) {
	dir := tightDisk(t)
	s := storetest.Open(t, store.Config{Path: filepath.Join(dir, "outboard.db")})
	id := newSession(t, s).ID
	fillDisk(t, dir)
	var err error
	for range 200 { // as above
		if _, err = s.Append(t.Context(), id, 0, store.Any, said("no room for this")); err != nil {
			break
		}
	}
	if err := s.DeleteSession(store.Removing(t.Context()), id); !outboard.DiskFull(err) {
		t.Errorf("a session was deleted: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "outboard.db-ballast")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a reserve: %v", err)
	}
}

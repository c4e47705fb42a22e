package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"golang.org/x/sys/unix"
)

// If this fails, whoever follows the hint of a full disk meets the same error: what it names does not work there.
func TestRemovalsOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, "160m")
	data := filepath.Join(disk, "data")
	p := startPost(t, data, "", false).as(data)
	box := func() string {
		t.Helper()
		b, err := p.c.CreateBox(t.Context(), map[string]any{})
		if err != nil {
			t.Fatal("control:", err)
		}
		return b.ID
	}
	session := func() outboard.SessionID {
		t.Helper()
		h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
			Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread)}
		if _, err := p.s.Store.CreateSession(t.Context(), h, outboard.SessionConfig{},
			outboard.NewEvent("", &outboard.SessionCreated{})); err != nil {
			t.Fatal("control:", err)
		}
		return h.ID
	}
	before, after, one, two := box(), box(), session(), session()
	fill(t, disk)
	refused := func() {
		t.Helper()
		var err error
		for i := range 300 { // what is left of the last page of SQLite's log may hold a few
			if _, err = p.c.CreateEnvironment(t.Context(), map[string]any{"name": fmt.Sprint("e", i)}); err != nil {
				break
			}
		}
		if outboard.HintOf(err) != outboard.HintFullDisk {
			t.Errorf("on a full disk: %v", err)
		}
	}
	refused()
	if err := errors.Join(p.c.DeleteBox(t.Context(), before), p.c.DeleteSession(t.Context(), string(one))); err != nil {
		t.Error("removing:", err)
	}
	refused()
	if _, err := p.c.PruneBlobs(t.Context(), 24*time.Hour, false); err != nil {
		t.Error("pruning:", err)
	}
	p.s.Stop()
	p = startPost(t, data, "", false).as(data)
	refused()
	if err := errors.Join(p.c.DeleteBox(t.Context(), after), p.c.DeleteSession(t.Context(), string(two))); err != nil {
		t.Error("after a start:", err)
	}
}

// If this fails, outboard doctor says that all is well where a server cannot store anything.
func TestDoctorOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, "4m")
	if err := writable(filepath.Join(disk, "data")); err != nil {
		t.Fatal("control:", err)
	}
	fill(t, disk)
	if c := check("data directory", "", writable(filepath.Join(disk, "data"))); c.OK ||
		c.Fix != outboard.HintFullDisk || !strings.Contains(c.Detail, "disk is full") {
		t.Errorf("on a full disk: %+v", c)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// smallDisk mounts a file system in memory, for as long as the test takes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	return disk
}

// fill takes all the room of a disk.
func fill(t *testing.T, disk string) {
	t.Helper()
	f, err := os.Create(filepath.Join(disk, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

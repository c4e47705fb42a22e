//go:build linux

package fleet

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// Broken if the lock files of makings and builds whose process was killed stay for ever, or one goes that
// somebody has or may be about to have.
func TestForgottenLocks(t *testing.T) {
	r := newRig(t)
	f, other := r.fleet(), r.fleet()
	old := time.Now().Add(-time.Hour)
	made := func(name string, at time.Time) string {
		t.Helper()
		path := filepath.Join(r.dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return path
	}
	live := r.acquire(t, f, r.session(t))
	if err := os.Chtimes(f.lockPath(live.ID()), old, old); err != nil {
		t.Fatal(err)
	}
	held, err := other.hold(t.Context(), outboard.SandboxID("sbx_held"))
	if err != nil {
		t.Fatal(err)
	}
	release, err := other.claimBuild("bld_held")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{f.lockPath(live.ID()), made("sbx_held.lock", old), made("build-bld_held.lock", old),
		made("sbx_young.lock", time.Now()), made("other.file", old)}
	made("sbx_killed.lock", old)
	made("build-bld_killed.lock", old)
	check := func(want []string) {
		t.Helper()
		if err := f.reap(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := filepath.Glob(filepath.Join(r.dir, "*"))
		slices.Sort(want)
		if err != nil || !slices.Equal(all, want) {
			t.Errorf("left %q, not %q; %v", all, want, err)
		}
	}
	check(slices.Clone(want))
	release()
	other.letGo(held)
	check(slices.DeleteFunc(want, func(p string) bool {
		return filepath.Base(p) == "sbx_held.lock" || filepath.Base(p) == "build-bld_held.lock"
	}))
}

// Broken if somebody who opened a lock file before it was removed, and locks it after that, has the lock
// together with who finds a new one.
func TestLockOfRemovedFile(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	path := f.lockPath("sbx_a")
	exclusive, err := f.openLock(path)
	if err != nil || !tryLock(exclusive) {
		t.Fatal("control:", err)
	}
	got := make(chan *held)
	go func() {
		h, err := f.hold(t.Context(), "sbx_a") // waits for the lock of the file that goes
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	awaitOpen(t, path, 2)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	exclusive.Close()
	h := <-got
	defer f.letGo(h)
	again, err := f.openLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if tryLock(again) {
		t.Error("two have the lock")
	}
}

// awaitOpen waits until this process has a file open so many times.
func awaitOpen(t *testing.T, path string, n int) {
	t.Helper()
	for {
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		have := 0
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == path {
				have++
			}
		}
		if have >= n {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatal("not opened")
		case <-time.After(time.Millisecond):
		}
	}
}

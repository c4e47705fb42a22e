package native

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// Broken if what was destroyed is removed before others are, whom somebody waits for, or if it never is where
// sandboxes come and go all the time.
func TestTrashIsEmptiedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u trash
		begin := time.Now()
		u.rest()
		if took := time.Since(begin); took != 0 {
			t.Errorf("the trash was emptied after %v, while nothing was destroyed", took)
		}
		first, second := u.ahead(), u.ahead()
		first()
		time.AfterFunc(trashPatience/4, second)
		u.rest()
		if took := time.Since(begin); took != trashPatience/4 {
			t.Errorf("the trash was emptied %v after one of two that end in %v", took, trashPatience/4)
		}
		defer u.ahead()()
		begin = time.Now()
		u.rest()
		if took := time.Since(begin); took != trashPatience {
			t.Errorf("the trash was emptied after %v, while something was destroyed", took)
		}
	})
}

// Broken if emptying the trash looks for the processes of what has ended, in every control group, once more for
// each sandbox of a crowd: it would find the one that this directory names.
func TestTrashLooksForNobody(t *testing.T) {
	dir := t.TempDir()
	p := &Provider{dir: dir, log: slog.New(slog.DiscardHandler), children: map[outboard.SandboxID]int{}}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	st, err := readStat(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	name := string(id) + ".x"
	b := place{id: id, dir: filepath.Join(dir, trashDir, name)}
	if err := os.MkdirAll(b.path("upper"), 0o700); err != nil {
		t.Fatal(err)
	}
	gone := []string{filepath.Join(dir, "no-such-group")}
	if err := b.save(&state{ID: id, BootID: bootID(), Pid: other.Process.Pid, Start: st.start,
		Cgroups: gone}); err != nil {
		t.Fatal(err)
	}
	if err := p.removeTrashed(name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(b.dir); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
	pidfd, err := unix.PidfdOpen(other.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	pr := process{fd: pidfd}
	defer pr.close()
	if !pr.alive() {
		t.Error("a process was ended when the trash was emptied")
	}
}

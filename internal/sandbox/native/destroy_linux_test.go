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

// Broken if what was destroyed is removed before others are, whom somebody waits for, or if it never is where sandboxes come and go all the time.
func TestBurialsComeAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u burial
		begin := time.Now()
		u.rest()
		if took := time.Since(begin); took != 0 {
			t.Errorf("a burial began after %v, while nothing was destroyed", took)
		}
		first, second := u.ahead(), u.ahead()
		first()
		time.AfterFunc(burialPatience/4, second)
		u.rest()
		if took := time.Since(begin); took != burialPatience/4 {
			t.Errorf("a burial began %v after one of two that end in %v", took, burialPatience/4)
		}
		defer u.ahead()()
		begin = time.Now()
		u.rest()
		if took := time.Since(begin); took != burialPatience {
			t.Errorf("a burial began after %v, while something was destroyed", took)
		}
	})
}

// Broken if a burial looks for the processes of what has ended, in every control group, once more for each sandbox of a crowd: it would find
// the one that this grave names.
func TestBurialLooksForNobody(t *testing.T) {
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
	grave := string(id) + ".x"
	b := box{id: id, dir: filepath.Join(dir, gravesDir, grave)}
	if err := os.MkdirAll(b.path("upper"), 0o700); err != nil {
		t.Fatal(err)
	}
	gone := []string{filepath.Join(dir, "no-such-group")}
	if err := b.save(&state{ID: id, BootID: bootID(), Pid: other.Process.Pid, Start: st.start, Cgroups: gone}); err != nil {
		t.Fatal(err)
	}
	if err := p.buryOne(grave); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(b.dir); !os.IsNotExist(err) {
		t.Errorf("the grave: %v", err)
	}
	pidfd, err := unix.PidfdOpen(other.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	pr := process{fd: pidfd}
	defer pr.close()
	if !pr.alive() {
		t.Error("a process was ended by a burial")
	}
}

package spawn

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// outcome is what became of a program.
type outcome struct {
	said   string
	status syscall.WaitStatus
	err    error
}

// ran starts a program with its output in a pipe and waits for it.
func ran(t *testing.T, p Program) outcome {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p.Output = int(w.Fd())
	c, err := Start(p)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(c.PidFD)
	said, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(c.Pid, &ws, 0, nil); err != syscall.EINTR {
			if err != nil {
				t.Fatal(err)
			}
			return outcome{string(said), ws, c.Err()}
		}
	}
}

// If this fails, a program gets something else than it was started with, or has the caller's signals.
func TestStart(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR1)
	defer signal.Stop(caught)
	got := ran(t, Program{Path: "/bin/sh", Argv: []string{"name", "-c",
		"echo $0 $A; pwd; cat /proc/self/status | grep -E 'Sig(Blk|Ign|Cgt)'; " +
			"[ $(cut -d' ' -f6 /proc/self/stat) = $$ ] && echo leads; kill -USR1 $$; echo lives"}, Env: []string{"A=b c", "PATH=/usr/bin:/bin"}, Dir: "/usr"})
	want := "name b c\n/usr\nSigBlk:\t0000000000000000\n" + ignored(t) + "SigCgt:\t0000000000000000\nleads\n"
	if got.said != want || got.err != nil || got.status.Signal() != syscall.SIGUSR1 {
		t.Errorf("%+v, want %q and an end by SIGUSR1", got, want)
	}
}

// ignored is the line of the test's own signals that are ignored: whoever started it may have ignored some.
func ignored(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "SigIgn:") {
			return line
		}
	}
	t.Fatal("no SigIgn")
	return ""
}

// If this fails, somebody is told that a program ran which did not, or not why.
func TestFailure(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p    Program
		want error
		text string
	}{
		{Program{Path: "/bin/true", Dir: "/"}, nil, ""},
		{Program{Path: "/nowhere/true", Dir: "/"}, syscall.ENOENT, "fork/exec /nowhere/true"},
		{Program{Path: plain, Dir: "/"}, syscall.EACCES, "fork/exec " + plain},
		{Program{Path: "/bin/true", Dir: "/nowhere"}, syscall.ENOENT, "chdir /nowhere"},
	} {
		c.p.Argv = []string{"x"}
		got := ran(t, c.p)
		if !errors.Is(got.err, c.want) || got.err != nil && !strings.HasPrefix(got.err.Error(), c.text) {
			t.Errorf("%s in %s: %+v", c.p.Path, c.p.Dir, got)
		}
		if want := map[bool]int{true: 0, false: 127}[c.want == nil]; got.status.ExitStatus() != want {
			t.Errorf("%s in %s ended with %d", c.p.Path, c.p.Dir, got.status.ExitStatus())
		}
	}
	if _, err := Start(Program{Path: "/bin/true", Argv: []string{"x"}, Dir: "/", Output: 2}); err != syscall.EBADF {
		t.Errorf("an output that would be overwritten: %v", err)
	}
	if _, err := Start(Program{Path: "/bin/true", Argv: []string{"a\x00b"}, Dir: "/", Output: 9}); !errors.Is(err,
		syscall.EINVAL) {
		t.Errorf("an argument with a zero byte: %v", err)
	}
}

// If this fails, a program runs as somebody else.
func TestIdentity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes somebody else")
	}
	const id = "id -u; id -g; id -G"
	p := Program{Path: "/bin/sh", Argv: []string{"sh", "-c", id}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
	if got := ran(t, p); !strings.HasPrefix(got.said, "0\n0\n") { // the control
		t.Errorf("of the caller: %+v", got)
	}
	p.Identity, p.UID, p.GID = true, 12345, 23456
	if got := ran(t, p); !strings.HasPrefix(got.said, "12345\n23456\n") {
		t.Errorf("of its own: %+v", got)
	}
}

// If this fails, a child and the program that goes on beside it in the same memory disturb each other.
func TestBesideCollector(t *testing.T) {
	stop := make(chan struct{})
	var busy, runs sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	for range 4 {
		runs.Go(func() {
			for range 50 {
				if got := ran(t, Program{Path: "/bin/echo", Argv: []string{"echo", "one", "two"},
					Dir: "/"}); got.said != "one two\n" || got.status != 0 || got.err != nil {
					t.Errorf("%+v", got)
				}
			}
		})
	}
	runs.Wait()
	close(stop)
	busy.Wait()
}

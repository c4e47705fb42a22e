//go:build linux

package native_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/spawner"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, the end of the process that clones sandboxes ends those that it made, or no more can be made.
func TestSpawnerKilled(t *testing.T) {
	if !isRoot() {
		t.Skip("an ordinary user's sandboxes are clones of the server")
	}
	p, _ := newProvider(t)
	first := create(t, p, sandbox.Spec{})
	pid := p.SpawnerPid()
	if pid == 0 {
		t.Fatal("there is no spawner")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// A signal is sent before it kills: one that took the next request in between would have its Create fail.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	second := create(t, p, sandbox.Spec{}) // found out by the first question, and answered by another
	if now := p.SpawnerPid(); now == 0 || now == pid {
		t.Errorf("spawner %d after %d was killed", now, pid)
	}
	for _, b := range []*testSandbox{first, second} {
		if out := b.sh(t, "echo here"); out != "here\n" {
			t.Errorf("%q", out)
		}
	}
	pid = p.SpawnerPid()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("after Close there is still process %d: %v", pid, err)
	}
	if out := first.sh(t, "echo here"); out != "here\n" {
		t.Errorf("after Close: %q", out)
	}
}

// TestTimerSlack: tools would sleep too long, since the guest's monitor may, or the monitor would not, and take
// the time of a start.
func TestTimerSlack(t *testing.T) {
	p, dir := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	const usual = "50000\n"
	var wg sync.WaitGroup
	for i := range 40 { // so that tools are started by whatever threads the guest has
		wg.Go(func() {
			argv := []string{"/bin/sh", "-c", "sleep 0.0" + strconv.Itoa(i%10) + "; cat /proc/self/timerslack_ns"}
			var out strings.Builder
			_, exit, err := b.StartProcess(t.Context(), guest.ProcessStart{Argv: argv},
				func(e guest.ProcessEvent) error {
					out.Write(e.Data)
					return nil
				})
			if err != nil || exit.Code != 0 || out.String() != usual {
				t.Errorf("a tool's timers may be %q ns late: %+v, %v", out.String(), exit, err)
			}
		})
	}
	wg.Wait()
	first := strconv.Itoa(initOf(t, dir, b.ID()))
	threads, err := os.ReadDir("/proc/" + first + "/task")
	if err != nil {
		t.Fatal(err)
	}
	late := 0
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case thread.Name() == first && string(slack) != usual:
			t.Errorf("the guest's first thread: %q", slack)
		case string(slack) == fmt.Sprintf("%d\n", spawner.MonitorSlack):
			late++
		}
	}
	if late == 0 {
		t.Errorf("none of the guest's %d threads has the monitor's slack", len(threads))
	}
}

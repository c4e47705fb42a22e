//go:build linux

package native_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, the end of the process that clones sandboxes ends those that it made, or no more can be made.
func TestNurseryKilled(t *testing.T) {
	if !isRoot() {
		t.Skip("an ordinary user's sandboxes are clones of the server")
	}
	p, _ := newProvider(t)
	first := create(t, p, sandbox.Spec{})
	pid := p.NurseryPid()
	if pid == 0 {
		t.Fatal("there is no nursery")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// A signal is sent before it kills: one that took the next request in between would have its Create fail.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	second := create(t, p, sandbox.Spec{}) // found out by the first question, and answered by another
	if now := p.NurseryPid(); now == 0 || now == pid {
		t.Errorf("nursery %d after %d was killed", now, pid)
	}
	for _, b := range []*box{first, second} {
		if out := b.sh(t, "echo here"); out != "here\n" {
			t.Errorf("%q", out)
		}
	}
	pid = p.NurseryPid()
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

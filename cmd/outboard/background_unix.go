//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// canDetach reports whether a process can be left behind.
const canDetach = true

// detach starts the command in a new session, so that no terminal and no signal of this process's group reaches it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// terminate asks a process to end.
func terminate(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }

// lockFile takes the lock of a file that it makes, waiting for its holder, and returns what gives it back. The
// lock ends with the process.
func lockFile(ctx context.Context, path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			f.Close()
			return nil, err
		}
		select {
		case <-time.After(20 * time.Millisecond): // flock cannot be interrupted while it waits
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

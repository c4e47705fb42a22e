//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package fleet

import (
	"context"
	"os"
	"syscall"
	"time"
)

// lockShared takes a shared lock, waiting for an exclusive one to end. flock cannot be interrupted, so it asks
// again and again; a holder keeps an exclusive lock for the milliseconds of a freeze, or at most DestroyTimeout.
func lockShared(ctx context.Context, f *os.File) error {
	const again = 5 * time.Millisecond
	for {
		err := flock(f, syscall.LOCK_SH|syscall.LOCK_NB)
		if err != syscall.EWOULDBLOCK {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(again):
		}
	}
}

// tryLock takes an exclusive lock, or reports false at once.
func tryLock(f *os.File) bool { return flock(f, syscall.LOCK_EX|syscall.LOCK_NB) == nil }

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

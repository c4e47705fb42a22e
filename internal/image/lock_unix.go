//go:build unix

package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// lock takes a named lock among all processes and goroutines. The kernel gives it up when its process ends.
func (s *Store) lock(ctx context.Context, name string, exclusive bool) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, locksDir, name), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", name, err)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			f.Close()
			return nil, outboard.Errorf(outboard.Canceled, "waiting for %s, which another is making: %w", name,
				context.Cause(ctx))
		}
	}
}

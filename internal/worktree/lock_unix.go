//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package worktree

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
)

// maxLockWait bounds how long one apply waits for another, or for work that is being taken.
const maxLockWait = time.Minute

// lock keeps other processes of this program from changing or taking the files below dir at the same time. It
// waits for them. A file system without locks gives none: there, one at a time is the user's care.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(maxLockWait); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil, errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.EBADF), errors.Is(err,
			syscall.ENOLCK), errors.Is(err, syscall.ENOSYS):
			return func() { f.Close() }, nil
		case err != syscall.EWOULDBLOCK && err != syscall.EINTR:
			f.Close()
			return nil, err
		case time.Now().After(end):
			f.Close()
			return nil, outboard.Errorf(outboard.Conflict, "another outboard has been at work on %s for a minute", dir).
				WithHint("try again when it is done")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// keepOwner gives a file the owner of another, where somebody with the right to applies a result to someone
// else's files.
func keepOwner(root *os.Root, from, to string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := root.Lstat(from)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 && st.Gid == 0 {
		return nil
	}
	return root.Lchown(to, int(st.Uid), int(st.Gid))
}

//go:build unix

package blob

import (
	"os"
	"syscall"
)

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// lockDir locks a directory, shared or for one alone.
func lockDir(path string, alone bool) (unlock func(), err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_SH
	if alone {
		how = syscall.LOCK_EX
	}
	if err = flock(f, how); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockFile locks a file for one alone until it is closed, tryLock only if nobody has.
func lockFile(f *os.File) error { return flock(f, syscall.LOCK_EX) }
func tryLock(f *os.File) error  { return flock(f, syscall.LOCK_EX|syscall.LOCK_NB) }

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

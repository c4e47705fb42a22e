//go:build unix

package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// makeHeld makes a directory below tmpDir that its maker has locked until release removes it. The kernel gives
// the lock up when the maker is killed: that is how others, who may share the directory, know that nobody comes
// back for it.
func (s *Store) makeHeld(pattern string) (dir string, release func(), err error) {
	s.sweepHeld()
	for {
		dir, err := os.MkdirTemp(filepath.Join(s.cfg.Dir, tmpDir), pattern+"*"+heldSuffix)
		if err != nil {
			return "", nil, err
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // swept between the two
		}
		if err != nil {
			return "", nil, errors.Join(err, os.Remove(dir))
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK || !stillThere(f) {
			f.Close() // somebody is sweeping it
			continue
		}
		return dir, func() { s.removeHeld(f) }, nil // where nothing can be locked, nobody can lock it either
	}
}

func (s *Store) removeHeld(f *os.File) {
	if err := errors.Join(removeTree(f.Name()), f.Close()); err != nil {
		s.log.Warn("what was left half-made was not removed", "dir", f.Name(), "err", err)
	}
}

// sweepHeld removes what killed processes were making. What cannot be removed is not in the way of anything.
func (s *Store) sweepHeld() {
	all, err := filepath.Glob(filepath.Join(s.cfg.Dir, tmpDir, "*"+heldSuffix))
	if err != nil {
		s.log.Warn("what was left half-made was not looked for", "err", err)
	}
	for _, dir := range all {
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by its maker
		}
		if err != nil {
			s.log.Warn("what was left half-made was not removed", "dir", dir, "err", err)
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !stillThere(f) {
			f.Close() // its maker lives, or another sweeps it
			continue
		}
		s.removeHeld(f)
	}
}

// stillThere reports whether a directory is the one of its name.
func stillThere(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(mine, named)
}

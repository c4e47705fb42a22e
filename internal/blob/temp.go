package blob

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// heldSuffix ends the names of temporary files that their writer has locked. The kernel gives the lock up when
// the writer is killed: that is how others, who may share the directory, know that nobody comes back for the
// file.
const heldSuffix = ".held"

// createHeld makes a temporary file and locks it until it is closed.
func createHeld(dir string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(dir, "put-*"+heldSuffix)
		if err != nil {
			return nil, err
		}
		if lockFile(f) == nil && !stillThere(f) { // swept between the two
			f.Close()
			continue
		}
		return f, nil // where nothing can be locked, nobody can lock it either
	}
}

// createHeldDir makes a temporary directory and locks it until it is closed.
func createHeldDir(dir string) (*os.File, error) {
	for {
		path, err := os.MkdirTemp(dir, "put-*"+heldSuffix)
		if err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) { // swept at once
			continue
		}
		if err != nil {
			return nil, err
		}
		if lockFile(f) == nil && !stillThere(f) {
			f.Close()
			continue
		}
		return f, nil
	}
}

// stillThere reports whether a file is the one of its name.
func stillThere(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(mine, named)
}

// sweep removes the temporary files in a directory whose writer was killed: at once where a lock tells, else
// those that were not written since before.
func sweep(dir string, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasSuffix(e.Name(), heldSuffix) && (e.Type().IsRegular() || e.IsDir()) {
			if err := sweepHeld(path, e.IsDir()); err != nil {
				return err
			}
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().Before(before) {
			continue // renamed or removed by its owner meanwhile, or still young
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// sweepHeld removes a file, or a directory, that nobody has locked. Whoever is about to lock it looks then whether
// it is there.
func sweepHeld(path string, dir bool) error {
	mode := os.O_RDWR
	if dir {
		mode = os.O_RDONLY
	}
	f, err := os.OpenFile(path, mode, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if tryLock(f) != nil || !stillThere(f) {
		return nil
	}
	return os.RemoveAll(path)
}

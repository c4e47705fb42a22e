package fleet

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/outboard-dev/outboard"
)

// held is a claim on a machine that this process makes or uses: counted in this process, and a shared lock on a
// file for the others of this host. The kernel drops the lock of a process that dies.
type held struct {
	id   outboard.SandboxID
	file *os.File // nil without Config.Dir
}

func (f *Fleet) lockPath(id outboard.SandboxID) string {
	return filepath.Join(f.cfg.Dir, filepath.Base(string(id))+".lock")
}

// hold claims a machine. It waits while another process freezes or destroys it, which takes a bounded time.
func (f *Fleet) hold(ctx context.Context, id outboard.SandboxID) (*held, error) {
	h := &held{id: id}
	for f.cfg.Dir != "" {
		file, err := f.openLock(f.lockPath(id))
		if err != nil {
			return nil, err
		}
		if err := lockShared(ctx, file); err != nil {
			file.Close()
			return nil, outboard.Errorf(outboard.Unavailable, "waiting for the lock of sandbox %s: %w", id, err)
		}
		if stillThere(file) {
			h.file = file
			break
		}
		file.Close()
	}
	f.mu.Lock()
	f.inUse[id]++
	f.mu.Unlock()
	return h, nil
}

func (f *Fleet) openLock(path string) (*os.File, error) {
	if err := os.MkdirAll(f.cfg.Dir, 0o700); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "creating the directory of locks: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "opening a lock: %w", err)
	}
	return file, nil
}

// stillThere reports whether a locked file is the one that others find under its name. One that was removed
// between its opening and its locking locks nothing.
func stillThere(file *os.File) bool {
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(file.Name())
	return err == nil && os.SameFile(mine, named)
}

// alone turns the claim into an exclusive one if no other process has one, and reports whether it could.
func (h *held) alone() bool { return h.file == nil || tryLock(h.file) }

// letGo ends a claim.
func (f *Fleet) letGo(h *held) {
	if h.file != nil {
		h.file.Close() // and with it the lock
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inUse[h.id]--; f.inUse[h.id] <= 0 {
		delete(f.inUse, h.id)
	}
}

// unused claims a machine for removal: it fails when this or another live process makes or uses it.
func (f *Fleet) unused(id outboard.SandboxID) (release func(), ok bool) {
	f.mu.Lock()
	n := f.inUse[id]
	f.mu.Unlock()
	if n > 0 {
		return nil, false
	}
	if f.cfg.Dir == "" {
		return func() {}, true
	}
	file, err := f.openLock(f.lockPath(id))
	if err != nil {
		f.log.Error("sandbox lock", "sandbox", id, "err", err)
		return nil, false
	}
	if !tryLock(file) || !stillThere(file) {
		file.Close()
		return nil, false
	}
	return func() { file.Close() }, true
}

// removeLock drops the lock file of a machine that is gone. Its id never comes back, so nobody can wait for it
// in earnest.
func (f *Fleet) removeLock(id outboard.SandboxID) {
	if f.cfg.Dir == "" {
		return
	}
	if err := os.Remove(f.lockPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("sandbox lock", "sandbox", id, "err", err)
	}
}

// forgetLocks removes lock files that nobody has locked, of machines that have no row and of builds: their
// processes were killed, and nobody asks for them again. A young one may be about to be locked.
func (f *Fleet) forgetLocks(rows []outboard.Sandbox) error {
	if f.cfg.Dir == "" {
		return nil
	}
	all, err := filepath.Glob(filepath.Join(f.cfg.Dir, "*.lock"))
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, row := range rows {
		used[f.lockPath(row.ID)] = true
	}
	var errs []error
	for _, path := range all {
		if !used[path] {
			errs = append(errs, forgetLock(path))
		}
	}
	return errors.Join(errs...)
}

func forgetLock(path string) error {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < lockGrace {
		return nil
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if !tryLock(file) || !stillThere(file) {
		return nil
	}
	return os.Remove(path)
}

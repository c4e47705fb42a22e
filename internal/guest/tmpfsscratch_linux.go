package guest

import (
	"errors"
	"os"
	"sync"
	"syscall"
)

// tmpfsScratch is a directory in memory for the small files that a command needs before it runs, for the time
// that the disk has no room for them: else the command that makes room could not run either. It is made when it
// is needed, under a name that nobody can foresee, where only its owner may take it away.
type tmpfsScratch struct {
	mu  sync.Mutex
	dir string // "" = not made
}

// scratchPlaces are in memory in every sandbox.
var scratchPlaces = []string{"/dev/shm"}

// full reports whether an error says that the disk, or somebody's share of it, has no room.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// open returns the directory, which everybody may look into.
func (n *tmpfsScratch) open() (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dir != "" {
		if _, err := os.Lstat(n.dir); err == nil {
			return n.dir, nil
		}
	}
	var errs []error
	for _, place := range scratchPlaces {
		dir, err := os.MkdirTemp(place, "outboard-")
		if err == nil {
			if err = os.Chmod(dir, 0o755); err == nil {
				n.dir = dir
				return dir, nil
			}
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// instead does what failed in a directory on a full disk in the one in memory.
func (n *tmpfsScratch) instead(err error, do func(dir string) error) error {
	if !full(err) {
		return err
	}
	dir, nerr := n.open()
	if nerr != nil {
		return errors.Join(err, nerr)
	}
	return do(dir)
}

// remove takes the directory away, if there is one.
func (n *tmpfsScratch) remove() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dir != "" {
		os.RemoveAll(n.dir)
	}
}

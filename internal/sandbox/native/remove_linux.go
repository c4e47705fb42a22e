package native

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// removeTree removes a directory tree that a sandbox may have shaped: unreadable directories, names of any bytes, and trees deeper
// than a path or the table of open files can reach. Nothing else uses the tree any more. A missing one is no error.
func removeTree(dir string) error {
	if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err := unix.Unlink(dir); err == nil || !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err // it was a file
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	top, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer top.Close()
	r := remover{top: int(top.Fd())}
	if err := r.empty(top); err != nil {
		return fmt.Errorf("removing what is in %s: %w", dir, err)
	}
	return unix.Rmdir(dir)
}

// remover empties one tree without ever being more than one level deep in it: a directory that is not empty is moved up to the
// top, where its turn comes.
type remover struct {
	top   int
	moved int
}

// empty removes what is in d. For the top itself that includes what is moved there meanwhile.
func (r *remover) empty(d *os.File) error {
	for {
		if _, err := d.Seek(0, io.SeekStart); err != nil { // reading a directory that shrinks may skip entries
			return err
		}
		names, err := d.Readdirnames(1024)
		if err != nil && err != io.EOF {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := r.remove(int(d.Fd()), name); err != nil {
				return err
			}
		}
	}
}

func (r *remover) remove(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err == nil {
		return nil
	}
	if err := unix.Fchmodat(dir, name, 0o700, 0); err != nil {
		return err
	}
	if dir != r.top {
		r.moved++
		return r.rename(dir, name)
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	if err := r.empty(d); err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// rename moves a directory to the top under a name that is free there.
func (r *remover) rename(dir int, name string) error {
	for {
		err := unix.Renameat2(dir, name, r.top, ".outboard-"+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		r.moved++
	}
}

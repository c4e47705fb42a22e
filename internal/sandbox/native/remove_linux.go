package native

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// removeTree removes a directory tree that a sandbox may have shaped: unreadable directories, names of any
// bytes, and trees deeper than a path or the table of open files can reach. Nothing else uses the tree any more.
// A missing one is no error.
func removeTree(dir string) error {
	r := remover{names: make([]byte, 8<<10)}
	if err := r.remove(unix.AT_FDCWD, dir, unix.DT_DIR, 0); err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}

// removeDepth is how many directories are open at a time, one in the other.
const removeDepth = 16

// remover empties one tree without ever being more than removeDepth levels deep in it: a directory further down
// that is not empty is moved up to the top, where its turn comes.
type remover struct {
	top   int
	moved int
	names []byte // room to read them
}

// removeDir removes a directory that is not empty, which depth others are open above.
func (r *remover) removeDir(dir int, name string, depth int) error {
	if err := permit(dir, name); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	if depth == 0 {
		r.top = fd
	}
	for any := false; ; { // since the directory was last read from its beginning
		seen, end, err := r.empty(fd, depth)
		if err != nil {
			return err
		}
		any = any || seen
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) // mostly that was all
		if !errors.Is(err, unix.ENOTEMPTY) || end && !any {
			return os.NewSyscallError("unlinkat", err)
		}
		if !end {
			continue
		}
		// Reading a directory that shrinks may skip entries, and the top is given more.
		if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
			return os.NewSyscallError("lseek", err)
		}
		any = false
	}
}

// permit makes sure that what is in a directory can be removed, and that it can be moved, where it takes a permission.
func permit(dir int, name string) error {
	if unix.Geteuid() == 0 {
		return nil
	}
	return os.NewSyscallError("fchmodat", unix.Fchmodat(dir, name, 0o700, 0))
}

// empty removes what it reads in a directory at once, and reports whether there was anything, and whether there
// was nothing more to read: the kernel may begin with the directory itself and the one above, alone.
func (r *remover) empty(fd, depth int) (seen, end bool, err error) {
	n, err := uninterrupted(func() (int, error) { return unix.ReadDirent(fd, r.names) })
	if n == 0 || err != nil {
		return false, true, os.NewSyscallError("getdents", err)
	}
	entries := dirents(r.names[:n])
	for _, e := range entries {
		if err := r.remove(fd, e.name, e.kind, depth+1); err != nil {
			return true, false, err
		}
	}
	return len(entries) > 0, false, nil
}

type dirent struct {
	name string
	kind byte // DT_DIR, ...
}

// dirents returns what the kernel says of a directory (struct linux_dirent64), but for the directory itself and
// the one above.
func dirents(b []byte) (entries []dirent) {
	const header = 19 // inode 8, position 8, length 2, kind 1
	for len(b) > header {
		size := int(binary.NativeEndian.Uint16(b[16:]))
		name, _, _ := bytes.Cut(b[header:size], []byte{0})
		if string(name) != "." && string(name) != ".." {
			entries = append(entries, dirent{string(name), b[header-1]})
		}
		b = b[size:]
	}
	return entries
}

// remove removes what a name stands for, of which kind says what it was taken for (DT_DIR, ...). A missing one
// is no error.
func (r *remover) remove(dir int, name string, kind byte, depth int) error {
	err := error(unix.EISDIR)
	if kind != unix.DT_DIR {
		err = unix.Unlinkat(dir, name, 0)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	switch now := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); {
	case now == nil || errors.Is(now, unix.ENOENT):
		return nil
	case errors.Is(now, unix.ENOTDIR) && kind == unix.DT_DIR: // it is something else by now
		return r.remove(dir, name, unix.DT_UNKNOWN, depth)
	}
	if depth < removeDepth {
		if now := r.removeDir(dir, name, depth); !errors.Is(now, unix.ENOTDIR) {
			return now
		}
		return err // a file that may not be removed
	}
	if err := permit(dir, name); err != nil {
		return err
	}
	r.moved++
	return r.rename(dir, name)
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

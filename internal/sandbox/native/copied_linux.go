package native

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// A checkpoint that is a copy of the writable layer leaves it as it is: that something was written there says
// nothing about what was written since. What a process held then may be free now, and then the next Push would
// not copy but swap, and make the same state a second checkpoint.

// copied reports whether parent is a copy of <n>/up, and nothing changed since. The sandbox may run: what
// changes meanwhile is the next Push's.
func (m *machine) copied(parent outboard.CheckpointID, n int) bool {
	if parent == "" {
		return false
	}
	name, err := m.p.namedLayer(parent)
	if err != nil || !strings.HasPrefix(name, copyBase(m.id, n)) { // as most often: no more is read of it
		return false
	}
	if _, _, err := m.p.checkpointLayer(parent); err != nil {
		return false
	}
	var fds descriptors
	defer fds.close()
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	var dirs [2]int
	for i, path := range []string{m.workPath(n, "up"), filepath.Join(m.p.layer(name), "fs")} {
		fd, err := unix.Open(path, flags, 0)
		if err != nil {
			return false
		}
		dirs[i] = fds.add(fd)
	}
	c := &comparer{}
	if c.since, err = copiedAt(m.p.layer(name)); err != nil {
		return false
	}
	if m.sharedRoot(n) {
		return eachSaved(func(d string) error { return c.savedDir(dirs[0], dirs[1], d) }) == nil
	}
	return c.dirs(dirs[0], dirs[1], 0) == nil
}

// comparer compares a writable layer with a copy of it, to the first difference: it looks at no more than what
// was copied.
type comparer struct {
	since unix.Timespec // copiedAt of the copy
	bytes int64
}

// errDiffers is of what is not as it was copied. Where that cannot be found out it counts as changed, and any
// other error says why.
var errDiffers = errors.New("it has changed since it was copied")

// dirs compares all that is in two directories.
func (c *comparer) dirs(now, then, depth int) error {
	if depth > maxCopyDepth {
		return errDiffers
	}
	names, err := readNames(now)
	if err != nil {
		return err
	}
	was, err := readNames(then)
	if err != nil {
		return err
	}
	same := 0
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(now, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if !isCopied(&st) {
			continue
		}
		same++
		if err := c.entry(now, then, name, &st, depth); err != nil {
			return err
		}
	}
	if same != len(was) {
		return errDiffers
	}
	return nil
}

// isCopied reports whether a copy has what is of this kind: all but sockets, and devices that are no whiteouts.
func isCopied(st *unix.Stat_t) bool {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG, unix.S_IFLNK, unix.S_IFIFO:
		return true
	case unix.S_IFCHR:
		return st.Rdev == 0
	}
	return false
}

func (c *comparer) entry(now, then int, name string, st *unix.Stat_t, depth int) error {
	var was unix.Stat_t
	if err := unix.Fstatat(then, name, &was, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if was.Mode != st.Mode || was.Uid != st.Uid || was.Gid != st.Gid || was.Mtim != st.Mtim {
		return errDiffers
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFREG && was.Size != st.Size:
		return errDiffers
	// of a directory that says nothing about what is in it
	case st.Ctim.Nano() < c.since.Nano() && kind != unix.S_IFDIR:
		return nil
	case kind == unix.S_IFLNK:
		return c.links(now, then, name)
	case kind == unix.S_IFREG, kind == unix.S_IFDIR:
		return c.opened(now, then, name, kind, depth)
	}
	return nil
}

// links compares where two symbolic links lead.
func (c *comparer) links(now, then int, name string) error {
	var a, b [unix.PathMax]byte
	n, err := unix.Readlinkat(now, name, a[:])
	if err != nil {
		return err
	}
	m, err := unix.Readlinkat(then, name, b[:])
	if err == nil && string(a[:n]) != string(b[:m]) {
		err = errDiffers
	}
	return err
}

// opened compares the attributes and the content of two files or directories. By the time one is opened it may
// be another, of any kind.
func (c *comparer) opened(now, then int, name string, kind uint32, depth int) error {
	a, b := openFile(now, name), openFile(then, name)
	defer a.Close()
	defer b.Close()
	if a == nil || b == nil {
		return fs.ErrNotExist
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(a.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != kind {
		return errDiffers
	}
	if err := sameXattrs(int(a.Fd()), int(b.Fd())); err != nil {
		return err
	}
	if kind == unix.S_IFDIR {
		return c.dirs(int(a.Fd()), int(b.Fd()), depth+1)
	}
	if c.bytes += st.Size; c.bytes > maxCopyBytes || !sameContent(a, b) {
		return errDiffers
	}
	return nil
}

// sameXattrs compares the attributes that are copied.
func sameXattrs(a, b int) error {
	x, err := copiedXattrs(a)
	if err != nil {
		return err
	}
	y, err := copiedXattrs(b)
	if err == nil && !maps.EqualFunc(x, y, slices.Equal) {
		err = errDiffers
	}
	return err
}

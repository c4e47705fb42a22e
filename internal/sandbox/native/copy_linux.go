package native

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// copyLayer makes a layer of what is in <n>/up, whose sandbox is frozen, and returns its name. The next copy of
// the same writable layer is another one: what has not changed since the last is not copied again but linked,
// which is safe because nothing writes to a layer.
func (m *machine) copyLayer(n int) (string, error) {
	st, err := m.stack(n)
	if err != nil {
		return "", err
	}
	base := copyBase(m.id, n)
	last, k := "", 0
	for {
		name := base + strconv.Itoa(k)
		if _, err := os.Lstat(m.p.layer(name)); err != nil {
			break
		}
		last, k = name, k+1
	}
	name := base + strconv.Itoa(k)
	if err := m.p.newLayer(name, st); err != nil {
		return "", fmt.Errorf("making a layer: %w", err)
	}
	c := &copier{sharedRoot: m.sharedRoot(n)}
	err = c.run(m.workPath(n, "up"), m.p.layer(name), m.p.layer(last), last != "")
	if err != nil {
		return "", errors.Join(fmt.Errorf("copying what changed: %w", err), removeTree(m.p.layer(name)))
	}
	return name, nil
}

// copyBase begins the names of the copies of a writable layer.
func copyBase(id outboard.SandboxID, n int) string { return layerName(id, n) + copyMark }

// copier copies a writable layer with everything an overlay reads from it: whiteouts, its attributes, owners,
// modes, times.
type copier struct {
	bytes, entries int64
	since          unix.Timespec // copiedAt of the last copy
	links          map[uint64]string
	to             int  // the new layer's directory, for links
	sharedRoot     bool // what is copied is a root's
}

func (c *copier) run(from, to, last string, linked bool) error {
	var fds descriptors
	defer fds.close()
	open := func(path string) (int, error) {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			fds.add(fd)
		}
		return fd, err
	}
	src, err := open(from)
	if err != nil {
		return err
	}
	if c.to, err = open(filepath.Join(to, "fs")); err != nil {
		return err
	}
	old := -1
	if linked {
		if old, err = open(filepath.Join(last, "fs")); err != nil {
			return err
		}
		if c.since, err = copiedAt(last); err != nil {
			return err
		}
	}
	c.links = make(map[uint64]string)
	if c.sharedRoot {
		return eachSaved(func(d string) error { return c.savedDir(src, old, d) })
	}
	return c.dir(src, c.to, old, "")
}

// copiedAt returns since when what changed in a writable layer may not be in a copy of it: when that was begun,
// less the grain of the kernel's clock. In memory, where times do not show every write, it may have been at any
// time.
func copiedAt(layer string) (unix.Timespec, error) {
	var at unix.Statfs_t
	if err := unix.Statfs(layer, &at); err != nil || at.Type == unix.TMPFS_MAGIC {
		return unix.Timespec{}, err
	}
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(layer, "stack.json"), &st)
	return unix.NsecToTimespec(st.Ctim.Nano() - copyGrain.Nanoseconds()), err
}

// dir copies the names of one directory. old is the same directory of the last copy, or -1.
func (c *copier) dir(from, to, old int, path string) error {
	if strings.Count(path, "/") > maxCopyDepth {
		return outboard.Errorf(outboard.Exhausted, "directories are nested more than %d deep", maxCopyDepth)
	}
	names, err := readNames(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.entry(from, to, old, name, path+name); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) entry(from, to, old int, name, path string) error {
	if c.entries++; c.entries > maxCopyEntries {
		return outboard.Errorf(outboard.Exhausted, "more than %d files changed while a process used the workspace",
			maxCopyEntries)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	// whiteouts are made anew
	if st.Nlink > 1 && (kind == unix.S_IFREG || kind == unix.S_IFLNK || kind == unix.S_IFIFO) {
		if first, ok := c.links[st.Ino]; ok {
			return unix.Linkat(c.to, first, to, name, 0)
		}
		c.links[st.Ino] = path
	}
	switch kind {
	case unix.S_IFDIR:
		return c.subdir(from, to, old, name, path, &st)
	case unix.S_IFREG:
		if old >= 0 && c.unchanged(from, old, name, &st) {
			return unix.Linkat(old, name, to, name, 0)
		}
		if err := c.file(from, to, name, &st); err != nil {
			return err
		}
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from, name, target)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(string(target[:n]), to, name); err != nil {
			return err
		}
	case unix.S_IFIFO, unix.S_IFCHR: // of devices only whiteouts: nothing inside can make others
		if kind == unix.S_IFCHR && st.Rdev != 0 {
			return nil
		}
		if err := unix.Mknodat(to, name, st.Mode, int(st.Rdev)); err != nil {
			return err
		}
	default:
		return nil // sockets mean nothing without their process
	}
	return setAttributes(to, name, &st)
}

func (c *copier) subdir(from, to, old int, name, path string, st *unix.Stat_t) error {
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return err
	}
	var fds descriptors
	defer fds.close()
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	src, err := unix.Openat(from, name, flags, 0)
	if err != nil {
		return err
	}
	fds.add(src)
	dst, err := unix.Openat(to, name, flags, 0)
	if err != nil {
		return err
	}
	fds.add(dst)
	sub := -1
	if old >= 0 {
		if fd, err := unix.Openat(old, name, flags, 0); err == nil {
			sub = fds.add(fd)
		}
	}
	if err := copyXattrs(src, dst); err != nil {
		return err
	}
	if err := c.dir(src, dst, sub, path+"/"); err != nil {
		return err
	}
	return setAttributes(to, name, st)
}

// unchanged reports whether the last copy of a file is still right. By times alone that can be said only of a
// file that had been left alone for a while when it was copied.
func (c *copier) unchanged(from, old int, name string, st *unix.Stat_t) bool {
	var was unix.Stat_t
	if unix.Fstatat(old, name, &was, unix.AT_SYMLINK_NOFOLLOW) != nil || was.Mode != st.Mode || was.Uid != st.Uid ||
		was.Gid != st.Gid ||
		was.Size != st.Size || was.Mtim != st.Mtim {
		return false
	}
	if st.Ctim.Nano() < c.since.Nano() {
		return true
	}
	now, then := openFile(from, name), openFile(old, name)
	defer now.Close()
	defer then.Close()
	if c.bytes += st.Size; c.bytes > maxCopyBytes || watchWrites(now) != nil {
		return false // to copy it fails, and says why
	}
	return sameContent(now, then)
}

// watchWrites has the kernel note the time of the next write to a file also where it comes through a mapping: of
// a page that waits to be written to the disk it notes no further one (clear_page_dirty_for_io in Linux's
// mm/page-writeback.c, which protects it anew), so the pages are sent there. Where no disk is, no write through
// a mapping is ever noted: see copiedAt.
func watchWrites(f *os.File) error {
	if f == nil {
		return fs.ErrNotExist
	}
	err := unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE)
	if err != nil {
		return os.NewSyscallError("sync_file_range", err)
	}
	return nil
}

// openFile opens a regular file, or returns nil, which reads as an error.
func openFile(dir int, name string) *os.File {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

func sameContent(a, b io.Reader) bool {
	var x, y [32 << 10]byte
	for {
		n, err := io.ReadFull(a, x[:])
		m, berr := io.ReadFull(b, y[:])
		if n != m || !bytes.Equal(x[:n], y[:m]) || err != berr && !errors.Is(berr, err) {
			return false
		}
		if err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}

func (c *copier) file(from, to int, name string, st *unix.Stat_t) error {
	in, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	src := os.NewFile(uintptr(in), name)
	defer src.Close()
	if err := watchWrites(src); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	out, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(out), name)
	defer dst.Close()
	if err := copyXattrs(in, out); err != nil {
		return err
	}
	if err := dst.Truncate(st.Size); err != nil {
		return err
	}
	return eachData(src, st.Size, func(at, n int64) error {
		if c.bytes += n; c.bytes > maxCopyBytes {
			return outboard.Errorf(outboard.Exhausted, "more than %d bytes changed while a process used the workspace",
				int64(maxCopyBytes))
		}
		_, err := io.Copy(io.NewOffsetWriter(dst, at), io.NewSectionReader(src, at, n))
		return err
	})
}

// eachData calls f for each part of a file that is not a hole.
func eachData(file *os.File, size int64, f func(at, n int64) error) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil // a hole to the end
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(file.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		hole = min(hole, size)
		if hole <= data {
			return nil
		}
		if err := f(data, hole-data); err != nil {
			return err
		}
		at = hole
	}
	return nil
}

// setAttributes gives a name its owner, mode and times.
func setAttributes(dir int, name string, st *unix.Stat_t) error {
	if err := unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dir, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// copyXattrs copies attributes of a file or directory.
func copyXattrs(from, to int) error {
	attrs, err := copiedXattrs(from)
	if err != nil {
		return err
	}
	for name, value := range attrs {
		if err := unix.Fsetxattr(to, name, value, 0); err != nil && err != unix.EOPNOTSUPP {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

// copiedXattrs returns the attributes of a file or directory but where it came from, which is true of the
// original only.
func copiedXattrs(fd int) (map[string][]byte, error) {
	names, err := xattrNames(fd)
	if err != nil {
		return nil, err
	}
	attrs := make(map[string][]byte)
	for _, name := range names {
		if name == "trusted.overlay.origin" || name == "trusted.overlay.nlink" || name == "trusted.overlay.impure" {
			continue
		}
		if attrs[name], err = xattr(fd, name); err != nil {
			return nil, err
		}
	}
	return attrs, nil
}

func xattrNames(fd int) ([]string, error) {
	buf := make([]byte, 64<<10) // the kernel's limit
	n, err := unix.Flistxattr(fd, buf)
	if err == unix.EOPNOTSUPP || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), nil
}

func xattr(fd int, name string) ([]byte, error) {
	n, err := unix.Fgetxattr(fd, name, nil)
	if err != nil || n == 0 {
		return nil, err
	}
	value := make([]byte, n)
	n, err = unix.Fgetxattr(fd, name, value)
	return value[:max(n, 0)], err
}

// readNames returns the names in a directory.
func readNames(dir int) ([]string, error) { return readNamesAt(dir, ".") }

// readNamesAt returns the names in a directory that is given by a path from another.
func readNamesAt(dir int, path string) ([]string, error) {
	fd, err := uninterrupted(func() (int, error) {
		return unix.Openat(dir, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var names []string
	for buf := make([]byte, 8<<10); ; {
		n, err := uninterrupted(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if n <= 0 || err != nil {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

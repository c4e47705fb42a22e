package guest

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"unsafe"
)

// System calls relative to an open directory. Everything the guest does with a name goes through one component
// at a time on such descriptors, because a tool may swap any directory for a symbolic link between two calls
// that use a path.
const (
	atNoFollow  = 0x100
	atRemoveDir = 0x200
	oPath       = 0x200000 // O_PATH

	procMagic  = 0x9fa0
	sysfsMagic = 0x62656572
)

func errnoErr(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// openAt opens name in dir. The descriptor is never inherited.
func openAt(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := syscall.Openat(dir, name, flags|syscall.O_CLOEXEC, mode)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

// openDir opens a directory for listing, never through a link.
func openDir(dir int, name string) (int, error) {
	return openAt(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// openRegular opens a regular file for reading, never through a link, never blocking, and nothing of /proc.
func openRegular(dir int, name string) (*os.File, *syscall.Stat_t, error) {
	fd, err := openAt(dir, name, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, nil, errors.Join(err, syscall.Close(fd))
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || foreign(fd) {
		return nil, nil, errors.Join(errNotRegular, syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), &st, nil
}

var (
	errNotRegular = errors.New("not a regular file")
	errIsDir      = errors.New("is a directory")
)

// foreign reports whether fd is on /proc or /sys. What the kernel shows there depends on who looks: the guest
// must not look for a tool, which can look itself.
func foreign(fd int) bool {
	var sf syscall.Statfs_t
	return syscall.Fstatfs(fd, &sf) == nil && (sf.Type == procMagic || sf.Type == sysfsMagic)
}

// readlinkAt returns the target of the link name in dir; name "" means dir itself, opened with oPath.
func readlinkAt(dir int, name string) (string, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	var buf [4096]byte
	n, _, errno := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&buf)),
		uintptr(len(buf)), 0, 0)
	if errno != 0 {
		return "", errno
	}
	return string(buf[:n]), nil
}

func symlinkAt(target string, dir int, name string) error {
	t, err1 := syscall.BytePtrFromString(target)
	p, err2 := syscall.BytePtrFromString(name)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(t)), uintptr(dir),
		uintptr(unsafe.Pointer(p)))
	return errnoErr(errno)
}

func linkAt(oldDir int, oldName string, newDir int, newName string) error {
	o, err1 := syscall.BytePtrFromString(oldName)
	p, err2 := syscall.BytePtrFromString(newName)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(oldDir), uintptr(unsafe.Pointer(o)), uintptr(newDir),
		uintptr(unsafe.Pointer(p)), 0, 0)
	return errnoErr(errno)
}

func unlinkAt(dir int, name string, flags int) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(flags))
	return errnoErr(errno)
}

// setTimes sets a file's modification time, to the nanosecond, without following a link.
func setTimes(dir int, name string, mtime syscall.Timespec) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	ts := [2]syscall.Timespec{mtime, mtime}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&ts)),
		atNoFollow, 0, 0)
	return errnoErr(errno)
}

// goMode translates st_mode to Go's bits.
func goMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, set := range map[uint32]fs.FileMode{
		syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky,
	} {
		if mode&bit != 0 {
			m |= set
		}
	}
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		m |= fs.ModeDir
	case syscall.S_IFLNK:
		m |= fs.ModeSymlink
	case syscall.S_IFIFO:
		m |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		m |= fs.ModeSocket
	case syscall.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFBLK:
		m |= fs.ModeDevice
	}
	return m
}

package native

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// program is the guest in a form that the first process of a new user namespace can execute: it has uids that
// may reach neither the path of the program nor the server's other files. A copy in memory that nobody can write
// to also cannot be overwritten through /proc/<pid>/exe from inside (the attack of CVE-2019-5736).
type program struct {
	mu   sync.Mutex
	file *os.File
}

func (g *program) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.file != nil {
		g.file.Close()
		g.file = nil
	}
}

func (g *program) open(path string) (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.file != nil {
		return g.file, nil
	}
	image, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := inLargePages(image)
	if err != nil { // no right to mount, or a kernel without large pages
		f, err = sealed(image)
	}
	if err != nil {
		return nil, err
	}
	g.file = f
	return f, nil
}

const programName = "outboard-guest"

// inLargePages returns a file of a file system of its own, of which there is one mount, read-only and attached
// nowhere. The kernel finds the pages of a program one by one as it starts: out of large ones it maps more of
// them at a time, which is a sixth of the guest's start. Files of memfd_create have large pages only where the
// administrator says so for all of them.
func inLargePages(image []byte) (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{{"huge", "within_size"}, {"size", fmt.Sprint(2 * len(image))}, {"mode", "0755"}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return nil, fmt.Errorf("setting %s: %w", o[0], os.NewSyscallError("fsconfig", err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(mount)
	if err := write(mount, image); err != nil {
		return nil, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	fd, err := unix.Openat(mount, programName, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(fd), programName), nil
}

// write makes the program's file. What is within its size may be large pages, so that is there first; what is
// written in one piece is then one.
func write(dir int, image []byte) error {
	fd, err := unix.Openat(dir, programName, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o555)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), programName)
	defer f.Close()
	if err := f.Chmod(0o555); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(image))); err != nil {
		return err
	}
	_, err = f.Write(image)
	return err
}

// sealed returns a file of memory whose content is settled.
func sealed(image []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(programName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), programName)
	if _, err := f.Write(image); err != nil {
		f.Close()
		return nil, err
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}

package guest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// account is a user of the sandbox. Its rights are those of its ids and nothing more: also root has no
// capability inside, and on the host nothing at all.
type account struct {
	name     string
	uid, gid int
	home     string
}

// maxAccounts bounds what is read of the sandbox's account files, which tools may be able to write.
const maxAccounts = 1 << 20

// account finds a user by name, or by number as images write it. Where the guest has no identity of its own,
// everybody is the guest.
func (s *server) account(name string) (account, error) {
	tool := account{name: s.cfg.ToolName, uid: s.cfg.ToolUID, gid: s.cfg.ToolGID, home: s.cfg.Home}
	if name == "" || name == toolName || name == s.cfg.ToolName {
		return tool, nil
	}
	number, nerr := strconv.ParseUint(name, 10, 16)
	for _, f := range s.accounts("passwd", 7) {
		if f[0] != name && (nerr != nil || f[2] != strconv.FormatUint(number, 10)) {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err1 != nil || err2 != nil || uid < 0 || gid < 0 {
			break
		}
		if s.sameID {
			tool.name = name
			return tool, nil
		}
		return account{name: f[0], uid: uid, gid: gid, home: f[5]}, nil
	}
	if nerr == nil && !s.sameID { // an id that no name belongs to
		return account{name: name, uid: int(number), gid: int(number), home: "/"}, nil
	}
	return account{}, &Error{Code: Denied, Message: fmt.Sprintf("invalid username: '%s'", name)}
}

// accounts reads the fields of an account file of the sandbox.
func (s *server) accounts(file string, fields int) [][]string {
	var out [][]string
	_ = s.asTool(func() error { // what the tool may not read, it may not be known by
		f, _, err := s.open("/etc/" + file)
		if err != nil {
			return err
		}
		defer f.Close()
		b, _, err := readAll(f, maxAccounts)
		for line := range strings.Lines(string(b)) {
			if parts := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(parts) == fields {
				out = append(out, parts)
			}
		}
		return err
	})
	return out
}

// names maps numbers to names for showing owners.
func (s *server) names(file string, fields int) map[uint32]string {
	out := map[uint32]string{uint32(s.cfg.ToolUID): s.cfg.ToolName}
	for _, f := range s.accounts(file, fields) {
		if id, err := strconv.ParseUint(f[2], 10, 32); err == nil && out[uint32(id)] == "" {
			out[uint32(id)] = f[0]
		}
	}
	return out
}

// as runs f with a user's identity for the file system; see asTool.
func (s *server) as(acc account, f func() error) error {
	if acc.uid == os.Geteuid() && acc.gid == os.Getegid() {
		return f()
	}
	done := make(chan error, 1)
	s.wg.Go(func() {
		runtime.LockOSThread()
		err := setFS(acc.uid, acc.gid)
		if err == nil {
			err = f()
		}
		if setFS(os.Getuid(), os.Getgid()) == nil {
			runtime.UnlockOSThread() // else the thread ends with this goroutine
		}
		done <- err
	})
	return <-done
}

// openTerminal makes a terminal that belongs to a user.
func openTerminal(s *server, acc account, size Size) (master, slave *os.File, err error) {
	err = s.as(acc, func() error {
		fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err == syscall.ENOSPC { // of terminals
			return &Error{Code: Busy, Message: "all terminals of this sandbox are in use; end a process that holds one"}
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
		}
		master = os.NewFile(uintptr(fd), "terminal")
		var n, unlock int32
		if err := ioctl(fd, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)); err != nil {
			return err
		}
		if err := ioctl(fd, syscall.TIOCGPTN, unsafe.Pointer(&n)); err != nil {
			return err
		}
		path := "/dev/pts/" + strconv.Itoa(int(n))
		in, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		slave = os.NewFile(uintptr(in), path)
		return nil
	})
	if err == nil {
		err = setSize(master, size)
	}
	if err != nil {
		closeAll([]*os.File{master, slave})
		if refusal, ok := errors.AsType[*Error](err); ok {
			return nil, nil, refusal
		}
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	return master, slave, nil
}

// setSize sets a terminal's size; the kernel tells the processes in its foreground.
func setSize(tty *os.File, size Size) error {
	raw, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	ws := [4]uint16{size.Rows, size.Cols}
	var ioErr error
	if err := raw.Control(func(fd uintptr) {
		ioErr = ioctl(int(fd), syscall.TIOCSWINSZ,
			unsafe.Pointer(&ws))
	}); err != nil {
		return err
	}
	return ioErr
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

package guest

import (
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/outboard-dev/outboard/internal/guest/spawn"
)

// In gVisor every system call and every thread that wakes is many times as dear as on Linux, and a program takes a millisecond to be executed. So a
// program that is likely to be over soon is started without waiting for its exec, and one call on one thread waits for its output and its end.

// begin is start, but it returns before the program is executed, and what fails then is known at the end (see process.failure). The process is to be
// waited for by soon or await.
func (c *children) begin(p spawn.Program) (*process, error) {
	c.spawning.RLock()
	child, err := spawn.Start(p)
	if err != nil {
		c.spawning.RUnlock()
		return nil, err
	}
	made := &process{pid: child.Pid, fd: child.PidFD, done: make(chan struct{}), child: child}
	c.register(made)
	return made, nil
}

// Limits of soon.
const (
	// soonPatience is for how long a thread waits for a process to say something or to end. A call that is to end is told that late.
	soonPatience = 50 * time.Millisecond
	// soonReads is how often it then goes on: a program that says more than fits into so many reads is none that is over soon.
	soonReads = 4
)

// soon waits for a process of begin, and for what it writes to the pipe out, which is in non-blocking mode. It reports whether the process has
// ended; then its status is taken and all that it wrote is read, and alone says whether nobody else can write any more. Else it is to be awaited.
func (c *children) soon(p *process, out int, w io.Writer) (ended, alone bool) {
	const pollIn = 1
	polls := [2]struct {
		fd            int32
		asked, answer int16
	}{{fd: int32(p.fd), asked: pollIn}, {fd: int32(out), asked: pollIn}} // in this order: who has ended has written before
	patience := syscall.NsecToTimespec(soonPatience.Nanoseconds())
	for range soonReads {
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&polls)), uintptr(len(polls)), uintptr(unsafe.Pointer(&patience)), 0, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			return false, false
		}
		if polls[1].answer != 0 {
			if alone = drain(out, w); alone {
				polls[1].fd = -1
			}
		}
		if polls[0].answer != 0 {
			syscall.Close(p.fd)
			c.ended(p)
			return true, alone
		}
	}
	return false, false
}

// runSoon is runExec with begin and soon. Without a pump the process has ended, and its output is complete.
func (s *server) runSoon(argv []string, attr *os.ProcAttr, k *sink) (*process, *pump, error) {
	path, err := lookPath(argv[0], attr.Env)
	if err != nil {
		return nil, nil, err
	}
	p, out, err := s.beginPiped(path, argv, attr)
	if err != nil {
		return nil, nil, err
	}
	ended, alone := s.children.soon(p, out, k)
	if ended && alone {
		syscall.Close(out)
		return p, nil, nil
	}
	r := os.NewFile(uintptr(out), "pipe")
	if ended {
		s.pipes.linger(r)
		return p, nil, nil
	}
	s.children.await(p, &s.wg)
	return p, startPump(r, k, &s.wg), nil
}

// beginPiped begins a program and returns our end of the pipe that it writes to, in non-blocking mode.
func (s *server) beginPiped(path string, argv []string, attr *os.ProcAttr) (p *process, out int, err error) {
	null, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	defer syscall.Close(null)
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return nil, 0, os.NewSyscallError("pipe2", err)
	}
	ours, theirs := pipe[0], pipe[1]
	defer syscall.Close(theirs)
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(ours), syscall.F_SETFL, syscall.O_NONBLOCK); errno != 0 {
		syscall.Close(ours)
		return nil, 0, os.NewSyscallError("fcntl", errno)
	}
	prog := spawn.Program{Path: path, Argv: argv, Env: lastOfEach(attr.Env), Dir: attr.Dir, Files: [3]int{null, theirs, theirs}}
	if id := attr.Sys.Credential; id != nil {
		prog.Identity, prog.UID, prog.GID = true, int(id.Uid), int(id.Gid)
	}
	if p, err = s.children.begin(prog); err != nil {
		syscall.Close(ours)
	}
	return p, ours, err
}

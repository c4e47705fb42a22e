package guest

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/outboard-dev/outboard/internal/guest/spawn"
)

// In gVisor every system call and every thread that wakes is many times as dear as on Linux, and a program takes
// a millisecond to be executed. So a program that is likely to be over soon is started without waiting for its
// exec, and one call on one thread waits for its output and its end.

// begin is start, but it returns before the program is executed, and what fails then is known at the end (see
// process.failure). The process is to be waited for by gvisorExec or await.
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

// Limits of gvisorExec.
const (
	// gvisorExecPatience is for how long a thread waits for a process to say something or to end.
	gvisorExecPatience = 50 * time.Millisecond
	// gvisorExecReads is how often it does: a program that says more than fits into so many reads is none that
	// is over soon. A call that is to end is told after that.
	gvisorExecReads = 8
)

// gvisorExec waits for a process of begin, and for what it writes to the pipe out. It reports whether the
// process has ended; then its status is taken and all that it wrote is read, and alone says whether nobody else
// can write any more. Else it is to be awaited.
func (c *children) gvisorExec(p *process, out int, w io.Writer) (ended, alone bool) {
	const pollIn, pollHup = 0x1, 0x10
	polls := [2]struct {
		fd            int32
		asked, answer int16
	}{{fd: int32(p.fd), asked: pollIn}, {fd: int32(out), asked: pollIn}} // in this order: who has ended has written before
	patience := syscall.NsecToTimespec(gvisorExecPatience.Nanoseconds())
	buf := takeBuffer()
	defer giveBuffer(buf)
	for range gvisorExecReads {
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&polls)), uintptr(len(polls)),
			uintptr(unsafe.Pointer(&patience)), 0, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			return false, false
		}
		switch process, output := polls[0].answer, polls[1].answer; {
		case output&pollIn != 0: // first of all, and as often as there is some
			if n, err := syscall.Read(out, buf[:]); err == nil {
				w.Write(buf[:n])
			}
		case process != 0:
			syscall.Close(p.fd)
			c.ended(p)
			return true, alone || output&pollHup != 0
		default: // the process lives, but nobody can write any more
			alone, polls[1].fd = true, -1
		}
	}
	return false, false
}

// runGvisorExec is runExec with begin and gvisorExec. Without a pump the process has ended, and its output is complete.
func (s *server) runGvisorExec(argv []string, attr *os.ProcAttr, k *sink) (*process, *pump, error) {
	path, err := lookPath(argv[0], attr.Env)
	if err != nil {
		return nil, nil, err
	}
	p, out, err := s.beginPiped(path, argv, attr)
	if errors.Is(err, spawn.ErrUnsupported) {
		s.children.plain.Store(true)
		return s.runExec(argv, attr, k)
	}
	if err != nil {
		return nil, nil, err
	}
	ended, alone := s.children.gvisorExec(p, out, k)
	if ended && alone {
		syscall.Close(out)
		return p, nil, nil
	}
	_ = syscall.SetNonblock(out, true) // it cannot fail; for the poller
	r := os.NewFile(uintptr(out), "pipe")
	if ended {
		s.pipes.drain(r)
		return p, nil, nil
	}
	s.children.await(p, &s.wg)
	return p, startPump(r, k, &s.wg), nil
}

// beginPiped begins a program and returns our end of the pipe that it writes to. Its input is the guest's, which
// is /dev/null.
func (s *server) beginPiped(path string, argv []string, attr *os.ProcAttr) (*process, int, error) {
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return nil, 0, os.NewSyscallError("pipe2", err)
	}
	ours, theirs := pipe[0], pipe[1]
	defer syscall.Close(theirs)
	prog := spawn.Program{Path: path, Argv: argv, Env: lastOfEach(attr.Env), Dir: attr.Dir, Output: theirs}
	if id := attr.Sys.Credential; id != nil {
		prog.Identity, prog.UID, prog.GID = true, int(id.Uid), int(id.Gid)
	}
	p, err := s.children.begin(prog)
	if err != nil {
		syscall.Close(ours)
		return nil, 0, err
	}
	return p, ours, nil
}

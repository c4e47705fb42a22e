// Package spawn starts a program without waiting until it has been executed. The guest uses it in
// gVisor.
//
// Package syscall waits for the exec, and so does the kernel's vfork. The Go runtime sees only a
// processor that computes, and its monitor looks every 20 us whether that lasts too long. Where a
// kernel makes programs slowly, as gVisor's does, those looks take a good part of a processor from
// the program that is being started.
//
// Invariants:
//   - The child shares the caller's memory, and the caller goes on. Everything that the child needs
//     was made before.
//   - From clone to exec it is assembly. Its system calls have the form that gVisor recognizes and
//     answers without a signal: the number is loaded by the instruction before the call
//     (pkg/sentry/platform/systrap/usertrap, 2026-09).
//
// An error of the child is known when it has ended. Start reading at Start.
package spawn

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// Program is what to start: as the leader of a session of its own. Signals that the caller handles have their
// default action, what it ignores or blocks stays so.
type Program struct {
	Path      string
	Argv, Env []string
	Dir       string
	Output    int // becomes descriptors 1 and 2; is above 2. Descriptor 0 is the caller's
	// Identity of the program; without it, the caller's. Supplementary groups are the caller's.
	Identity bool
	UID, GID int
}

// Child is a program that was started. The caller waits for it, and must keep the Child until it has ended.
type Child struct {
	Pid   int
	PidFD int // the caller's to close

	program Program
	setting setting
}

// setting is everything the child uses, by assembly alone: what the compiler makes of Go may grow a stack, or
// tell the race detector, which are the parent's.
type setting struct {
	path, dir  *byte
	argv, envp []*byte
	output     int
	identity   bool
	uid, gid   int
	args       cloneArgs
	pidfd      int32

	step  uint32 // that failed, 0 = none
	errno uintptr
	stack [256]byte // for a kernel that uses it; the child does not
}

// cloneArgs is the kernel's struct clone_args as it was first.
type cloneArgs struct {
	flags, pidfd                 uint64
	_                            [2]uint64 // where to write the child's id
	exitSignal, stack, stackSize uint64
	_                            uint64 // thread-local storage
}

// Steps of the child, for its error. The assembly has their numbers.
const (
	didNothing = iota
	didSession
	didGroup
	didUser
	didDir
	didFiles
	didExec
)

var stepNames = [...]string{didSession: "setsid", didGroup: "setgid", didUser: "setuid", didDir: "chdir",
	didFiles: "dup3", didExec: "fork/exec"}

// ErrUnsupported is a kernel that cannot do it: Linux before 5.5, an older gVisor.
var ErrUnsupported = errors.New("the kernel does not take handlers of signals from a child")

// Start makes the child. Errors: ErrUnsupported, what is wrong with the program, and what the kernel says of its own.
func Start(p Program) (*Child, error) {
	c := &Child{program: p}
	s := &c.setting
	s.output, s.identity, s.uid, s.gid = p.Output, p.Identity, p.UID, p.GID
	var errs [4]error
	s.path, errs[0] = syscall.BytePtrFromString(p.Path)
	s.dir, errs[1] = syscall.BytePtrFromString(p.Dir)
	s.argv, errs[2] = syscall.SlicePtrFromStrings(p.Argv)
	s.envp, errs[3] = syscall.SlicePtrFromStrings(p.Env)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if p.Output <= 2 {
		return nil, syscall.EBADF
	}
	pid, errno := s.clone()
	if errno == syscall.ENOSYS || errno == syscall.EINVAL {
		return nil, ErrUnsupported
	}
	if errno != 0 {
		return nil, os.NewSyscallError("clone3", errno)
	}
	c.Pid, c.PidFD = pid, int(s.pidfd)
	return c, nil
}

// Err is why a child that has ended never became the program, nil when it did.
func (c *Child) Err() error {
	failed, about := c.setting.step, c.program.Path
	switch failed {
	case didNothing:
		return nil
	case didDir:
		about = c.program.Dir
	}
	return &os.PathError{Op: stepNames[failed], Path: about, Err: syscall.Errno(c.setting.errno)}
}

// clone makes the child. The kernel takes the handlers of all signals from it: one would run the Go runtime there.
func (s *setting) clone() (pid int, errno syscall.Errno) {
	s.args = cloneArgs{flags: syscall.CLONE_VM | clonePidFD | cloneClearSighand, exitSignal: uint64(syscall.SIGCHLD),
		stackSize: uint64(len(s.stack)),
		pidfd:     uint64(uintptr(unsafe.Pointer(&s.pidfd))), stack: uint64(uintptr(unsafe.Pointer(&s.stack)))}
	syscall.ForkLock.Lock() // no descriptor may be half made: it would be inherited
	defer syscall.ForkLock.Unlock()
	r := clone3(&s.args, unsafe.Sizeof(s.args), s)
	runtime.KeepAlive(s)
	if r > ^uintptr(4095) {
		return 0, syscall.Errno(-r)
	}
	return int(r), 0
}

const (
	clonePidFD        = 0x1000
	cloneClearSighand = 0x100000000
)

// clone3 makes a process that shares the caller's memory, and in it does what s says. In the caller it returns
// what the kernel does: above -4096 it is an error's negative.
//
//go:noescape
func clone3(args *cloneArgs, size uintptr, s *setting) uintptr

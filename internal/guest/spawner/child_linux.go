package spawner

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// Package os can clone into namespaces, but not what comes between that and the exec here: a move into the
// cgroups, a cgroup namespace taken after it, and an empty capability bounding set. The set belongs to a thread;
// emptied before the exec, while there is one, it costs 40 system calls, and after it 40 rounds of stopping
// every thread of the guest's Go runtime, which is most of the time that a sandbox would take to start.

// Steps of the child, for its error message.
const (
	stepEnter = iota + 1
	stepWait
	stepCgroup
	stepSession
	stepGroups
	stepIdentity
	stepInherit
	stepAmbient
	stepBounding
	stepNoNew
	stepFiles
	stepExec
)

// stepNames are what a child was at when it failed.
var stepNames = map[byte]string{stepEnter: "entering its cgroups", stepWait: "waiting for the host",
	stepCgroup: "taking a cgroup namespace", stepSession: "starting a session",
	stepGroups: "leaving the server's groups", stepIdentity: "taking its id in the user namespace", stepInherit: "keeping capabilities over the exec",
	stepAmbient:  "keeping capabilities over the exec of an ordinary user",
	stepBounding: "emptying the bounding set", stepNoNew: "setting no_new_privs", stepFiles: "arranging files", stepExec: "executing the guest"}

// What package syscall does not name.
const (
	sysCloseRange   = 436 // on every architecture
	atEmptyPath     = 0x1000
	prCapbsetDrop   = 24
	prSetTimerSlack = 29
	prSetNoNewPrivs = 38
	prCapAmbient    = 47
	ambientRaise    = 2
	sigSetmask      = 2
	capVersion3     = 0x20080522
)

// The child's descriptor numbers: below FirstFree those the guest is told of, then its program and its gate,
// which end with the exec. Everything from Free on is closed.
const (
	FirstFree = boot.StateFD + 1
	programFD = FirstFree
	gateFD    = FirstFree + 1
	Free      = FirstFree + 2
)

// Child is the process to make.
type Child struct {
	Files   [FirstFree]int // what becomes descriptor 0, 1, ...
	Program int            // what it executes
	Gate    int            // reads one byte when it may go on; answers with step and errno (see Failure) when it cannot
	Groups  []int          // files to enter its control groups by: it writes "0", itself, to each
	Net     int            // network namespace to be born in, -1 for the caller's or, with CLONE_NEWNET, a new one
	Mount   int            // mount namespace to be born in, -1 for the caller's
	Flags   uintptr        // of clone
	// Owner is the user of the host whom the child's user namespace belongs to, 0 for the caller. The kernel
	// counts what is in it against that user: inotify's instances and watches, queued signals, POSIX message
	// queues. With one owner for all, a sandbox that takes the 128 instances a user may have would leave none to
	// the others, nor to the host's root. Serve's to become.
	Owner uint32
	// ID is the user and group that it becomes in its user namespace: 0 is root of a range of ids. With another
	// one the namespace has no root, since an ordinary user has one id to map; then it stays in the
	// supplementary groups of the caller, which it has no right to leave.
	ID uint32
}

// Failure says what a child's answer at its gate means.
func Failure(answer [2]byte) (step string, errno syscall.Errno) {
	return stepNames[answer[0]], syscall.Errno(answer[1])
}

// child is everything the cloned process needs, made before the clone: after it nothing may allocate, lock or
// grow a stack.
type child struct {
	files      [FirstFree]int // these, program and gate are Free or above
	program    int
	gate       int
	groups     []int
	flags      uintptr
	id         uintptr
	root       *byte
	empty      *byte
	argv, envp []*byte
	caps       struct {
		header struct {
			version uint32
			pid     int32
		}
		data [2]struct{ effective, permitted, inheritable uint32 }
	}
	noSignals uint64
	self      *byte
	answer    [2]byte
	born      born // of one that shares its parent's memory
	told      bool // likewise, that it says so itself
}

// born is Serve's answer to a request: the pid, or why there is none. Whoever sends it sends it as it lies in
// memory, which is little-endian on every architecture there is a vfork for.
type born struct {
	pid         int32
	step, errno uint16
}

// guestEnv is the guest's own environment, which no tool sees. It waits for others nearly all of its life: a
// second processor would double what the runtime keeps for each (caches of every size of object, threads), a
// sixth of an idle sandbox's memory.
var guestEnv = []string{"GOMAXPROCS=1"}

func newChild(k Child) (*child, error) {
	argv, err := syscall.SlicePtrFromStrings([]string{"outboard-guest", "init"})
	if err != nil {
		return nil, err
	}
	envp, err := syscall.SlicePtrFromStrings(guestEnv)
	if err != nil {
		return nil, err
	}
	c := &child{files: k.Files, program: k.Program, gate: k.Gate, groups: k.Groups, id: uintptr(k.ID), flags: k.Flags,
		self: &[]byte("0")[0], root: &[]byte("/\x00")[0], empty: &[]byte("\x00")[0],
		argv: argv, envp: envp}
	c.caps.header.version = capVersion3
	for i := range c.caps.data {
		const all = ^uint32(0) // the kernel keeps the bits it knows
		c.caps.data[i].effective, c.caps.data[i].permitted, c.caps.data[i].inheritable = all, all, all
	}
	return c, nil
}

// Clone makes the child a copy of this process, on this thread, in the thread's own namespaces but for those
// that Flags makes: Net and Mount are Serve's to enter. Files, Program and Gate are descriptors from Free on.
func (k Child) Clone() (pid int, err error) {
	c, err := newChild(k)
	if err != nil {
		return 0, err
	}
	pid, err = AtRest(c.clone)
	runtime.KeepAlive(c)
	if err != nil {
		return 0, os.NewSyscallError("clone", err)
	}
	return pid, nil
}

// AtRest calls clone, which returns in the parent only, with signals and descriptors at rest.
func AtRest(clone func() (uintptr, syscall.Errno)) (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	syscall.ForkLock.Lock() // no descriptor may be half made: it would be inherited
	defer syscall.ForkLock.Unlock()
	return deaf(clone)
}

// deaf calls clone with all signals held back: one that is handled in the child would run the Go runtime there.
func deaf(clone func() (uintptr, syscall.Errno)) (pid int, err error) {
	all, old := ^uint64(0), uint64(0)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask, uintptr(unsafe.Pointer(&all)),
		uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	r, errno := clone()
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// clone returns in the parent only.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) clone() (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD)|c.flags, 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	step, errno := c.run()
	c.answer = [2]byte{step, byte(errno)}
	syscall.RawSyscall(syscall.SYS_WRITE, gateFD, uintptr(unsafe.Pointer(&c.answer)), 2)
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 1, 0, 0)
	}
}

// share is clone for a child that has the caller's memory until its exec, and the calling thread waits for as
// long: nothing is copied for it. It tells who asked for it that it is there, since the caller cannot yet.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) share() (uintptr, syscall.Errno) {
	const shared = syscall.CLONE_VM | syscall.CLONE_VFORK | syscall.CLONE_PARENT_SETTID
	pid, errno := vfork(uintptr(syscall.SIGCHLD)|shared|c.flags, &c.born.pid)
	if errno != 0 || pid != 0 {
		return pid, syscall.Errno(errno)
	}
	c.told = true // before it is: two answers to one request would be worse than none
	if n, _, _ := syscall.RawSyscall(syscall.SYS_WRITE, ServeFD, uintptr(unsafe.Pointer(&c.born)),
		answerSize); n == answerSize {
		step, errno := c.run()
		c.answer = [2]byte{step, byte(errno)}
		syscall.RawSyscall(syscall.SYS_WRITE, gateFD, uintptr(unsafe.Pointer(&c.answer)), 2)
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 1, 0, 0)
	}
}

// vfork is the system call clone with the caller's stack and the pid stored in its memory before the child runs.
//
//go:noescape
func vfork(flags uintptr, pid *int32) (r, errno uintptr)

// run is the child's life until the exec. It returns only when a step failed.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) run() (byte, syscall.Errno) {
	// A thread that moves itself waits for nobody. To be moved by another means that the kernel waits until no
	// process anywhere forks or ends, which is milliseconds.
	for _, fd := range c.groups {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(c.self)),
			1); errno != 0 {
			return stepEnter, errno
		}
	}
	if errno := c.arrange(); errno != 0 {
		return stepFiles, errno
	}
	// The host maps our uids meanwhile, and in version 2 moves us into our cgroup. The end of the stream means
	// that it died.
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, gateFD, uintptr(unsafe.Pointer(&c.answer)), 1)
	if errno != 0 || n != 1 {
		return stepWait, errno
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_UNSHARE, syscall.CLONE_NEWCGROUP, 0, 0); errno != 0 {
		return stepCgroup, errno
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); errno != 0 {
		return stepSession, errno
	}
	if c.id == 0 {
		if _, _, errno = syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			return stepGroups, errno
		}
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_SETRESGID, c.id, c.id, c.id); errno != 0 {
		return stepIdentity, errno
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_SETRESUID, c.id, c.id, c.id); errno != 0 {
		return stepIdentity, errno
	}
	// With an empty bounding set, the exec of root gives what is inheritable: the guest needs it all until its
	// file systems stand.
	if _, _, errno = syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&c.caps.header)),
		uintptr(unsafe.Pointer(&c.caps.data)), 0); errno != 0 {
		return stepInherit, errno
	}
	// The exec of anybody else gives what is ambient. Where the guest gives up what is inheritable, the kernel
	// takes that away as well.
	for cap := range uintptr(64) {
		if c.id == 0 {
			break
		}
		_, _, errno = syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, ambientRaise, cap, 0, 0, 0)
		if errno == syscall.EINVAL && cap > 0 {
			break // past the last capability of this kernel
		}
		if errno != 0 {
			return stepAmbient, errno
		}
	}
	for cap := range uintptr(64) {
		_, _, errno = syscall.RawSyscall(syscall.SYS_PRCTL, prCapbsetDrop, cap, 0)
		if errno == syscall.EINVAL && cap > 0 {
			break // past the last capability of this kernel
		}
		if errno != 0 {
			return stepBounding, errno
		}
	}
	// The exec gains nothing by being root's that it has not already. The filter of system calls needs it on the
	// thread that installs it, which in the guest would be one more thread: see installFilter.
	if _, _, errno = syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
		return stepNoNew, errno
	}
	return c.exec()
}

// arrange gives the files their numbers and closes everything else the server has open, even what it was started
// with and does not know of. It comes before the wait: a copy of another child's gate or of a lock would
// otherwise keep both alive after the server's death, each waiting for the other.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) arrange() syscall.Errno {
	for fd := range FirstFree {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.files[fd]), uintptr(fd), 0); errno != 0 {
			return errno
		}
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.program), programFD,
		syscall.O_CLOEXEC); errno != 0 {
		return errno
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.gate), gateFD, syscall.O_CLOEXEC); errno != 0 {
		return errno
	}
	_, _, errno := syscall.RawSyscall(sysCloseRange, Free, ^uintptr(0)>>33, 0)
	return errno
}

// MonitorSlack is by how many nanoseconds the timers of the guest's first thread may be late when it is
// executed, and so for good those of the Go runtime's monitor, which is the first that it starts. The monitor
// looks every 20 us whether a system call holds the processor that others wait for, for as long as the guest
// does anything; so often it took a third of the processor time of a start. It is less than the 10 ms for which
// the runtime lets anybody compute. No tool may have it of the guest: see guest.Punctual.
const MonitorSlack = 4_000_000

// exec becomes the guest.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) exec() (byte, syscall.Errno) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.root)), 0, 0); errno != 0 {
		return stepFiles, errno
	}
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, MonitorSlack, 0) // a kernel without it is slower
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask, uintptr(unsafe.Pointer(&c.noSignals)), 0, 8, 0, 0)
	_, _, errno := syscall.RawSyscall6(sysExecveat, programFD, uintptr(unsafe.Pointer(c.empty)),
		uintptr(unsafe.Pointer(&c.argv[0])),
		uintptr(unsafe.Pointer(&c.envp[0])), atEmptyPath, 0)
	return stepExec, errno
}

package native

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// Package os can clone into namespaces, but not what comes between that and the exec here: a move into the cgroups, a cgroup namespace
// taken after it, and an empty capability bounding set. The set belongs to a thread; emptied before the exec, while there is one,
// it costs 40 system calls, and after it 40 rounds of stopping every thread of the guest's Go runtime, which is most of the time
// that a sandbox would take to start.

// Steps of the child, for its error message.
const (
	stepEnter = iota + 1
	stepWait
	stepCgroup
	stepSession
	stepGroups
	stepIdentity
	stepInherit
	stepBounding
	stepFiles
	stepExec
)

var stepNames = map[byte]string{stepEnter: "entering its cgroups", stepWait: "waiting for the host", stepCgroup: "taking a cgroup namespace", stepSession: "starting a session",
	stepGroups: "leaving the server's groups", stepIdentity: "becoming root of the user namespace", stepInherit: "keeping capabilities over the exec",
	stepBounding: "emptying the bounding set", stepFiles: "arranging files", stepExec: "executing the guest"}

const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// The child's descriptor numbers: below firstFree those the guest is told of, then its program and its gate, which end with the
// exec. Everything from childFDs on is closed.
const (
	firstFree = boot.StateFD + 1
	programFD = firstFree
	gateFD    = firstFree + 1
	childFDs  = firstFree + 2
)

// child is everything the forked process needs, made before the fork: after it nothing may allocate, lock or grow a stack.
type child struct {
	files      [firstFree]int // what becomes descriptor 0, 1, ...; these, program and gate are childFDs or above
	program    int
	gate       int     // reads one byte when it may go on; answers with step and errno when it cannot
	groups     []int   // files to enter the cgroups by, see group.doors
	flags      uintptr // namespaces to make
	keepGroups bool
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
}

// guestEnv is the guest's own environment, which no tool sees. It waits for others nearly all of its life: a second processor would
// double what the runtime keeps for each (caches of every size of object, threads), a sixth of an idle sandbox's memory.
var guestEnv = []string{"GOMAXPROCS=1"}

func newChild(files [firstFree]int, program, gate int, groups []int, keepGroups bool) (*child, error) {
	argv, err := syscall.SlicePtrFromStrings([]string{"outboard-guest", "init"})
	if err != nil {
		return nil, err
	}
	envp, err := syscall.SlicePtrFromStrings(guestEnv)
	if err != nil {
		return nil, err
	}
	c := &child{files: files, program: program, gate: gate, groups: groups, keepGroups: keepGroups,
		self: &[]byte("0")[0], root: &[]byte("/\x00")[0], empty: &[]byte("\x00")[0],
		argv: argv, envp: envp}
	c.caps.header.version = unix.LINUX_CAPABILITY_VERSION_3
	for i := range c.caps.data {
		const all = ^uint32(0) // the kernel keeps the bits it knows
		c.caps.data[i].effective, c.caps.data[i].permitted, c.caps.data[i].inheritable = all, all, all
	}
	return c, nil
}

// fork clones this process into new namespaces, and into those that were made before, and runs c in it.
func (c *child) fork(pl *plot) (pid int, err error) {
	if c.flags = namespaces; !pl.net.made() {
		c.flags |= unix.CLONE_NEWNET
		return c.forkHere()
	}
	err = onSpentThread(func() error {
		if err := pl.net.enter(); err != nil {
			return err
		}
		if pl.mnt != nil {
			if err := unix.Unshare(unix.CLONE_FS); err != nil { // a mount namespace is entered with a root of one's own
				return os.NewSyscallError("unshare", err)
			}
			if err := unix.Setns(int(pl.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
				return os.NewSyscallError("setns", err)
			}
		}
		pid, err = c.forkHere()
		return err
	})
	return pid, err
}

// forkHere clones with the flags that are set, on this thread or another.
func (c *child) forkHere() (pid int, err error) {
	pid, err = forkBy(c.clone)
	runtime.KeepAlive(c)
	return pid, err
}

// tryNamespaces makes the namespaces of a sandbox around a process that ends at once, and returns what the kernel said. Settings
// alone do not tell: the seccomp profile of a container, a security module or a limit refuse as well.
func tryNamespaces() error {
	pid, err := forkBy(cloneAndEnd)
	if err != nil {
		return err
	}
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			return err
		}
	}
}

// cloneAndEnd returns in the parent only.
//
//go:noinline
//go:norace
//go:nosplit
func cloneAndEnd() (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD)|namespaces|unix.CLONE_NEWNET, 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// forkBy calls clone, which returns in the parent only, with signals and descriptors at rest.
func forkBy(clone func() (uintptr, syscall.Errno)) (pid int, err error) {
	all, old := ^uint64(0), uint64(0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	syscall.ForkLock.Lock() // no descriptor may be half made: it would be inherited
	// A signal handled in the child would run the Go runtime there.
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	r, errno := clone()
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	syscall.ForkLock.Unlock()
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

// run is the child's life until the exec. It returns only when a step failed.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) run() (byte, syscall.Errno) {
	// A thread that moves itself waits for nobody. To be moved by another means that the kernel waits until no process anywhere forks
	// or ends, which is milliseconds.
	for _, fd := range c.groups {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(c.self)), 1); errno != 0 {
			return stepEnter, errno
		}
	}
	if errno := c.arrange(); errno != 0 {
		return stepFiles, errno
	}
	// The host maps our uids meanwhile, and in version 2 moves us into our cgroup. The end of the stream means that it died.
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, gateFD, uintptr(unsafe.Pointer(&c.answer)), 1)
	if errno != 0 || n != 1 {
		return stepWait, errno
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0); errno != 0 {
		return stepCgroup, errno
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); errno != 0 {
		return stepSession, errno
	}
	if !c.keepGroups {
		if _, _, errno = syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			return stepGroups, errno
		}
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_SETRESGID, 0, 0, 0); errno != 0 {
		return stepIdentity, errno
	}
	if _, _, errno = syscall.RawSyscall(syscall.SYS_SETRESUID, 0, 0, 0); errno != 0 {
		return stepIdentity, errno
	}
	// With an empty bounding set, the exec of root gives what is inheritable: the guest needs it all until its file systems stand.
	if _, _, errno = syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&c.caps.header)), uintptr(unsafe.Pointer(&c.caps.data)), 0); errno != 0 {
		return stepInherit, errno
	}
	for cap := range uintptr(64) {
		_, _, errno = syscall.RawSyscall(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, cap, 0)
		if errno == syscall.EINVAL && cap > 0 {
			break // past the last capability of this kernel
		}
		if errno != 0 {
			return stepBounding, errno
		}
	}
	return c.exec()
}

// arrange gives the files their numbers and closes everything else the server has open, even what it was started with and does not
// know of. It comes before the wait: a copy of another child's gate or of a lock would otherwise keep both alive after the
// server's death, each waiting for the other.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) arrange() syscall.Errno {
	for fd := range firstFree {
		if _, _, errno := syscall.RawSyscall(unix.SYS_DUP3, uintptr(c.files[fd]), uintptr(fd), 0); errno != 0 {
			return errno
		}
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_DUP3, uintptr(c.program), programFD, unix.O_CLOEXEC); errno != 0 {
		return errno
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_DUP3, uintptr(c.gate), gateFD, unix.O_CLOEXEC); errno != 0 {
		return errno
	}
	_, _, errno := syscall.RawSyscall(unix.SYS_CLOSE_RANGE, childFDs, ^uintptr(0)>>33, 0)
	return errno
}

// exec becomes the guest.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) exec() (byte, syscall.Errno) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.root)), 0, 0); errno != 0 {
		return stepFiles, errno
	}
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&c.noSignals)), 0, 8, 0, 0)
	_, _, errno := syscall.RawSyscall6(unix.SYS_EXECVEAT, programFD, uintptr(unsafe.Pointer(c.empty)), uintptr(unsafe.Pointer(&c.argv[0])),
		uintptr(unsafe.Pointer(&c.envp[0])), unix.AT_EMPTY_PATH, 0)
	return stepExec, errno
}

// gate is the host's end of a child's gate.
type gate struct{ *os.File }

// open lets the child go on.
func (g gate) open() error {
	if _, err := g.Write([]byte{1}); err != nil {
		return fmt.Errorf("letting the guest begin: %w", err)
	}
	return nil
}

// failure waits until the child has executed the guest or ended, and returns why it could not.
func (g gate) failure() error {
	var answer [2]byte
	n, err := g.Read(answer[:])
	if n < len(answer) {
		return nil // end of the stream: the gate closed with the exec
	}
	if err != nil {
		return fmt.Errorf("reading from the gate: %w", err)
	}
	return fmt.Errorf("%s: %w", stepNames[answer[0]], syscall.Errno(answer[1]))
}

// writeMaps gives the user namespace of pid its ids.
func writeMaps(pid int, base uint32, rootless bool) error {
	uids, gids := fmt.Sprintf("0 %d %d\n", base, uidRange), fmt.Sprintf("0 %d %d\n", base, uidRange)
	type file struct{ name, text string }
	files := []file{{"uid_map", uids}, {"gid_map", gids}}
	if rootless {
		uids, gids = fmt.Sprintf("0 %d 1\n", os.Geteuid()), fmt.Sprintf("0 %d 1\n", os.Getegid())
		// Without setgroups denied, a user could drop a group that a file's mode holds against its members.
		files = []file{{"uid_map", uids}, {"setgroups", "deny"}, {"gid_map", gids}}
	}
	for _, f := range files {
		if err := writeControl(fmt.Sprintf("/proc/%d", pid), f.name, f.text); err != nil {
			return fmt.Errorf("mapping the ids %s: %w", strings.TrimSpace(f.text), err)
		}
	}
	return nil
}

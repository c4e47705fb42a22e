package boot

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// System calls that package syscall does not know. From 424 on, every architecture uses the same numbers.
const (
	sysOpenTree     = 428
	sysMoveMount    = 429
	sysFsopen       = 430
	sysFsconfig     = 431
	sysFsmount      = 432
	sysMountSetattr = 442
)

const (
	atFdcwd     = -0x64
	atEmptyPath = 0x1000
	atRecursive = 0x8000

	openTreeClone   = 1
	openTreeCloexec = syscall.O_CLOEXEC
	moveFromEmpty   = 0x4      // MOVE_MOUNT_F_EMPTY_PATH
	fsCloexec       = 1        // FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
	pathOnly        = 0x200000 // O_PATH

	configSetFlag   = 0 // FSCONFIG_SET_FLAG
	configSetString = 1 // FSCONFIG_SET_STRING
	configSetFD     = 5 // FSCONFIG_SET_FD
	configCreate    = 6 // FSCONFIG_CMD_CREATE

	prSetDumpable   = 4
	prCapbsetRead   = 23
	prSetNoNewPrivs = 38
	prGetNoNewPrivs = 39

	seccompSetFilter = 1 // SECCOMP_SET_MODE_FILTER
	seccompTsync     = 1 // SECCOMP_FILTER_FLAG_TSYNC
	// SECCOMP_FILTER_FLAG_NEW_LISTENER, with which TSYNC_ESRCH says in another way what threads could not
	seccompListen = 8 | 16

	capVersion3 = 0x20080522
	rlimitNproc = 6
)

// Attributes of a mount.
const (
	attrReadOnly = 0x1
	attrNoSuid   = 0x2
	attrNoDev    = 0x4
	attrNoExec   = 0x8
)

// busyTries and busyWait bound the wait for a mount that is written to: a second, where a millisecond is usual.
const (
	busyTries = 1000
	busyWait  = time.Millisecond
)

type mountAttr struct{ set, clear, propagation, userns uint64 }

// tree is a file that stands for a mount which is not attached anywhere yet, or for the place it was attached to.
type tree int

func (t tree) close() { syscall.Close(int(t)) }

// trees are closed together, by who opened them: whoever is handed one attaches it and leaves it open.
type trees []tree

func (h *trees) add(t tree, err error) (tree, error) {
	if err == nil {
		*h = append(*h, t)
	}
	return t, err
}

func (h *trees) close() {
	for _, t := range *h {
		t.close()
	}
	*h = nil
}

// openTree copies the mount at path, with the mounts below it, into a detached one.
func openTree(path string) (tree, error) {
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	dir := atFdcwd
	fd, _, errno := syscall.Syscall(sysOpenTree, uintptr(dir), uintptr(unsafe.Pointer(p)),
		openTreeClone|openTreeCloexec|atRecursive)
	if errno != 0 {
		return -1, fmt.Errorf("copying the mount at %s: %w", path, errno)
	}
	return tree(fd), nil
}

// restrict adds attributes to a detached mount, and to everything below it when recursive.
func (t tree) restrict(attrs uint64, recursive bool) error {
	a := mountAttr{set: attrs}
	flags := uintptr(atEmptyPath)
	if recursive {
		flags |= atRecursive
	}
	var errno syscall.Errno
	for range busyTries {
		_, _, errno = syscall.Syscall6(sysMountSetattr, uintptr(t), uintptr(unsafe.Pointer(&emptyPath[0])), flags,
			uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a), 0)
		if errno != syscall.EBUSY {
			break
		}
		// A file on it is open for writing. It is closed already here, but a process that the host forked
		// meanwhile has a copy, which it closes at once.
		time.Sleep(busyWait)
	}
	if errno != 0 {
		return fmt.Errorf("restricting a mount: %w", errno)
	}
	return nil
}

// attach puts a detached mount at path. The tree then stands for the mounted root.
func (t tree) attach(path string) error {
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	dir := atFdcwd
	_, _, errno := syscall.Syscall6(sysMoveMount, uintptr(t), uintptr(unsafe.Pointer(&emptyPath[0])), uintptr(dir),
		uintptr(unsafe.Pointer(p)), moveFromEmpty, 0)
	if errno != 0 {
		return fmt.Errorf("mounting on %s: %w", path, errno)
	}
	return nil
}

// bind shows what is at one path at another one as well, with its mount's attributes.
func bind(from, to string) error {
	if err := syscall.Mount(from, to, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", from, to, err)
	}
	return nil
}

var emptyPath = [1]byte{}

// newFS makes a file system that is not attached anywhere. Options are "key" or "key=value".
func newFS(kind string, attrs uintptr, options ...string) (tree, error) {
	fd, err := openFS(kind)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(fd)
	for _, o := range options {
		if err := setOption(fd, o); err != nil {
			return -1, fmt.Errorf("setting option %s of %s: %w%s", o, kind, err, fsMessages(fd))
		}
	}
	if err := createFS(fd); err != nil {
		return -1, fmt.Errorf("creating file system %s: %w%s", kind, err, fsMessages(fd))
	}
	t, err := mountOf(fd, attrs)
	if err != nil {
		return -1, fmt.Errorf("making a mount of %s: %w", kind, err)
	}
	return t, nil
}

func openFS(kind string) (int, error) {
	k, err := syscall.BytePtrFromString(kind)
	if err != nil {
		return -1, err
	}
	fd, _, errno := syscall.Syscall(sysFsopen, uintptr(unsafe.Pointer(k)), fsCloexec, 0)
	if errno != 0 {
		return -1, fmt.Errorf("opening file system %s: %w", kind, errno)
	}
	return int(fd), nil
}

func createFS(fd int) error {
	if _, _, errno := syscall.Syscall6(sysFsconfig, uintptr(fd), configCreate, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func mountOf(fd int, attrs uintptr) (tree, error) {
	t, _, errno := syscall.Syscall(sysFsmount, uintptr(fd), fsCloexec, attrs)
	if errno != 0 {
		return -1, errno
	}
	return tree(t), nil
}

// setLayer gives an overlay one of its directories.
func setLayer(fd int, key string, dir int) error {
	k, err := syscall.BytePtrFromString(key)
	if err != nil {
		return err
	}
	if _, _, errno := syscall.Syscall6(sysFsconfig, uintptr(fd), configSetFD, uintptr(unsafe.Pointer(k)), 0,
		uintptr(dir), 0); errno != 0 {
		return errno
	}
	return nil
}

func setOption(fd int, option string) error {
	key, value, isString := strings.Cut(option, "=")
	k, err := syscall.BytePtrFromString(key)
	if err != nil {
		return err
	}
	cmd, v := uintptr(configSetFlag), (*byte)(nil)
	if isString {
		cmd = configSetString
		if v, err = syscall.BytePtrFromString(value); err != nil {
			return err
		}
	}
	_, _, errno := syscall.Syscall6(sysFsconfig, uintptr(fd), cmd, uintptr(unsafe.Pointer(k)),
		uintptr(unsafe.Pointer(v)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// fsMessages returns what the kernel has to say about a failed file system context.
func fsMessages(fd int) string {
	var b [512]byte
	n, err := syscall.Read(fd, b[:])
	if err != nil || n <= 2 {
		return ""
	}
	return " (" + strings.TrimSpace(string(b[2:n])) + ")"
}

// mountNew makes a file system and attaches it.
func mountNew(path, kind string, attrs uintptr, options ...string) error {
	t, err := newFS(kind, attrs, options...)
	if err != nil {
		return err
	}
	defer t.close()
	return t.attach(path)
}

// sigaction is the kernel's struct of that name; where it has no restorer, the mask takes that place.
type sigaction struct{ handler, flags, restorer, mask uintptr }

// sigIgnore is SIG_IGN, on every architecture.
const sigIgnore = 1

// ignoreSignals makes this process ignore the signals that would end it, so that nothing inside can end the
// guest by one, not even with the guest's own uid. The kernel drops what the init of a pid namespace has no
// handler for, but not always: a signal that the first thread blocks for a moment, as the Go runtime does around
// a fork, goes to another thread and ends them all if its action is the default one (complete_signal in Linux's
// kernel/signal.c, since 4.14). What the runtime lives on keeps its handler: preemption (SIGURG), children
// (SIGCHLD) and the real-time signals. A fault in the guest still ends it, without a Go stack trace.
//
// What it starts has the default actions again: the runtime resets in a child each signal that it has put a
// handler on. Two real-time signals have none (32 and 34) and stay ignored: they are those of C's thread
// libraries, which set their own action when they use them.
func ignoreSignals() error {
	const runtimes, last = 33, 34 // the one of system calls on every thread; from 35 on all have a handler
	for sig := syscall.Signal(1); sig <= last; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGURG, syscall.SIGCHLD, runtimes:
			continue
		case syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
			continue // they end nobody, stop no init, and the runtime would not reset them
		case syscall.SIGHUP, syscall.SIGINT:
			// The runtime left them alone if they were ignored already, and would in a child, unless it is asked
			// for them. To ask starts threads, which is a good part of the time until a sandbox is ready: only
			// where there is need.
			var was sigaction
			_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&was)),
				unsafe.Sizeof(was.mask), 0, 0)
			if errno != 0 {
				return fmt.Errorf("looking at signal %d: %w", sig, errno)
			}
			if was.handler == sigIgnore {
				signal.Notify(make(chan os.Signal, 1), sig)
			}
		}
		action := sigaction{handler: sigIgnore}
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0,
			unsafe.Sizeof(action.mask), 0, 0)
		if errno != 0 {
			return fmt.Errorf("ignoring signal %d: %w", sig, errno)
		}
	}
	return nil
}

// setCapabilities leaves exactly keep effective and permitted, and inherit inheritable, on every thread.
func setCapabilities(keep, inherit uint64) error {
	header := &struct {
		version uint32
		pid     int32
	}{version: capVersion3}
	data := &[2]struct{ effective, permitted, inheritable uint32 }{
		{effective: uint32(keep), permitted: uint32(keep), inheritable: uint32(inherit)},
		{effective: uint32(keep >> 32), permitted: uint32(keep >> 32), inheritable: uint32(inherit >> 32)},
	}
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(header)),
		uintptr(unsafe.Pointer(data)), 0)
	runtime.KeepAlive(header)
	runtime.KeepAlive(data)
	if errno != 0 {
		return fmt.Errorf("giving up capabilities: %w", errno)
	}
	return nil
}

// installFilter puts a seccomp program on every thread, and no_new_privs with it: the kernel takes the filter of
// a thread without no_new_privs from none but an administrator. Where the process was executed with the flag,
// every thread has it. It returns where the calls are told that the program stops for an answer, or nil where
// the kernel does not do that here; then it lets them pass.
func installFilter(program []byte) (asked *os.File, err error) {
	if len(program) == 0 || len(program)%8 != 0 || len(program)/8 > 4096 {
		return nil, fmt.Errorf("installing the system call filter: %d bytes are no program", len(program))
	}
	if have, _, errno := syscall.Syscall6(syscall.SYS_PRCTL, prGetNoNewPrivs, 0, 0, 0, 0, 0); errno != 0 || have != 1 {
		// Both calls must come from one thread; the kernel gives the flag on together with the filter. To stay
		// on it makes the runtime start another, for good.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if _, _, errno := syscall.Syscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
			return nil, fmt.Errorf("setting no_new_privs: %w", errno)
		}
	}
	if fd, errno := setFilter(program, seccompTsync|seccompListen); errno == 0 {
		if err := syscall.SetNonblock(int(fd), true); err != nil { // for the runtime's poller
			return nil, fmt.Errorf("installing the system call filter: %w", err)
		}
		return os.NewFile(fd, "seccomp"), nil
	}
	r, errno := setFilter(allowAsked(program), seccompTsync)
	if errno != 0 {
		return nil, fmt.Errorf("installing the system call filter: %w", errno)
	}
	if r != 0 {
		return nil, fmt.Errorf("installing the system call filter: thread %d could not take it", r)
	}
	return nil, nil
}

func setFilter(program []byte, flags uintptr) (uintptr, syscall.Errno) {
	prog := struct {
		n    uint16
		code *byte
	}{uint16(len(program) / 8), &program[0]}
	r, _, errno := syscall.Syscall(sysSeccomp, seccompSetFilter, flags, uintptr(unsafe.Pointer(&prog)))
	return r, errno
}

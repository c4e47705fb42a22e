package spawner

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// Each child is born in a time namespace of its own, whose clocks begin with it: else programs would see for
// how long the host has been up, by which two sandboxes know that they are on one, and somebody from outside
// when it was started again. What day it is stays the host's.

// cloneNewTime is for unshare alone: for clone the bit means something else.
const cloneNewTime = 0x80

// The clocks of a time namespace, as clock_gettime numbers them.
const (
	clockMonotonic = 1
	clockBoot      = 7
)

// openClocks opens the file by which this thread sets the clocks of the namespace that its next child is born
// in. It is -1 where the kernel has none, or enters it only by fork (before 6.1): a child that shares memory
// with its parent enters it when it executes a program.
func openClocks() int {
	if !OwnClocks() {
		return -1
	}
	path := fmt.Sprintf("/proc/%d/timens_offsets", syscall.Gettid())
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if freshClocks(fd) != 0 {
		syscall.Close(fd)
		return -1
	}
	return fd
}

// OwnClocks reports whether children of a spawner that root runs have clocks of their own.
func OwnClocks() bool {
	if _, err := os.Stat("/proc/self/timens_offsets"); err != nil {
		return false
	}
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return false
	}
	var release []byte
	for _, c := range u.Release {
		release = append(release, byte(c))
	}
	var major, minor int
	n, _ := fmt.Sscanf(string(release), "%d.%d", &major, &minor)
	return n == 2 && (major > 6 || major == 6 && minor >= 1)
}

// freshClocks makes the next child's namespace, with clocks that begin now.
func freshClocks(fd int) syscall.Errno {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_UNSHARE, cloneNewTime, 0, 0); errno != 0 {
		return errno
	}
	var b []byte
	for _, clock := range []uintptr{clockMonotonic, clockBoot} {
		var now syscall.Timespec
		if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&now)),
			0); errno != 0 {
			return errno
		}
		// Not before zero, which the kernel refuses.
		b = fmt.Appendf(b, "%d %d 0\n", clock, -int64(time.Duration(now.Nano())/time.Second))
	}
	if n, err := syscall.Write(fd, b); err != nil || n != len(b) {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = syscall.EIO
		}
		return errno
	}
	return 0
}

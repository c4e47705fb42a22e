package boot

import (
	"fmt"
	"syscall"
	"unsafe"
)

// heedNoSignals is ignoreSignals for a guest that starts programs with package spawn. What it ignored, each
// child would have to stop ignoring; what has a handler has none any more in a child. So there is one that does
// nothing, and for faults one that ends the guest when the fault is its own.
func heedNoSignals() error {
	const last, runtimes = 34, 33 // from 35 on the Go runtime has handlers; and one for system calls on every thread
	const withInfo, onStack, restart, restorer = 0x4, 0x08000000, 0x10000000, 0x04000000
	idle, fault := handlers()
	// One at a time: the runtime's stack for signals has no room for the frames of all.
	action := sigaction{flags: withInfo | onStack | restart | restorer, restorer: restorerPC(), mask: ^uintptr(0)}
	for sig := syscall.Signal(1); sig <= last; sig++ {
		action.handler = idle
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGURG, syscall.SIGCHLD, runtimes:
			continue // nobody's, or what the runtime lives on
		case syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV:
			action.handler = fault
		}
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0,
			unsafe.Sizeof(action.mask), 0, 0)
		if errno != 0 {
			return fmt.Errorf("disregarding signal %d: %w", sig, errno)
		}
	}
	return nil
}

// handlers returns where the two are, and restorerPC what the kernel has them return to.
func handlers() (idle, fault uintptr)
func restorerPC() uintptr

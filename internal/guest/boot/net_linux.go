package boot

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// linkUp raises a network interface of the current network namespace.
func linkUp(name string) error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer syscall.Close(s)
	var req struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:syscall.IFNAMSIZ-1], name)
	req.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

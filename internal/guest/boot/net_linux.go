package boot

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// Network furnishes the network namespace of the calling thread. A host that makes the namespace ahead calls it there; else the guest
// does, as root of the user namespace that the network belongs to.
func Network() error {
	// Tools have no capability, so let them bind any port of their own loopback.
	fd, err := syscall.Open("/proc/sys/net/ipv4/ip_unprivileged_port_start", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		_, err = syscall.Write(fd, []byte("0"))
		syscall.Close(fd)
	}
	if err != nil && err != syscall.ENOENT {
		return fmt.Errorf("opening low ports: %w", err)
	}
	if err := linkUp("lo"); err != nil {
		return fmt.Errorf("raising the loopback interface: %w", err)
	}
	return nil
}

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

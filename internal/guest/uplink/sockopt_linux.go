package uplink

import (
	"syscall"
	"unsafe"
)

// sockaddrOpt reads a socket option that is an IPv4 address.
func sockaddrOpt(fd uintptr, level, name int) (addr syscall.RawSockaddrInet4, err error) {
	size := uint32(unsafe.Sizeof(addr))
	_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&addr)),
		uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return addr, errno
	}
	return addr, nil
}

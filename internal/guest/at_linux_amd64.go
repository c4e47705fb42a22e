package guest

import (
	"syscall"
	"unsafe"
)

// fstatat describes name in dir without following it.
func fstatat(dir int, name string, st *syscall.Stat_t) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_NEWFSTATAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(st)),
		atNoFollow, 0, 0)
	return errnoErr(errno)
}

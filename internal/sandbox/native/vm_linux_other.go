//go:build linux && !amd64

package native

import "syscall"

const sharesMemory = false

func cloneShared(flags, stack uintptr, c *child) (pid uintptr, errno syscall.Errno) {
	return 0, syscall.ENOSYS // not called
}

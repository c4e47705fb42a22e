package native

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls are allowed calls that only this architecture has under this name.
var archCalls = []callGroup{
	{"files by path", []uint32{unix.SYS_FSTATAT}},
}

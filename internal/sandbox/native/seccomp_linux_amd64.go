package native

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// archCalls are the older forms of allowed calls that newer architectures never had.
var archCalls = []callGroup{
	{"files by path, without a directory descriptor", []uint32{
		unix.SYS_OPEN, unix.SYS_CREAT, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_ACCESS, unix.SYS_READLINK,
		unix.SYS_GETDENTS, unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_MKNOD, unix.SYS_UNLINK, unix.SYS_SYMLINK, unix.SYS_LINK,
		unix.SYS_RENAME, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT}},
	{"descriptors and events without flags", []uint32{
		unix.SYS_PIPE, unix.SYS_DUP2, unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD,
		unix.SYS_SIGNALFD, unix.SYS_INOTIFY_INIT, unix.SYS_PAUSE, unix.SYS_ALARM, unix.SYS_TIME}},
	{"processes", []uint32{unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_GETPGRP}},
	{"thread pointers and segments of 64-bit x86", []uint32{unix.SYS_ARCH_PRCTL, unix.SYS_MODIFY_LDT}},
}

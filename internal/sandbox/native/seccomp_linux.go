package native

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// callGroup is a part of the allow-list: system calls and why they are on it.
type callGroup struct {
	why   string
	calls []uint32
}

// allowedCalls is what processes inside may ask of the kernel, whatever the arguments. It is an allow-list: a
// call that is not here, in archCalls or in checkedCalls fails with EPERM, and one that did not exist when this
// was written with ENOSYS, so that programs fall back. Left out on purpose, besides everything that needs a
// capability nobody inside has:
//
//   - mount, umount2, pivot_root, fsopen and its family, open_tree, move_mount, mount_setattr, setns, unshare: no new views
//   - bpf, perf_event_open, userfaultfd, io_uring_*, process_vm_*, pidfd_getfd, kcmp: kernel surface with a history
//   - keyctl, add_key, request_key: keyrings are not namespaced
//   - open_by_handle_at, name_to_handle_at, fanotify_*, lookup_dcookie: reach files by other ways than their path
//   - io_submit and its family, since io_setup is refused
//   - kexec_*, *_module, reboot, swap*, syslog, acct, quotactl, *settime*, adjtimex: administration
//
// ptrace is on the list: debuggers are ordinary tools. It cannot reach the guest, which is not dumpable, and
// since Linux 4.8 the filter is applied to what a tracer makes its tracee do.
var allowedCalls = []callGroup{
	{"reading and writing files and sockets", []uint32{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_PREADV,
		unix.SYS_PWRITEV, unix.SYS_PREADV2, unix.SYS_PWRITEV2, unix.SYS_LSEEK, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_TEE,
		unix.SYS_VMSPLICE, unix.SYS_COPY_FILE_RANGE, unix.SYS_READAHEAD, unix.SYS_FADVISE64}},
	{"opening, closing and copying descriptors", []uint32{
		unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_FCNTL,
		unix.SYS_PIPE2, unix.SYS_FLOCK, unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET}},
	{"metadata, names and directories", []uint32{
		unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2,
		unix.SYS_READLINKAT, unix.SYS_GETDENTS64, unix.SYS_GETCWD, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_MKDIRAT,
		unix.SYS_MKNODAT, unix.SYS_UNLINKAT, unix.SYS_SYMLINKAT, unix.SYS_LINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2,
		unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
		unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_UMASK, unix.SYS_CACHESTAT}},
	{"extended attributes", []uint32{
		unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR, unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
		unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLISTXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR,
		unix.SYS_FREMOVEXATTR}},
	{"making data durable", []uint32{
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE, unix.SYS_MSYNC}},
	{"waiting for events", []uint32{
		unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2,
		unix.SYS_EVENTFD2, unix.SYS_SIGNALFD4, unix.SYS_TIMERFD_CREATE, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME,
		unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH}},
	{"memory", []uint32{
		unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MINCORE,
		unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MUNLOCK, unix.SYS_MLOCKALL, unix.SYS_MUNLOCKALL, unix.SYS_MEMBARRIER,
		unix.SYS_PKEY_MPROTECT, unix.SYS_PKEY_ALLOC, unix.SYS_PKEY_FREE, unix.SYS_REMAP_FILE_PAGES, unix.SYS_GET_MEMPOLICY,
		unix.SYS_MSEAL, unix.SYS_MAP_SHADOW_STACK}},
	{"processes", []uint32{
		unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_GETPID,
		unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETPGID, unix.SYS_SETPGID, unix.SYS_GETSID, unix.SYS_SETSID,
		unix.SYS_PTRACE, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_PROCESS_MRELEASE,
		unix.SYS_SET_TID_ADDRESS, unix.SYS_RSEQ, unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE,
		unix.SYS_LANDLOCK_RESTRICT_SELF}},
	{"identities: the guest becomes the tool with them, and without capabilities they change nothing", []uint32{
		unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID,
		unix.SYS_GETGROUPS, unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID,
		unix.SYS_SETRESGID, unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPGET, unix.SYS_CAPSET}},
	{"signals", []uint32{
		unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGPENDING,
		unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_RT_SIGSUSPEND, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL}},
	{"threads and locks", []uint32{
		unix.SYS_FUTEX, unix.SYS_FUTEX_WAITV, unix.SYS_FUTEX_WAIT, unix.SYS_FUTEX_WAKE, unix.SYS_FUTEX_REQUEUE,
		unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST}},
	{"scheduling", []uint32{
		unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_GETPARAM,
		unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_GETATTR,
		unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_SCHED_RR_GET_INTERVAL,
		unix.SYS_GETPRIORITY, unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_GET, unix.SYS_IOPRIO_SET, unix.SYS_GETCPU}},
	{"time, read only", []uint32{
		unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_NANOSLEEP, unix.SYS_GETTIMEOFDAY,
		unix.SYS_TIMES, unix.SYS_GETITIMER, unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_DELETE,
		unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_GETTIME, unix.SYS_TIMER_SETTIME}},
	{"limits and facts", []uint32{
		unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT, unix.SYS_GETRUSAGE, unix.SYS_UNAME, unix.SYS_GETRANDOM}},
	{"sockets, once made: socket itself is checked", []uint32{
		unix.SYS_SOCKETPAIR, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_CONNECT,
		unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_RECVFROM,
		unix.SYS_RECVMSG, unix.SYS_RECVMMSG, unix.SYS_SHUTDOWN, unix.SYS_GETSOCKOPT}},
	{"System V and POSIX IPC, in a namespace of their own", []uint32{
		unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMDT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP,
		unix.SYS_SEMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
		unix.SYS_MQ_TIMEDSEND, unix.SYS_MQ_TIMEDRECEIVE, unix.SYS_MQ_NOTIFY, unix.SYS_MQ_GETSETATTR}},
}

// checkedCalls are allowed or refused by their arguments.
var checkedCalls = []checked{
	{unix.SYS_CLONE, "threads and processes, but no namespaces", []clause{
		{when: []cond{{arg: 0, bits: newNamespaces}}, then: errno(unix.EPERM)},
	}, allow},
	{unix.SYS_CLONE3, "its flags lie in memory where no filter can see them; the C libraries fall back to clone", nil,
		errno(unix.ENOSYS)},
	// One call would take the whole disk at once, before anybody looks (keepReserve). Programs take this answer
	// for that of a file system that cannot, and write instead, which the limits and the reserve see.
	{unix.SYS_FALLOCATE, "freeing room, and taking less than maxAllocate of it", []clause{
		{when: []cond{{arg: 1, bits: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_COLLAPSE_RANGE}}, then: allow},
		{when: []cond{{arg: 3, bits: -maxAllocate & 0xffffffff}}, then: errno(unix.EOPNOTSUPP)},
		{when: []cond{{arg: 3, high: true, bits: 0xffffffff}}, then: errno(unix.EOPNOTSUPP)},
	}, allow},
	{unix.SYS_SOCKET, "local, TCP and UDP sockets, and netlink to read addresses and routes", []clause{
		{when: []cond{is(0, unix.AF_UNIX)}, then: allow},
		{when: []cond{is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE)}, then: allow},
		{when: []cond{is(0, unix.AF_NETLINK)}, then: errno(unix.EPROTONOSUPPORT)},
		// packet, alg, vsock, bluetooth, ...
		{when: []cond{notIn(0, unix.AF_INET, unix.AF_INET6)}, then: errno(unix.EAFNOSUPPORT)},
		{when: []cond{masked(1, socketType, unix.SOCK_STREAM), notIn(2, 0, unix.IPPROTO_TCP)},
			then: errno(unix.EPROTONOSUPPORT)},
		{when: []cond{masked(1, socketType, unix.SOCK_STREAM)}, then: allow},
		{when: []cond{masked(1, socketType, unix.SOCK_DGRAM), notIn(2, 0, unix.IPPROTO_UDP)},
			then: errno(unix.EPROTONOSUPPORT)},
		{when: []cond{masked(1, socketType, unix.SOCK_DGRAM)}, then: allow},
	}, errno(unix.EPERM)}, // raw, seqpacket (SCTP), DCCP
	// The kernel keeps every program of a filter in memory of which the whole host has one share
	// (net.core.bpf_jit_limit), counted against no sandbox: who takes all of it keeps every other process of the
	// host from installing one.
	{unix.SYS_SETSOCKOPT, "all but programs that filter packets", []clause{
		{when: []cond{is(1, unix.SOL_SOCKET), isIn(2, unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF,
			unix.SO_ATTACH_REUSEPORT_CBPF,
			unix.SO_ATTACH_REUSEPORT_EBPF)}, then: errno(unix.ENOPROTOOPT)},
	}, allow},
	{unix.SYS_SECCOMP, "asking what there is, and the strict mode, but no programs; what a kernel without them answers",
		[]clause{
			{when: []cond{is(0, unix.SECCOMP_SET_MODE_FILTER)}, then: errno(unix.EINVAL)},
		}, allow},
	{unix.SYS_PRCTL, "all but the older way to a program", []clause{
		{when: []cond{is(0, unix.PR_SET_SECCOMP), is(1, unix.SECCOMP_MODE_FILTER)}, then: errno(unix.EINVAL)},
	}, allow},
	{unix.SYS_IO_SETUP, "of its contexts the whole host has a number (fs.aio-max-nr); databases do without", nil,
		errno(unix.ENOSYS)},
	{unix.SYS_IOCTL, "all but putting input into a terminal, by which a child takes over its parent's", []clause{
		{when: []cond{is(1, unix.TIOCSTI)}, then: errno(unix.EPERM)},
		{when: []cond{is(1, unix.TIOCLINUX)}, then: errno(unix.EPERM)},
	}, allow},
	{unix.SYS_PERSONALITY, "asking, the usual one, and no address randomization for debuggers", []clause{
		{when: []cond{notIn(0, 0, 0x8, 0x20000, 0x20008, 0x40000, 0xffffffff)}, then: errno(unix.EPERM)},
	}, allow},
	{unix.SYS_SYSINFO, "the guest says how large the sandbox is: the kernel would speak of the host", nil,
		unix.SECCOMP_RET_USER_NOTIF},
	{unix.SYS_PRLIMIT64, "one's own limits: with a shared identity, another's would include the guest's", []clause{
		{when: []cond{is(0, 0)}, then: allow},
	}, errno(unix.EPERM)},
}

const (
	newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET
	maxAllocate = 64 << 20 // a power of two

	socketType = 0xf // the rest of the argument are flags

	// lastCall is the newest system call that was considered; numbers above it answer ENOSYS.
	lastCall = 462
)

// filterBytes returns the program in the form the kernel reads.
var filterBytes = sync.OnceValue(func() []byte {
	out := make([]byte, 0, 8*1024)
	for _, in := range filter() {
		out = binary.NativeEndian.AppendUint16(out, in.Code)
		out = append(out, in.Jt, in.Jf)
		out = binary.NativeEndian.AppendUint32(out, in.K)
	}
	return out
})

// filter compiles the lists above for this architecture.
func filter() []unix.SockFilter {
	blocks := make([][]unix.SockFilter, lastCall+1)
	refuse := []unix.SockFilter{ret(errno(unix.EPERM))}
	for i := range blocks {
		blocks[i] = refuse
	}
	accept := []unix.SockFilter{ret(allow)}
	for _, groups := range [][]callGroup{allowedCalls, archCalls} {
		for _, g := range groups {
			for _, nr := range g.calls {
				blocks[nr] = accept
			}
		}
	}
	for i := range checkedCalls {
		blocks[checkedCalls[i].call] = checkedCalls[i].compile()
	}
	// Numbers above lastCall; on amd64 that includes every x32 call, which has bit 30 set.
	segments := append(merge(blocks), segment{first: lastCall + 1, code: []unix.SockFilter{ret(errno(unix.ENOSYS))}})
	head := []unix.SockFilter{
		load(offArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1},
		ret(unix.SECCOMP_RET_KILL_PROCESS), // another architecture's numbers mean other calls
		load(offNumber),
	}
	return append(head, search(segments)...)
}

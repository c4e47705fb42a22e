package native

import (
	"testing"

	"golang.org/x/sys/unix"
)

// verdict runs the program as the kernel would.
func verdict(t *testing.T, arch, nr uint32, args ...uint32) uint32 {
	t.Helper()
	data := map[uint32]uint32{offNumber: nr, offArch: arch}
	for i, a := range args {
		data[offArgs+8*uint32(i)] = a
	}
	program := filter()
	var acc uint32
	for pc, steps := 0, 0; ; steps++ {
		if pc >= len(program) || steps > 200 {
			t.Fatalf("call %d: no verdict after %d steps", nr, steps)
		}
		in := program[pc]
		pc++
		jump := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = data[in.K]
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= in.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(acc == in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(acc >= in.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(acc&in.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("call %d: unknown instruction %+v", nr, in)
		}
	}
}

// TestFilter: the compiled program would decide otherwise than the lists say, for some number or argument.
func TestFilter(t *testing.T) {
	want := map[uint32]uint32{}
	for nr := range uint32(lastCall + 1) {
		want[nr] = errno(unix.EPERM)
	}
	for _, groups := range [][]callGroup{allowedCalls, archCalls} {
		for _, g := range groups {
			for _, nr := range g.calls {
				if want[nr] == allow {
					t.Errorf("call %d is listed twice", nr)
				}
				want[nr] = allow
			}
		}
	}
	for _, c := range checkedCalls {
		if want[c.call] == allow {
			t.Errorf("call %d is both allowed and checked", c.call)
		}
		delete(want, c.call)
	}
	for nr, v := range want {
		if got := verdict(t, auditArch, nr); got != v {
			t.Errorf("call %d: %#x, want %#x", nr, got, v)
		}
	}
	for _, nr := range []uint32{lastCall + 1, 9999, 1 << 30, 1<<30 | unix.SYS_READ, ^uint32(0)} {
		if got := verdict(t, auditArch, nr); got != errno(unix.ENOSYS) {
			t.Errorf("unknown call %#x: %#x", nr, got)
		}
	}
	for _, arch := range []uint32{0, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, ^uint32(0)} {
		if got := verdict(t, arch, unix.SYS_READ); got != unix.SECCOMP_RET_KILL_PROCESS {
			t.Errorf("architecture %#x: %#x", arch, got)
		}
	}
	for _, c := range []struct {
		nr   uint32
		args []uint32
		want uint32
	}{
		{unix.SYS_CLONE, []uint32{uint32(unix.SIGCHLD)}, allow},
		{unix.SYS_CLONE, []uint32{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, allow},
		{unix.SYS_CLONE, []uint32{unix.CLONE_NEWUSER | uint32(unix.SIGCHLD)}, errno(unix.EPERM)},
		{unix.SYS_CLONE, []uint32{unix.CLONE_NEWNET}, errno(unix.EPERM)},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP}, allow},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET6, unix.SOCK_DGRAM, 0}, allow},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, errno(unix.EPROTONOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, errno(unix.EPROTONOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, errno(unix.EPERM)},
		{unix.SYS_SOCKET, []uint32{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, errno(unix.EAFNOSUPPORT)},
		{unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allow},
		{unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, errno(unix.EPROTONOSUPPORT)},
		{unix.SYS_IOCTL, []uint32{0, unix.TCGETS}, allow},
		{unix.SYS_IOCTL, []uint32{0, unix.TIOCSTI}, errno(unix.EPERM)},
		{unix.SYS_PERSONALITY, []uint32{0xffffffff}, allow},
		{unix.SYS_PERSONALITY, []uint32{0x0800000}, errno(unix.EPERM)},
		{unix.SYS_PRLIMIT64, []uint32{0}, allow},
		{unix.SYS_PRLIMIT64, []uint32{1}, errno(unix.EPERM)},
		{unix.SYS_CLONE3, nil, errno(unix.ENOSYS)},
		{unix.SYS_IO_SETUP, []uint32{1}, errno(unix.ENOSYS)},
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, errno(unix.ENOPROTOOPT)},
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_SOCKET, unix.SO_ATTACH_BPF}, errno(unix.ENOPROTOOPT)},
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF}, errno(unix.ENOPROTOOPT)},
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF}, errno(unix.ENOPROTOOPT)},
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_SOCKET, unix.SO_DETACH_FILTER}, allow},
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_SOCKET, unix.SO_KEEPALIVE}, allow},
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.IPPROTO_TCP, unix.TCP_CC_INFO}, allow},
		// 51, too, of another level
		{unix.SYS_SETSOCKOPT, []uint32{3, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT}, allow},
		{unix.SYS_SECCOMP, []uint32{unix.SECCOMP_SET_MODE_FILTER}, errno(unix.EINVAL)},
		{unix.SYS_SECCOMP, []uint32{unix.SECCOMP_GET_ACTION_AVAIL}, allow},
		{unix.SYS_PRCTL, []uint32{unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER}, errno(unix.EINVAL)},
		{unix.SYS_PRCTL, []uint32{unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_STRICT}, allow},
		{unix.SYS_PRCTL, []uint32{unix.PR_SET_NAME, unix.SECCOMP_MODE_FILTER}, allow},
	} {
		if got := verdict(t, auditArch, c.nr, c.args...); got != c.want {
			t.Errorf("call %d %v: %#x, want %#x", c.nr, c.args, got, c.want)
		}
	}
	if n := len(filter()); n > 4096 {
		t.Errorf("%d instructions are more than the kernel takes", n)
	}
}

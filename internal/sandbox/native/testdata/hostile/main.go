//go:build linux

// Hostile is what the tests of package native run inside a sandbox, and on the host for control. Each subcommand
// tries one thing and prints what the kernel said.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

func main() {
	commands := map[string]func([]string){
		"calls": calls, "sockets": sockets, "guest": guest, "fork": fork, "sleep": sleep, "memory": memory, "ids": ids,
		"dial": dial, "loopback": loopback, "fds": fds, "spin": spin, "nest": nest, "cat": cat, "signal": sendSignal, "mapped": mapped,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "hostile: unknown subcommand")
		os.Exit(2)
	}
	commands[os.Args[1]](os.Args[2:])
}

func report(name string, err error) {
	errno, ok := err.(syscall.Errno)
	switch {
	case err == nil, ok && errno == 0:
		fmt.Println(name, "ok")
	case ok:
		fmt.Println(name, unix.ErrnoName(errno))
	default:
		fmt.Println(name, strings.ReplaceAll(err.Error(), " ", "_"))
	}
}

// calls tries system calls that no process inside may make, with arguments that make each fail harmlessly where
// it is allowed.
func calls([]string) {
	minus := ^uintptr(0)
	for _, c := range []struct {
		name string
		nr   uintptr
		args [5]uintptr
	}{
		{"mount", unix.SYS_MOUNT, [5]uintptr{}},
		{"umount2", unix.SYS_UMOUNT2, [5]uintptr{}},
		{"pivot_root", unix.SYS_PIVOT_ROOT, [5]uintptr{}},
		{"chroot", unix.SYS_CHROOT, [5]uintptr{}},
		{"fsopen", unix.SYS_FSOPEN, [5]uintptr{}},
		{"fsmount", unix.SYS_FSMOUNT, [5]uintptr{minus}},
		{"open_tree", unix.SYS_OPEN_TREE, [5]uintptr{minus}},
		{"move_mount", unix.SYS_MOVE_MOUNT, [5]uintptr{minus}},
		{"mount_setattr", unix.SYS_MOUNT_SETATTR, [5]uintptr{minus}},
		{"setns", unix.SYS_SETNS, [5]uintptr{minus}},
		{"unshare user", unix.SYS_UNSHARE, [5]uintptr{unix.CLONE_NEWUSER}},
		{"unshare mount", unix.SYS_UNSHARE, [5]uintptr{unix.CLONE_NEWNS}},
		{"clone user", unix.SYS_CLONE, [5]uintptr{unix.CLONE_NEWUSER | unix.CLONE_FS}},
		{"clone mount", unix.SYS_CLONE, [5]uintptr{unix.CLONE_NEWNS | unix.CLONE_FS}},
		{"clone net", unix.SYS_CLONE, [5]uintptr{unix.CLONE_NEWNET | unix.CLONE_SIGHAND}},
		{"clone3", unix.SYS_CLONE3, [5]uintptr{}},
		{"bpf", unix.SYS_BPF, [5]uintptr{9999}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [5]uintptr{}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [5]uintptr{1}},
		{"io_uring_enter", unix.SYS_IO_URING_ENTER, [5]uintptr{minus}},
		{"io_uring_register", unix.SYS_IO_URING_REGISTER, [5]uintptr{minus}},
		{"userfaultfd", unix.SYS_USERFAULTFD, [5]uintptr{minus}},
		{"keyctl", unix.SYS_KEYCTL, [5]uintptr{9999}},
		{"add_key", unix.SYS_ADD_KEY, [5]uintptr{}},
		{"request_key", unix.SYS_REQUEST_KEY, [5]uintptr{}},
		{"kexec_load", unix.SYS_KEXEC_LOAD, [5]uintptr{0, 9999, 0, 0xffff}},
		{"init_module", unix.SYS_INIT_MODULE, [5]uintptr{}},
		{"delete_module", unix.SYS_DELETE_MODULE, [5]uintptr{}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [5]uintptr{minus}},
		{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, [5]uintptr{minus}},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, [5]uintptr{0xffff}},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [5]uintptr{uintptr(os.Getpid())}},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, [5]uintptr{uintptr(os.Getpid())}},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, [5]uintptr{minus}},
		{"kcmp", unix.SYS_KCMP, [5]uintptr{uintptr(os.Getpid()), uintptr(os.Getpid()), 99}},
		{"reboot", unix.SYS_REBOOT, [5]uintptr{1, 2, 3}},
		{"swapon", unix.SYS_SWAPON, [5]uintptr{}},
		{"syslog", unix.SYS_SYSLOG, [5]uintptr{99}},
		{"acct", unix.SYS_ACCT, [5]uintptr{1}},
		{"quotactl", unix.SYS_QUOTACTL, [5]uintptr{minus}},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, [5]uintptr{}},
		{"clock_settime", unix.SYS_CLOCK_SETTIME, [5]uintptr{999}},
		{"adjtimex", unix.SYS_ADJTIMEX, [5]uintptr{}},
		{"sethostname", unix.SYS_SETHOSTNAME, [5]uintptr{0, minus}},
		{"vhangup", unix.SYS_VHANGUP, [5]uintptr{}},
		{"ioctl TIOCSTI", unix.SYS_IOCTL, [5]uintptr{minus, unix.TIOCSTI}},
		{"io_setup", unix.SYS_IO_SETUP, [5]uintptr{}},
		{"seccomp filter", unix.SYS_SECCOMP, [5]uintptr{unix.SECCOMP_SET_MODE_FILTER}},
		{"prctl filter", unix.SYS_PRCTL, [5]uintptr{unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER}},
		{"personality", unix.SYS_PERSONALITY, [5]uintptr{0x0400000}},
	} {
		if c.name == "vhangup" && os.Getenv("CONTROL") != "" {
			report("vhangup", nil) // would hang up the tester's terminal
			continue
		}
		_, _, errno := syscall.RawSyscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], 0)
		report(strings.ReplaceAll(c.name, " ", "_"), errno)
	}
	// Calls that ordinary programs need, from the same process.
	_, err := os.ReadFile("/proc/self/status")
	report("ordinary_open", err)
	report("ordinary_exec", exec.Command("/proc/self/exe", "ids").Run())
	report("ordinary_prlimit", unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &unix.Rlimit{}))
}

func sockets([]string) {
	for _, s := range []struct {
		name                string
		family, kind, proto int
	}{
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"packet_dgram", unix.AF_PACKET, unix.SOCK_DGRAM, 0},
		{"alg", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"raw_icmp", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"raw_tcp6", unix.AF_INET6, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP},
		{"dgram_icmp", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		{"sctp", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		{"sctp_seqpacket", unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP},
		{"dccp", unix.AF_INET, unix.SOCK_DCCP, unix.IPPROTO_DCCP},
		{"netlink_uevent", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
		{"netlink_audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{"netlink_netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		{"key", unix.AF_KEY, unix.SOCK_RAW, 2},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 0},
		{"tcp", unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0},
		{"tcp6", unix.AF_INET6, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP},
		{"udp", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP},
		{"mptcp", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP},
		{"mptcp6", unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP},
		{"unix", unix.AF_UNIX, unix.SOCK_SEQPACKET, 0},
		{"netlink_route", unix.AF_NETLINK, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE},
	} {
		fd, err := unix.Socket(s.family, s.kind, s.proto)
		if err == nil {
			unix.Close(fd)
		}
		report(s.name, err)
	}
}

// guest attacks process 1, then a child of its own for control.
func guest([]string) {
	attack := func(name string, pid int) {
		dir := "/proc/" + strconv.Itoa(pid)
		for _, f := range []string{"mem", "environ", "maps"} {
			h, err := os.Open(dir + "/" + f)
			if err == nil {
				_, err = h.Read(make([]byte, 1))
				if f == "mem" && err != nil {
					err = nil // opening was the question: address 0 is not mapped
				}
				h.Close()
			}
			report(name+"_"+f, failure(err))
		}
		_, err := os.ReadDir(dir + "/fd")
		report(name+"_fd", failure(err))
		_, err = os.ReadDir(dir + "/root/")
		report(name+"_root", failure(err))
		report(name+"_ptrace", unix.PtraceSeize(pid))
		var limit unix.Rlimit
		report(name+"_prlimit", unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit))
	}
	attack("init", 1)
	child := exec.Command("/proc/self/exe", "sleep")
	child.Env = []string{"X=1"}
	said, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err == nil {
		_, err = said.Read(make([]byte, 1)) // from here on the kernel shows its new environment
	}
	if err != nil {
		report("child", err)
		return
	}
	attack("child", child.Process.Pid)
	child.Process.Kill()
	child.Wait()
}

// failure strips what os adds to an errno.
func failure(err error) error {
	switch {
	case err == nil:
		return nil
	case os.IsPermission(err):
		return syscall.EACCES
	case os.IsNotExist(err):
		return syscall.ENOENT
	}
	return err
}

// sendSignal sends a list of signals to a pid.
func sendSignal(args []string) {
	pid, _ := strconv.Atoi(args[0])
	for _, s := range args[1:] {
		n, _ := strconv.Atoi(s)
		report("signal_"+s, unix.Kill(pid, syscall.Signal(n)))
	}
}

// fork starts n children that stay, and reports how many there were.
func fork(args []string) {
	n, _ := strconv.Atoi(args[0])
	var started int
	for range n {
		// A raw fork costs no memory to speak of and, unlike os/exec, no thread of this process.
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			break
		}
		if pid == 0 {
			for {
				syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		}
		started++
	}
	fmt.Println("forked", started)
}

func sleep([]string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("asleep")
	<-signals
}

func spin([]string) {
	for { //nolint:staticcheck // a process that wants all the time it can get
	}
}

// memory touches n MiB.
func memory(args []string) {
	n, _ := strconv.Atoi(args[0])
	b, err := unix.Mmap(-1, 0, n<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		report("memory", err)
		os.Exit(1)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	fmt.Println("touched", n)
}

// mapped keeps a page of a file mapped, and writes into it each time a signal comes, which no system call shows.
func mapped(args []string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		report("mapped", err)
		os.Exit(1)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		report("mapped", err)
		os.Exit(1)
	}
	for i := byte('a'); ; i++ {
		b[0] = i
		fmt.Println("wrote", string(rune(i)))
		<-signals
	}
}

// ids prints who this process is after whatever its file's bits did.
func ids([]string) {
	status, _ := os.ReadFile("/proc/self/status")
	caps := "?"
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps = strings.TrimSpace(v)
		}
	}
	fmt.Println("euid", os.Geteuid(), "egid", os.Getegid(), "caps", caps)
}

func dial(args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var d net.Dialer
	for _, a := range args {
		network := "tcp"
		if strings.HasPrefix(a, "/") || strings.HasPrefix(a, "@") {
			network = "unix"
		}
		c, err := d.DialContext(ctx, network, a)
		if err == nil {
			c.Close()
			fmt.Println(a, "connected")
		} else {
			fmt.Println(a, "refused")
		}
	}
}

// loopback lists interfaces and talks to itself.
func loopback([]string) {
	list, err := net.Interfaces()
	if err != nil {
		report("interfaces", err)
		return
	}
	for _, i := range list {
		fmt.Println("interface", i.Name, i.Flags&net.FlagUp != 0)
	}
	l, err := net.Listen("tcp", "127.0.0.1:80")
	if err != nil {
		fmt.Println("listen", err)
		return
	}
	dial([]string{l.Addr().String()})
}

// fds lists the descriptors this process was given.
func fds([]string) {
	for fd := 3; fd < 1024; fd++ {
		var st unix.Stat_t
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		// the runtime's own are close-on-exec
		if err == nil && flags&unix.FD_CLOEXEC == 0 && unix.Fstat(fd, &st) == nil {
			fmt.Println("fd", fd)
		}
	}
	fmt.Println("done")
}

// nest tries to make a sandbox here.
func nest(args []string) {
	p, err := native.New(native.Config{Dir: args[0], Guest: args[1]})
	if err == nil {
		id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
		_, err = p.Create(context.Background(), sandbox.Spec{ID: id, Generation: "nested"})
		left, _ := p.List(context.Background())
		fmt.Println("left", len(left))
	}
	fmt.Println("kind", outboard.KindOf(err), err)
}

// cat tries to read paths.
func cat(args []string) {
	for _, path := range args {
		b, err := os.ReadFile(path)
		if err != nil {
			fmt.Println(path, "unreadable")
			continue
		}
		fmt.Printf("%s read %q\n", path, b[:min(len(b), 100)])
	}
}

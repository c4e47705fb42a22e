//go:build linux

package native_test

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/spawner"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// canary is what no process inside may ever see.
const canary = "canary-0f5e2c"

// TestHostIsAbsent: a tool could read the host's secrets, processes or mounts.
func TestHostIsAbsent(t *testing.T) {
	p, dir := newProvider(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(canary), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OUTBOARD_TEST_CANARY", canary)
	b := create(t, p, sandbox.Spec{})
	paths := []string{secret, "/proc/1/root" + secret, "/proc/self/root" + secret, "/workspace/../../.." + secret, dir,
		"/etc/shadow", "/etc/gshadow",
		"/etc/ssh/sshd_config", "/etc/machine-id", "/etc/fstab", "/proc/1/environ", "/proc/kcore", "/proc/pressure/memory", "/proc/sysrq-trigger", "/dev/kmsg", "/dev/mem",
		"/dev/vda", "/dev/sda", "/sys/kernel/uevent_seqnum", "/sys/fs/cgroup/cgroup.procs"}
	out, _ := b.run(t, append([]string{"/workspace/hostile", "cat"}, paths...)...)
	for _, path := range paths {
		if !strings.Contains(out, path+" unreadable\n") {
			t.Errorf("%s can be read inside:\n%s", path, out)
		}
	}
	if got := onHost(t, "cat", secret)[secret]; !strings.Contains(got, canary) {
		t.Errorf("control: the host cannot read its own file: %s", got)
	}
	if got := b.hostile(t, "cat", "/etc/passwd")["/etc/passwd"]; !strings.Contains(got, "root:x:0:0") {
		t.Errorf("control: ordinary files cannot be read inside: %s", got)
	}
	for script, want := range map[string]string{
		"ls /root /home /mnt /run /srv /opt /boot /media /lost+found 2>/dev/null | sort | tr '\\n' ' '": "",
		"env; cat /proc/self/environ": "",
		"cat /proc/self/mountinfo":    "",
	} {
		out := b.sh(t, script)
		if strings.Contains(out, canary) || strings.Contains(out, dir) || want != "" && out != want {
			t.Errorf("%s shows the host:\n%s", script, out)
		}
	}
	if entries, err := os.ReadDir("/home"); err == nil {
		for _, e := range entries {
			if got := b.sh(t, "ls /home"); slices.Contains(strings.Fields(got), e.Name()) && e.Name() != "agent" {
				t.Errorf("host home %s exists inside", e.Name())
			}
		}
	}
	if got := b.sh(t, "hostname; cat /proc/sys/kernel/hostname"); got != "outboard\noutboard\n" {
		t.Errorf("hostname inside is %q", got)
	}
}

// TestDisksAreHidden: a sandbox would show which disks the host has, and with which file systems.
func TestDisksAreHidden(t *testing.T) {
	table, err := os.ReadFile("/proc/partitions")
	if err != nil {
		t.Fatal(err)
	}
	var disks []string
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "major" {
			disks = append(disks, f[3])
		}
	}
	if len(disks) == 0 {
		t.Skip("the host has no disks")
	}
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	out := b.sh(t, "cat /proc/partitions /proc/diskstats /proc/swaps /proc/mdstat /proc/devices 2>/dev/null; find "+
		"/proc/fs /sys -mindepth 1 2>/dev/null; ls -A /dev; ls -d /proc/fs")
	words := strings.FieldsFunc(out, func(r rune) bool { return r == '/' || r == ' ' || r == '\n' })
	for _, disk := range append(disks, "Block", "ext4", "xfs", "jbd2") {
		if slices.Contains(words, disk) {
			t.Errorf("%s shows inside", disk)
		}
	}
	if !slices.Contains(words, "fs") || !slices.Contains(words, "memory.max") || !slices.Contains(words, "null") {
		t.Errorf("control: it was not looked there: %q", out)
	}
}

// TestBootID: a sandbox would show the host's boot id, by which two sandboxes know that they are neighbours, or
// another each time it is asked; one that is made ahead, or a later machine, would have another's; or a tool
// could write it.
func TestBootID(t *testing.T) {
	read := func(b *testSandbox) string { return strings.TrimSpace(b.sh(t, "cat /proc/sys/kernel/random/boot_id")) }
	host, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{strings.TrimSpace(string(host)): true}
	p, _ := newProvider(t)
	for range 4 { // the later ones are made ahead
		b := create(t, p, sandbox.Spec{})
		id := read(b)
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).
			MatchString(id) || seen[id] {
			t.Errorf("a boot id of %q, after %v", id, seen)
		}
		seen[id] = true
		if again := read(b); again != id {
			t.Errorf("first %s, then %s", id, again)
		}
		if out, _ := b.run(t, "sh", "-c", "echo x >/proc/sys/kernel/random/boot_id; chmod 777 "+
			"/proc/sys/kernel/random/boot_id; rm -f /proc/sys/kernel/random/boot_id"); read(b) != id {
			t.Errorf("a tool has changed it: %s", out)
		}
		if a, b := b.sh(t, "cat /proc/sys/kernel/random/uuid"), b.sh(t, "cat /proc/sys/kernel/random/uuid"); a == b {
			t.Errorf("the control: a random UUID twice, %s", a)
		}
	}
}

// TestUptime: a program would see for how long the host has been up, and two sandboxes that they are on one, by
// any of the clocks that count from there; or a sandbox that is made ahead, or a process in it, would be older
// than the sandbox.
func TestUptime(t *testing.T) {
	if !isRoot() || !spawner.OwnClocks() {
		t.Skip("needs root, and a kernel of 6.1 or later")
	}
	p, _ := newProvider(t)
	began := time.Now()
	const look = `cut -d. -f1 /proc/uptime; python3 -c 'import time; print(int(time.monotonic()), int(time.clock_gettime(time.CLOCK_BOOTTIME)))'
awk '/btime/{print $2}' /proc/stat; set -- $(sed 's/.*) //' /proc/self/stat); echo $((${20} / $(getconf CLK_TCK)))`
	for range 3 { // the later ones are made ahead
		b := create(t, p, sandbox.Spec{})
		out := b.sh(t, look)
		var uptime, monotonic, boot, born, started int64
		if n, err := fmt.Sscan(out, &uptime, &monotonic, &boot, &born, &started); n != 5 {
			t.Fatalf("%q: %v", out, err)
		}
		most := int64(time.Since(began).Seconds()) + 3
		for name, age := range map[string]int64{"/proc/uptime": uptime, "monotonic": monotonic, "boot time": boot,
			"its own start": started,
			"/proc/stat":    time.Now().Unix() - born} {
			if age < 0 || age > most {
				t.Errorf("%s says %d s, of at most %d", name, age, most)
			}
		}
		if out := b.sh(t, "sleep 0.2; date +%s"); strings.TrimSpace(out) < strconv.FormatInt(began.Unix(), 10) {
			t.Errorf("the control: the time is %s", out)
		}
	}
}

// TestMountsAreOurs: a mount of the host would have stayed in the sandbox's tree, or one of ours would miss a
// restriction.
func TestMountsAreOurs(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	allowed := []string{"/", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/dev", "/proc", "/sys",
		"/tmp",
		"/workspace", "/mnt", "/home"} // the layers, where there are some
	out := b.sh(t, "cat /proc/self/mountinfo")
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		point, options := f[4], strings.Split(f[5], ",")
		top := "/" + strings.Split(point, "/")[1]
		if !slices.Contains(allowed, top) {
			t.Errorf("unexpected mount: %s", line)
		}
		if !slices.Contains(options, "nosuid") {
			t.Errorf("set-uid bits count on %s", line)
		}
		if top != "/dev" && !slices.Contains(options, "nodev") {
			t.Errorf("devices count on %s", line)
		}
		if strings.HasPrefix(point, "/usr") && !slices.Contains(options, "ro") {
			t.Errorf("the host can be written through %s", line)
		}
	}
	if strings.Count(out, "\n") < 10 {
		t.Errorf("control: only these mounts: %s", out)
	}
	closed := []string{"/usr/x", "/usr/bin/x", "/dev/x", "/sys/x", "/proc/sys/kernel/hostname",
		"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"}
	if p.Capabilities().SeparateID { // else the tool is who the uploads belong to
		closed = append(closed, "/mnt/session/uploads/x")
	}
	for _, path := range closed {
		if out, code := b.run(t, "/bin/sh", "-c", "echo x > "+path); code == 0 {
			t.Errorf("%s can be written: %s", path, out)
		}
	}
	for _, path := range []string{"/workspace/x", "/home/user/x", "/tmp/x", "/var/tmp/x", "/mnt/session/outputs/x",
		"/dev/null", "/dev/shm/x"} {
		if out, code := b.run(t, "/bin/sh", "-c", "echo x > "+path); code != 0 {
			t.Errorf("%s cannot be written: %s", path, out)
		}
	}
}

// TestSystemCalls: a dangerous system call would be reachable, or an ordinary one would not.
func TestSystemCalls(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	inside := b.hostile(t, "calls")
	if len(inside) < 40 {
		t.Fatalf("only %d answers: %v", len(inside), inside)
	}
	var control map[string]string
	if isRoot() { // for others the host refuses many of these as well
		control = onHost(t, "calls")
	}
	for name, got := range inside {
		want := "EPERM"
		switch {
		case name == "clone3", name == "io_setup":
			want = "ENOSYS"
		case strings.HasSuffix(name, "_filter"):
			want = "EINVAL"
		case strings.HasPrefix(name, "ordinary"):
			want = "ok"
		}
		if got != want {
			t.Errorf("%s: %s inside, want %s", name, got, want)
		}
		if c, ok := control[name]; ok && want != "ok" && c == got {
			t.Errorf("control: %s gives %s on the host as well, so it proves nothing", name, c)
		}
	}
}

// TestSockets: a process inside could speak a protocol that reaches the host's kernel or hardware.
func TestSockets(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	inside, control := b.hostile(t, "sockets"), onHost(t, "sockets")
	ordinary := []string{"tcp", "tcp6", "udp", "unix", "netlink_route"}
	refusals := []string{"EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT"}
	proven := 0
	for name, got := range inside {
		if slices.Contains(ordinary, name) {
			if got != "ok" {
				t.Errorf("%s: %s inside", name, got)
			}
			continue
		}
		if !slices.Contains(refusals, got) {
			t.Errorf("%s: %s inside", name, got)
		}
		if control[name] == "ok" {
			proven++
		}
	}
	if isRoot() && proven < 3 {
		t.Errorf("control: the host itself refuses nearly all of them: %v", control)
	}
}

// TestGuestIsProtected: a tool could read, trace or end the guest, and with it forge receipts.
func TestGuestIsProtected(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	got := b.hostile(t, "guest")
	for _, attack := range []string{"mem", "environ", "maps", "fd", "root", "ptrace", "prlimit"} {
		if v := got["init_"+attack]; v != "EACCES" && v != "ENOENT" && v != "EPERM" {
			t.Errorf("%s of init: %q", attack, v)
		}
		want := "ok"
		if attack == "prlimit" {
			want = "EPERM" // of another process is refused altogether
		}
		if v := got["child_"+attack]; v != want {
			t.Errorf("control: %s of a child: %q", attack, v)
		}
	}
	signals := []string{"1"}
	for s := 1; s <= 64; s++ {
		signals = append(signals, fmt.Sprint(s))
	}
	b.hostile(t, append([]string{"signal"}, signals...)...)
	b.sh(t, "kill -9 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1; kill -INT 1")
	// While the guest starts commands: its first thread blocks signals then, and the kernel treats those differently.
	b.sh(t, "(for i in $(seq 5000); do kill -USR1 1; kill -32 1; kill -34 1; kill -VTALRM 1; done) >/dev/null 2>&1 &")
	for range 50 {
		b.sh(t, "/bin/true")
	}
	again, err := p.Open(t.Context(), b.ID()) // a new connection: the guest accepts
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if out := b.sh(t, "echo alive"); out != "alive\n" {
		t.Errorf("the guest did not survive signals: %q", out)
	}
}

// TestSignalsOfTools: a command would begin with signals ignored that the guest ignores, or that the server was
// started with ignoring.
func TestSignalsOfTools(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	t.Cleanup(func() { signal.Reset(syscall.SIGHUP) })
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	seen := func(before, what string) uint64 {
		t.Helper()
		n, err := strconv.ParseUint(strings.TrimSpace(b.sh(t,
			before+"awk '/^"+what+":/ {print $2}' /proc/self/status")), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// those of C's thread libraries, see boot.ignoreSignals
	const usr1, threads = 1 << (syscall.SIGUSR1 - 1), 1<<(32-1) | 1<<(34-1)
	if got := seen("", "SigBlk"); got != 0 {
		t.Errorf("a command begins with signals blocked: %x", got)
	}
	if got := seen("", "SigIgn"); got&^threads != 0 {
		t.Errorf("a command begins with signals ignored: %x", got)
	}
	if got := seen("trap '' USR1; ", "SigIgn"); got&^threads != usr1 {
		t.Errorf("control: one that ignores a signal: %x", got)
	}
}

// TestHostProcesses: a tool could see or signal a process of the host.
func TestHostProcesses(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	for pid := range strings.FieldsSeq(b.sh(t, "for p in /proc/[0-9]*; do echo ${p#/proc/}; done")) {
		if len(pid) > 3 {
			t.Errorf("process %s is visible", pid)
		}
	}
	pid := fmt.Sprint(os.Getpid())
	if got := b.hostile(t, "signal", pid, "0", "10"); got["signal_0"] != "ESRCH" || got["signal_10"] != "ESRCH" {
		t.Errorf("signals to a host process: %v", got)
	}
	if got := onHost(t, "signal", pid, "0"); got["signal_0"] != "ok" {
		t.Errorf("control: the host cannot signal it either: %v", got)
	}
}

// TestNoPrivilegeGain: a set-uid or capable program that is visible inside would give its privileges.
func TestNoPrivilegeGain(t *testing.T) {
	native.NeedRoot(t)
	shown, err := os.MkdirTemp("", "outboard-setuid-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(shown)
	setuid, capable := filepath.Join(shown, "setuid"), filepath.Join(shown, "capable")
	for _, err := range []error{os.Chmod(shown, 0o755), copyFile(setuid, hostilePath(), 0o755),
		copyFile(capable, hostilePath(), 0o755),
		os.Chmod(setuid, 0o755|os.ModeSetuid|os.ModeSetgid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// A version 2 capability attribute: effective, with CAP_NET_RAW permitted.
	attr := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := unix.Setxattr(capable, "security.capability", attr, 0); err != nil {
		t.Fatal(err)
	}
	p := openProvider(t, native.Config{Dir: filepath.Join(t.TempDir(), "s"), ReadOnly: []string{shown}})
	b := create(t, p, sandbox.Spec{})
	for _, program := range []string{setuid, capable, "/workspace/planted"} {
		b.sh(t, "cp /workspace/hostile /workspace/planted; chmod 6755 /workspace/planted")
		out, _ := b.run(t, program, "ids")
		if out != "euid 1000 egid 1000 caps 0000000000000000\n" {
			t.Errorf("%s inside runs as %s", program, out)
		}
	}
	for program, want := range map[string]string{setuid: "euid 0 egid 0", capable: "caps 0000000000002000"} {
		out := asNobody(t, program, "ids")
		if !strings.Contains(out, want) {
			t.Errorf("control: %s on the host as nobody runs as %s", program, out)
		}
	}
}

// TestNoInheritedFiles: a file that the server happened to have open would be open inside.
func TestNoInheritedFiles(t *testing.T) {
	p, dir := newProvider(t)
	path := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(path, []byte(canary), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY, 0) // without O_CLOEXEC: every child inherits it
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if got := onHost(t, "fds"); len(got) < 2 {
		t.Errorf("control: children of this process inherit nothing: %v", got)
	}
	b := create(t, p, sandbox.Spec{})
	if out, _ := b.run(t, "/workspace/hostile", "fds"); out != "done\n" {
		t.Errorf("open inside:\n%s", out)
	}
	if !isRoot() {
		return // the guest's own files are closed to us too
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", initOf(t, dir, b.ID())))
	if err != nil || len(fds) < 4 {
		t.Fatalf("control: guest has %d files open: %v", len(fds), err)
	}
	for _, f := range fds {
		if to, err := os.Readlink(f); err == nil && to == path {
			t.Errorf("the guest still has %s open", path)
		}
	}
}

// TestLoopbackOnly: a process inside could reach the host's services or the network.
func TestLoopbackOnly(t *testing.T) {
	p, dir := newProvider(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	abstract, err := net.Listen("unix", "@outboard-test-"+canary)
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	named, err := net.Listen("unix", filepath.Join("/tmp", "outboard-"+fmt.Sprint(os.Getpid())+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	b := create(t, p, sandbox.Spec{})
	addresses := []string{l.Addr().String(), abstract.Addr().String(), named.Addr().String()}
	for name, answers := range map[string]struct{ got, want map[string]string }{
		"inside":  {b.hostile(t, append([]string{"dial"}, addresses...)...), map[string]string{"": "refused"}},
		"control": {onHost(t, append([]string{"dial"}, addresses...)...), map[string]string{"": "connected"}},
	} {
		for _, a := range addresses {
			if answers.got[a] != answers.want[""] {
				t.Errorf("%s: %s: %s", name, a, answers.got[a])
			}
		}
	}
	own := filepath.Join(dir, string(b.ID()), "guest.sock")
	if got := b.hostile(t, "dial", "1.1.1.1:53", "169.254.169.254:80", "[::ffff:1.1.1.1]:53", own); len(got) != 4 {
		t.Errorf("dialled: %v", got)
	} else {
		for a, v := range got {
			if v != "refused" {
				t.Errorf("%s: %s", a, v)
			}
		}
	}
	got := b.hostile(t, "loopback")
	if got["interface"] != "lo true" || got["127.0.0.1:80"] != "connected" || len(got) != 2 {
		t.Errorf("loopback inside: %v", got)
	}
}

// runAs runs a script as somebody, "" for the tool, and returns its output and exit status.
func (b *testSandbox) runAs(t *testing.T, user, script string) (string, int) {
	t.Helper()
	var out strings.Builder
	_, exit, err := b.StartProcess(t.Context(), guest.ProcessStart{Argv: []string{"/bin/sh", "-c", script}, User: user},
		func(e guest.ProcessEvent) error {
			out.Write(e.Data)
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), exit.Code
}

// TestSharedDev: /dev is one directory for all, so what one sandbox could change there another would see. What
// is a sandbox's own lies over it.
func TestSharedDev(t *testing.T) {
	p, _ := newProvider(t)
	a, b := create(t, p, sandbox.Spec{}), create(t, p, sandbox.Spec{})
	const state = `for f in /dev /dev/shm/.. /dev/fd /dev/ptmx; do stat -c '%n %a %s %Y %Z %h' $f; done; ls -a /dev; readlink /dev/stdout`
	before := map[*testSandbox]string{} // an ordinary user's sandboxes have a /dev each, from different moments
	for _, s := range []*testSandbox{a, b} {
		before[s] = s.sh(t, state)
	}
	users := []string{""}
	if p.Capabilities().SeparateID {
		users = append(users, "root")
	}
	for _, try := range []string{"echo x > /dev/x", "mkdir /dev/d", "ln -s x /dev/l", "mkfifo /dev/p",
		"ln /dev/fd /dev/hard", "rm -f /dev/fd", "mv /dev/fd /dev/old", "rmdir /dev/pts",
		"chmod 777 /dev", `chown -h "$(id -u)" /dev/fd`, "touch -c -d @1 /dev", "touch -h -c -d @1 /dev/stdin", "touch /dev/shm/../x"} {
		for _, user := range users {
			if out, code := b.runAs(t, user, try); code == 0 {
				t.Errorf("%s by %q: it can be done: %s", try, user, out)
			}
			own := strings.ReplaceAll("rm -rf /dev; mkdir -p /dev/shm /dev/pts && ln -s x /dev/fd && ln -s x "+
				"/dev/stdin && "+try, "/dev", "/tmp/dev"+user)
			if out, code := a.runAs(t, user, own); code != 0 {
				t.Errorf("control: %s by %q in a directory of its own: %s", try, user, out)
			}
		}
	}
	for _, s := range []*testSandbox{a, b} {
		if after := s.sh(t, state); after != before[s] {
			t.Errorf("before:\n%s\nafter:\n%s", before[s], after)
		}
	}
	look := "script -qec 'tty; ls /dev/pts' /dev/null | tr -d '\r'"
	if x, y := a.sh(t, look), b.sh(t, look); x != y || !strings.HasPrefix(x, "/dev/pts/0\n") {
		t.Errorf("terminals: %q and %q", x, y)
	}
}

// TestTwoSandboxes: one sandbox could see, signal or write another.
func TestTwoSandboxes(t *testing.T) {
	p, dir := newProvider(t)
	a, b := create(t, p, sandbox.Spec{}), create(t, p, sandbox.Spec{})
	a.sh(t, "echo "+canary+" > /workspace/f; echo "+canary+" > /tmp/f; echo "+canary+" > /dev/shm/f")
	if out := b.sh(t, "cat /workspace/f /tmp/f /dev/shm/f"); strings.Contains(out, canary) {
		t.Errorf("files are shared: %s", out)
	}
	if out := a.sh(t, "cat /workspace/f /tmp/f /dev/shm/f"); strings.Count(out, canary) != 3 {
		t.Errorf("control: files are not there: %s", out)
	}
	if !isRoot() {
		return
	}
	b.sh(t, "echo "+canary+" > /workspace/f")
	owners := map[uint32]bool{}
	for _, s := range []*testSandbox{a, b} {
		var st syscall.Stat_t
		if err := syscall.Stat(fmt.Sprintf("/proc/%d/root/workspace/f", initOf(t, dir, s.ID())), &st); err != nil {
			t.Fatal(err)
		}
		owners[st.Uid] = true
		if st.Uid < 1<<20 {
			t.Errorf("files inside belong to host uid %d", st.Uid)
		}
	}
	if len(owners) != 2 {
		t.Errorf("two sandboxes share the uids %v", owners)
	}
}

// TestNested: inside a sandbox, where nothing can isolate, making one would succeed or fall back to something weaker.
func TestNested(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	b.put(t, "/workspace/guest", guestPath())
	got := b.hostile(t, "nest", "/workspace/d", "/workspace/guest")
	if !strings.HasPrefix(got["kind"], "unavailable") || got["left"] != "0" && got["left"] != "" {
		t.Errorf("making a sandbox inside a sandbox: %v", got)
	}
}

// TestToolsAreUser: where an ordinary user runs the server, tools would be root by number: programs that refuse
// to run as root would not start, an archive of somebody else's files could not be unpacked, and nothing would
// fit the name and the home that the tools are given.
func TestToolsAreUser(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	const who = `echo "$(id -u) $(id -g) $(id -un) $USER $HOME"; touch /workspace/f && stat -c '%u %g %U' /workspace/f; ls -nd /workspace "$HOME" | cut -d' ' -f3,4`
	if got, want := b.sh(t,
		who), "1000 1000 user user /home/user\n1000 1000 user\n1000 1000\n1000 1000\n"; got != want {
		t.Errorf("tools are %q, want %q", got, want)
	}
	const unpack = `cd /workspace && echo x >of-another && tar --owner=4321 --group=4321 -czf a.tgz of-another && mkdir out && tar -xzf a.tgz -C out && cat out/of-another`
	if got, code := b.run(t, "/bin/sh", "-c", unpack); got != "x\n" || code != 0 {
		t.Errorf("an archive of somebody else's files: %q, exit status %d", got, code)
	}
	const rights = `grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u`
	if got := b.sh(t, rights); got != "0000000000000000\n" {
		t.Errorf("rights of a tool: %q", got)
	}
}

// TestDirectoryCanBeRemoved: an ordinary user could not remove the data directory by `rm -rf`, because of a
// directory that the kernel has closed.
func TestDirectoryCanBeRemoved(t *testing.T) {
	if isRoot() {
		t.Skip("root may remove anything")
	}
	p, dir := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	b.sh(t, "mkdir -p ~/d/e && echo x >~/d/e/f && rm -rf ~/d /var/tmp && mkdir ~/kept && echo x >~/kept/f")
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && unix.Access(path, unix.R_OK|unix.W_OK|unix.X_OK) != nil {
			t.Errorf("%s: %v; its owner cannot remove what is in it", path, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

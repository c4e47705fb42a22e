//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, a frozen machine goes on, or never wakes.
func testFreeze(t *testing.T, r *rig) {
	b := r.create(t)
	if !r.p.Capabilities().Freeze {
		wantKind(t, "Freeze", b.Freeze(ctx(t)), outboard.Unavailable)
		wantKind(t, "Thaw", b.Thaw(ctx(t)), outboard.Unavailable)
		return
	}
	b.sh("(while :; do echo >> ticks; sleep 0.01; done) >/dev/null 2>&1 & echo $! > pid")
	for range 2 { // freezing what is frozen is fine
		if err := b.Freeze(ctx(t)); err != nil {
			t.Fatalf("Freeze: %v", err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := b.Start(short, b.bash("true")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen machine answers: %v", err)
	}
	again, err := r.p.Open(ctx(t), b.spec.ID)
	if err == nil { // a provider may thaw on Open, or wait
		again.Close()
	}
	for range 2 {
		if err := b.Thaw(ctx(t)); err != nil {
			t.Fatalf("Thaw: %v", err)
		}
	}
	b.until("[ -s ticks ]")
	before := strings.TrimSpace(b.sh("wc -l < ticks"))
	b.until("[ $(wc -l < ticks) -gt " + before + " ]")
	if err := b.Freeze(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.p.Destroy(ctx(t), b.spec.ID); err != nil {
		t.Errorf("destroying a frozen machine: %v", err)
	}
	if r.Kill == nil {
		return
	}
	dead := r.create(t)
	if err := dead.Freeze(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.Kill(r.p, dead.spec.ID); err != nil {
		t.Fatalf("killing a frozen machine: %v", err)
	}
	_, err = r.p.Open(ctx(t), dead.spec.ID)
	wantKind(t, "opening a machine that was killed while frozen", err, outboard.NotFound)
}

func holds(r *rig, limit string) bool { return slices.Contains(r.p.Capabilities().Limits, limit) }

// If this fails, one sandbox takes the memory of all.
func testMemory(t *testing.T, r *rig) {
	if !holds(r, "memory") {
		return
	}
	b := r.create(t, func(s *sandbox.Spec) { s.Limits.MemoryBytes = 128 << 20 })
	want(t, "what fits", b.sh("head -c 30000000 /dev/zero | tail -c 20000000 | wc -c"), "20000000\n")
	res := b.run(b.bash("head -c 400000000 /dev/zero | tail -c 390000000 | wc -c"))
	if strings.TrimSpace(string(res.Output)) == "390000000" {
		t.Error("390 MB in a sandbox of 128 MiB")
	}
	want(t, "after it", strings.HasSuffix(b.sh("echo alive"), "alive\n"), true)
}

// If this fails, a program that the limit on memory ended is told by exit code 137 alone, as one that somebody
// killed, or the limit is blamed for what it did not do.
func testMemoryTold(t *testing.T, r *rig) {
	if !holds(r, "memory") {
		return
	}
	const limit = 128 << 20
	b := r.create(t, func(s *sandbox.Spec) { s.Limits.MemoryBytes = limit })
	// two programs, each of which may have that much
	const hog = "head -c 110000000 /dev/zero | tail -c 100000000 | tail -c 100000000 | wc -c"
	want(t, "an ordinary call", b.run(b.bash("true")).MemoryLimit, 0)
	want(t, "a call that was killed", b.run(b.bash("sh -c 'kill -9 $$'")).MemoryLimit, 0)
	want(t, "a call that hit the limit", b.run(b.bash(hog)).MemoryLimit, limit)
	want(t, "the call after it", b.run(b.bash("sh -c 'kill -9 $$'")).MemoryLimit, 0)
	// it is waited for by another request than the one that starts it
	c := b.bash("until [ -e go ]; do sleep 0.02; done; " + hog)
	if _, err := b.Start(ctx(t), c); err != nil {
		t.Fatal(err)
	}
	want(t, "a process that was killed", b.start(guest.ProcessStart{Argv: shell("kill -9 $$")}).wait(),
		guest.ProcessExit{Code: -1, Signal: 9})
	beside := b.call("write", map[string]any{"file_path": "go", "content": ""})
	beside.Shell = "beside"
	b.run(beside)
	want(t, "a call that goes on for a while", b.wait(c).MemoryLimit, limit)
	late, err := r.p.Open(ctx(t), b.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	res, err := late.Wait(ctx(t), c.Key, c.Epoch)
	if err != nil || res.State != guest.StateDone || res.MemoryLimit != 0 {
		t.Errorf("who came when all was over is told of what it cannot know: %s, limit %d, %v", show(res),
			res.MemoryLimit, err)
	}
	want(t, "a process that hit the limit", b.start(guest.ProcessStart{Argv: shell(hog)}).wait().MemoryLimit, limit)
	b.serves(r)
}

// If this fails, many processes, of which none is as large as the guest, have the kernel end the guest, and the
// sandbox with it.
func testMemoryOfMany(t *testing.T, r *rig) {
	if !holds(r, "memory") {
		return
	}
	b := r.create(t, func(s *sandbox.Spec) { s.Limits.MemoryBytes = 128 << 20 })
	many := func(n int) string {
		return fmt.Sprintf("bash -c 'for i in $(seq %d); do (x=$(head -c 4000000 /dev/zero | tr \"\\\\0\" x); sleep "+
			"2; echo ${#x}) & done; wait' 2>&1", n)
	}
	want(t, "what fits", b.sh(many(3)), strings.Repeat("4000000\n", 3))
	if out := b.ends(many(40), 30*time.Second).Output; strings.Count(string(out), "4000000\n") == 40 {
		t.Error("40 times 4 MB and more in a sandbox of 128 MiB")
	}
	b.serves(r)
}

// If this fails, a fork bomb takes the host.
func testPids(t *testing.T, r *rig) {
	if !holds(r, "pids") {
		return
	}
	b := r.create(t, func(s *sandbox.Spec) { s.Limits.Pids = 64 })
	want(t, "what fits", b.sh("seq 10 | xargs -P 10 -n 1 sh -c 'sleep 0.01; echo x' | wc -l"), "10\n")
	// Not xargs, which waits for a free process instead of failing; some shells try again for a while before
	// they give up.
	out := b.sh("sh -c 'for i in $(seq 300); do sleep 5 & done; wait' 2>&1 || true")
	if !strings.Contains(out, "fork") {
		t.Errorf("300 processes in a sandbox of 64: %.200q", out)
	}
	want(t, "after it", b.sh("echo alive"), "alive\n")
}

// If this fails, one sandbox fills the disk of all.
func testDisk(t *testing.T, r *rig) {
	if !holds(r, "disk") {
		return
	}
	b := r.create(t, func(s *sandbox.Spec) { s.Limits.DiskBytes = 64 << 20 })
	b.sh("head -c 10000000 /dev/zero > fits")
	b.fails("head -c 200000000 /dev/zero > too-much")
	want(t, "after it", b.sh("rm -f too-much; echo fine > f; cat f"), "fine\n")
}

// If this fails, one sandbox takes the processors of all.
func testCPU(t *testing.T, r *rig) {
	if !holds(r, "cpu") {
		return
	}
	b := r.create(t, func(s *sandbox.Spec) { s.Limits.CPUs = 0.2 })
	var used float64
	out := b.sh("TIMEFORMAT=%U; { time timeout 2 sh -c 'while :; do :; done'; } 2>&1 || true")
	if _, err := fmt.Sscan(out, &used); err != nil || used > 1 {
		t.Errorf("2 s of a busy loop at 0.2 processors used %q s", out)
	}
}

// If this fails, programs choose their heaps and numbers of threads for the host, and are killed at the
// sandbox's limit.
func testSize(t *testing.T, r *rig) {
	if r.p.Capabilities().Isolation == "none" {
		return
	}
	const memory = 512 << 20
	b := r.create(t, func(s *sandbox.Spec) { s.Limits.MemoryBytes, s.Limits.CPUs = memory, 1 })
	want(t, "meminfo", b.sh("awk '/^MemTotal:/ {print $2 * 1024}' /proc/meminfo"), "536870912\n")
	want(t, "meminfo's free", b.sh("awk '/^Mem(Free|Available):/ && $2 > 0 && $2 <= 524288 {n++} END {print n}' "+
		"/proc/meminfo"), "2\n")
	want(t, "processors", b.sh("nproc"), "1\n")
	want(t, "the control group", b.sh("cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes "+
		"/sys/fs/cgroup/cpu.max"), "536870912\n536870912\n100000 100000\n")
	b.fails("echo max > /sys/fs/cgroup/memory.max")
	b.fails("echo x > /proc/meminfo")
	b.fails("mkdir /sys/fs/cgroup/mine")
	want(t, "Go's limit", b.sh("echo $GOMEMLIMIT"), "469762048\n")
	for _, c := range []struct{ program, command, most string }{
		{"python3", `python3 -c 'import os; print(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.cpu_count())'`, "536870912 1"},
		{"java", `java -XX:+PrintFlagsFinal -version 2>/dev/null | awk '$2 == "MaxHeapSize" {print ($4 <= 268435456) ? "fits" : $4}'`, "fits"},
		{"node", `node -p 'require("v8").getHeapStatistics().heap_size_limit <= 536870912 ? "fits" : "too large"'`,
			"fits"},
		{"free", `free -b | awk '/^Mem:/ {print $2}'`, "536870912"},
	} {
		if strings.TrimSpace(b.sh("type "+c.program+" >/dev/null 2>&1 && echo there || true")) == "there" {
			want(t, c.program, strings.TrimSpace(b.sh(c.command)), c.most)
		}
	}
	all := r.create(t, func(s *sandbox.Spec) { s.Limits.CPUs = float64(runtime.NumCPU()) })
	want(t, "the control: all processors", all.sh("nproc"), fmt.Sprintf("%d\n", runtime.NumCPU()))
}

// If this fails, a tool can take over the guest that reports on it.
func testIdentity(t *testing.T, r *rig) {
	if !r.p.Capabilities().SeparateID {
		return
	}
	b := r.create(t)
	want(t, "the tool is not root", b.sh("[ $(id -u) != 0 ] && echo ok"), "ok\n")
	want(t, "no groups of the guest", b.sh("[ \"$(id -G)\" = \"$(id -g)\" ] && echo ok"), "ok\n")
	want(t, "no capability", b.sh("grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status | grep -v 0000000000000000 || echo "+
		"none"), "none\n")
	b.fails("kill -9 1")
	b.fails("cat /proc/1/environ")
	b.fails("ls -l /proc/1/fd")
	b.fails("ls /proc/1/root/")
	b.fails("head -c 1 /proc/1/mem")
	want(t, "the guest", b.sh("echo alive"), "alive\n")
	for _, tool := range []string{"write", "edit"} {
		b.refuses(tool, m{"file_path": "/usr/bin/env", "content": "x", "old_string": "a", "new_string": "b"}, "")
	}
}

// If this fails, code inside reaches the network without asking.
func testNetwork(t *testing.T, r *rig) {
	if r.p.Capabilities().Network != "none" {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	host, port, _ := net.SplitHostPort(l.Addr().String())
	probe := fmt.Sprintf("exec 3<>/dev/tcp/%s/%s", host, port)
	b := r.create(t)
	b.fails("(" + probe + ")")
	b.fails("(exec 3<>/dev/tcp/1.1.1.1/53)")
	want(t, "interfaces", b.sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), "lo\n")
	conn, err := net.Dial("tcp", l.Addr().String()) // the control: outside it works
	if err != nil {
		t.Fatalf("the probe's own listener: %v", err)
	}
	conn.Close()
	loopback := `type python3 >/dev/null 2>&1 || { echo ok; exit; }
python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); socket.create_connection(s.getsockname()); print("ok")'`
	want(t, "loopback inside", b.sh(loopback), "ok\n")
}

// If this fails, a sandbox sees its host or its neighbours.
func testIsolation(t *testing.T, r *rig) {
	if r.p.Capabilities().Isolation == "none" {
		return
	}
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("host secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	a, b := r.create(t), r.create(t)
	b.fails("cat " + canary)
	b.refuses("read", m{"file_path": canary}, "")
	b.fails("kill -0 " + fmt.Sprint(os.Getpid()))
	a.sh("echo secret > /tmp/neighbour; echo secret > neighbour; sleep 1000 >/dev/null 2>&1 & true")
	b.fails("cat /tmp/neighbour neighbour")
	want(t, "processes of the neighbour", b.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [1]000' || "+
		"true"), "0\n")
	want(t, "process 1 is the guest", b.sh("[ $(ls -d /proc/[0-9]* | wc -l) -lt 20 ] && echo ok"), "ok\n")
	b.fails("echo x > /usr/outboard-probe")
	b.fails("echo some 500000 1000000 > /proc/pressure/memory")
	if line, err := os.ReadFile("/proc/cmdline"); err != nil || b.sh("cat /proc/cmdline") == string(line) {
		t.Errorf("how the host was started is seen inside, or not outside: %v", err)
	}
	b.fails("mount -t tmpfs none /mnt")
	b.fails("unshare -U true")
	want(t, "no new privileges", b.sh("grep NoNewPrivs /proc/self/status"), "NoNewPrivs:\t1\n")
	if !r.OwnKernel {
		want(t, "a system call filter", b.sh("grep -E '^Seccomp:' /proc/self/status"), "Seccomp:\t2\n")
	}
}

//go:build linux

package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// What runs inside may try to use up everything there is. Each part does so once with limits that stop it, and
// checks that the sandbox still serves, and that a modest use of the same thing succeeds: the control.

// abused returns a small sandbox with python, or skips.
func (r *rig) abused(t *testing.T) *box {
	t.Helper()
	if r.p.Capabilities().Isolation == "none" {
		t.Skip("nothing isolates here")
	}
	b := r.create(t, func(s *sandbox.Spec) {
		if s.Limits.MemoryBytes = 256 << 20; holds(r, "pids") {
			s.Limits.Pids = 128
		}
	})
	if res := b.run(b.bash("type python3")); res.ExitCode == nil || *res.ExitCode != 0 {
		t.Skip("no python3 inside")
	}
	return b
}

// serves checks that a sandbox still runs commands, also for who connects anew.
func (b *box) serves(r *rig) {
	b.t.Helper()
	want(b.t, "after it", strings.HasSuffix(b.sh("echo alive"), "alive\n"), true)
	again, err := r.p.Open(ctx(b.t), b.spec.ID)
	if err != nil {
		b.t.Fatalf("connecting after it: %v", err)
	}
	again.Close()
}

// ends runs a command under a timeout and requires that it is over, one way or another, soon after.
func (b *box) ends(command string, timeout time.Duration) guest.Result {
	b.t.Helper()
	s := b.bash(command)
	s.TimeoutMs = timeout.Milliseconds()
	began := time.Now()
	res := b.run(s)
	if d := time.Since(began); d > timeout+20*time.Second {
		b.t.Errorf("%s: took %s with a timeout of %s", command, d, timeout)
	}
	return res
}

// If this fails, processes that multiply and leave their session take the host, or outlive their sandbox.
func testForkBomb(t *testing.T, r *rig) {
	if !holds(r, "pids") {
		t.Skip("the number of processes is not limited here")
	}
	b := r.abused(t)
	want(t, "control", b.sh("(setsid sleep 0.01 &); echo ok"), "ok\n")
	b.ends(`python3 - <<'E'
import os
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
E`, 2*time.Second)
	b.serves(r)
	var n int
	fmt.Sscan(b.sh("set -- /proc/[0-9]*; echo $#"), &n) // without a process: there may be none left for it
	if n < 1 || n > 128+64 {
		t.Errorf("%d processes in a sandbox of 128", n)
	}
	began := time.Now()
	if err := r.p.Destroy(ctx(t), b.spec.ID); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	trashEmpty(r.p)
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("destroying a fork bomb took %s", d)
	}
}

// If this fails, processes that nobody waits for fill the table of processes for good.
func testZombies(t *testing.T, r *rig) {
	b := r.abused(t)
	b.ends(`python3 - <<'E'
import os
for i in range(`+strconv.Itoa(r.many(3000))+`):
    try: pid = os.fork()
    except OSError: break
    if pid == 0:
        try: os.fork()
        except OSError: pass
        os._exit(0)
E`, 30*time.Second)
	b.serves(r)
	// The guest may still be at it on a slow machine, and then there may be no process left to count with.
	out := ""
	for deadline := time.Now().Add(20 * time.Second); out != "0\n" && time.Now().
		Before(deadline); time.Sleep(20 * time.Millisecond) {
		out = b.sh("cat /proc/[0-9]*/stat 2>/dev/null | awk '$3 == \"Z\"' | wc -l")
	}
	want(t, "zombies left", out, "0\n")
}

// If this fails, open files of one sandbox are missing to others.
func testFiles(t *testing.T, r *rig) {
	b := r.abused(t)
	out := b.sh(`python3 - <<'E'
import os, resource
opened = [os.open("/dev/null", os.O_RDONLY) for i in range(200)]
try:
    while True: opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as e: print(e.errno, len(opened) <= resource.getrlimit(resource.RLIMIT_NOFILE)[1])
try: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20)); print("raised")
except ValueError: print("kept")
E`)
	want(t, "too many open files", out, "24 True\nkept\n")
	b.serves(r)
}

// If this fails, a program that only prints fills the host's disk or memory, or keeps its session from going on.
func testLogFlood(t *testing.T, r *rig) {
	b := r.abused(t)
	res := b.ends("yes $(seq 200)", 2*time.Second)
	if res.Cause != "timeout" || !res.Truncated || len(res.Output) > 200_000 {
		t.Errorf("a flood: %s, %d bytes", show(res), len(res.Output))
	}
	var size int64
	fmt.Sscan(b.sh("stat -c %s "+res.FullPath), &size)
	if size == 0 || size > 66<<20 {
		t.Errorf("a flood left a file of %d bytes", size)
	}
	b.serves(r)
	want(t, "control", len(b.sh("seq 1000")), 3893)
	// Beyond what is kept a command is slowed down, and told so; up to there it is not.
	for size, slowed := range map[string]bool{"70M": true, "60M": false} {
		res := b.ends("yes $(seq 200) | head -c "+size, time.Minute)
		if res.Cause != "exited" || strings.Contains(string(res.Output), "[output limit: ") != slowed {
			t.Errorf("%s of output: %s, ending in %q", size, res.Cause, res.Output[max(0, len(res.Output)-300):])
		}
	}
}

// If this fails, a tree that is too deep for paths cannot be saved, listed or removed.
func testDeepTree(t *testing.T, r *rig) {
	if testing.Short() {
		t.Skip("makes 100,000 directories")
	}
	if !r.p.Capabilities().DeepTrees {
		t.Skip("no deep trees here")
	}
	b := r.abused(t)
	b.sh("mkdir -p plain/a/b && echo x > plain/a/b/f")
	// As deep as it gets in the time, and deeper than a path can be however long that takes.
	out := b.ends(`python3 -u - <<'E'
import os, time
os.mkdir("deep"); os.chdir("deep")
began = time.monotonic()
for i in range(100000):
    os.mkdir("d"); os.chdir("d")
    if i >= 3000 and time.monotonic() - began > 5: break
print(i)
E`, time.Minute)
	var depth int
	if _, err := fmt.Sscan(string(out.Output), &depth); err != nil || depth < 3000 {
		t.Errorf("control: a tree of %d levels: %s", depth, show(out))
	}
	b.serves(r)
	if _, err := b.List(ctx(t), sandbox.Workspace); err != nil && refusal(err) == guest.Internal {
		t.Errorf("List: %v", err)
	}
	if r.NoPaths {
		return
	}
	want(t, "control", b.get(sandbox.Workspace+"/plain/a/b/f"), "x\n")
	began := time.Now()
	if err := r.p.Destroy(t.Context(), b.spec.ID); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	trashEmpty(r.p)
	t.Logf("%d levels removed in %s", depth, time.Since(began))
}

// If this fails, what the kernel keeps for a sandbox besides memory and processes has no bound.
func testKernelObjects(t *testing.T, r *rig) {
	if !holds(r, "memory") {
		t.Skip("memory is not limited here")
	}
	b := r.abused(t)
	for what, c := range map[string]struct{ program, control string }{
		"pipes": {"import os\ntry:\n  while True: l.append(os.pipe())\nexcept OSError: pass", "import os\nos.pipe()"},
		"sockets": {"import socket\ntry:\n  while True: l.append(socket.socketpair())\nexcept OSError: pass",
			"import socket\nsocket.socketpair()"},
		"inotify": {"import ctypes\nc=ctypes.CDLL(None)\nfor i in range(100000):\n  if c.inotify_init() < 0: break",
			"import ctypes\nassert ctypes.CDLL(None).inotify_init() >= 0"},
		"shm": {"import ctypes\nc=ctypes.CDLL(None)\nfor i in range(100000):\n  if c.shmget(0, 1 << 20, 0o1600) " +
			"< 0: break", "import ctypes\nassert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0"},
		"memfd": {"import os\nfd=os.memfd_create('x')\ntry:\n  while True: os.write(fd, b'x' * (1 << 20))\nexcept " +
			"OSError: pass", "import os\nos.write(os.memfd_create('x'), b'x')"},
	} {
		want(t, what+", control", b.sh("python3 -c \"$(cat <<'E'\nl=[]\n"+c.control+"\nprint('ok')\nE\n)\""), "ok\n")
		b.ends("python3 -c \"$(cat <<'E'\nl=[]\n"+c.program+"\nE\n)\"", 30*time.Second)
		b.serves(r)
	}
}

// hostsKernel reports whether sandboxes are processes of the host's kernel, whose objects they then share.
func hostsKernel(r *rig) bool { return !strings.Contains(r.p.Capabilities().Isolation, "runsc") }

// If this fails, the buffers of sockets, which some kernels count apart, have no bound.
func testSocketBuffers(t *testing.T, r *rig) {
	if !holds(r, "memory") || !hostsKernel(r) {
		t.Skip("buffers of sockets are not limited here, or are memory like any other")
	}
	b := r.abused(t)
	// Fills connections that nobody reads, and says how much they took, in MiB.
	fill := func(n int) (mib int) {
		t.Helper()
		out := b.sh(fmt.Sprintf(`python3 - <<'E'
import socket
held, total = [], 0
for i in range(%d):
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1)
    a = socket.socket(); a.settimeout(5)
    try: a.connect(s.getsockname()); held.append((s, a, s.accept()))
    except OSError: break
    a.setblocking(False)
    try:
        while True: total += a.send(b"x" * 16000)
    except OSError: pass
print(total >> 20)
E`, n))
		if _, err := fmt.Sscan(out, &mib); err != nil {
			t.Fatalf("%d connections: %q", n, out)
		}
		return mib
	}
	if mib := fill(2); mib < 1 {
		t.Errorf("control: two connections took %d MiB", mib)
	}
	if mib := fill(300); mib > 256 {
		t.Errorf("300 connections took %d MiB in a sandbox of 256", mib)
	}
	b.serves(r)
}

// If this fails, one sandbox takes all terminals of the host.
func testTerminals(t *testing.T, r *rig) {
	isolation := r.p.Capabilities().Isolation
	if !hostsKernel(r) || isolation == "none" || strings.Contains(isolation, "docker") {
		t.Skip("terminals have no bound of the sandbox's own here")
	}
	a, b := r.abused(t), r.create(t)
	terminal := guest.ProcessStart{Argv: shell("tty"), Terminal: &guest.Size{Rows: 24, Cols: 80}}
	opens := func(b *box, what string) {
		t.Helper()
		x := b.start(terminal)
		x.wait()
		if out := x.stdout.String(); !strings.HasPrefix(out, "/dev/pts/") {
			t.Errorf("a terminal%s: %q", what, out)
		}
	}
	opens(a, ", control")
	want(t, "taking all", a.sh(`cat > take.py <<'E'
import os, time
try:
    held = []
    while True: held.append(os.open("/dev/ptmx", os.O_RDWR))
except OSError: print("refused", flush=True)
time.sleep(600)
E
(python3 take.py > taken 2>&1 &); until [ -s taken ]; do sleep 0.05; done; cat taken`), "refused\n")
	_, _, err := a.StartProcess(ctx(t), terminal, nil)
	want(t, "a terminal where all are taken", refusal(err), guest.Busy)
	opens(b, " in another sandbox")
}

// If this fails, a sandbox takes what the host has one share of: memory for programs that filter, contexts of
// asynchronous I/O.
func testShares(t *testing.T, r *rig) {
	if r.OwnKernel {
		return // it takes from its own kernel, and memory of that is the sandbox's
	}
	b := r.abused(t)
	want(t, "refusals, and the controls", b.sh(`python3 - <<'E'
import ctypes, errno, platform, socket, struct
c = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xffff))
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
def said(r): return "done" if r == 0 else errno.errorcode[ctypes.get_errno()]
s = socket.socket(type=socket.SOCK_DGRAM)
for option, value in ((26, program), (51, program), (socket.SO_KEEPALIVE, struct.pack("i", 1))):
    print(said(c.setsockopt(s.fileno(), socket.SOL_SOCKET, option, value, len(value))))
print(said(c.prctl(22, 2, program)), said(c.prctl(15, b"name")))
print(said(c.syscall(206 if platform.machine() == "x86_64" else 0, 1, ctypes.byref(ctypes.c_ulong(0)))))
E`), "ENOPROTOOPT\nENOPROTOOPT\ndone\nEINVAL done\nENOSYS\n")
}

// If this fails, a sandbox that takes what the kernel gives each user leaves none of it to the others, or to the
// host's root.
func testNeighbours(t *testing.T, r *rig) {
	if os.Geteuid() != 0 {
		t.Skip("all sandboxes of an ordinary user are that user's to the kernel")
	}
	a, b := r.abused(t), r.abused(t)
	const take = "import ctypes\nc=ctypes.CDLL(None)\nwhile c.inotify_init() >= 0: pass\nprint('refused', " +
		"flush=True)\nimport time\ntime.sleep(600)"
	want(t, "taking all", a.sh("cat > take.py <<'E'\n"+take+"\nE\n(python3 take.py > taken 2>&1 &); until [ -s "+
		"taken ]; do sleep 0.05; done; cat taken"), "refused\n")
	want(t, "another sandbox's program",
		b.sh("python3 -c 'import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)'"), "True\n")
	over := errors.New("over")
	if hostsKernel(r) { // the other's has no such bound
		err := a.Watch(ctx(t), ref("."), false, func(guest.Change) error { return over })
		want(t, "a watch where all are taken", refusal(err), guest.Busy) // else it would count against the host's root
	}
	if err := b.Watch(ctx(t), ref("."), false, func(guest.Change) error { return over }); !errors.Is(err, over) {
		t.Errorf("a watch in another sandbox: %v", err)
	}
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC)
	if err != nil {
		t.Fatalf("the host's root: %v", err)
	}
	syscall.Close(fd)
}

// If this fails, odd names, device nodes or pipes stop what lists, reads or saves the workspace.
func testOddNames(t *testing.T, r *rig) {
	b := r.abused(t)
	b.sh(`python3 - <<'E'
import os
for n in [b"new\nline", b"bad\xff\xfeutf", b"\xe2\x80\xaertl", b"-rf", b" ", b"x" * 255, b"tab\t", b"\x1b[31m"]:
    open(n, "w").write("x")
os.mkfifo("pipe")
for kind, name in ((0o060000, "block"), (0o020000, "char")):
    try: os.mknod(name, kind | 0o666, os.makedev(1, 3)); print("made", name)
    except PermissionError: pass
E
[ ! -e block ] && [ ! -e char ]`)
	stats, err := b.List(ctx(t), sandbox.Workspace)
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	if len(stats) < 7 {
		t.Errorf("%d of 8 files listed: %v", len(stats), stats)
	}
	var w strings.Builder
	began := time.Now()
	if err := b.Get(ctx(t), sandbox.Workspace+"/pipe", &w); err == nil {
		t.Error("a pipe was read as a file")
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("reading a pipe took %s", d)
	}
	want(t, "control", b.get(sandbox.Workspace+"/-rf"), "x")
	if _, err := b.Save(ctx(t), guest.Save{Epoch: 1, Next: "odd"}, io.Discard); err != nil {
		t.Errorf("Save: %v", err)
	}
	b.serves(r)
}

// If this fails, a process of the host can be hit by number from inside.
func testPidReuse(t *testing.T, r *rig) {
	b := r.abused(t)
	// Walks through far more numbers than there are processes, so that each that ends is soon another's.
	out := b.sh(`python3 - <<'E'
import os, signal
seen = set()
for i in range(` + strconv.Itoa(r.many(3000)) + `):
    pid = os.fork()
    if pid == 0: os._exit(0)
    seen.add(pid); os.waitpid(pid, 0)
hit = 0
for pid in list(seen)[:500] + [` + strconv.Itoa(os.Getpid()) + `, ` + strconv.Itoa(os.Getppid()) + `]:
    try: os.kill(pid, signal.SIGKILL); hit += 1
    except OSError: pass
print(hit)
child = os.fork()
if child == 0: signal.pause()
os.kill(child, signal.SIGKILL); print(os.waitpid(child, 0)[1])
E`)
	want(t, "kills, and the control", out, "0\n9\n")
	b.serves(r)
}

// buried waits for a provider that removes in the background what was destroyed.
func trashEmpty(p sandbox.Provider) {
	if b, ok := p.(interface{ TrashEmpty() }); ok {
		b.TrashEmpty()
	}
}

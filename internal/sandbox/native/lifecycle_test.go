//go:build linux

package native_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// createAndWait is a server that makes a sandbox and is killed.
func createAndWait(dir string, id outboard.SandboxID) int {
	p, err := native.New(native.Config{Dir: dir, Guest: guestPath(), Ahead: 2, Warm: 1})
	if err == nil {
		_, err = p.Create(context.Background(), sandbox.Spec{ID: id, Generation: "g-" + string(id)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p.PoolFilled()
	fmt.Println("created")
	select {} // until SIGKILL
}

// initOf returns the host pid of a sandbox's init.
func initOf(t *testing.T, dir string, id outboard.SandboxID) int {
	t.Helper()
	var s struct{ Pid int }
	data, err := os.ReadFile(filepath.Join(dir, string(id), "state.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.Pid
}

// TestKilledWhileMade: whoever wants a sandbox would take the death of one for a reason to have none.
func TestKilledWhileMade(t *testing.T) {
	p, dir := newProvider(t)
	failed := 0
	for range 20 {
		id, over := newID(), make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() {
			for { // the instant at which its process is known
				var s struct{ Pid int }
				data, err := os.ReadFile(filepath.Join(dir, string(id), "state.json"))
				if err == nil && json.Unmarshal(data, &s) == nil && s.Pid > 0 {
					_ = syscall.Kill(s.Pid, syscall.SIGKILL)
					return
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
		sb, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g"})
		close(over)
		killer.Wait()
		if err == nil { // it was made before it was killed
			sb.Close()
			continue
		}
		failed++
		if !sandbox.Gone(err) {
			t.Errorf("killed while it was made: %v", err)
		}
	}
	if failed == 0 {
		t.Error("none was killed in time: nothing was tried")
	}
	create(t, p, sandbox.Spec{})
}

// TestServerKilled: a sandbox would die with the server that made it, or could not be found again.
func TestServerKilled(t *testing.T) {
	p, dir := newProvider(t)
	id := newID()
	server := startServer(t, dir, id)
	first, err := p.Open(t.Context(), id)
	if err != nil {
		t.Fatalf("opening beside the server: %v", err)
	}
	defer first.Close()
	if out := (&testSandbox{Sandbox: first}).sh(t,
		"echo kept > /workspace/f; echo $$ > /dev/null; echo ok"); out != "ok\n" {
		t.Fatalf("before the kill: %q", out)
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()                        // killed
	openProvider(t, native.Config{Dir: dir}) // and what it had made ahead goes with the next one
	s, err := p.Open(t.Context(), id)
	if err != nil {
		t.Fatalf("opening after the server was killed: %v", err)
	}
	defer s.Close()
	if out := (&testSandbox{Sandbox: s, calls: 10}).sh(t, "cat /workspace/f"); out != "kept\n" {
		t.Errorf("after the kill the file says %q", out)
	}
	if err := p.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open(t.Context(), id); !sandbox.Gone(err) {
		t.Errorf("opening a destroyed sandbox: %v", err)
	}
}

// TestGuestKilled: a dead sandbox would look alive, or a call on it would not say that it is gone.
func TestGuestKilled(t *testing.T) {
	p, dir := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	if err := syscall.Kill(initOf(t, dir, b.ID()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Wait(t.Context(), "none", 1); !sandbox.Gone(err) {
		t.Errorf("waiting on a dead sandbox: %v", err)
	}
	if _, err := p.Open(t.Context(), b.ID()); !sandbox.Gone(err) {
		t.Errorf("opening a dead sandbox: %v", err)
	}
	if ids, err := p.List(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("a dead sandbox is not listed for the reaper: %v, %v", ids, err)
	}
}

// TestFrozen: a frozen sandbox would go on working, or could not be opened or destroyed after its server died.
func TestFrozen(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	if !p.Capabilities().Freeze {
		if err := b.Freeze(t.Context()); outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("freezing where it cannot be: %v", err)
		}
		return
	}
	if err := b.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := p.Open(t.Context(), b.ID())
	if err != nil {
		t.Fatalf("opening a frozen sandbox: %v", err)
	}
	defer again.Close()
	if out := (&testSandbox{Sandbox: again}).sh(t, "echo thawed"); out != "thawed\n" {
		t.Errorf("after the thaw: %q", out)
	}
	if err := b.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Errorf("destroying a frozen sandbox: %v", err)
	}
}

// TestDestroyWhileFreezing: whoever freezes a sandbox that is being killed, as the end of a turn does, would
// keep its processes from dying.
func TestDestroyWhileFreezing(t *testing.T) {
	p, _ := newProvider(t)
	if !p.Capabilities().Freeze {
		t.Skip("this host cannot freeze")
	}
	for range 5 {
		b := create(t, p, sandbox.Spec{})
		if out := b.sh(t, "for i in $(seq 40); do sleep 1000 & done; echo started"); out != "started\n" {
			t.Fatalf("the processes: %q", out)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		frozen, once := make(chan struct{}), sync.Once{}
		var freezing sync.WaitGroup
		freezing.Go(func() {
			for ctx.Err() == nil {
				_ = b.Freeze(ctx) // it fails once the sandbox is gone
				once.Do(func() { close(frozen) })
			}
		})
		<-frozen
		begun := time.Now()
		err := p.Destroy(ctx, b.ID())
		if took := time.Since(begun); err != nil || took > 5*time.Second {
			t.Errorf("it took %s: %v", took, err)
		}
		stop()
		freezing.Wait()
	}
}

// leftovers is everything of a host that a sandbox could leave behind.
func leftovers(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "outboard") || strings.Contains(line, dir) {
			out.WriteString(line)
		}
	}
	for _, pattern := range []string{dir + "/*", dir + "/graves/*", dir + "/cache/.new-*",
		"/sys/fs/cgroup/*/outboard/sbx_*", "/sys/fs/cgroup/outboard/sbx_*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if fi, err := os.Stat(f); err == nil && fi.IsDir() && filepath.Base(f) != "cache" {
				out.WriteString(f + "\n")
			}
		}
	}
	reserved, err := native.Reserved(dir)
	if err != nil {
		t.Fatal(err)
	}
	for owner := range reserved {
		out.WriteString("uids of " + owner + "\n")
	}
	return out.String()
}

// TestDestroyLeavesNothing: mounts, cgroups, processes, uid ranges or files would pile up on a host.
func TestDestroyLeavesNothing(t *testing.T) {
	before := openFiles(t)
	p, dir := newProvider(t)
	ids := []outboard.SandboxID{newID(), newID(), newID()}
	var pids []int
	for _, id := range ids {
		b := create(t, p, sandbox.Spec{ID: id})
		b.sh(t, "cd /workspace; mkdir -p closed/in; touch closed/in/f; chmod 0 closed/in closed; "+
			"i=0; while [ $i -lt 300 ]; do mkdir d && cd d; i=$((i+1)); done; touch \"$(printf "+
			"'new\\nline\\377')\"; (setsid sleep 1000 &) ; echo done")
		pids = append(pids, initOf(t, dir, id))
		b.Close()
	}
	if left := leftovers(t, dir); !strings.Contains(left, string(ids[0])) {
		t.Fatalf("control: nothing is there while it lives: %q", left)
	}
	var wg sync.WaitGroup
	for _, id := range append(ids, ids...) { // twice, and at the same time
		wg.Go(func() {
			if err := p.Destroy(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p.TrashEmpty()
	if left := leftoversOf(leftovers(t, dir), ids); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
	}
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("listed after: %v, %v", list, err)
	}
	if held := openFiles(t); len(held) <= len(before) {
		t.Errorf("control: the provider has nothing open: %q", held)
	}
	p.Close() // and with it what it has open for all its sandboxes
	if after := openFiles(t); len(after) > len(before) {
		t.Errorf("files open before:\n%q\nand after:\n%q", before, after)
	}
}

// TestDestroyKilled: what a server that was killed after it had destroyed a sandbox did not come to remove would
// stay for good.
func TestDestroyKilled(t *testing.T) {
	p, dir := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	b.sh(t, "(setsid sleep 1000 &) ; mkdir /workspace/d; echo done")
	b.Close()
	ids, pid := []outboard.SandboxID{b.ID()}, initOf(t, dir, b.ID())
	if err := os.Rename(filepath.Join(dir, string(b.ID())), filepath.Join(dir, "graves",
		string(b.ID())+".X")); err != nil {
		t.Fatal(err)
	}
	if left := leftoversOf(leftovers(t, dir), ids); !strings.Contains(left, "graves") {
		t.Fatalf("control: %q", left)
	}
	openProvider(t, native.Config{Dir: dir}).TrashEmpty()
	if left := leftoversOf(leftovers(t, dir), ids); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	if !gone(pid) {
		t.Errorf("process %d is still there", pid)
	}
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("listed after: %v, %v", list, err)
	}
}

// leftoversOf keeps the lines about the given sandboxes: other tests may be running on this host.
func leftoversOf(all string, ids []outboard.SandboxID) string {
	var out strings.Builder
	for line := range strings.Lines(all) {
		for _, id := range ids {
			if strings.Contains(line, string(id)) {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}

// openFiles are the files that this process has open, by what they lead to, but for those of the runtime's poller.
func openFiles(t *testing.T) (out []string) {
	t.Helper()
	once := []string{"anon_inode:[eventpoll]", "anon_inode:[eventfd]"}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		// the directory itself is closed again
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !slices.Contains(once, name) {
			out = append(out, name)
		}
	}
	return out
}

// TestOrphaned: a sandbox whose directory was deleted by hand would run for ever, and keep its uids and cgroups.
func TestOrphaned(t *testing.T) {
	p, dir := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	pid := initOf(t, dir, b.ID())
	if p.Capabilities().Freeze {
		if err := b.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	own := filepath.Join(dir, string(b.ID()))
	for _, work := range []string{"work", "1/wk"} {
		err := filepath.WalkDir(filepath.Join(own, work), func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chmod(path, 0o700)) // the kernel's, closed to ordinary users
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(own); err != nil {
		t.Fatal(err)
	}
	openProvider(t, native.Config{Dir: filepath.Join(t.TempDir(), "other")}) // a server that starts thaws it
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000); n != 1 {
		t.Fatalf("the orphan is still there: %v", err)
	}
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Error(err)
	}
	p.TrashEmpty()
	openProvider(t, native.Config{Dir: filepath.Join(t.TempDir(), "third")}) // and one after that clears up
	if left := leftoversOf(leftovers(t, dir), []outboard.SandboxID{b.ID()}); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestHalfMade: what a crash in the middle of Create leaves could not be removed.
func TestHalfMade(t *testing.T) {
	p, dir := newProvider(t)
	empty, planned, filled := newID(), newID(), newID()
	for _, id := range []outboard.SandboxID{empty, planned, filled} {
		if err := os.Mkdir(filepath.Join(dir, string(id)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// A pid that lives, but is not the one recorded: a reused number must never be killed.
	state := fmt.Sprintf(`{"id":%q,"generation":"g","pid":%d,"start":1,"boot_id":"x","cgroups":["/sys/fs/cgroup/none/outboard/%s"]}`, planned, os.Getpid(), planned)
	for path, data := range map[string]string{
		filepath.Join(dir, string(planned), "state.json"):    state,
		filepath.Join(dir, string(filled), "state.json.new"): `{"id`,
		filepath.Join(dir, string(filled), "guest.log"):      "x",
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err := p.List(t.Context()); err != nil || len(ids) != 3 {
		t.Fatalf("listed %v, %v", ids, err)
	}
	for _, id := range []outboard.SandboxID{empty, planned, filled, newID()} {
		if _, err := p.Open(t.Context(), id); !sandbox.Gone(err) {
			t.Errorf("opening half-made %s: %v", id, err)
		}
		if err := p.Destroy(t.Context(), id); err != nil {
			t.Errorf("destroying half-made %s: %v", id, err)
		}
		if _, err := os.Stat(filepath.Join(dir, string(id))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", id, err)
		}
	}
}

// TestCreateRefusals: a bad request would make something, or would not say what is wrong.
func TestCreateRefusals(t *testing.T) {
	p, dir := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	link := filepath.Join(t.TempDir(), "proc-is-a-link")
	if err := errors.Join(os.Mkdir(link, 0o755), os.Symlink("/tmp", filepath.Join(link, "proc"))); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spec sandbox.Spec
		kind outboard.Kind
	}{
		"the same id again": {sandbox.Spec{ID: b.ID(), Generation: "g"}, outboard.Conflict},
		"an id with a path": {sandbox.Spec{ID: "sbx_../x", Generation: "g"}, outboard.Invalid},
		"no generation":     {sandbox.Spec{ID: newID()}, outboard.Invalid},
		"another isolation": {sandbox.Spec{ID: newID(), Generation: "g", Isolation: "microvm"},
			outboard.Unavailable},
		"a negative limit": {sandbox.Spec{ID: newID(), Generation: "g",
			Limits: outboard.SandboxLimits{Pids: -1}}, outboard.Invalid},
		"a missing root": {sandbox.Spec{ID: newID(), Generation: "g", Rootfs: "/no/such"},
			outboard.Invalid},
		"a relative root":            {sandbox.Spec{ID: newID(), Generation: "g", Rootfs: "etc"}, outboard.Invalid},
		"the host's own root":        {sandbox.Spec{ID: newID(), Generation: "g", Rootfs: "/"}, outboard.Invalid},
		"the sandbox directory":      {sandbox.Spec{ID: newID(), Generation: "g", Rootfs: dir}, outboard.Invalid},
		"a root with a linked /proc": {sandbox.Spec{ID: newID(), Generation: "g", Rootfs: link}, outboard.Invalid},
	} {
		s, err := p.Create(t.Context(), c.spec)
		if err == nil {
			s.Close()
		}
		if outboard.KindOf(err) != c.kind || err == nil {
			t.Errorf("%s: %v, want kind %s", name, err, c.kind)
		}
	}
	if ids, err := p.List(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("refused sandboxes left %v, %v", ids, err)
	}
	if _, err := native.New(native.Config{Dir: t.TempDir(),
		Guest: "/no/such/guest"}); outboard.KindOf(err) != outboard.Unavailable {
		t.Errorf("without a guest program: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Create(ctx, sandbox.Spec{ID: newID(), Generation: "g"}); err == nil {
		t.Error("created with a canceled context")
	}
}

// TestLongPath: a data directory with a long path would make the guest unreachable.
func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	p := openProvider(t, native.Config{Dir: dir})
	b := create(t, p, sandbox.Spec{})
	if out := b.sh(t, "echo hi"); out != "hi\n" {
		t.Errorf("said %q", out)
	}
}

// TestManyAtOnce: concurrent creations would collide in uids, names or cgroups.
func TestManyAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	providers := []*native.Provider{openProvider(t, native.Config{Dir: dir}), openProvider(t, native.Config{Dir: dir})}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p := providers[i%2]
			id := newID()
			s, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g-" + string(id)})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if out := (&testSandbox{Sandbox: s}).sh(t, "cat /proc/sys/kernel/hostname"); out != "outboard\n" {
				t.Errorf("%s said %q", id, out)
			}
			if err := providers[(i+1)%2].Destroy(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestProbe: doctor would promise what Create cannot do, or leave something behind.
func TestProbe(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	r := native.Probe(t.Context(), native.Config{Dir: dir, Guest: guestPath()})
	if !r.Usable || r.Isolation == "" || len(r.Gaps) == 0 {
		t.Fatalf("%+v", r)
	}
	profiled := false
	for _, c := range r.Checks {
		t.Logf("%-16s %v %s | %s", c.Name, c.OK, c.Detail, c.Fix)
		if !c.OK && c.Fix == "" {
			t.Errorf("%s: no fix named", c.Name)
		}
		if c.Detail == "" {
			t.Errorf("%s: no detail", c.Name)
		}
		if profiled = profiled || c.Name == "profile" && c.OK; c.Name == "profile" &&
			!strings.Contains(c.Detail, "no capability") {
			t.Errorf("the profile of a tool: %s", c.Detail)
		}
	}
	if !profiled {
		t.Error("nothing says what a process inside may do")
	}
	for name, limit := range map[string]string{"disk quota": "disk", "idmapped mounts": ""} {
		i := slices.IndexFunc(r.Checks, func(c native.Check) bool { return c.Name == name })
		if i < 0 {
			t.Errorf("nothing says about %s", name)
		} else if limit != "" && r.Checks[i].OK != slices.Contains(r.Limits, limit) {
			t.Errorf("%s: %+v, but the limits that hold are %v", name, r.Checks[i], r.Limits)
		}
	}
	if entries, err := filepath.Glob(dir + "/.probe*"); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	if r := native.Probe(t.Context(), native.Config{Dir: dir, Guest: "/no/such"}); r.Usable || r.Isolation != "" {
		t.Errorf("without a guest: %+v", r)
	}
}

// If New trusted settings alone, a command in a container that forbids namespaces would start, and fail at its
// first tool call.
func TestKernelRefuses(t *testing.T) {
	cmd := exec.Command(filepath.Join(binaries, "self"))
	cmd.Env = append(os.Environ(), refusedEnv+"="+t.TempDir(), binariesEnv+"="+binaries)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := string(out); !strings.HasPrefix(got, "unavailable ") ||
		!strings.Contains(got, "a limit on namespaces is reached") {
		t.Errorf("New, where network namespaces are refused: %s", got)
	}
}

// If this fails, whoever wants a machine frozen that is frozen already waits for a guest that cannot answer.
func TestHalt(t *testing.T) {
	p, _ := newProvider(t)
	if !p.Capabilities().Freeze {
		t.Skip("no freezer here")
	}
	b := create(t, p, sandbox.Spec{})
	for range 2 {
		if err := p.Halt(t.Context(), b.ID()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := b.List(ctx, "/workspace"); err == nil {
		t.Error("the guest of a frozen sandbox answered")
	}
	if err := b.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := b.sh(t, "echo goes on"); out != "goes on\n" {
		t.Errorf("thawed, it said %q", out)
	}
	if err := p.Halt(t.Context(), newID()); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("one that is not there: %v", err)
	}
}

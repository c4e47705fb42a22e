//go:build linux

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// If this fails, a host with a bug, or a program inside that got hold of the socket, crashes the guest.
func FuzzServer(f *testing.F) {
	req := func(id uint32, head []byte, body []byte) []byte {
		return appendFrame(nil, frame{kind: kindRequest, id: id, head: head, body: body})
	}
	once, more, none := newHead("echo", nil, false), newHead("echo", nil, true), form.Encode(form.None{})
	f.Add(req(1, once, []byte("x")))
	f.Add(append(req(1, more, nil), appendFrame(nil, frame{kind: kindData, id: 1, body: []byte("y")})...))
	f.Add(append(req(1, more, nil), appendFrame(nil, frame{kind: kindCancel, id: 1})...))
	f.Add(append(req(1, once, nil), req(1, once, nil)...))
	f.Add(req(1, helloHead, nil))
	f.Add(req(1, []byte(`{"op":"echo"}`), nil))
	f.Add(req(1, none, nil))
	f.Add(req(1, once[:len(once)-1], nil))
	echo := func(ctx context.Context, h requestHead, body []byte, st *stream) ([]byte, []byte, error) {
		b, err := io.ReadAll(&receiver{ctx: ctx, s: st, rest: body})
		if err != nil {
			return nil, nil, err
		}
		if err := st.send(ctx, b); err != nil {
			return nil, nil, err
		}
		return form.Encode(&Error{Code: h.Op}), nil, st.end(ctx)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		here, there := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { serve(t.Context(), there, echo) })
		wg.Go(func() { io.Copy(io.Discard, here) })
		here.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := here.Write(data); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the server stopped reading")
		}
		here.Close()
		wg.Wait()
	})
}

// guestAs starts a server that runs tools as uid and gid on directories that belong to them.
func guestAs(t *testing.T, uid, gid int) (*Client, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "og")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := configAt(t, dir)
	cfg.ToolUID, cfg.ToolGID = uid, gid
	os.Chmod(cfg.State, 0o700)
	for _, m := range cfg.Map {
		if err := os.Chown(m.To, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	return serveAt(t, dir, cfg), dir
}

// If this fails, a file tool reaches what the tool's user may not, or a tool can forge what the guest reports.
// An ordinary user cannot take another identity; then the test covers the case that the two are the same.
func TestIdentity(t *testing.T) {
	uid, gid := 54321, 54322
	if os.Geteuid() != 0 {
		uid, gid = os.Geteuid(), os.Getegid()
	}
	c, dir := guestAs(t, uid, gid)
	secret := filepath.Join(dir, "workspace", "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	tool := func(key, op string, in map[string]any) Result {
		t.Helper()
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		return runCall(t, c, Start{Key: key, Epoch: 1, Generation: testGen, Op: op, Input: raw})
	}
	r := tool("w", "write", map[string]any{"file_path": "a/b", "content": "x"})
	info, err := os.Stat(filepath.Join(dir, "workspace/a/b"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(uid) || info.Sys().(*syscall.Stat_t).
		Gid != uint32(gid) {
		t.Errorf("write: %s %v %+v", r.Output, err, info)
	}
	out := string(runCall(t, c, bashStart("id", "id -u; id -g; id -G")).Output)
	if want := fmt.Sprintf("%d\n%d\n%d\n", uid, gid, gid); out != want && os.Geteuid() == 0 {
		t.Errorf("identity of a command: %q", out)
	}
	var got bytes.Buffer
	if err := c.Put(t.Context(), "/workspace/ro", 0o644, true, strings.NewReader("fixed")); err != nil {
		t.Errorf("Put: %v", err)
	}
	if err := c.Put(t.Context(), dir+"/new/by-guest", 0o640, false, strings.NewReader("x")); err != nil &&
		os.Geteuid() == 0 {
		t.Errorf("Put where only the guest may write: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	for key, in := range map[string]map[string]any{
		"read": {"file_path": "secret"}, "write": {"file_path": dir + "/state/x", "content": "x"},
		"edit": {"file_path": dir + "/state/journal", "old_string": "a", "new_string": "b"},
	} {
		if r := tool("no-"+key, key, in); r.Cause != "error" || !strings.Contains(string(r.Output),
			"permission denied") {
			t.Errorf("%s %v: %+v %s", key, in, r, r.Output)
		}
	}
	if r := tool("ro", "write", map[string]any{"file_path": "ro", "content": "x"}); r.Cause != "error" {
		t.Errorf("a read-only file was written: %s", r.Output)
	}
	if err := c.Get(t.Context(), "/workspace/secret", &got); code(err) != Invalid || got.Len() != 0 {
		t.Errorf("Get of the guest's own file: %v", err)
	}
	if err := os.Symlink(dir+"/state", dir+"/workspace/link"); err != nil {
		t.Fatal(err)
	}
	os.Lchown(dir+"/workspace/link", uid, gid)
	if err := c.Put(t.Context(), "/workspace/link/planted", 0o644, false,
		strings.NewReader("x")); code(err) != Invalid {
		t.Errorf("Put through a link of the tool: %v", err)
	}
	if _, err := os.Stat(dir + "/state/planted"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a link of the tool led the guest out")
	}
}

// If this fails, read-only directories of a build cache break checkpoints.
func TestSaveLoadIdentity(t *testing.T) {
	uid, gid := 54321, 54322
	if os.Geteuid() != 0 {
		uid, gid = os.Geteuid(), os.Getegid()
	}
	a, _ := guestAs(t, uid, gid)
	step := func(c *Client, key, command string) string {
		t.Helper()
		r := runCall(t, c, bashStart(key, command))
		if r.ExitCode == nil || *r.ExitCode != 0 {
			t.Fatalf("%s: %+v %s", command, r, r.Output)
		}
		return string(r.Output)
	}
	step(a, "1", "mkdir -p m/cache/x; echo one > m/cache/x/f; chmod 444 m/cache/x/f; chmod -R a-w m")
	step(a, "1b", "echo s > shut; chmod 0 shut; mkdir -m 0 closed")
	var full, delta bytes.Buffer
	if _, err := a.Save(t.Context(), Save{Epoch: 1, Next: "1"}, &full); err != nil {
		t.Fatal(err)
	}
	step(a, "2", "chmod u+w m/cache m/cache/x; rm -f m/cache/x/f; echo two > m/cache/y; chmod -R a-w m")
	saved, err := a.Save(t.Context(), Save{Epoch: 1, Base: "1", Next: "2"}, &delta)
	if err != nil || saved.Full {
		t.Fatalf("%+v, %v", saved, err)
	}
	const list = "find . -printf '%p %y %m %T@\\n' 2>/dev/null | sort; cat m/cache/y; ls m/cache/x"
	want := step(a, "3", list+"; true")
	b, _ := guestAs(t, uid, gid)
	if err := b.Load(t.Context(), "2", io.MultiReader(&full, &delta)); err != nil {
		t.Fatal(err)
	}
	if got := step(b, "3", list+"; true"); got != want {
		t.Errorf("restored:\n%s\nwant:\n%s", got, want)
	}
}

// If this fails, zombies of a sandbox's orphans use up its process table, or the guest loses a status to its own
// reaper.
func TestReaper(t *testing.T) {
	c := newChildren()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	const prSetChildSubreaper = 36
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	defer syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 0, 0)
	wg.Go(func() { c.reap(stop) })
	for range 3 { // in between there is no child at all
		var orphans []int
		var mu sync.Mutex
		var runs sync.WaitGroup
		for range 8 {
			runs.Go(func() {
				for range 10 {
					r, w, err := pipe2(0)
					if err != nil {
						t.Error(err)
						return
					}
					argv := []string{"sh", "-c", "sh -c 'exec sleep 0.01' >/dev/null & echo $!; exit 7"}
					p, err := c.start("/bin/sh", argv, &os.ProcAttr{Files: []*os.File{nil, w, nil}}, &wg)
					w.Close()
					if err != nil {
						t.Error(err)
						return
					}
					out, _ := io.ReadAll(r)
					r.Close()
					<-p.done
					if got := p.exitCode(); got != 7 {
						t.Errorf("exit status %d", got)
					}
					pid, _ := strconv.Atoi(strings.TrimSpace(string(out)))
					mu.Lock()
					orphans = append(orphans, pid)
					mu.Unlock()
				}
			})
		}
		runs.Wait()
		deadline := time.Now().Add(10 * time.Second)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for _, pid := range orphans {
			for syscall.Kill(pid, 0) == nil {
				if time.Now().After(deadline) {
					t.Fatalf("orphan %d was not reaped", pid)
				}
				<-tick.C
			}
		}
	}
	close(stop)
	wg.Wait()
}

// If this fails, each process that lives in a sandbox costs a thread of the guest, which may have no more than a few.
func TestChildrenWithoutThreads(t *testing.T) {
	const n, controls = 20, 5
	waiting := func() (count int) {
		tasks, _ := filepath.Glob("/proc/self/task/*/syscall")
		for _, task := range tasks {
			if b, err := os.ReadFile(task); err == nil && strings.HasPrefix(string(b),
				fmt.Sprintf("%d ", syscall.SYS_WAITID)) {
				count++
			}
		}
		return count
	}
	argv := []string{"sleep", "600"}
	c := newChildren()
	var wg sync.WaitGroup
	defer wg.Wait()
	var children []*process
	for range n {
		p, err := c.start("/bin/sleep", argv, &os.ProcAttr{}, &wg)
		if err != nil {
			t.Fatal(err)
		}
		defer p.kill()
		children = append(children, p)
	}
	for range controls {
		h, err := os.StartProcess("/bin/sleep", argv, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Kill()
		wg.Go(func() { h.Wait() })
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); waiting() < controls; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("to wait for a process takes no thread: this test shows nothing")
		}
	}
	if got := waiting(); got > controls {
		t.Errorf("%d threads wait for %d children", got-controls, n)
	}
	for _, p := range children {
		p.kill()
		if <-p.done; p.exitCode() != 128+int(syscall.SIGKILL) {
			t.Errorf("exit status %d", p.exitCode())
		}
	}
}

// If this fails, a program that fills its shell's pipes after its call costs the guest memory or blocks it.
func TestNoisyBackground(t *testing.T) {
	c, _ := newGuest(t)
	for i := range 5 {
		r := runCall(t, c, bashStart(fmt.Sprint("noise", i), "(exec yes) & echo started"))
		if r.Cause != "exited" || len(r.Output) > defaultOutput {
			t.Errorf("%s, %d bytes", r.Cause, len(r.Output))
		}
	}
	if out := string(runCall(t, c, bashStart("quiet", "kill %1 %2 %3 %4 %5; echo quiet")).
		Output); !strings.Contains(out, "quiet\n") {
		t.Errorf("%q", out)
	}
}

// If this fails, a tool that shares the guest's identity and empties the temporary directory ends its session.
func TestRunDirectoryRemoved(t *testing.T) {
	c, dir := newGuest(t)
	runCall(t, c, bashStart("1", "X=1; true"))
	runCall(t, c, bashStart("2", "rm -rf "+dir+"/run"))
	for i, command := range []string{"echo fine", "seq 100000; echo fine", "echo fine"} {
		r := runCall(t, c, bashStart(fmt.Sprint("after", i), command))
		if r.ExitCode == nil || *r.ExitCode != 0 || !strings.HasSuffix(string(r.Output), "fine\n") {
			t.Errorf("%s: %+v", command, r)
		}
	}
}

// If this fails, a guest that was restarted trips over what the one before left behind, or loses what it had finished.
func TestRestartKeepsResults(t *testing.T) {
	dir, err := os.MkdirTemp("", "og")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c, stop := guestAt(t, dir)
	small := runCall(t, c, bashStart("small", "echo small; exit 2"))
	large := runCall(t, c, bashStart("large", "seq 5000"))
	running := bashStart("running", "echo begun; sleep 1000")
	if _, err := c.Start(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	stop()
	for _, name := range []string{"c1-1", "o1-1"} {
		if err := os.WriteFile(filepath.Join(dir, "run", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, _ = guestAt(t, dir)
	for _, want := range []Result{small, large} {
		got, err := c.Wait(t.Context(), want.Key, 1)
		if err != nil || got.State != StateDone || *got.ExitCode != *want.ExitCode ||
			!bytes.Equal(got.Output, want.Output) {
			t.Errorf("%s after a restart: %+v, %v", want.Key, got, err)
		}
	}
	// A guest that is told to stop ends its calls, and says so.
	if got, err := c.Wait(t.Context(), "running", 1); err != nil || got.State != StateDone || got.Cause != causeKilled {
		t.Errorf("running: %+v, %v", got, err)
	}
}

// killOnceBegun starts a command, and kills it once it has written to the file.
func killOnceBegun(t *testing.T, c *Client, key, command, began string) Result {
	t.Helper()
	os.Remove(began)
	if _, err := c.Start(t.Context(), bashStart(key, command)); err != nil {
		t.Fatal(err)
	}
	for {
		if b, err := os.ReadFile(began); err == nil && len(b) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	r, err := c.Kill(t.Context(), key, 1)
	if err != nil || r.Cause != "killed" {
		t.Fatalf("%s: %+v, %v", key, r, err)
	}
	return r
}

// If this fails, a kill that comes while a command is being started costs the shell's state: bash waits for a
// child that the interrupt has not reached.
func TestInterruptReachesWhatIsJustStarted(t *testing.T) {
	c, dir := newGuest(t)
	began := filepath.Join(dir, "workspace", "began")
	runCall(t, c, bashStart("state", "X=1"))
	for name, command := range map[string]string{
		"begun":               "echo x > " + began + "; sleep 1000",
		"not yet its program": "(trap 'exec sleep 1000' INT; echo x > " + began + "; while :; do :; done)",
		"not yet there": "over=; trap 'over=1; sleep 1000' INT; echo x > " + began +
			"; while [ -z $over ]; do :; done; trap - INT",
	} {
		r := killOnceBegun(t, c, name, command, began)
		if !strings.Contains(string(r.Output), "the shell goes on") {
			t.Errorf("%s: %q", name, r.Output)
		}
		if r := runCall(t, c, bashStart("after "+name, "echo $X; X=1")); string(r.Output) != "1\n" {
			t.Errorf("after %s the shell says %q", name, r.Output)
		}
	}
}

// If this fails, a command that cleans up after an interrupt is interrupted again, which many take for an order not to.
func TestInterruptLeavesHandlersAlone(t *testing.T) {
	c, dir := newGuest(t)
	began, taken := filepath.Join(dir, "workspace", "began"), filepath.Join(dir, "workspace", "taken")
	killOnceBegun(t, c, "k", "bash -c \"trap 'echo x >> "+taken+"' INT; echo x > "+began+"; while :; do :; done\"",
		began)
	if b, err := os.ReadFile(taken); string(b) != "x\n" {
		t.Errorf("it was interrupted so often: %q, %v", b, err)
	}
}

// If this fails, shells of one call see each other's state or stay: after 64 of them there are no more.
func TestShellsOfOneCall(t *testing.T) {
	c, _ := newGuest(t)
	for i := range maxShells + 2 {
		s := bashStart(fmt.Sprint("once", i), "echo ${X-none}; X=1")
		s.Shell = OncePrefix + s.Key
		if r := runCall(t, c, s); string(r.Output) != "none\n" {
			t.Fatalf("call %d: %q", i, r.Output)
		}
	}
}

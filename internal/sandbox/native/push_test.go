//go:build linux

package native_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// layered returns a provider that makes layered sandboxes here.
func layered(t *testing.T) *native.Provider {
	t.Helper()
	p, _ := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	return p
}

func newCheckpoint() outboard.CheckpointID {
	return outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint)
}

// start makes a sandbox with an empty workspace.
func start(t *testing.T, p sandbox.Provider, from outboard.CheckpointID) *testSandbox {
	t.Helper()
	id := newID()
	s, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g-" + string(id), From: from})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &testSandbox{Sandbox: s, last: from}
}

// bash runs a command in the persistent shell and returns its output.
func bash(t *testing.T, b *testSandbox, command string) string {
	t.Helper()
	out, err := b.say(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// say runs a command in the persistent shell and returns its output. A status that is not 0 is an error.
func (b *testSandbox) say(ctx context.Context, command string) (string, error) {
	b.calls++
	input, err := json.Marshal(map[string]any{"command": command})
	if err != nil {
		return "", err
	}
	key := fmt.Sprintf("%s/%d", b.ID(), b.calls)
	s := guest.Start{Key: key, Epoch: 1, Generation: b.Generation(), Digest: key, Op: "bash", Input: input,
		Shell: "main", TimeoutMs: 60_000, OutputLimit: 100_000}
	r, err := b.Start(ctx, s)
	if err == nil && r.State != guest.StateDone {
		r, err = b.Wait(ctx, key, 1)
	}
	if err == nil && (r.State != guest.StateDone || r.ExitCode == nil || *r.ExitCode != 0) {
		err = fmt.Errorf("%s: %+v: %s", command, r, r.Output)
	}
	return string(r.Output), err
}

// push checkpoints what changed since the last push.
func push(t *testing.T, b *testSandbox) (outboard.CheckpointID, sandbox.Pushed) {
	t.Helper()
	id := newCheckpoint()
	pushed, err := b.Sandbox.(sandbox.Layered).Push(t.Context(), id, b.last)
	if err != nil {
		t.Fatal(err)
	}
	if pushed.Changed {
		b.last = id
	}
	return id, pushed
}

// Broken if a checkpoint loses or changes files under a running sandbox, is made when nothing changed, or cannot
// be begun from.
func TestPush(t *testing.T) {
	p := layered(t)
	m := start(t, p, "")
	if _, pushed := push(t, m); pushed.Changed {
		t.Error("a fresh workspace is a change")
	}
	bash(t, m, "cd /workspace; mkdir -p dir/sub; echo one > dir/sub/f; echo x > gone; ln dir/sub/f hard; echo h > "+
		"~/home; echo o > /mnt/session/outputs/o")
	first, pushed := push(t, m)
	if pushed != (sandbox.Pushed{Changed: true}) {
		t.Fatalf("first: %+v", pushed)
	}
	if _, pushed := push(t, m); pushed.Changed {
		t.Error("no change is a change")
	}
	if out := bash(t, m, "pwd; cat dir/sub/f; mv dir moved; rm gone; echo two >> moved/sub/f; cat hard; cd moved; "+
		"stat -c %u:%g ."); out != "/workspace\none\none\ntwo\n1000:1000\n" {
		t.Errorf("after the first push: %q", out)
	}
	second, pushed := push(t, m)
	if pushed != (sandbox.Pushed{Changed: true}) {
		t.Fatalf("second: %+v", pushed)
	}
	const look = "cd /workspace; find . -type f | sort | xargs cat; ls -A; cat ~/home /mnt/session/outputs/o"
	for id, want := range map[outboard.CheckpointID]string{
		first:  "one\nx\none\ndir\ngone\nhard\nh\no\n",
		second: "one\ntwo\none\ntwo\nhard\nmoved\nh\no\n",
	} {
		fork := start(t, p, id)
		if out := bash(t, fork, look); out != want {
			t.Errorf("from %s: %q, want %q", id, out, want)
		}
		bash(t, fork, "echo changed > /workspace/hard")
	}
	if out := bash(t, m, "pwd; "+look); out != "/workspace/moved\none\ntwo\none\ntwo\nhard\nmoved\nh\no\n" {
		t.Errorf("a fork changed what it was made from: %q", out)
	}
}

// Broken if a file with several names of which one was removed is said to have it still by who goes on from a
// later checkpoint.
func TestPushRemovedName(t *testing.T) {
	p := layered(t)
	m := start(t, p, "")
	bash(t, m, "cd /workspace; echo 2 > a; ln a b; echo 3 > c; ln c d; ln c e; echo 2 > f; ln f g; echo 2 > h; "+
		"mkdir deep; ln h deep/i; head -c 100000 /dev/zero > j; ln j k")
	push(t, m)
	bash(t, m, "cd /workspace; rm b e; echo w >> f; rm g; rm -r deep; rm j k")
	const look = "cd /workspace; stat -c '%h %n' a c d f h; [ c -ef d ] && cat a c f h; ls"
	const want = "1 a\n2 c\n2 d\n1 f\n1 h\n2\n3\n2\nw\n2\na\nc\nd\nf\nh\n"
	if out := bash(t, m, look); out != want {
		t.Fatalf("before the checkpoint: %q", out)
	}
	id, _ := push(t, m)
	native.Flattened(m.Sandbox)
	fork := start(t, p, id)
	for what, b := range map[string]*testSandbox{"the sandbox itself": m, "a fork": fork} {
		if out := bash(t, b, look); out != want {
			t.Errorf("%s: %q", what, out)
		}
	}
	if out := bash(t, fork, "cd /workspace; echo more >> c; cat d"); out != "3\nmore\n" {
		t.Errorf("a write by one of two names that are left: %q", out)
	}
}

// Broken if a checkpoint is torn because a process holds files of the workspace, or that process loses its files.
func TestPushBusy(t *testing.T) {
	p := layered(t)
	m := start(t, p, "")
	bash(t, m, "cd /workspace; mkfifo pipe; exec 9<>pipe; echo a > a; ln -s a l; ln -P l l2; ln pipe pipe2; (exec "+
		"3>>held; while read x; do echo $x >&3; done <pipe) & for i in $(seq 600); do [ -e held ] && break; sleep "+
		"0.05; done")
	id, pushed := push(t, m)
	if pushed != (sandbox.Pushed{Changed: true, Copied: true}) {
		t.Fatalf("%+v", pushed)
	}
	if _, pushed := push(t, m); pushed.Changed {
		t.Error("no change under a process is a change")
	}
	bash(t, m, "echo more >&9; rm a; echo b > b; for i in $(seq 100); do [ -s held ] && break; sleep 0.05; done; "+
		"cat held")
	next, pushed := push(t, m)
	if !pushed.Copied {
		t.Fatalf("%+v", pushed)
	}
	if out := bash(t, start(t, p, id),
		"cd /workspace; ls; stat -c %h l pipe; cat held"); out != "a\nheld\nl\nl2\npipe\npipe2\n2\n2\n" {
		t.Errorf("first copy: %q", out)
	}
	if out := bash(t, start(t, p, next),
		"cd /workspace; ls; stat -c %h l pipe; cat held"); out != "b\nheld\nl\nl2\npipe\npipe2\n2\n2\nmore\n" {
		t.Errorf("second copy: %q", out)
	}
	bash(t, m, "exec 9>&-; kill %1; wait; :")
	bash(t, m, "echo c > c")
	if _, pushed = push(t, m); pushed != (sandbox.Pushed{Changed: true}) {
		t.Errorf("after the process: %+v", pushed)
	}
}

// Broken if a checkpoint takes a workspace away from a process that is in one of its directories or runs a
// program from it, if to have looked for one spoils the next look, or if a mount is left over another.
func TestPushHeld(t *testing.T) {
	p := layered(t)
	const mounted = `awk '$5 == "/workspace" || $5 == "/mnt/session/outputs" || $5 == "/home/user" || $5 ~ "^/workspace/" { print $5 }' /proc/self/mountinfo | sort`
	const once = "/home/user\n/mnt/session/outputs\n/workspace\n"
	for name, hold := range map[string]string{
		"in the workspace":        "(cd /workspace; exec sleep 1000) &",
		"in the last directory":   "(cd ~; exec sleep 1000) &",
		"a program of the second": "cp /bin/sleep /mnt/session/outputs/nap; /mnt/session/outputs/nap 1000 &",
	} {
		t.Run(name, func(t *testing.T) {
			m := start(t, p, "")
			bash(t, m, "echo 0 > /workspace/f")
			push(t, m)
			bash(t, m, hold+" until grep -qa 1000 /proc/$!/cmdline; do sleep 0.01; done") // it has been started
			for i := 1; i <= 3; i++ {
				bash(t, m, fmt.Sprintf("echo %d >> /workspace/f", i))
				if _, pushed := push(t, m); pushed != (sandbox.Pushed{Changed: true, Copied: true}) {
					t.Fatalf("while it is held, %d: %+v", i, pushed)
				}
				if out := bash(t, m, mounted); out != once {
					t.Fatalf("while it is held, %d: mounted are %q", i, out)
				}
			}
			bash(t, m, "kill $!; wait; echo 4 >> /workspace/f")
			last, pushed := push(t, m)
			if pushed != (sandbox.Pushed{Changed: true}) {
				t.Fatalf("afterwards: %+v", pushed)
			}
			if out := bash(t, m, mounted+"; cat /workspace/f"); out != once+"0\n1\n2\n3\n4\n" {
				t.Errorf("afterwards: %q", out)
			}
			if out := bash(t, start(t, p, last), "cat /workspace/f"); out != "0\n1\n2\n3\n4\n" {
				t.Errorf("of the checkpoint: %q", out)
			}
		})
	}
}

// Broken if a checkpoint is made although nothing has changed since one that was copied, or none although
// something has.
func TestPushAfterCopy(t *testing.T) {
	p := layered(t)
	m := start(t, p, "")
	bash(t, m, "cd /workspace; mkdir d; echo one > d/f; ln -s one l; mkfifo p; touch -d @1000 d/f; chmod 600 d/f")
	bash(t, m, "cd /workspace; ! type python3 || python3 -c 'import socket; "+
		"socket.socket(socket.AF_UNIX).bind(\"s\")'; (cd d; exec sleep 1000) & until grep -qa 1000 "+
		"/proc/$!/cmdline; do sleep 0.01; done")
	if _, pushed := push(t, m); pushed != (sandbox.Pushed{Changed: true, Copied: true}) {
		t.Fatalf("while it is held: %+v", pushed)
	}
	if _, pushed := push(t, m); pushed.Changed {
		t.Errorf("still held, and nothing changed: %+v", pushed)
	}
	bash(t, m, "kill $!; wait; cat /workspace/d/f")
	for range 2 {
		if _, pushed := push(t, m); pushed.Changed {
			t.Errorf("let go of, and nothing changed: %+v", pushed)
		}
	}
	for _, change := range []string{
		"echo two > d/f; touch -d @1000 d/f", // of the same size, with the same time
		"chmod 640 d/f",
		"touch -h -d @2000 l",
		"ln -sfn two l",
		"touch d/new",
		"rm p",
		"mkdir e; touch -d @1 .",
		"mv d/f d/g",
	} {
		bash(t, m, "cd /workspace/d; sleep 1000 & cd ..; until grep -qa 1000 /proc/$!/cmdline; do sleep 0.01; done; "+
			"date > again")
		if _, pushed := push(t, m); pushed != (sandbox.Pushed{Changed: true, Copied: true}) {
			t.Fatalf("before %s: %+v", change, pushed)
		}
		bash(t, m, "kill $!; wait; cd /workspace; "+change)
		want := bash(t, m, "cd /workspace; find . ! -type s -printf '%p %m %l %T@\\n' | sort; cat d/*")
		id, pushed := push(t, m)
		if pushed != (sandbox.Pushed{Changed: true}) {
			t.Errorf("after %s: %+v", change, pushed)
			continue
		}
		if out := bash(t, start(t, p, id),
			"cd /workspace; find . ! -type s -printf '%p %m %l %T@\\n' | sort; cat d/*"); out != want {
			t.Errorf("after %s: %q, want %q", change, out, want)
		}
		bash(t, m, "cd /workspace; rm -rf d e l p; mkdir d; echo one > d/f; ln -s one l; mkfifo p; touch -d @1000 "+
			"d/f; chmod 600 d/f")
	}
}

// Broken if a checkpoint lacks what a process has written through a mapping of a file, which the file's times do
// not show until the kernel has looked at its pages anew.
func TestPushMapped(t *testing.T) {
	p := layered(t)
	m := start(t, p, "")
	hostile, err := os.ReadFile(hostilePath())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Put(t.Context(), "/workspace/hostile", 0o755, false, bytes.NewReader(hostile)); err != nil {
		t.Fatal(err)
	}
	bash(t, m, "cd /workspace; mv hostile /tmp; head -c 4096 /dev/zero > f; (exec /tmp/hostile mapped f > "+
		"/tmp/said) & until grep -q 'wrote a' /tmp/said; do sleep 0.01; done")
	for _, wrote := range []string{"a", "b", "c"} {
		id, pushed := push(t, m)
		if pushed != (sandbox.Pushed{Changed: true, Copied: true}) {
			t.Errorf("with %s written: %+v", wrote, pushed)
			continue
		}
		if out := bash(t, start(t, p, id), "head -c 1 /workspace/f"); out != wrote {
			t.Errorf("of the checkpoint with %s written: %q", wrote, out)
		}
		bash(t, m, "kill -USR1 $!; until tail -n 1 /tmp/said | grep -qv 'wrote "+wrote+"'; do sleep 0.01; done")
	}
}

// Broken if a new sandbox's first checkpoint is a copy because what made the sandbox has its workspace open
// still, for as long as it is left to be closed in the background.
func TestPushAfterCreate(t *testing.T) {
	for what, warm := range map[string]int{"made from the ground": 0, "made ahead": 1} {
		t.Run(what, func(t *testing.T) {
			layered(t)
			p := openProvider(t, native.Config{Dir: filepath.Join(t.TempDir(), "s"), Warm: warm})
			m := start(t, p, "")
			bash(t, m, "echo 1 > /workspace/f")
			saved, _ := push(t, m)
			for _, from := range []outboard.CheckpointID{"", saved} {
				start(t, p, "")
				p.PoolFilled() // the guest of the next, if any may wait
				id := newID()
				s, last, err := p.CreateOnly(t.Context(), sandbox.Spec{ID: id, Generation: "g-" + string(id),
					From: from})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
				t.Cleanup(last)
				m := &testSandbox{Sandbox: s, last: from}
				bash(t, m, "echo 2 > /workspace/g")
				if _, pushed := push(t, m); pushed != (sandbox.Pushed{Changed: true}) {
					t.Errorf("from %q: %+v", from, pushed)
				}
			}
		})
	}
}

// Broken if checkpoints lose or tear something where the host has no freezer.
func TestPushUnstopped(t *testing.T) {
	p := layered(t)
	m := start(t, p, "")
	native.WithoutFreezer(m.Sandbox)
	bash(t, m, "echo 1 > /workspace/f; echo h > ~/h")
	first, pushed := push(t, m)
	if pushed != (sandbox.Pushed{Changed: true}) {
		t.Fatalf("first: %+v", pushed)
	}
	bash(t, m, "echo 2 >> /workspace/f; (cd ~; exec sleep 1000) & until grep -qa 1000 /proc/$!/cmdline; do sleep "+
		"0.01; done")
	if _, pushed := push(t, m); pushed != (sandbox.Pushed{Changed: true, Copied: true}) {
		t.Fatalf("while a process is in the home directory: %+v", pushed)
	}
	bash(t, m, "kill $!; wait; echo 3 >> /workspace/f")
	last, pushed := push(t, m)
	if pushed != (sandbox.Pushed{Changed: true}) {
		t.Fatalf("last: %+v", pushed)
	}
	for id, want := range map[outboard.CheckpointID]string{first: "1\nh\n", last: "1\n2\n3\nh\n"} {
		if out := bash(t, start(t, p, id), "cat /workspace/f ~/h"); out != want {
			t.Errorf("from %s: %q, want %q", id, out, want)
		}
	}
	if out := bash(t, m, "cat /workspace/f ~/h"); out != "1\n2\n3\nh\n" {
		t.Errorf("%q", out)
	}
}

// Broken if a stack gets as high as the kernel will not have it, or a sandbox with one of the most layers cannot
// be used any more.
func TestPushLimit(t *testing.T) {
	p := layered(t)
	native.FlattenAt(p, 1000)
	m := start(t, p, "")
	const most = 128
	for i := range most {
		bash(t, m, fmt.Sprintf("echo %d > /workspace/f", i))
		if _, pushed := push(t, m); !pushed.Changed {
			t.Fatalf("%d: %+v", i, pushed)
		}
	}
	for range 2 {
		bash(t, m, "echo more >> /workspace/f")
		if _, err := m.Sandbox.(sandbox.Layered).Push(t.Context(), newCheckpoint(),
			""); outboard.KindOf(err) != outboard.Unimplemented {
			t.Fatalf("above the limit: %v", err)
		}
	}
	if out := bash(t, m, "cat /workspace/f"); out != "127\nmore\nmore\n" {
		t.Errorf("%q", out)
	}
}

// Broken if layers stay for ever, or go while a sandbox or a checkpoint needs them.
func TestSweepLayers(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	layers := func() int {
		t.Helper()
		p.TrashEmpty()
		if err := p.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(filepath.Join(dir, "layers"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	m := start(t, p, "")
	bash(t, m, "echo 1 > /workspace/f")
	first, _ := push(t, m)
	bash(t, m, "echo 2 > /workspace/f")
	second, _ := push(t, m)
	layers()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Destroy(t.Context(), m.ID()); err != nil {
		t.Fatal(err)
	}
	if n := layers(); n != 2 || !p.Keeps(first) || !p.Keeps(second) {
		t.Errorf("%d layers of two checkpoints", n)
	}
	if err := p.Forget(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if n := layers(); n != 2 || p.Keeps(first) || !p.Keeps(second) {
		t.Errorf("%d layers of one checkpoint on another's", n)
	}
	fork := start(t, p, second)
	if err := p.Forget(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	layers()
	if out := bash(t, fork, "cat /workspace/f; rm /workspace/f"); out != "2\n" {
		t.Errorf("a sandbox lost its layers: %q", out)
	}
	if err := errors.Join(fork.Close(), p.Destroy(t.Context(), fork.ID())); err != nil {
		t.Fatal(err)
	}
	if n := layers(); n != 0 {
		t.Errorf("%d layers of nothing", n)
	}
	kept, err := p.Kept(t.Context())
	if err != nil || len(kept) != 0 {
		t.Errorf("kept %v, %v", kept, err)
	}
}

// Broken if what a crash of the server in the middle of a Push left is taken for a whole workspace.
func TestPushInterrupted(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	work := filepath.Join(dir, string(m.ID()))
	open := func() error {
		s, err := p.Open(t.Context(), m.ID())
		if err == nil {
			s.Close()
		}
		return err
	}
	if err := open(); err != nil {
		t.Fatal(err) // the control
	}
	if err := os.Rename(filepath.Join(work, "1"), filepath.Join(work, "1.pushing")); err != nil {
		t.Fatal(err)
	}
	if err := open(); !sandbox.Gone(err) {
		t.Errorf("opening: %v", err)
	}
	if _, err := m.Sandbox.(sandbox.Layered).Push(t.Context(), newCheckpoint(), ""); !sandbox.Gone(err) {
		t.Errorf("pushing: %v", err)
	}
}

// awaitAhead waits until the overlay after that of writable layer n-1 has been made.
func awaitAhead(t *testing.T, dir string, id outboard.SandboxID, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(dir, string(id), fmt.Sprint(n, ".next"), "wk", "work")); err == nil {
			return // the mount made it
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was made ahead")
		}
	}
}

// Broken if a sandbox is given an overlay whose layer is not there any more, as when another server was killed
// while it made its own: from then on nothing of it could be saved.
func TestPushLayerTakenAway(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	bash(t, m, "echo 1 > /workspace/a")
	bash(t, m, "true") // on a slow machine the look for what the first call wrote came before it
	awaitAhead(t, dir, m.ID(), 2)
	if err := os.RemoveAll(filepath.Join(dir, "layers", string(m.ID())+".1")); err != nil {
		t.Fatal(err)
	}
	push(t, m)
	bash(t, m, "echo 2 > /workspace/b")
	last, pushed := push(t, m)
	if !pushed.Changed {
		t.Fatalf("%+v", pushed)
	}
	if out := bash(t, start(t, p, last), "cat /workspace/*"); out != "1\n2\n" {
		t.Errorf("%q", out)
	}
}

// Broken if a sandbox is given an overlay that another server was killed over while it removed what it lies on:
// whoever writes to it fails.
func TestPushHalfRemoved(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	bash(t, m, "echo 1 > /workspace/a")
	bash(t, m, "true") // on a slow machine the look for what the first call wrote came before it
	awaitAhead(t, dir, m.ID(), 2)
	m.Sandbox.(interface{ Settled() }).Settled()
	other, err := openProvider(t, native.Config{Dir: dir}).Open(t.Context(), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	stuck(t, filepath.Join(dir, string(m.ID()), "2.next"))
	if _, err := other.(sandbox.Layered).Push(t.Context(), newCheckpoint(), ""); !errors.Is(err, syscall.EPERM) ||
		sandbox.Gone(err) {
		t.Fatalf("the control: the other server has removed it: %v", err)
	}
	push(t, m)
	bash(t, m, "echo 2 > /workspace/b")
	last, _ := push(t, m)
	if out := bash(t, start(t, p, last), "cat /workspace/*"); out != "1\n2\n" {
		t.Errorf("%q", out)
	}
}

// stuck makes a directory of writable layers one that cannot be removed, but whose "up" is before anybody finds out.
func stuck(t *testing.T, dir string) {
	t.Helper()
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprintf("stuck%d", i))
		if err := os.WriteFile(filepath.Join(dir, names[i]), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	order, err := d.Readdirnames(-1) // as who removes it will find them
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(order[slices.Index(order, "up"):],
		func(name string) bool { return slices.Contains(names, name) })
	if i < 0 {
		t.Fatalf("nothing comes after %q in %q", "up", order)
	}
	last := order[slices.Index(order, "up")+i]
	f, err := os.Open(filepath.Join(dir, last))
	if err != nil {
		t.Fatal(err)
	}
	const immutable = 0x10 // FS_IMMUTABLE_FL
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutable)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags),
			f.Close()); err != nil {
			t.Error(err)
		}
	})
	for _, name := range names {
		if name != last {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Broken if what fails after the mounts were swapped takes the layer away that the sandbox now writes to.
func TestPushFailsLate(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	bash(t, m, "echo 1 > /workspace/a")
	id := newCheckpoint()
	if err := os.Symlink("x", filepath.Join(dir, "checkpoints", string(id))); err != nil {
		t.Fatal(err)
	}
	_, err := m.Sandbox.(sandbox.Layered).Push(t.Context(), id, "")
	if err == nil || sandbox.Gone(err) {
		t.Fatalf("pushing under a name that is taken: %v", err)
	}
	bash(t, m, "echo 2 > /workspace/b")
	last, _ := push(t, m)
	fork := start(t, p, last)
	if out := bash(t, fork, "cat /workspace/*"); out != "1\n2\n" {
		t.Errorf("%q; after %v; what was saved has %q now, and who wrote it %q; on the disk:\n%s", out, err,
			bash(t, fork, "ls -l /workspace"),
			bash(t, m, "ls -l /workspace"), onDisk(t, dir))
	}
}

// onDisk lists the names below a provider's directory that layers are made of, with their links and numbers.
func onDisk(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		top, _, _ := strings.Cut(name, "/")
		switch {
		case err != nil:
			fmt.Fprintln(&out, name, err)
			return nil // somebody is at it
		case d.IsDir() && name != "." && top != "layers" && top != "checkpoints" &&
			!strings.HasPrefix(top, outboard.PrefixSandbox), d.Name() == "wk", d.Name() == "fs" && top != "layers":
			return fs.SkipDir
		// a writable layer
		case top == "layers" || top == "checkpoints" || name[len(top):] > "/0" && name[len(top):] < "/:":
			var st unix.Stat_t
			_ = unix.Lstat(path, &st)
			to, _ := os.Readlink(path)
			fmt.Fprintln(&out, name, st.Ino, st.Size, to)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return out.String()
}

// Broken if the sweep removes layers under a sandbox or a checkpoint because it could not read what they are on.
func TestSweepUnreadable(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	bash(t, m, "echo 1 > /workspace/a")
	first, _ := push(t, m)
	if err := p.Forget(t.Context(), first); err != nil { // only the sandbox is above its layer
		t.Fatal(err)
	}
	awaitAhead(t, dir, m.ID(), 3)
	// whoever makes layers keeps the sweep away, until it lets go of the sandbox as well
	m.Sandbox.(interface{ Settled() }).Settled()
	if err := p.Sweep(t.Context()); err != nil {
		t.Fatal(err) // the control
	}
	top := filepath.Join(dir, string(m.ID()), "2", "stack.json")
	whole, err := os.ReadFile(top)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func() error{
		"damaged": func() error { return os.WriteFile(top, []byte("{"), 0o600) },
		"missing": func() error { return os.Remove(top) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if err := p.Sweep(t.Context()); err == nil {
			t.Errorf("%s: the sweep took itself for done", name)
		}
		if out := bash(t, m, "cat /workspace/a"); out != "1\n" {
			t.Errorf("%s: %q", name, out)
		}
		if err := os.WriteFile(top, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bash(t, m, "echo 2 > /workspace/b")
	last, _ := push(t, m)
	if err := p.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := bash(t, start(t, p, last), "cat /workspace/*"); out != "1\n2\n" {
		t.Errorf("%q", out)
	}
}

// Broken if what was made ahead, a place or a sandbox with a guest, keeps a fork from beginning with its
// checkpoint, or the next sandbox begins with it too.
func TestForkFromAhead(t *testing.T) {
	for name, cfg := range map[string]native.Config{"place": {Ahead: 2}, "guest": {Warm: 2}} {
		t.Run(name, func(t *testing.T) {
			cfg.Dir = filepath.Join(t.TempDir(), "s")
			p := openProvider(t, cfg)
			if !p.Capabilities().Layers {
				t.Skip("no layers on this host or as this user")
			}
			m := start(t, p, "")
			bash(t, m, "mkdir /workspace/d; echo 1 > /workspace/d/f; echo h > ~/home")
			first, _ := push(t, m)
			bash(t, m, "echo 2 >> /workspace/d/f")
			second, _ := push(t, m)
			const look = "cat /workspace/d/f ~/home; stat -c %u:%g /workspace/d ~"
			for id, want := range map[outboard.CheckpointID]string{first: "1\nh\n", second: "1\n2\nh\n"} {
				p.PoolFilled()
				if made, _ := filepath.Glob(filepath.Join(cfg.Dir, "shelf", "*", "plot_*")); len(made) == 0 {
					t.Fatal("the control: nothing was made ahead")
				}
				fork := start(t, p, id)
				if out := bash(t, fork, look); out != want+"1000:1000\n1000:1000\n" {
					t.Errorf("from %s: %q", id, out)
				}
				bash(t, fork, "mv /workspace/d /workspace/e; echo 3 >> /workspace/e/f")
				next, pushed := push(t, fork)
				if pushed != (sandbox.Pushed{Changed: true}) {
					t.Fatalf("%+v", pushed)
				}
				if out := bash(t, start(t, p, next),
					"cat /workspace/e/f ~/home; ls /workspace"); out != strings.Replace(want, "h", "3\nh", 1)+"e\n" {
					t.Errorf("from what the fork saved: %q", out)
				}
			}
			if out := bash(t, start(t, p, ""), "ls -A /workspace"); out != "" {
				t.Errorf("a sandbox that begins with nothing has %q", out)
			}
			if out := bash(t, m, look); out != "1\n2\nh\n1000:1000\n1000:1000\n" {
				t.Errorf("what was forked from has %q", out)
			}
			if _, err := p.Create(t.Context(), sandbox.Spec{ID: newID(), Generation: "g",
				From: newCheckpoint()}); !sandbox.Gone(err) {
				t.Errorf("from a checkpoint that is not here: %v", err)
			}
		})
	}
}

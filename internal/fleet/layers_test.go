//go:build linux

package fleet

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/store"
)

// guestProgram builds the guest once.
var guestProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "outboard-fleet-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "guest")
	cmd := exec.Command("go", "build", "-o", path, "../../cmd/outboard-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})

// nativeProvider makes real machines with layers, in a directory of their own: one per host.
func nativeProvider(t *testing.T) *native.Provider {
	t.Helper()
	return nativeIn(t, filepath.Join(t.TempDir(), "s"))
}

func nativeIn(t *testing.T, dir string) *native.Provider {
	t.Helper()
	guest, err := guestProgram()
	if err != nil {
		t.Fatal(err)
	}
	p, err := native.New(native.Config{Dir: dir, Guest: guest})
	if err != nil || !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user:", err)
	}
	t.Cleanup(func() {
		ids, err := p.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := p.Destroy(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Broken if a checkpoint of layers is not usable at once on its host, never becomes durable, or is another tree
// elsewhere.
func TestLayersBecomeDurable(t *testing.T) {
	r := newRig(t)
	here, there := nativeProvider(t), nativeProvider(t)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	if c := r.checkpoint(t, f, b, id); c != nil {
		t.Errorf("a checkpoint of nothing: %+v", c)
	}
	var last *outboard.Checkpoint
	for _, command := range []string{"cd /workspace; mkdir d; echo 1 > d/f; ln d/f g", "mv d e; echo 2 >> e/f",
		"echo 3 > h; rm g"} {
		r.bash(t, b, command)
		c := r.checkpoint(t, f, b, id)
		if c == nil || c.Host != host || c.Durable() || last != nil && (c.Parent != last.ID || c.Prior != last.ID) {
			t.Fatalf("%s: %+v", command, c)
		}
		last = c
	}
	r.bash(t, b, "echo unsaved > h")
	// Lost before it was durable, but the host is well: its layers are.
	if err := here.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	const look = "cd /workspace; find . | sort | xargs; cat e/f h"
	const want = ". ./e ./e/f ./h\n1\n2\n3\n"
	again := r.acquire(t, f, id)
	if out := r.bash(t, again, look); again.Lost == nil || again.Lost.Restore != last.ID || out != want {
		t.Errorf("from layers: %+v, %q", again.Lost, out)
	}
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	k, err := r.store.Checkpoint(t.Context(), last.ID)
	if err != nil || !k.Durable() || k.Host != "" || k.DurableAt.IsZero() {
		t.Fatalf("%+v, %v", k, err)
	}
	r.provider = there
	other := r.acquire(t, r.fleet(func(c *Config) { c.Host = "host-b" }), id)
	if out := r.bash(t, other, look); other.Lost == nil || other.Lost.Restore != last.ID || out != want {
		t.Errorf("from deltas: %+v, %q", other.Lost, out)
	}
	if !there.Keeps(last.ID) {
		t.Error("what was restored has no layers, and the next delta is the whole workspace")
	}
}

// Broken if the processes of a host store each delta once each: together they would be no faster than one of them.
func TestLayersKeptOnce(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	f := r.fleet()
	var all []outboard.CheckpointID
	for range 3 {
		id := r.session(t)
		b := r.acquire(t, f, id)
		for _, command := range []string{"echo 1 > /workspace/a", "echo 2 > /workspace/a"} {
			r.bash(t, b, command)
			all = append(all, r.checkpoint(t, f, b, id).ID)
		}
	}
	other := r.fleet()
	packed := 0
	first := sync.OnceFunc(func() { // another process does it all while this one is at its first
		if err := other.keepAll(t.Context(), packing{here, func() { packed++ }}); err != nil {
			t.Error(err)
		}
	})
	if err := f.keepAll(t.Context(), packing{here, func() { packed++; first() }}); err != nil {
		t.Fatal(err)
	}
	if packed != len(all)+1 {
		t.Errorf("%d deltas were made of %d checkpoints, one of them twice", packed, len(all))
	}
	for _, id := range all {
		if k, err := r.store.Checkpoint(t.Context(), id); err != nil || !k.Durable() {
			t.Errorf("%+v, %v", k, err)
		}
	}
}

// packing says when a delta is made.
type packing struct {
	sandbox.Layers
	said func()
}

func (p packing) Pack(ctx context.Context, id, parent outboard.CheckpointID, w io.Writer) error {
	p.said()
	return p.Layers.Pack(ctx, id, parent, w)
}

// Broken if a checkpoint is lost, or brings deleted files back, because its parent's layers were dropped before
// it was durable.
func TestLayersWithoutParent(t *testing.T) {
	r := newRig(t)
	here, there := nativeProvider(t), nativeProvider(t)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "cd /workspace; echo 1 > gone; echo 2 > kept")
	first := r.checkpoint(t, f, b, id)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	r.bash(t, b, "cd /workspace; rm gone")
	second := r.checkpoint(t, f, b, id)
	if second.Parent != first.ID {
		t.Fatalf("%+v", second)
	}
	if err := here.Forget(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	if k, err := r.store.Checkpoint(t.Context(), second.ID); err != nil || !k.Durable() || k.Parent != "" {
		t.Fatalf("%+v, %v", k, err)
	}
	r.provider = there
	other := r.acquire(t, r.fleet(func(c *Config) { c.Host = "host-b" }), id)
	if out := r.bash(t, other, "cd /workspace; echo *"); out != "kept\n" {
		t.Errorf("restored %q", out)
	}
}

// Broken if a session whose host is lost before its last checkpoints were durable does not go on, or goes on as
// if nothing was lost.
func TestLayersLost(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "echo kept > /workspace/a")
	first := r.checkpoint(t, f, b, id)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	for _, x := range []string{"1", "2"} {
		r.bash(t, b, "echo "+x+" > /workspace/a")
		c := r.checkpoint(t, f, b, id)
		if err := here.Forget(t.Context(), c.ID); err != nil { // as a restart of the host would
			t.Fatal(err)
		}
	}
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	if rows, err := r.store.LocalCheckpoints(t.Context(), host); err != nil || len(rows) != 0 {
		t.Errorf("waiting for ever: %+v, %v", rows, err)
	}
	if err := here.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	again := r.acquire(t, f, id)
	if again.Lost == nil || again.Lost.Restore != first.ID || !strings.Contains(again.Lost.Reason,
		"2 calls that changed files are undone") {
		t.Errorf("%+v", again.Lost)
	}
	if out := r.bash(t, again, "cat /workspace/a"); out != "kept\n" {
		t.Errorf("restored %q", out)
	}
}

// Broken if a session whose files are too large to be stored is told that its host was lost, or if its only copy
// goes with its sandbox.
func TestLayersTooLarge(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	f := r.fleet()
	f.maxCheckpoint = 1 << 20
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "head -c 3000000 /dev/urandom > /workspace/a")
	first := r.checkpoint(t, f, b, id)
	r.bash(t, b, "echo kept > /workspace/b")
	last := r.checkpoint(t, f, b, id)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*outboard.Checkpoint{first, last} {
		if k, err := r.store.Checkpoint(t.Context(), c.ID); err != nil || k.Host != "" || !k.TooLarge() {
			t.Fatalf("settled as %+v, %v", k, err)
		}
	}
	release(t, f, b)
	if err := f.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := f.reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if here.Keeps(first.ID) || !here.Keeps(last.ID) {
		t.Errorf("keeps the state before: %v, the newest one: %v", here.Keeps(first.ID), here.Keeps(last.ID))
	}
	again := r.acquire(t, f, id)
	if out := r.bash(t, again, "cat /workspace/b; stat -c %s /workspace/a"); out != "kept\n3000000\n" {
		t.Errorf("restored %q", out)
	}
}

// Broken if what a process saved and died before it could commit is not saved again: nothing has changed since,
// and yet no row has it.
func TestLayersNeverCommitted(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	for _, x := range []string{"first", "second"} {
		r.bash(t, b, "echo "+x+" >> /workspace/a")
		// and no commit
		if _, err := f.Checkpoint(t.Context(), b, id, 1, r.state(t, id).Checkpoint, "sevt_call"); err != nil {
			t.Fatal(err)
		}
		c := r.checkpoint(t, f, b, id)
		if c == nil {
			t.Fatal("no checkpoint")
		}
		if again := r.checkpoint(t, f, b, id); again != nil {
			t.Errorf("nothing changed, and yet %+v", again)
		}
	}
	if err := here.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	if out := r.bash(t, r.acquire(t, f, id), "cat /workspace/a"); out != "first\nsecond\n" {
		t.Errorf("restored %q", out)
	}
}

// Broken if a session cannot be saved any more once its machine has as many layers as it may, because they
// cannot be squashed, or goes on from less than was saved.
func TestLayersMany(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(t.TempDir(), "s")
	here := nativeIn(t, dir)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	if err := os.MkdirAll(filepath.Join(dir, string(b.ID()), "squashed.next", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	durable := 0
	for i := 0; durable < 2; i++ {
		if i == 200 {
			t.Fatal("no end to the layers")
		}
		r.bash(t, b, "echo >> /workspace/a")
		if c := r.checkpoint(t, f, b, id); c.Durable() { // saved the other way
			durable++
			if c.Depth != durable-1 {
				t.Errorf("depth %d of the delta after %d", c.Depth, durable-1)
			}
		}
	}
	lines := r.bash(t, b, "wc -l </workspace/a")
	if err := here.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	again := r.acquire(t, f, id)
	if out := r.bash(t, again, "wc -l </workspace/a; echo >> /workspace/a"); out != lines {
		t.Errorf("restored %q lines of %q", out, lines)
	}
	if c := r.checkpoint(t, f, again, id); c.Host != host {
		t.Errorf("the restored machine has no layers: %+v", c)
	}
}

// pushTwice leaves a session's layers in two states: a checkpoint, and one that was pushed on top of it and not
// committed.
func (r *rig) pushTwice(t *testing.T, f *Fleet, b *Lease,
	id outboard.SessionID) (c *outboard.Checkpoint, orphan outboard.CheckpointID) {
	t.Helper()
	r.bash(t, b, "echo kept > /workspace/a")
	c = r.checkpoint(t, f, b, id)
	orphan = outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint)
	r.bash(t, b, "echo more > /workspace/a")
	if _, err := b.use.machine.Sandbox.(sandbox.Layered).Push(t.Context(), orphan, c.ID); err != nil {
		t.Fatal(err)
	}
	return c, orphan
}

// Broken if the layers of sessions that left this host, or of processes that died before they committed, fill
// the disk, or those in use go.
func TestForgetLayers(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	c, orphan := r.pushTwice(t, f, b, id)
	keeps := func(when string, first, second bool) {
		t.Helper()
		if err := f.reap(t.Context()); err != nil {
			t.Fatal(err)
		}
		if here.Keeps(c.ID) != first || here.Keeps(orphan) != second {
			t.Errorf("%s: keeps %v, %v", when, here.Keeps(c.ID), here.Keeps(orphan))
		}
	}
	gone := outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint)
	// seen before they were committed, or dropped
	f.keeper.strange[c.ID], f.keeper.strange[gone] = time.Now(), time.Now()
	keeps("in use", true, true)
	if _, ok := f.keeper.strange[orphan]; !ok || len(f.keeper.strange) != 1 {
		t.Errorf("strange are %v, and not only %s", f.keeper.strange, orphan)
	}
	f.keeper.strange[orphan] = f.keeper.strange[orphan].Add(-MakeTimeout)
	keeps("long after", true, false)
	release(t, f, b)
	if err := f.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	keeps("not durable", true, false)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	keeps("durable and gone", false, false)
}

// Broken if a session that changes a large file a little with each call keeps all of its states on its host as
// well, for as long as it lives; or if what it goes on from, or one that is not stored, is dropped, or one that
// was dropped cannot be gone back to.
func TestTrimLayers(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	f := r.fleet()
	f.keepLocal = 10 << 20
	id := r.session(t)
	b := r.acquire(t, f, id)
	var all []*outboard.Checkpoint
	change := func(i int) {
		t.Helper()
		r.bash(t, b, fmt.Sprintf("cd /workspace; [ -e db ] || head -c 8000000 /dev/urandom > db; printf %d | dd "+
			"of=db bs=1 seek=%d conv=notrunc 2>/dev/null; echo %d > n; cd /", i, i, i))
		all = append(all, r.checkpoint(t, f, b, id))
	}
	kept := func(want ...int) {
		t.Helper()
		if err := f.reap(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, c := range all {
			if here.Keeps(c.ID) != slices.Contains(want, i) {
				t.Errorf("keeps %d of %d: %v", i, len(all), here.Keeps(c.ID))
			}
		}
	}
	for i := range 4 {
		change(i)
	}
	kept(0, 1, 2, 3) // nothing is stored
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	change(4)
	kept(3, 4)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	if all[4].Parent != all[3].ID {
		t.Errorf("the state after a look is a delta of %q", all[4].Parent)
	}
	release(t, f, b)
	r.append(t, store.Commit{Session: id}, &outboard.SessionRewound{To: 1, Machine: true, Checkpoint: all[1].ID,
		Sandbox: b.ID()})
	if err := f.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b = r.acquire(t, f, id)
	if out := r.bash(t, b, "cat /workspace/n; stat -c %s /workspace/db"); out != "1\n8000000\n" {
		t.Errorf("gone back to %q", out)
	}
	kept(1, 3, 4) // the session is in the second
	r.bash(t, b, "echo on > /workspace/n")
	if c := r.checkpoint(t, f, b, id); c == nil || c.Parent != all[1].ID {
		t.Errorf("what comes after it is %+v", c)
	}
}

// Broken if the layers of deleted sessions stay for minutes after whoever needs room has deleted them; those
// that may yet be committed stay.
func TestForgetLayersOfDeletedSessions(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	c, orphan := r.pushTwice(t, f, b, id)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	release(t, f, b)
	if err := r.store.DeleteSession(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := f.reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if here.Keeps(c.ID) || !here.Keeps(orphan) {
		t.Errorf("the deleted session's are kept: %v; those that may be about to be committed: %v", here.Keeps(c.ID),
			here.Keeps(orphan))
	}
	if err := f.reap(t.Context()); err != nil || len(f.keeper.committed) != 0 {
		t.Errorf("%d are remembered for nothing, %v", len(f.keeper.committed), err)
	}
}

// Broken if effects are lost with a sandbox whose layers were damaged while it lived.
func TestLayersDamaged(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(t.TempDir(), "s")
	here := nativeIn(t, dir)
	r.provider = here
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "echo 1 >> /workspace/a")
	if c := r.checkpoint(t, f, b, id); c.Host != host {
		t.Fatalf("the control: %+v", c)
	}
	if err := os.Remove(filepath.Join(dir, string(b.ID()), "2", "stack.json")); err != nil {
		t.Fatal(err)
	}
	for depth, x := range []string{"2", "3"} {
		r.bash(t, b, "echo "+x+" >> /workspace/a")
		if c := r.checkpoint(t, f, b, id); c == nil || !c.Durable() || c.Depth != depth {
			t.Fatalf("after %s: %+v", x, c)
		}
		if c := r.checkpoint(t, f, b, id); c != nil {
			t.Errorf("nothing changed, and yet %+v", c)
		}
	}
	if err := here.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	again := r.acquire(t, f, id)
	if out := r.bash(t, again, "cat /workspace/a"); out != "1\n2\n3\n" {
		t.Errorf("restored %q", out)
	}
	r.bash(t, again, "echo 4 >> /workspace/a")
	if c := r.checkpoint(t, f, again, id); c.Host != host {
		t.Errorf("the next sandbox has no layers: %+v", c)
	}
}

// passing is a native provider to whom something happens while a machine is being made or used.
type passing struct {
	*native.Provider
	create func(sandbox.Spec)    // before it is made
	load   func(sandbox.Sandbox) // before files are brought into it
	list   func(sandbox.Sandbox) // before files in it are listed
}

// Create calls what is to happen, then the provider.
func (p *passing) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	if p.create != nil {
		p.create(s)
	}
	sb, err := p.Provider.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return loading{sb.(layeredSandbox), p}, nil
}

// Open is the provider's, of a machine to which something may happen too.
func (p *passing) Open(ctx context.Context, id outboard.SandboxID) (sandbox.Sandbox, error) {
	sb, err := p.Provider.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return loading{sb.(layeredSandbox), p}, nil
}

type layeredSandbox interface {
	sandbox.Sandbox
	sandbox.Layered
}

type loading struct {
	layeredSandbox
	p *passing
}

// Load calls what is to happen, then the sandbox.
func (l loading) Load(ctx context.Context, label string, r io.Reader) error {
	if l.p.load != nil {
		l.p.load(l.layeredSandbox)
	}
	return l.layeredSandbox.Load(ctx, label, r)
}

// List calls what is to happen, then the sandbox.
func (l loading) List(ctx context.Context, dir string) ([]guest.Stat, error) {
	if l.p.list != nil {
		l.p.list(l.layeredSandbox)
	}
	return l.layeredSandbox.List(ctx, dir)
}

// Broken if a call fails because the session's machine was killed between the look at it and the mounting of its
// files, and not if it was killed a moment before.
func TestKilledWhileMounted(t *testing.T) {
	for _, connected := range []bool{false, true} {
		r := newRig(t)
		here := nativeProvider(t)
		p := &passing{Provider: here}
		r.provider = p
		f := r.fleet()
		id := r.session(t, r.upload(t, "first", "1"))
		b := r.acquire(t, f, id)
		if !connected {
			release(t, f, b)
		}
		cfg := r.state(t, id).Config
		cfg.Resources = append(cfg.Resources, r.upload(t, "second", "2"))
		r.append(t, store.Commit{Session: id, Config: &cfg}, &outboard.SessionUpdated{Resources: &cfg.Resources})
		kills := 0
		p.list = func(sb sandbox.Sandbox) {
			if kills++; kills == 1 {
				if err := here.Destroy(t.Context(), sb.ID()); err != nil {
					t.Error(err)
				}
			}
		}
		again := r.acquire(t, f, id)
		uploads := r.files(t, again, sandbox.Uploads)
		if again.Lost == nil || again.Lost.Sandbox != b.ID() || again.ID() == b.ID() || uploads["first"] != "1" ||
			uploads["second"] != "2" {
			t.Errorf("connected %v: lost %+v, %v", connected, again.Lost, uploads)
		}
	}
}

// Broken if a session is told that it can have no sandbox because the layers that it was to begin with were
// dropped as it was about to use them, or because the machine was killed while it was being made; or if what
// never works is tried for ever.
func TestMakeAgain(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	p := &passing{Provider: here}
	r.provider = p
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "echo kept > /workspace/a")
	c := r.checkpoint(t, f, b, id)
	leave := func() {
		t.Helper()
		release(t, f, b)
		if err := f.keepAll(t.Context(), here); err != nil {
			t.Fatal(err)
		}
		if err := f.Destroy(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	made := 0
	p.create = func(s sandbox.Spec) {
		made++
		if s.From == "" {
			return
		}
		if s.From != c.ID {
			t.Errorf("made from %s, not %s", s.From, c.ID)
		}
		if err := here.Forget(t.Context(), s.From); err != nil { // as another process's reaper does
			t.Error(err)
		}
	}
	if b = r.acquire(t, f, id); r.bash(t, b, "cat /workspace/a") != "kept\n" || made != 2 {
		t.Errorf("layers dropped: %d machines were made", made)
	}

	leave()
	if err := here.Forget(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	made, kills := 0, 2
	p.load = func(sb sandbox.Sandbox) {
		if kills--; kills >= 0 {
			if err := here.Destroy(t.Context(), sb.ID()); err != nil {
				t.Error(err)
			}
		}
	}
	if b = r.acquire(t, f, id); r.bash(t, b, "cat /workspace/a") != "kept\n" || made != 3 {
		t.Errorf("machines killed: %d were made", made)
	}

	leave()
	if err := here.Forget(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	made, kills = 0, 1000
	if _, err := f.Acquire(t.Context(), r.request(t, id)); outboard.KindOf(err) != outboard.NotFound ||
		made != makeTries {
		t.Errorf("always killed: %d were made, %v", made, err)
	}
	if rows := r.rows(t, id); len(rows) != 0 {
		t.Errorf("left behind: %+v", rows)
	}
}

// Broken if a server misreads the guest that one of another build left in a sandbox, asks it for anything, or
// keeps its session waiting: it goes on in a new sandbox from its last state.
func TestGuestOfAnotherBuild(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	r := newRig(t)
	here := nativeIn(t, dir)
	r.provider = here
	before := r.fleet()
	id := r.session(t)
	b := r.acquire(t, before, id)
	r.bash(t, b, "echo saved > /workspace/f")
	saved := r.checkpoint(t, before, b, id)
	release(t, before, b)
	before.Stop()
	same := r.fleet()
	b = r.acquire(t, same, id)
	if b.Lost != nil || b.New { // the control
		t.Fatalf("a guest of the same build is lost: %+v", b.Lost)
	}
	release(t, same, b)
	socket := filepath.Join(dir, string(b.ID()), "guest.sock")
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan string, 10)
	go oldGuest(l, asked)
	again := r.acquire(t, r.fleet(), id)
	if again.Lost == nil || again.Lost.Sandbox != b.ID() || again.Lost.Restore != saved.ID ||
		r.bash(t, again, "cat /workspace/f") != "saved\n" {
		t.Errorf("a guest of another build: %+v", again.Lost)
	}
	if n := len(asked); n == 0 {
		t.Error("the control: nobody asked it who it is")
	}
	for range len(asked) {
		if got := <-asked; got != `{"op":"hello","arg":null}` {
			t.Errorf("it was asked %q", got)
		}
	}
}

// oldGuest answers who it is, as one of version 1, and notes what it is asked.
func oldGuest(l net.Listener, asked chan<- string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for {
				var head [13]byte // lengths, kind and number
				if _, err := io.ReadFull(conn, head[:]); err != nil {
					return
				}
				rest := make([]byte, binary.BigEndian.Uint32(head[:])-9)
				if _, err := io.ReadFull(conn, rest); err != nil {
					return
				}
				asked <- string(rest)
				const hello = `{"version":1,"generation":"","max_epoch":0,"pid":1}`
				answer := binary.BigEndian.AppendUint32(nil, uint32(9+len(hello)))
				answer = append(answer, 2)
				answer = append(answer, head[5:9]...)
				answer = binary.BigEndian.AppendUint32(answer, uint32(len(hello)))
				if _, err := conn.Write(append(answer, hello...)); err != nil {
					return
				}
			}
		}()
	}
}

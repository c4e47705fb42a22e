//go:build linux

package native_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// Broken if a sandbox that is never saved costs the directories of what its first checkpoint would be, or those
// of one that was stay.
func TestLayerMadeLater(t *testing.T) {
	layered(t)
	dir := filepath.Join(t.TempDir(), "s")
	p := openProvider(t, native.Config{Dir: dir, Ahead: 1})
	layers := func() int {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(dir, "layers"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	m := start(t, p, "")
	p.PoolFilled()
	bash(t, start(t, p, ""), "true")
	p.PoolFilled()
	if n := layers(); n != 0 {
		t.Fatalf("%d layers of sandboxes that nothing was saved of", n)
	}
	bash(t, m, "echo 1 > /workspace/f")
	id, pushed := push(t, m)
	m.Sandbox.(interface{ Settled() }).Settled()
	if n := layers(); !pushed.Changed || n != 2 { // what was saved, and what will be next
		t.Errorf("%d layers of one that was saved once: %+v", n, pushed)
	}
	if out := bash(t, start(t, p, id), "cat /workspace/f"); out != "1\n" || layers() != 2 {
		t.Errorf("%q of the checkpoint, and %d layers", out, layers())
	}
	if err := p.Destroy(t.Context(), m.ID()); err != nil {
		t.Fatal(err)
	}
	p.TrashEmpty()
	if n := layers(); n != 1 {
		t.Errorf("%d layers of one checkpoint", n)
	}
}

// Broken if a server that was killed while it made the layer that a checkpoint will be keeps the sandbox from
// being saved, or the sweep from sweeping.
func TestPushHalfMade(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	for what, files := range map[string][]string{
		"nothing in it":     {"layer/"},
		"no stack":          {"layer/", "layer/fs/"},
		"an empty stack":    {"layer/", "layer/fs/", "layer/stack.json"},
		"no overlay's":      {"layer/", "layer/fs/", "2.next/"},
		"an overlay's half": {"layer/", "layer/fs/", "2.next/", "2.next/stack.json", "2.next/up/"},
	} {
		t.Run(what, func(t *testing.T) {
			m := start(t, p, "")
			halfMake(t, dir, m.ID(), files)
			bash(t, m, "echo 1 > /workspace/f")
			id, pushed := push(t, m)
			if pushed != (sandbox.Pushed{Changed: true}) {
				t.Fatalf("%+v", pushed)
			}
			if out := bash(t, start(t, p, id), "cat /workspace/f"); out != "1\n" {
				t.Errorf("of the checkpoint: %q", out)
			}
		})
		t.Run(what+", swept", func(t *testing.T) {
			m := start(t, p, "")
			halfMake(t, dir, m.ID(), files)
			if err := p.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			bash(t, m, "echo 1 > /workspace/f")
			if _, pushed := push(t, m); pushed != (sandbox.Pushed{Changed: true}) {
				t.Errorf("%+v", pushed)
			}
		})
	}
}

// halfMake makes files of a sandbox's, and below layer/ of the layer that its first checkpoint will be.
func halfMake(t *testing.T, dir string, id outboard.SandboxID, files []string) {
	t.Helper()
	for _, name := range files {
		path := filepath.Join(dir, string(id), name)
		if rest, ok := strings.CutPrefix(name, "layer/"); ok {
			path = filepath.Join(dir, "layers", string(id)+".1", rest)
		}
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.Mkdir(path, 0o755)
		default:
			err = os.WriteFile(path, nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Broken if a checkpoint is made of a layer that has somebody's files, which would then be taken for the
// sandbox's or be lost.
func TestPushNotOverFiles(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	theirs := filepath.Join(dir, "layers", string(m.ID())+".1", "fs", "theirs")
	if err := os.MkdirAll(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	bash(t, m, "echo 1 > /workspace/f")
	if pushed, err := m.Sandbox.(sandbox.Layered).Push(t.Context(), newCheckpoint(), ""); err == nil ||
		sandbox.Gone(err) {
		t.Errorf("%+v, %v", pushed, err)
	}
	if _, err := os.Lstat(theirs); err != nil {
		t.Error(err)
	}
	if out := bash(t, m, "cat /workspace/f"); out != "1\n" {
		t.Errorf("the sandbox has %q", out)
	}
}

// Broken if a sandbox that the version before this one made, whose writable layer lies elsewhere, is taken for
// one that can be saved, or cannot be removed.
func TestSandboxOfLastVersion(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	bash(t, m, "echo 1 > /workspace/f")
	id, _ := push(t, m)
	at := filepath.Join(dir, string(m.ID()))
	m.Sandbox.(interface{ Settled() }).Settled()
	if err := os.Mkdir(filepath.Join(at, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"2", "3.next"} {
		if err := os.Rename(filepath.Join(at, name), filepath.Join(at, "work", name)); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := p.Open(t.Context(), m.ID()); !sandbox.Gone(err) {
		if err == nil {
			s.Close()
		}
		t.Errorf("opening it: %v", err)
	}
	if err := p.Destroy(t.Context(), m.ID()); err != nil {
		t.Fatal(err)
	}
	p.TrashEmpty()
	if _, err := os.Lstat(at); !os.IsNotExist(err) {
		t.Errorf("what is left of it: %v", err)
	}
	if err := p.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if out := bash(t, start(t, p, id), "cat /workspace/f"); out != "1\n" {
		t.Errorf("its checkpoint has %q", out)
	}
}

// Broken if the sweep takes a sandbox that is being made or removed for a damaged one, or removes what it may be above.
func TestSweepBesideRemoval(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	bash(t, m, "echo 1 > /workspace/f")
	id, _ := push(t, m)
	m.Sandbox.(interface{ Settled() }).Settled()
	if err := p.Forget(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, string(m.ID()), "2", "stack.json")); err != nil {
		t.Fatal(err)
	}
	unlock, err := native.Lock(t.Context(), filepath.Join(dir, string(m.ID())))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	unlock()
	if _, err := os.Lstat(filepath.Join(dir, "layers", string(m.ID())+".1")); err != nil {
		t.Error(err)
	}
	if err := p.Sweep(t.Context()); err == nil {
		t.Error("the control: nobody is at it, and the sweep took itself for done")
	}
}

// Broken if a sandbox costs more directories than it has to: each is a good part of a tenth of a millisecond to
// make and to remove.
func TestDirectoriesOfSandbox(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	m.run(t, "/bin/true")
	var dirs, files []string
	err := filepath.WalkDir(filepath.Join(dir, string(m.ID())), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		} else if err == nil {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const ours, kernels = 5, 3 // itself, state, the overlay's three; what the kernel makes for that
	if len(dirs) > ours+kernels || len(files) > 6 {
		t.Errorf("%d directories and %d files: %q %q", len(dirs), len(files), dirs, files)
	}
}

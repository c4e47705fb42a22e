//go:build linux

package oci_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

// If this fails, a sandbox of gVisor that its limit on memory ended is told of as one that is gone, for no
// reason that its user could do something about; or the limit is blamed for what it did not do.
func TestMemoryEndsGVisor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	p := newProvider(t, runtimeFor(t, "runsc"), dir)
	spec := sandbox.Spec{Limits: outboard.SandboxLimits{MemoryBytes: 64 << 20}}

	sb := create(t, p, spec)
	if got := sandboxtest.Bash(t, sb, "fits",
		"head -c 30000000 /dev/zero | tail -c 20000000 | wc -c"); got != "20000000\n" {
		t.Fatalf("what fits: %q", got)
	}
	err := untilEnd(t, sb, "head -c 2000000000 /dev/zero | tail -c 1900000000 | wc -c")
	_, again := p.Open(t.Context(), sb.ID())
	for name, err := range map[string]error{"the call that hit the limit": err, "opening it again": again} {
		if !sandbox.Gone(err) || !errors.Is(err, sandbox.ErrMemory) {
			t.Errorf("%s: %v", name, err)
		}
	}

	killed := create(t, p, spec)
	if err := sandboxtest.KillContainer(dir, killed.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open(t.Context(), killed.ID()); !sandbox.Gone(err) || errors.Is(err, sandbox.ErrMemory) {
		t.Errorf("control: one that somebody killed: %v", err)
	}
}

// untilEnd runs a command that its sandbox does not survive, and returns what its caller is told.
func untilEnd(t *testing.T, sb sandbox.Sandbox, command string) error {
	t.Helper()
	s := guest.Start{Key: "hog", Epoch: 1, Generation: sb.Generation(), Digest: "d", Op: "exec", Shell: "main",
		TimeoutMs: 60_000, OutputLimit: 1024,
		Input: []byte(`{"argv":["bash","-c","` + command + `"]}`)}
	r, err := sb.Start(t.Context(), s)
	for end := time.Now().Add(time.Minute); err == nil && r.State != guest.StateDone && time.Now().Before(end); {
		r, err = sb.Wait(t.Context(), s.Key, 1)
	}
	if err == nil {
		t.Fatalf("it survived: %q", r.Output)
	}
	return err
}

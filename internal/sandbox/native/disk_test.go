//go:build linux

package native_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// needDisks skips where disk limits cannot hold.
func needDisks(t *testing.T, p *native.Provider) {
	t.Helper()
	if !slices.Contains(p.Capabilities().Limits, "disk") {
		_, err := p.Create(t.Context(), sandbox.Spec{ID: newID(), Generation: "g",
			Limits: outboard.SandboxLimits{DiskBytes: 64 << 20}})
		if outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("a limit that does not hold was accepted: %v", err)
		}
		t.Skip("no disk limits here")
	}
}

// TestDiskLimit: a limit would hold for some of a sandbox's files only, or its disk would stay mounted after it.
func TestDiskLimit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	p := openProvider(t, native.Config{Dir: dir, Ahead: 1})
	needDisks(t, p)
	for range 2 { // the second on a place made ahead
		b := create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{DiskBytes: 64 << 20}})
		for _, at := range []string{"/workspace", "/home/" + homeOf(t, b), "/tmp", "/var/tmp", "/mnt/session/outputs"} {
			out, code := b.run(t, "/bin/sh", "-c", "cd "+at+" && head -c 200000000 /dev/zero > big")
			if code == 0 || !strings.Contains(out, "No space left") {
				t.Errorf("200 MB in %s: exit status %d: %s", at, code, out)
			}
			if out, code := b.run(t, "/bin/sh", "-c", "cd "+at+" && rm big && head -c 20000000 /dev/zero > fits && "+
				"rm fits && echo ok"); code != 0 {
				t.Errorf("control: 20 MB do not fit in %s: %s", at, out)
			}
		}
		// Many files are many blocks too.
		out := b.bash(t, "cd /workspace; mkdir n; i=0; while [ $i -lt 20000 ] && : > n/$i; do i=$((i+1)); done "+
			"2>/dev/null; [ $i -lt 20000 ] && echo stopped; rm -rf n; echo fine > f && cat f")
		if out != "stopped\nfine\n" {
			t.Errorf("20,000 files in 64 MiB: %q", out)
		}
		if _, err := b.Sandbox.(sandbox.Layered).
			Push(t.Context(), outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint),
				""); outboard.KindOf(err) != outboard.Unimplemented {
			t.Errorf("Push: %v", err)
		}
		if _, err := b.Save(t.Context(), guest.Save{Epoch: 1, Next: "next"}, io.Discard); err != nil {
			t.Errorf("Save: %v", err)
		}
		if err := p.Destroy(t.Context(), b.ID()); err != nil {
			t.Error(err)
		}
		p.PoolFilled()
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Errorf("left mounted:\n%s", mounts)
	}
}

func homeOf(t *testing.T, b *testSandbox) string {
	t.Helper()
	return strings.TrimSpace(b.sh(t, "id -un"))
}

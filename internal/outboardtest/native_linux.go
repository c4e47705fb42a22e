package outboardtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// Native returns a provider of isolated sandboxes, which end with the test: their own user, file systems and
// network, all of whose traffic passes through the gateway. It skips the test where none can be made. Call it
// before Start, so that the server stops first.
func Native(t testing.TB) sandbox.Provider {
	t.Helper()
	guest := filepath.Join(t.TempDir(), "guest")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", guest,
		"github.com/outboard-dev/outboard/cmd/outboard-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the guest: %v\n%s", err, out)
	}
	p, err := native.New(native.Config{Dir: filepath.Join(t.TempDir(), "s"), Guest: guest})
	if err != nil {
		t.Skipf("SKIPPED: no sandbox can be made here by uid %d: %v", os.Geteuid(), err)
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

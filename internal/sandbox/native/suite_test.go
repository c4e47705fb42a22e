//go:build linux

package native_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

// TestConformance: native sandboxes would differ from what every other part of the system expects of a provider.
func TestConformance(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t testing.TB) sandbox.Provider {
			p, err := native.New(native.Config{Dir: dir, Guest: guestPath(), Ahead: 1, Warm: 1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if ids, err := p.List(t.Context()); err != nil || len(ids) != 0 {
					t.Errorf("the suite left %v, %v", ids, err)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
			return p
		},
		Kill: func(p sandbox.Provider, id outboard.SandboxID) error {
			var s struct{ Pid int }
			data, err := os.ReadFile(filepath.Join(dir, string(id), "state.json"))
			if err == nil {
				err = json.Unmarshal(data, &s)
			}
			if err != nil {
				return err
			}
			return syscall.Kill(s.Pid, syscall.SIGKILL)
		},
	})
}

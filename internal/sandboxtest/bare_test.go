//go:build linux

package sandboxtest

import (
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, either the guest or the suite that every provider is measured with is wrong.
func TestBare(t *testing.T) {
	Run(t, Config{
		New:     NewBare,
		Kill:    func(p sandbox.Provider, id outboard.SandboxID) error { return p.(*Bare).Crash(id) },
		NoPaths: true,
	})
}

//go:build !linux

package outboardtest

import (
	"testing"

	"github.com/outboard-dev/outboard/internal/sandbox"
)

// bare returns no provider: the guest runs on Linux only, so tool calls that need a sandbox answer that there is none.
func bare(testing.TB) sandbox.Provider { return nil }

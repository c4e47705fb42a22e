package outboardtest

import (
	"testing"

	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

// bare returns a provider of sandboxes that are plain child processes.
func bare(t testing.TB) sandbox.Provider { return sandboxtest.NewBare(t) }

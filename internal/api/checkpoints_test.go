package api

import (
	"testing"

	"github.com/outboard-dev/outboard"
)

// Broken if a client cannot tell a checkpoint that will never be durable from one that is about to be, or why.
func TestCheckpointLost(t *testing.T) {
	for want, k := range map[string]outboard.Checkpoint{
		"":          {Host: "a"},
		"host_lost": {},
		"too_large": {Delta: outboard.BlobRef{Size: 8 << 30}},
	} {
		if got := lost(&k); got != want {
			t.Errorf("%+v: %q, want %q", k, got, want)
		}
	}
	if got := lost(&outboard.Checkpoint{Delta: outboard.BlobRef{Digest: "d", Size: 8 << 30}}); got != "" {
		t.Errorf("a durable one: %q", got)
	}
}

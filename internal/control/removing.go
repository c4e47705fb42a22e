package control

import (
	"context"

	"github.com/outboard-dev/outboard/internal/store"
)

// Removing marks a request that takes something away: where the server's disk is full it may use what is kept
// for that, see store.Removing.
func Removing(ctx context.Context) context.Context { return store.Removing(ctx) }

//go:build !linux

package boot

import (
	"context"
	"errors"
)

// Init builds what the host asks for. Namespaces exist on Linux only.
func Init() (*Env, error) {
	return nil, errors.New("outboard-guest init needs Linux namespaces")
}

type link struct{}

// Orphaned returns with ctx.
func (*Env) Orphaned(ctx context.Context) { <-ctx.Done() }

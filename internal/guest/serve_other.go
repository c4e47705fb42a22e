//go:build !linux

package guest

import (
	"context"
	"errors"
)

// Serve needs Linux: it returns an error at once.
func Serve(_ context.Context, cfg ServerConfig) error {
	return errors.Join(cfg.fill(), errors.New("the guest runs on Linux only"))
}

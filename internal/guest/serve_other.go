//go:build !linux

package guest

import (
	"context"
	"errors"
	"net"
)

// peerClosed does not know: the connection's reader tells.
func peerClosed(net.Conn) bool { return false }

// Serve needs Linux: it returns an error at once.
func Serve(_ context.Context, cfg ServerConfig) error {
	return errors.Join(cfg.fill(), errors.New("the guest runs on Linux only"))
}

//go:build !linux

package chaos

import (
	"context"

	"github.com/outboard-dev/outboard"
)

// Run needs a server, and the server runs on Linux.
func Run(context.Context, Config) (Summary, error) {
	return Summary{}, outboard.Errorf(outboard.Unavailable,
		"the crash test runs a server, and the server runs on Linux")
}

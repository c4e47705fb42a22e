//go:build !linux

package bench

import (
	"time"

	"github.com/outboard-dev/outboard"
)

var errNotLinux = outboard.Errorf(outboard.Unavailable, "benches measure a server, and the server runs on Linux")

// SyncFloor is measured on Linux only.
func SyncFloor(string, int) ([]time.Duration, error) { return nil, errNotLinux }

// SpawnFloor is measured on Linux only.
func SpawnFloor(string, int) ([]time.Duration, string, error) { return nil, "", errNotLinux }

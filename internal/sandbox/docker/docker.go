// Package docker makes sandboxes with a Docker engine, asked over its unix socket. Package
// container owns what its sandboxes are on the host, and what they share with those of an OCI
// runtime.
//
// Invariants:
//   - The engine must be of this host: host and guest meet in a directory that both see, and the
//     container's processes are the host's.
//   - Containers and images carry labels that say whose they are.
//
// It never pulls. The layers of a root file system become an image of the engine when they are
// first used; the engine keeps it as long as the layers exist.
//
// Start reading at New and Engine.
package docker

import (
	"log/slog"

	"github.com/outboard-dev/outboard"
)

// Name is the provider's.
const Name = "docker"

// DefaultSocket is where engines listen.
const DefaultSocket = "/var/run/docker.sock"

// Config says which engine.
type Config struct {
	Socket string // a path, or unix:// and a path; "" = DefaultSocket

	Dir      string // holds the sandboxes; what the engine has carries it as a label
	Guest    string
	ReadOnly []string
	Logger   *slog.Logger
}

// notHere is the error of a host that has no engine for sandboxes.
func notHere(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Unavailable, format, args...)
}

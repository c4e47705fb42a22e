// Package docker makes sandboxes with a Docker engine, asked over its unix socket. What its sandboxes are on the host, and what they have
// in common with those of an OCI runtime, is in package container.
//
// The engine must be of this host: host and guest meet in a directory that both see, and the container's processes are the host's. Nothing
// is pulled: the layers of a root file system become an image of the engine when they are first used, which the engine keeps for as
// long as the layers exist. Containers and images carry labels that say whose they are.
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

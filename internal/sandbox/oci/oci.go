// Package oci makes sandboxes with an OCI runtime: a program that runs a container from a bundle,
// such as crun, runc, or gVisor's runsc, whose containers have their own kernel, an ordinary
// process of the host. Package container owns what its sandboxes are on the host, and what they
// share with those of a Docker engine.
//
// Invariants: the bundle is made in the sandbox's directory. Its root is an overlay over the layers
// of native sandboxes, mounted in a mount namespace that only the runtime and the container are in.
// So no mount of the host is left behind, whatever dies.
//
// It never passes a descriptor through the runtime. Start reading at New and Runtime.
package oci

import "log/slog"

// Config says with which runtime.
type Config struct {
	// Program is the runtime's: a path, or a name to look for.
	Program string
	// Flags are given to it before every command.
	Flags []string
	// Kernel says that its containers have a kernel of their own (gVisor): sockets cannot leave them, and what
	// that kernel does not know of a limit is not claimed. It is found out where the runtime says that it is
	// runsc.
	Kernel bool

	Dir      string // holds the sandboxes and the runtime's state
	Guest    string
	ReadOnly []string
	Logger   *slog.Logger
}

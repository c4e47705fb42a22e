// Package oci makes sandboxes with an OCI runtime: a program that runs a container from a bundle, such as crun, runc, or gVisor's runsc,
// whose containers have a kernel of their own that runs as an ordinary process of the host. What its sandboxes are on the host, and what
// they have in common with those of a Docker engine, is in package container.
//
// The bundle is made in the sandbox's directory. Its root is an overlay over the layers that native sandboxes use as well, mounted in a
// mount namespace that only the runtime and the container are in: no mount of the host is left behind, whatever dies.
package oci

import "log/slog"

// Config says with which runtime.
type Config struct {
	// Program is the runtime's: a path, or a name to look for.
	Program string
	// Flags are given to it before every command.
	Flags []string
	// Kernel says that its containers have a kernel of their own (gVisor): sockets cannot leave them, and what that kernel does not
	// know of a limit is not claimed. It is found out where the runtime says that it is runsc.
	Kernel bool

	Dir      string // holds the sandboxes and the runtime's state
	Guest    string
	ReadOnly []string
	Logger   *slog.Logger
}

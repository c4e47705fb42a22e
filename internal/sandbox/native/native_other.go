//go:build !linux

package native

import (
	"context"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Provider cannot exist here; see New.
type Provider struct{}

var _ sandbox.Provider = (*Provider)(nil)

func errNotLinux() error {
	return outboard.Errorf(outboard.Unavailable, "native sandboxes need Linux").
		WithHint("run the server on a Linux machine and point this command at it with OUTBOARD_URL")
}

// New always returns an error of kind Unavailable: the namespaces that isolate are Linux's.
func New(Config) (*Provider, error) { return nil, errNotLinux() }

// Probe reports that native sandboxes need Linux.
func Probe(context.Context, Config) Report {
	return Report{Checks: []Check{{Name: "kernel", Detail: "native sandboxes need Linux",
		Fix: "run the server on a Linux machine"}}}
}

// Name returns "native".
func (*Provider) Name() string { return "native" }

// Capabilities returns none.
func (*Provider) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{} }

// Create returns Unavailable.
func (*Provider) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) {
	return nil, errNotLinux()
}

// Open returns Unavailable.
func (*Provider) Open(context.Context, outboard.SandboxID) (sandbox.Sandbox, error) {
	return nil, errNotLinux()
}

// Destroy returns Unavailable.
func (*Provider) Destroy(context.Context, outboard.SandboxID) error { return errNotLinux() }

// List returns Unavailable.
func (*Provider) List(context.Context) ([]outboard.SandboxID, error) { return nil, errNotLinux() }

// Close does nothing.
func (*Provider) Close() error { return nil }

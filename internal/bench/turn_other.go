//go:build !linux

package bench

import "context"

// HandsConfig says what the benches that need sandboxes measure.
type HandsConfig struct {
	Dir, Guest string
	N          int
}

// SessionsConfig sizes the density bench.
type SessionsConfig struct {
	HandsConfig
	Idle, Running, Turns int
}

// SandboxConfig says what the sandbox bench measures.
type SandboxConfig struct {
	HandsConfig
	Crowd int
	Parts []string
}

// Kill is measured on Linux only.
func Kill(context.Context, HandsConfig) ([]Row, error) { return nil, errNotLinux }

// Sandbox is measured on Linux only.
func Sandbox(context.Context, SandboxConfig) ([]Row, error) { return nil, errNotLinux }

// Exec is measured on Linux only.
func Exec(context.Context, HandsConfig) ([]Row, error) { return nil, errNotLinux }

// Turn is measured on Linux only.
func Turn(context.Context, HandsConfig) ([]Row, error) { return nil, errNotLinux }

// Sessions is measured on Linux only.
func Sessions(context.Context, SessionsConfig) ([]Row, error) { return nil, errNotLinux }

//go:build !linux

package main

import (
	"log/slog"

	"github.com/outboard-dev/outboard/internal/sandbox"
)

// isolations: containers of a Linux host only.
func isolations(serverConfig, string, *slog.Logger) []sandbox.Option { return nil }

//go:build !linux

package server

import (
	"log/slog"

	"github.com/outboard-dev/outboard/internal/sandbox"
)

// isolations: containers of a Linux host only.
func isolations(Config, string, *slog.Logger) []sandbox.Option { return nil }

//go:build !linux

package main

import (
	"context"
	"log/slog"

	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// isolations: containers of a Linux host only.
func isolations(serverConfig, string, *slog.Logger) []sandbox.Option { return nil }

func kernelCheck() []native.Check { return nil }

func tryIsolations(context.Context, config.Sandbox, string) []native.Check { return nil }

//go:build !linux

package main

import (
	"context"

	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

func kernelCheck() []native.Check { return nil }

func tryIsolations(context.Context, config.Sandbox, string) []native.Check { return nil }

//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// runInit makes this process the init of a sandbox and serves until it is killed.
func runInit(ctx context.Context) error {
	env, err := boot.Init()
	if err != nil {
		return fmt.Errorf("building the sandbox: %w", err)
	}
	// A signal without a handler would end the Go runtime, and with it the sandbox. Nothing inside may do that by a signal.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGABRT, syscall.SIGSEGV,
		syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGSYS, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2)
	file := os.NewFile(boot.ListenFD, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("taking over the listener: %w", err)
	}
	file.Close()
	cfg := guest.ServerConfig{
		Listener: listener, Generation: env.Generation, State: env.StateDir, Run: "/run/outboard", Home: "/home/agent",
		ToolUID: env.ToolUID, ToolGID: env.ToolGID, Init: true,
	}
	for name, value := range env.Env {
		cfg.Env = append(cfg.Env, name+"="+value)
	}
	return guest.Serve(ctx, cfg)
}

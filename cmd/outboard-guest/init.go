//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// runInit makes this process the init of a sandbox and serves until it is killed.
func runInit(ctx context.Context) error {
	env, err := boot.Init()
	if err != nil {
		return fmt.Errorf("building the sandbox: %w", err)
	}
	file := os.NewFile(boot.ListenFD, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("taking over the listener: %w", err)
	}
	file.Close()
	first, err := net.FileConn(env.Control)
	if err != nil {
		return fmt.Errorf("taking over the connection: %w", err)
	}
	env.Control.Close()
	return serveSandbox(ctx, env, listener, first)
}

// runContained does so in a container.
func runContained(ctx context.Context) error {
	env, listener, err := boot.Contained()
	if err != nil {
		return fmt.Errorf("building the sandbox: %w", err)
	}
	return serveSandbox(ctx, env, listener, nil)
}

// serveSandbox serves until the process is killed, or nobody can reach it any more.
func serveSandbox(ctx context.Context, env *boot.Env, listener net.Listener, first net.Conn) error {
	cfg := guest.ServerConfig{
		Listener: listener, First: first, Generation: env.Generation, State: env.StateDir, Volatile: true, Run: "/run/outboard",
		ToolUID: env.ToolUID, ToolGID: env.ToolGID, ToolName: env.ToolName, Init: true, Watches: env.Watches,
	}
	if env.Later {
		cfg.Await = func(ctx context.Context) (string, []string, error) { return env.Await(ctx, first) }
	}
	cfg.Env = append(append(cfg.Env, env.SizeEnv()...), env.UplinkEnv()...)
	for name, value := range env.Env {
		cfg.Env = append(cfg.Env, name+"="+value)
	}
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() { env.Uplink(ctx) })
	watch.Go(func() { env.Answer(ctx) })
	watch.Go(func() {
		env.Orphaned(ctx)
		cancel()
	})
	return guest.Serve(ctx, cfg)
}

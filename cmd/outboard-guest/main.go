//go:build linux

// How many processors there are is said by GOMAXPROCS, and nobody reads the names of a guest's memory: what the
// runtime would do for them at its start is a good part of that.
//
//go:debug containermaxprocs=0
//go:debug decoratemappings=0

// Outboard-guest is the agent inside a sandbox: a small static program that runs tools for the host
// and keeps the receipts of what it ran. A sandbox provider starts it, nobody starts it by hand.
// The first argument says what it is:
//
//	serve CONFIG  a guest on the socket of descriptor 3; CONFIG is guest.ServerConfig as JSON
//	init          the first process of a sandbox, which package boot sets up
//	contained     the first process of a container
//	nursery       on the host: the spawner, which clones the first processes of sandboxes
//	sftp          as the sandbox's user: serves files to an SSH client
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/sftp"
	"github.com/outboard-dev/outboard/internal/guest/spawner"
)

// While packages are initialised there are two threads, the first of the process and the runtime's monitor, and
// this is the first.
func init() { guest.Punctual() }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "outboard-guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	syscall.Umask(0o022) // tools inherit it, and must be able to read what the guest writes for them
	switch {
	case len(args) == 1 && args[0] == "init":
		return runInit(context.Background())
	case len(args) == 1 && args[0] == "nursery":
		return spawner.Serve()
	case len(args) == 1 && args[0] == "contained":
		return runContained(context.Background())
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 1 && args[0] == guest.ProgramSFTP:
		return sftp.Serve(os.Stdin, os.Stdout)
	}
	return errors.New("usage: outboard-guest init | contained | serve CONFIG (started by a sandbox provider) | sftp " +
		"(by the guest)")
}

func serve(config string) error {
	var cfg guest.ServerConfig
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return fmt.Errorf("reading configuration: %w", err)
	}
	const listenerFD = 3
	f := os.NewFile(listenerFD, "listener")
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("taking over the listener: %w", err)
	}
	cfg.Listener = l
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return guest.Serve(ctx, cfg)
}

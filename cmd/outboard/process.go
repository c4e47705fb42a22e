package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/server/doors"
	"github.com/outboard-dev/outboard/internal/store"
)

// closeTimeout bounds what a command still says to a server when it ends.
const closeTimeout = 5 * time.Second

// process is a server in this process, with the program's part of it.
type process struct {
	*server.Server
	*doors.Doors
	cfg    server.Config
	log    *slog.Logger
	newKey bool // this start made the operator's key
}

// startServer starts a server whose data directory belongs to its database, and has the operator's key.
func startServer(ctx context.Context, cfg server.Config) (*process, error) {
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return nil, dataError(cfg.Data, err)
	}
	if err := checkDatabase(cfg.Data, cfg.Config.DB); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &process{cfg: cfg, log: cfg.Logger}
	cfg.Claim = func(ctx context.Context, st *store.Store) error {
		return claimDatabase(ctx, cfg.Data, cfg.Config.DB, st)
	}
	cfg.AdminKey = func(ctx context.Context, c *control.Control) (err error) {
		p.newKey, err = ensureKey(ctx, c, cfg.Data)
		return err
	}
	var err error
	if p.Server, err = server.Start(ctx, cfg); err != nil {
		return nil, err
	}
	if p.Doors, err = doors.Open(ctx, p.Server, cfg); err != nil {
		p.Server.Stop()
		return nil, err
	}
	return p, nil
}

// Stop closes the doors and then ends everything behind them. It may be called twice.
func (p *process) Stop() {
	p.Doors.Close()
	p.Server.Stop()
}

// dataError explains a data directory that cannot be used.
func dataError(dir string, err error) error { return server.DataError(dir, err) }

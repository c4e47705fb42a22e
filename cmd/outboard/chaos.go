package main

import (
	"context"
	"fmt"
	"os"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/chaos"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/spf13/cobra"
)

type chaosOptions struct {
	sessions, kills, workers int
	seed                     uint64
	db                       string
	keep                     bool
}

func newChaos(a *app) *cobra.Command {
	var opt chaosOptions
	cmd := &cobra.Command{Use: "chaos", Short: "Kill runners, servers, guests and sandboxes, then prove that " +
		"nothing was lost",
		Long: "chaos runs scripted sessions against real processes on a throwaway data directory, sends SIGKILL at " +
			"random instants,\n" +
			"and checks the logs and the marks every command left in its workspace. It prints one JSON summary and exits 1 when\n" +
			"anything contradicts what Outboard promises.",
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runChaos(cmd.Context(), a, opt) }}
	f := cmd.Flags()
	f.IntVar(&opt.sessions, "sessions", 12, "sessions at the same time")
	f.IntVar(&opt.kills, "kills", 200, "SIGKILLs to send")
	f.IntVar(&opt.workers, "workers", 2, "runner processes")
	f.Uint64Var(&opt.seed, "seed", 1, "of the schedule")
	f.StringVar(&opt.db, "db", "", "PostgreSQL URL (default: SQLite in the throwaway directory)")
	f.BoolVar(&opt.keep, "keep", false, "keep the data directory and say where it is")
	return cmd
}

func runChaos(ctx context.Context, a *app, opt chaosOptions) error {
	if opt.sessions < 1 || opt.kills < 0 || opt.workers < 1 {
		return usagef("--sessions and --workers must be at least 1, --kills at least 0")
	}
	guest, err := server.FindGuest(a.env)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outboard-chaos-")
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "making a data directory: %w", err)
	}
	sum, err := chaos.Run(ctx, chaos.Config{Dir: dir, Guest: guest, DB: opt.db, Sessions: opt.sessions,
		Kills: opt.kills, Workers: opt.workers,
		Seed: opt.seed, Talk: a.errs})
	if err != nil {
		a.say("the data directory is kept in %s", dir)
		return err
	}
	if err := a.object(sum); err != nil {
		return err
	}
	if !sum.OK {
		a.say("the data directory is kept in %s", dir)
		return &exitError{code: exitFailed, err: fmt.Errorf("%d violations", len(sum.Violations))}
	}
	if opt.keep {
		a.say("the data directory is kept in %s", dir)
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing the data directory: %w", err)
	}
	return nil
}

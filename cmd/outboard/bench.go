package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/bench"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/spf13/cobra"
)

type benchOptions struct {
	db     string
	dir    string
	strict bool
	n      int
	span   time.Duration
	idle   int
	run    int
	crowd  int
	parts  []string
}

func newBench(a *app) *cobra.Command {
	var opt benchOptions
	cmd := &cobra.Command{Use: "bench {log|exec|turn|sandbox|sessions|policy|egress|kill}",
		Short: "Measure against this machine's own floors",
		Long: "bench prints one row per figure, beside a floor measured in the same run: log (durable appends), " +
			"exec (one call in a\n" +
			"live sandbox), turn (a whole turn with one call), sandbox (making,\n" +
			"freezing and destroying sandboxes, beside crun, runc, runsc, bwrap and docker where they are installed), sessions (memory of idle ones, turns of a crowd),\n" +
			"policy (a decision under 50 policies), egress (requests through the gateway beside direct ones, audit records),\n" +
			"kill (the end of a sandbox with 300 processes, of a credential and of a session at another server's " +
			"gateway).",
		Args:      exactArgs("log, exec, turn, sandbox, sessions, policy, egress or kill"),
		ValidArgs: []string{"log", "exec", "turn", "sandbox", "sessions", "policy", "egress", "kill"},
		RunE:      func(cmd *cobra.Command, args []string) error { return runBench(cmd.Context(), a, args[0], opt) }}
	f := cmd.Flags()
	f.StringVar(&opt.db, "db", "", "PostgreSQL URL, for the Postgres rows of log and egress")
	f.StringVar(&opt.dir, "dir", "", "measure on this directory's disk (default: a temporary directory)")
	f.BoolVar(&opt.strict, "strict", false, "exit 1 when a bar is missed")
	f.IntVar(&opt.n, "n", 500, "calls or turns per row")
	spanVar(f, &opt.span, "span", 3*time.Second, "how long each row of log appends")
	f.IntVar(&opt.idle, "idle", 10_000, "idle sessions")
	f.IntVar(&opt.crowd, "crowd", 1000, "sandboxes that live at once")
	f.StringSliceVar(&opt.parts, "part", nil, "of sandbox only these: create, warm, live, crowd, layers, rest, "+
		"technologies, peers")
	f.IntVar(&opt.run, "running", 500, "running sessions")
	return cmd
}

func runBench(ctx context.Context, a *app, what string, opt benchOptions) error {
	dir, err := os.MkdirTemp(opt.dir, "outboard-bench-")
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "making a directory to measure on: %w", err)
	}
	rows, err := measure(ctx, a, what, dir, opt)
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	ok, err := bench.Write(a.out, rows, a.json)
	if err != nil {
		return err
	}
	if opt.strict && !ok {
		return &exitError{code: exitFailed, err: errors.New("a bar was missed")}
	}
	return nil
}

func measure(ctx context.Context, a *app, what, dir string, opt benchOptions) ([]bench.Row, error) {
	switch what {
	case "log":
		return bench.Log(ctx, bench.LogConfig{Dir: dir, Postgres: opt.db, Span: opt.span})
	case "policy":
		return bench.Policy(dir, max(opt.n, 2000))
	case "egress":
		return bench.Egress(ctx, bench.EgressConfig{Dir: dir, Postgres: opt.db, N: opt.n, Span: opt.span})
	}
	guest, err := server.FindGuest(a.env)
	if err != nil {
		return nil, err
	}
	hands := bench.HandsConfig{Dir: dir, Guest: guest, N: opt.n}
	switch what {
	case "exec":
		return bench.Exec(ctx, hands)
	case "turn":
		return bench.Turn(ctx, hands)
	case "kill":
		return bench.Kill(ctx, hands)
	case "sandbox":
		return bench.Sandbox(ctx, bench.SandboxConfig{HandsConfig: hands, Crowd: opt.crowd, Parts: opt.parts})
	case "sessions":
		return bench.Sessions(ctx, bench.SessionsConfig{HandsConfig: hands, Idle: opt.idle, Running: opt.run,
			Turns: 10})
	}
	return nil, usagef("there is no bench %q", what).
		WithHint("outboard bench log|exec|turn|sandbox|sessions|policy|egress|kill")
}

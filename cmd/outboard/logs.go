package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/spf13/cobra"
)

type logsOptions struct {
	follow bool
	since  int64
	tools  bool
	seq    bool
	full   bool
	lines  int
}

func newLogs(a *app) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{Use: "logs SESSION", Short: "Print a session's log", Args: exactArgs("a session"),
		ValidArgsFunction: a.completeSessions,
		Long: "Print what happened in a session, with the end of each call's output; --full prints all of it. With " +
			"--json every event is a line; its seq is what --since takes, and what fork\n" +
			"and rewind take behind the @.",
		RunE: func(cmd *cobra.Command, args []string) error { return runLogs(cmd.Context(), a, o, args[0]) }}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on until the session ends or Ctrl-C")
	f.Int64Var(&o.since, "since", 0, "only events after this sequence number")
	f.BoolVar(&o.tools, "tools", false, "only tool calls")
	f.BoolVar(&o.full, "full", false, "the whole output of each call")
	f.IntVarP(&o.lines, "lines", "n", 0, "only the last N lines; with --json, events")
	f.BoolVar(&o.seq, "seq", false, "show the position of each line")
	return cmd
}

func runLogs(ctx context.Context, a *app, o logsOptions, ref string) error {
	if o.since < 0 {
		return usagef("--since must not be negative")
	}
	if o.lines < 0 {
		return usagef("--lines must not be negative")
	}
	want := needThere
	if o.follow {
		want |= needWork
	}
	c, err := a.connect(ctx, want)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	tl := a.newTimeline()
	tl.users, tl.output, tl.tools, tl.seqs, tl.full, tl.dates = true, true, o.tools, o.seq, o.full, true
	last := &lastLines{w: a.out, n: o.lines}
	if o.lines > 0 {
		a.out, tl.out = last, last
	}
	show := func(ev client.Event) error {
		if ev.Seq <= o.since && (ev.Seq > 0 || o.since > 0) {
			return nil
		}
		if !a.json {
			return tl.event(ev)
		}
		if o.tools && !isCallEvent(ev.Type) {
			return nil
		}
		return a.object(ev)
	}
	var newest time.Time
	for ev, err := range c.Events(ctx, s.ID, client.EventQuery{Own: true}) {
		if err != nil {
			return err
		}
		if o.follow && ev.ProcessedAt.IsZero() {
			continue // it comes when it is read
		}
		newest = ev.ProcessedAt
		if err := show(ev); err != nil {
			return err
		}
	}
	if err := last.flush(); err != nil || !o.follow || s.Status == "terminated" {
		return err
	}
	for ev, err := range c.Follow(ctx, s.ID, client.FollowOptions{Past: true, Own: true, After: newest}) {
		if err != nil {
			return err
		}
		if err := show(ev); err != nil {
			return err
		}
		if ev.Type == "session.status_terminated" {
			return nil
		}
	}
	return nil
}

// lastLines keeps the last lines that are written until flush, and passes on what comes after.
type lastLines struct {
	w       io.Writer
	n       int
	lines   []string // each with its end
	flushed bool
}

// Write implements io.Writer.
func (l *lastLines) Write(p []byte) (int, error) {
	if l.flushed {
		return l.w.Write(p)
	}
	for line := range strings.Lines(string(p)) {
		if n := len(l.lines); n > 0 && !strings.HasSuffix(l.lines[n-1], "\n") {
			l.lines[n-1] += line
			continue
		}
		l.lines = append(l.lines, line)
		l.lines = l.lines[max(0, len(l.lines)-l.n):]
	}
	return len(p), nil
}

func (l *lastLines) flush() error {
	l.flushed = true
	_, err := io.WriteString(l.w, strings.Join(l.lines, ""))
	return err
}

// isCallEvent reports whether an event is about a tool call.
func isCallEvent(kind string) bool {
	switch kind {
	case "agent.tool_use", "agent.tool_result", "agent.mcp_tool_use", "agent.mcp_tool_result", "agent.custom_tool_use",
		"user.custom_tool_result", "user.tool_result", "user.tool_confirmation", ownPrefix + "call.started", ownPrefix +
			"call.finished":
		return true
	}
	return false
}

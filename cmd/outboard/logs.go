package main

import (
	"context"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/spf13/cobra"
)

type logsOptions struct {
	follow bool
	since  int64
	tools  bool
	seq    bool
}

func newLogs(a *app) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{Use: "logs SESSION", Short: "Print a session's log", Args: exactArgs("a session"), ValidArgsFunction: a.completeSessions,
		Long: "Print what happened in a session, with the output of its calls. With --json every event is a line; its seq is what --since takes, and what fork\n" +
			"and rewind take behind the @.",
		RunE: func(cmd *cobra.Command, args []string) error { return runLogs(cmd.Context(), a, o, args[0]) }}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on until the session ends or Ctrl-C")
	f.Int64Var(&o.since, "since", 0, "only events after this sequence number")
	f.BoolVar(&o.tools, "tools", false, "only tool calls")
	f.BoolVar(&o.seq, "seq", false, "show the position of each line")
	return cmd
}

func runLogs(ctx context.Context, a *app, o logsOptions, ref string) error {
	if o.since < 0 {
		return usagef("--since must not be negative")
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
	tl.users, tl.output, tl.tools, tl.seqs = true, true, o.tools, o.seq
	show := func(ev client.Event) error {
		if ev.Seq <= o.since {
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
	events := c.Events(ctx, s.ID, client.EventQuery{Own: true})
	if o.follow {
		events = c.Follow(ctx, s.ID, client.FollowOptions{Past: true, Own: true})
	}
	for ev, err := range events {
		if err != nil {
			return err
		}
		if err := show(ev); err != nil {
			return err
		}
		if o.follow && ev.Type == "session.status_terminated" {
			return nil
		}
	}
	return nil
}

// isCallEvent reports whether an event is about a tool call.
func isCallEvent(kind string) bool {
	switch kind {
	case "agent.tool_use", "agent.tool_result", "agent.mcp_tool_use", "agent.mcp_tool_result", "agent.custom_tool_use",
		"user.custom_tool_result", "user.tool_result", "user.tool_confirmation", ownPrefix + "call.started", ownPrefix + "call.finished":
		return true
	}
	return false
}

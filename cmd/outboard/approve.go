package main

import (
	"context"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/spf13/cobra"
)

func newApprove(a *app) *cobra.Command {
	return &cobra.Command{Use: "approve SESSION [CALL]", Short: "Let the calls a session waits with run", Args: rangeArgs(1, 2, "a session"),
		ValidArgsFunction: a.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAnswer(cmd.Context(), a, args[0], strings.Join(args[1:], ""), true, "")
		}}
}

func newDeny(a *app) *cobra.Command {
	return &cobra.Command{Use: "deny SESSION [CALL] [WHY]", Short: "Refuse the calls a session waits with", Args: rangeArgs(1, 3, "a session"),
		ValidArgsFunction: a.completeSessions,
		Long:              "Refuse the calls a session waits with, or one of them. The model is told why, if you say so.",
		RunE: func(cmd *cobra.Command, args []string) error {
			call, why := "", ""
			for _, arg := range args[1:] {
				if call == "" && strings.HasPrefix(arg, outboard.PrefixEvent+"_") {
					call = arg
				} else {
					why = strings.TrimSpace(why + " " + arg)
				}
			}
			return runAnswer(cmd.Context(), a, args[0], call, false, why)
		}}
}

// runAnswer answers the asks a session is parked at: all of them, or the one that call (or the beginning of its id) names.
func runAnswer(ctx context.Context, a *app, ref, call string, allow bool, why string) error {
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	calls, err := waitingCalls(ctx, c.Client, s.ID)
	if err != nil {
		return err
	}
	var events []any
	for _, w := range calls {
		if !w.custom && strings.HasPrefix(w.id, call) {
			events = append(events, client.Confirmation(w.id, allow, why))
		}
	}
	name := sessionName(s.ID)
	switch {
	case len(events) == 0 && call != "":
		return outboard.Errorf(outboard.NotFound, "%s does not wait with a call %s", name, call).WithHint("outboard show %s", name)
	case len(events) == 0:
		return outboard.Errorf(outboard.Conflict, "%s does not wait for an approval", name).WithHint("outboard show %s", name)
	}
	what := "denied"
	if allow {
		what = "approved"
	}
	return deliverTo(ctx, a, c, s.ID, what, events...)
}

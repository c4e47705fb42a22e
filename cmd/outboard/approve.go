package main

import (
	"context"
	"errors"
	"fmt"
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
	c, err := a.connect(ctx, needWork|needThere)
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
	if len(events) == 0 {
		return runAnswerAgain(ctx, a, c, s.ID, call, allow, why)
	}
	return deliverTo(ctx, a, c, s.ID, answerWord(allow), events...)
}

func answerWord(allow bool) string {
	if allow {
		return "approved"
	}
	return "denied"
}

// runAnswerAgain answers what has an answer already: the newest one of the session, or the one that call names. The server takes the
// same answer for a repeated one, and refuses another.
func runAnswerAgain(ctx context.Context, a *app, c *conn, id, call string, allow bool, why string) error {
	name := sessionName(id)
	var last wireEvent
	for ev, err := range c.Events(ctx, id, client.EventQuery{Desc: true, Types: []string{"user.tool_confirmation"}}) {
		if err != nil {
			return err
		}
		var w wireEvent
		if err := ev.Decode(&w); err != nil {
			return fmt.Errorf("reading event %s: %w", ev.ID, err)
		}
		if strings.HasPrefix(w.ToolUseID, call) {
			last = w
			break
		}
	}
	switch {
	case last.ToolUseID == "" && call != "":
		return outboard.Errorf(outboard.NotFound, "%s does not wait with a call %s", name, call).WithHint("outboard show %s", name)
	case last.ToolUseID == "":
		return outboard.Errorf(outboard.Conflict, "%s does not wait for an approval", name).WithHint("outboard show %s", name)
	}
	if why == "" && !allow {
		why = last.Deny // to deny again without a reason takes nothing back
	}
	done, err := c.Send(ctx, id, client.Confirmation(last.ToolUseID, allow, why))
	if e, ok := errors.AsType[*outboard.Error](err); ok && e.Code == outboard.CodeAnswered {
		return outboard.Errorf(outboard.Conflict, "%s does not wait for an approval: its last one, of %s, was %s, and that stands", name,
			last.ToolUseID, answerWord(last.Result == "allow")).WithHint("outboard logs %s", name)
	}
	if err != nil {
		return err
	}
	if a.json {
		line := sentLine{Type: "sent", Session: id, Name: name, What: answerWord(allow)}
		for _, ev := range done {
			line.Events = append(line.Events, ev.ID)
		}
		return a.object(line)
	}
	a.say("%s: %s already", name, answerWord(allow))
	return nil
}

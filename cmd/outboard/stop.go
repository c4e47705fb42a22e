package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/spf13/cobra"
)

// restTimeout bounds how long stop and rm wait for a running session to come to rest. Cancelling a call takes a second or two.
const restTimeout = 30 * time.Second

func newStop(a *app) *cobra.Command {
	return &cobra.Command{Use: "stop SESSION...", Short: "End sessions for good; their logs stay", Args: rangeArgs(1, -1, "a session"), ValidArgsFunction: a.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return endSessions(cmd.Context(), a, args, "stopped", archive)
		}}
}

func newRemove(a *app) *cobra.Command {
	return &cobra.Command{Use: "rm SESSION...", Short: "Delete sessions with their logs and files", Args: rangeArgs(1, -1, "a session"), ValidArgsFunction: a.completeSessions,
		Long: "Delete sessions, stopping those that run, with what was uploaded for them. Branches that apply made stay.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return endSessions(cmd.Context(), a, args, "removed", remove)
		}}
}

// endSessions brings each session to rest and ends it. All are tried; the first error decides the exit code.
func endSessions(ctx context.Context, a *app, refs []string, what string, end func(context.Context, *conn, client.Session) error) error {
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	var all error
	for _, ref := range refs {
		s, err := findSession(ctx, c.Client, ref)
		if err == nil {
			err = rest(ctx, c, s)
		}
		if err == nil {
			err = end(ctx, c, s)
		}
		switch {
		case err != nil:
			all = errors.Join(all, err)
		case a.json:
			err = a.object(map[string]string{"type": what, "session_id": s.ID, "name": sessionName(s.ID)})
			all = errors.Join(all, err)
		default:
			a.say("%s: %s", sessionName(s.ID), what)
		}
	}
	return all
}

// rest interrupts a session that runs and waits until it rests. Where no server runs sessions, one is started for it.
func rest(ctx context.Context, c *conn, s client.Session) error {
	if s.Status != "running" && s.Status != "rescheduling" {
		return nil
	}
	if err := c.work(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, restTimeout, outboard.Errorf(outboard.Unavailable, "%s did not come to rest within %v",
		sessionName(s.ID), restTimeout).WithHint("is a server with workers running? outboard serve"))
	defer cancel()
	from := time.Time{}
	for ev, err := range c.Events(ctx, s.ID, client.EventQuery{Desc: true, Limit: 1}) {
		if err != nil {
			return err
		}
		from = ev.ProcessedAt
		break
	}
	if _, err := c.Send(ctx, s.ID, client.Interrupt()); err != nil {
		return err
	}
	for ev, err := range c.Follow(ctx, s.ID, client.FollowOptions{Past: true, After: from}) {
		if err != nil {
			return err
		}
		if ev.Type == "session.status_idle" || ev.Type == "session.status_terminated" {
			return nil
		}
	}
	return context.Cause(ctx)
}

func archive(ctx context.Context, c *conn, s client.Session) error {
	if s.ArchivedAt != nil {
		return nil
	}
	return c.ArchiveSession(ctx, s.ID)
}

// remove deletes a session, what was uploaded for it, and what this machine remembers of it.
func remove(ctx context.Context, c *conn, s client.Session) error {
	if err := c.DeleteSession(ctx, s.ID); err != nil {
		return err
	}
	rec, err := loadSent(c.data, s.ID)
	if outboard.KindOf(err) == outboard.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.DeleteFile(ctx, rec.File); err != nil && outboard.KindOf(err) != outboard.NotFound {
		return err
	}
	if err := rec.forget(ctx, c.data); err != nil {
		return fmt.Errorf("forgetting what was sent to %s: %w", sessionName(s.ID), err)
	}
	return nil
}

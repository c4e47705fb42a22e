package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

const (
	// restTimeout bounds how long stop and rm wait for a running session to come to rest. Cancelling a call
	// takes a second or two.
	restTimeout = 30 * time.Second
	// interruptEvery is how long one interrupt may take before it is sent again.
	interruptEvery = 3 * time.Second
)

func newStop(a *app) *cobra.Command {
	return &cobra.Command{Use: "stop SESSION...", Short: "End sessions for good; their logs stay",
		Args: rangeArgs(1, -1, "a session"), ValidArgsFunction: a.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return endSessions(cmd.Context(), a, args, "stopped", archive)
		}}
}

func newRemove(a *app) *cobra.Command {
	var all, yes bool
	cmd := &cobra.Command{Use: "rm SESSION...|--all", Short: "Delete sessions with their logs and files",
		ValidArgsFunction: a.completeSessions,
		Long: "Delete sessions, stopping those that run, with what was uploaded for them. Branches that apply made " +
			"stay. With --all every session\n" +
			"that you can see is deleted, after a question on a terminal, and with --yes elsewhere.",
		Args: func(cmd *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return usagef("--all and names exclude each other")
			}
			if all {
				return nil
			}
			return rangeArgs(1, -1, "a session, or --all")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if all {
				return removeAll(cmd.Context(), a, yes)
			}
			return endSessions(cmd.Context(), a, args, "removed", remove)
		}}
	cmd.Flags().BoolVar(&all, "all", false, "every session")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// removeAll deletes every session.
func removeAll(ctx context.Context, a *app, yes bool) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	var ids []string
	for s, err := range c.Sessions(ctx, true) {
		if err != nil {
			c.Close()
			return err
		}
		ids = append(ids, s.ID)
	}
	c.Close()
	switch {
	case len(ids) == 0:
		a.say("there are no sessions")
		return nil
	case yes:
	case !a.interactive():
		return usagef("rm --all deletes %s and nobody can be asked here", count(len(ids), "session")).
			WithHint("outboard rm --all --yes")
	default:
		ask := func() {
			fmt.Fprintf(a.errs, "outboard: delete %s with logs and files? [y/N] ", count(len(ids), "session"))
		}
		line, err := term.NewInput(a.in).Answer(ctx, ask)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !isYes(line) {
			a.say("nothing was deleted")
			return nil
		}
	}
	return endSessions(ctx, a, ids, "removed", remove)
}

// endSessions brings each session to rest and ends it. All are tried; the first error decides the exit code.
func endSessions(ctx context.Context, a *app, refs []string, what string,
	end func(context.Context, *conn, client.Session) error) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var all error
	for _, ref := range refs {
		s, err := findSession(ctx, c.Client, ref)
		if err == nil {
			err = endSession(ctx, c, s, end)
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

// restingSince returns the time of the session's newest event, and whether the session rests. A session that
// does not rest then has an event of coming to rest after that time, whatever happens meanwhile.
func restingSince(ctx context.Context, c *client.Client, id string) (newest time.Time, resting bool, err error) {
	for ev, err := range c.Events(ctx, id, client.EventQuery{Desc: true, Limit: 5}) {
		if err != nil {
			return newest, false, err
		}
		if newest = ev.ProcessedAt; !newest.IsZero() { // queued messages come first here, and have none
			break
		}
	}
	s, err := c.Session(ctx, id) // after the event was read, not before: see above
	return newest, s.Status == "idle" || s.Status == "terminated", err
}

// endSession brings a session to rest and ends it, within restTimeout. Messages that were queued may set it off
// again in between.
func endSession(ctx context.Context, c *conn, s client.Session,
	end func(context.Context, *conn, client.Session) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restTimeout, outboard.Errorf(outboard.Unavailable,
		"%s did not come to rest within %v",
		sessionName(s.ID), restTimeout).WithHint("is a server with workers running? outboard serve"))
	defer cancel()
	for {
		if err := rest(ctx, c, s.ID); err != nil {
			return err
		}
		err := end(ctx, c, s)
		if err == nil || ctx.Err() != nil || outboard.KindOf(err) != outboard.Conflict &&
			outboard.KindOf(err) != outboard.Invalid {
			return err
		}
		if _, resting, rerr := restingSince(ctx, c.Client, s.ID); rerr != nil || resting {
			return err
		}
	}
}

// rest interrupts a session until it rests. One interrupt may not do: it jumps the queue, so a message that
// waited begins after it. Where no server runs sessions, one is started for it.
func rest(ctx context.Context, c *conn, id string) error {
	for {
		from, resting, err := restingSince(ctx, c.Client, id)
		if err != nil || resting {
			return err
		}
		if err := c.work(ctx); err != nil {
			return err
		}
		if _, err := c.Send(ctx, id, client.Interrupt()); err != nil {
			return err
		}
		if err := awaitRest(ctx, c.Client, id, from); err != nil || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// awaitRest returns when the session came to rest after a time, or after interruptEvery.
func awaitRest(ctx context.Context, c *client.Client, id string, from time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, interruptEvery)
	defer cancel()
	for ev, err := range c.Follow(ctx, id, client.FollowOptions{Past: true, After: from}) {
		if err != nil {
			return err
		}
		if ev.Type == "session.status_idle" || ev.Type == "session.status_terminated" {
			break
		}
	}
	return nil
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
	if err := rec.forget(c.data); err != nil {
		return fmt.Errorf("forgetting what was sent to %s: %w", sessionName(s.ID), err)
	}
	return nil
}

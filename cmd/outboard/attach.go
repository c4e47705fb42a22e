package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newAttach(a *app) *cobra.Command {
	return &cobra.Command{Use: "attach SESSION", Short: "Watch a session and talk to it", Args: exactArgs("a session"),
		ValidArgsFunction: a.completeSessions,
		Long: "Show what a session has done and does, until it rests.\n\n" +
			"On a terminal it stays: what you type is sent when you press Enter, /stop interrupts, /quit or Ctrl-C detaches, /help says\n" +
			"more. While the session waits for you, the whole request is shown and what you type is the answer: y once, s for this\n" +
			"session, a always, n and a reason, l not now, or the result of a tool of your own.",
		RunE: func(cmd *cobra.Command, args []string) error { return runAttach(cmd.Context(), a, args[0]) }}
}

func runAttach(ctx context.Context, a *app, ref string) error {
	c, err := a.connect(ctx, needWork|needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	w := a.newWatch(c, s.ID)
	w.tl.users = true
	resting := false
	if w.old, resting, err = restingSince(ctx, c.Client, s.ID); err != nil {
		return err
	}
	if resting {
		return attachResting(ctx, a, c, s, w)
	}
	return attachRunning(ctx, a, w)
}

// attachRunning follows a session at work; on a terminal it goes on, and passes on what the person types.
func attachRunning(ctx context.Context, a *app, w *watch) error {
	if !a.talks() {
		return attachPlain(ctx, a, w)
	}
	w.untilEnd = true
	_, err := w.followAsking(ctx)
	switch {
	case errors.Is(err, errQuit):
		a.say("detached from %s", sessionName(w.id))
		return nil
	case err != nil && detached(ctx):
		return w.detach()
	}
	return err
}

// talks reports whether attach stays: what is shown goes to a person, and not into a pipe that waits for its end.
func (a *app) talks() bool { return a.interactive() && term.IsTerminal(a.out) }

// attachPlain follows until the session rests, for scripts.
func attachPlain(ctx context.Context, a *app, w *watch) error {
	rest, err := w.follow(ctx)
	if err != nil {
		if detached(ctx) {
			return w.detach()
		}
		return err
	}
	return w.conclude(ctx, a, rest)
}

// conclude says how the session rests, by the exit code and for machines. One that has ended, or has never run,
// is in order.
func (w *watch) conclude(ctx context.Context, a *app, rest string) error {
	line := resultLine{Type: "result", Session: w.id, Name: sessionName(w.id), Stop: rest, Calls: w.tl.done,
		Seconds: w.tl.newest.Sub(w.tl.begun).Seconds(), Exit: restCode(rest)}
	if rest == restDone || rest == restDeleted || rest == "" {
		line.Exit = exitOK
	}
	if err := w.total(ctx, &line); err != nil {
		return err
	}
	if !a.json {
		for _, h := range line.Hosts {
			a.say("refused: %s; outboard net allow %s %s lets it be reached", h, line.Name, h)
		}
	}
	if a.json {
		if err := a.object(line); err != nil {
			return err
		}
	}
	return restError(ctx, line, w)
}

// attachResting shows what a session at rest has done, and on a terminal waits for more.
func attachResting(ctx context.Context, a *app, c *conn, s client.Session, w *watch) error {
	if a.talks() && s.ArchivedAt == nil {
		calls, err := waitingCalls(ctx, c.Client, s.ID)
		if err != nil {
			return err
		}
		word := "rests; type to go on"
		if len(calls) > 0 {
			word = "waits for you"
		}
		fmt.Fprintf(a.errs, "outboard: %s %s, /help for more, /quit to leave\n", sessionName(s.ID), word)
		if w.questions, err = questionsOf(ctx, c.Client, s.ID, calls); err != nil { // put when the past has been shown
			return err
		}
		for _, q := range w.questions {
			w.seen[q.id()] = true
		}
		return attachRunning(ctx, a, w)
	}
	last := ""
	w.old = time.Time{}
	for ev, err := range c.Events(ctx, s.ID, client.EventQuery{Own: true}) {
		if err != nil {
			return err
		}
		if err := w.show(ev); err != nil {
			return err
		}
		rest, err := w.rested(ctx, ev)
		if err != nil {
			return err
		}
		if rest != "" {
			last = rest
		}
	}
	return w.conclude(ctx, a, last)
}

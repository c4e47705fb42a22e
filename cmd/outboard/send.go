package main

import (
	"context"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/spf13/cobra"
)

// sentLine confirms what was sent.
type sentLine struct {
	Type    string   `json:"type"`
	Session string   `json:"session_id"`
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Events  []string `json:"events"`
}

func newSend(a *app) *cobra.Command {
	return &cobra.Command{Use: "send SESSION MESSAGE|-", Short: "Say something to a session",
		Args:              exactArgs("a session", "a message, or - to read it from standard input"),
		ValidArgsFunction: a.completeSessions,
		Long: "Say something to a session. One that is at work gets it at its next step; one that " +
			"rests starts again.",
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readTask(a.in, args[1], "message", "outboard send "+args[0]+` "go on"`)
			if err != nil {
				return err
			}
			return deliver(cmd.Context(), a, args[0], "sent", client.UserMessage(text))
		}}
}

func newInterrupt(a *app) *cobra.Command {
	return &cobra.Command{Use: "interrupt SESSION", Short: "Make a session stop what it is doing",
		Args: exactArgs("a session"), ValidArgsFunction: a.completeSessions,
		Long: "Cut the model's answer, cancel running calls and let the session rest. Its log and workspace stay; " +
			"send goes on from there.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return deliver(cmd.Context(), a, args[0], "interrupted", client.Interrupt())
		}}
}

// deliver sends events to a session and confirms it. Where nobody runs sessions, that is said.
func deliver(ctx context.Context, a *app, ref, what string, events ...any) error {
	c, err := a.connect(ctx, needWork|needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	return deliverTo(ctx, a, c, s.ID, what, events...)
}

func deliverTo(ctx context.Context, a *app, c *conn, id, what string, events ...any) error {
	done, err := c.Send(ctx, id, events...)
	if err != nil {
		return err
	}
	line := sentLine{Type: "sent", Session: id, Name: sessionName(id), What: what}
	for _, ev := range done {
		line.Events = append(line.Events, ev.ID)
	}
	if a.json {
		return a.object(line)
	}
	a.say("%s: %s", line.Name, what)
	if c.private != nil {
		a.say("no server runs on %s, so it waits until one does: outboard attach %s, or outboard serve", c.data,
			line.Name)
	}
	return nil
}

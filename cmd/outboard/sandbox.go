package main

import (
	"context"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newSandbox(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "sandbox", Short: "See, stop and kill the sandboxes behind sessions", RunE: groupRun,
		Args: cobra.ArbitraryArgs,
		Long: "See, stop and kill the sandboxes behind sessions. A SANDBOX is an id, the beginning of one, or its " +
			"session.\n" +
			"A stopped sandbox costs nothing but disk: the session's next turn makes one with its files, without " +
			"its processes."}
	cmd.AddCommand(
		&cobra.Command{Use: "ls", Short: "List sandboxes", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error { return runSandboxList(cmd.Context(), a) }},
		&cobra.Command{Use: "stop SANDBOX...", Short: "Save the files of sandboxes that no turn uses, and end their " +
			"processes", Args: rangeArgs(1, -1, "a sandbox"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return eachSandbox(cmd.Context(), a, args,
					func(ctx context.Context, c *client.Client, id string) error {
						_, err := c.StopSandbox(ctx, id)
						return err
					})
			}},
		&cobra.Command{Use: "kill SANDBOX...", Short: "Remove sandboxes with what they have not saved",
			Args: rangeArgs(1, -1, "a sandbox"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return eachSandbox(cmd.Context(), a, args,
					func(ctx context.Context, c *client.Client, id string) error { return c.KillSandbox(ctx, id) })
			}})
	return cmd
}

// sandboxLine is a sandbox in a list.
type sandboxLine struct {
	Type string `json:"type"`
	client.Sandbox
}

func runSandboxList(ctx context.Context, a *app) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var rows [][]string
	for m, err := range c.Sandboxes(ctx) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.object(sandboxLine{"sandbox", m}); err != nil {
				return err
			}
			continue
		}
		of := m.Session
		if of == "" {
			of = "(a box)"
		} else {
			of = sessionName(of)
		}
		rows = append(rows, []string{m.ID, m.State, formatAge(time.Since(m.CreatedAt)), of, m.Host,
			term.Line(m.Why, 110)})
	}
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		a.say("no sandboxes; a session gets one with its first tool call")
		return nil
	}
	return term.Table(a.out, []string{"SANDBOX", "STATE", "AGE", "SESSION", "HOST", "WHY"}, rows)
}

func eachSandbox(ctx context.Context, a *app, refs []string,
	do func(context.Context, *client.Client, string) error) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	return eachOf(ctx, refs, func(ref string) error {
		id, err := findSandbox(ctx, c.Client, ref)
		if err == nil {
			err = do(ctx, c.Client, id)
		}
		return err
	})
}

// findSandbox returns the id of the sandbox that ref names. Of a session's sandboxes it is the newest.
func findSandbox(ctx context.Context, c *client.Client, ref string) (string, error) {
	session := ""
	if !strings.HasPrefix(ref, outboard.PrefixSandbox) {
		s, err := findSession(ctx, c, ref)
		if err != nil && outboard.KindOf(err) != outboard.NotFound {
			return "", err
		}
		session = s.ID
	}
	var found []string
	for m, err := range c.Sandboxes(ctx) {
		if err != nil {
			return "", err
		}
		switch {
		case m.ID == ref:
			return m.ID, nil
		case session != "" && m.Session == session:
			found = []string{m.ID}
		case ref != "" && strings.HasPrefix(m.ID, ref):
			found = append(found, m.ID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", outboard.Errorf(outboard.NotFound, "there is no sandbox %q", ref).WithHint("outboard sandbox ls")
	}
	return "", usagef("%d sandboxes begin with %q", len(found), ref).WithHint("outboard sandbox ls")
}

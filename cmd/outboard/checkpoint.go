package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newCheckpoint(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "checkpoint", Short: "List, compare, restore and move the saved states of a session",
		RunE: groupRun, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(newCheckpointList(a), newCheckpointDiff(a), newCheckpointRestore(a), newCheckpointExport(a),
		newCheckpointImport(a))
	return cmd
}

func newCheckpointList(a *app) *cobra.Command {
	return &cobra.Command{Use: "ls SESSION", Short: "List the saved states of a session's files",
		Args: exactArgs("a session"), ValidArgsFunction: a.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error { return runCheckpointList(cmd.Context(), a, args[0]) }}
}

type checkpointLine struct {
	Type string `json:"type"`
	client.Checkpoint
	Call string `json:"call,omitempty"` // what it follows, in a few words
}

func runCheckpointList(ctx context.Context, a *app, ref string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	list, use, err := c.CheckpointUse(ctx, s.ID)
	if err != nil {
		return err
	}
	calls, err := callsOf(ctx, c.Client, s.ID)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, k := range list {
		if a.json {
			if err := a.object(checkpointLine{"checkpoint", k, calls[k.CallID]}); err != nil {
				return err
			}
			continue
		}
		mark := map[bool]string{true: "*"}[k.Current]
		rows = append(rows, []string{mark, k.ID, fmt.Sprint(k.Seq), formatBytes(k.Size), durability(k),
			formatAge(time.Since(k.CreatedAt)), term.Line(calls[k.CallID], 50)})
	}
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		a.say("%s has saved no files yet", sessionName(s.ID))
		return nil
	}
	if err := term.Table(a.out, []string{"", "CHECKPOINT", "SEQ", "SIZE", "DURABLE", "AGE", "AFTER"},
		rows); err != nil {
		return err
	}
	a.say("%s", storedLine(use))
	return nil
}

// storedLine says what the saved states take together, and how many stay.
func storedLine(use client.CheckpointUse) string {
	line := formatBytes(use.StoredBytes) + " stored together"
	if use.Retention.Bytes > 0 {
		line += " of at most " + formatBytes(use.Retention.Bytes)
	}
	if use.Retention.Newest > 0 {
		line += fmt.Sprintf("; the newest %d stay, and fewer of older ones", use.Retention.Newest)
	}
	return line
}

// durability says whether a saved state can be restored on any host.
func durability(k client.Checkpoint) string {
	switch {
	case k.Durable:
		return "yes"
	case k.Lost == "":
		return "not yet"
	}
	return "no: " + strings.ReplaceAll(k.Lost, "_", " ")
}

// callsOf describes a session's calls.
func callsOf(ctx context.Context, c *client.Client, id string) (map[string]string, error) {
	out := map[string]string{}
	for ev, err := range c.Events(ctx, id, client.EventQuery{Types: []string{"agent.tool_use"}}) {
		if err != nil {
			return nil, err
		}
		var w wireEvent
		if err := ev.Decode(&w); err != nil {
			return nil, fmt.Errorf("reading event %s: %w", ev.ID, err)
		}
		out[ev.ID] = strings.TrimSpace(w.Name + " " + describeCall(w.Name, w.Input))
	}
	return out, nil
}

// formatBytes is a size in one unit.
func formatBytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// namedCheckpoint finds what the user means: an id, an unambiguous beginning of one, or @SEQ for the state at
// that position.
func namedCheckpoint(ctx context.Context, c *client.Client, id, ref string) (string, error) {
	if at, ok := strings.CutPrefix(ref, "@"); ok {
		if n, err := strconv.ParseInt(at, 10, 64); err != nil || n < 1 {
			return "", usagef("%q is not a position: it is a number from 1", at)
		}
		return at, nil
	}
	list, err := c.Checkpoints(ctx, id)
	if err != nil {
		return "", err
	}
	list = slices.DeleteFunc(list, func(k client.Checkpoint) bool { return !strings.HasPrefix(k.ID, ref) })
	switch len(list) {
	case 0:
		return "", outboard.Errorf(outboard.NotFound, "%s has no checkpoint %q", sessionName(id), ref).
			WithHint("outboard checkpoint ls %s", sessionName(id))
	case 1:
		return list[0].ID, nil
	}
	return "", outboard.Errorf(outboard.Invalid, "%q means %d checkpoints", ref, len(list)).
		WithHint("write more of the id")
}

func newCheckpointDiff(a *app) *cobra.Command {
	var patch bool
	cmd := &cobra.Command{Use: "diff SESSION A B", Short: "Show what changed between two saved states",
		Args:              exactArgs("a session", "a checkpoint or @SEQ", "a second one"),
		ValidArgsFunction: a.completeSessions,
		Long: "Compare two saved states of a session's files. Each is a checkpoint's id, or @SEQ for " +
			"the state at a position; @1 is the beginning.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheckpointDiff(cmd.Context(), a, args, patch)
		}}
	cmd.Flags().BoolVar(&patch, "patch", false, "show text files line by line")
	return cmd
}

func runCheckpointDiff(ctx context.Context, a *app, args []string, patch bool) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, args[0])
	if err != nil {
		return err
	}
	var ends [2]string
	for i := range ends {
		if ends[i], err = namedCheckpoint(ctx, c.Client, s.ID, args[i+1]); err != nil {
			return err
		}
	}
	cmp, err := c.CompareCheckpoints(ctx, s.ID, ends[0], ends[1], patch)
	if err != nil {
		return err
	}
	for _, ch := range cmp.Data {
		if a.json {
			err = a.object(struct {
				Type string `json:"type"`
				client.PathChange
			}{"change", ch})
		} else {
			err = printChange(a, ch, patch)
		}
		if err != nil {
			return err
		}
	}
	if len(cmp.Data) == 0 {
		a.say("nothing changed")
	}
	if cmp.More > 0 {
		a.say("%d more changes are left out", cmp.More)
	}
	return nil
}

// printChange shows a change in a line, and its patch below.
func printChange(a *app, ch client.PathChange, patch bool) error {
	sign := map[string]string{"added": "+", "removed": "-", "changed": "~"}[ch.Change]
	size := ""
	switch {
	case ch.Before != nil && ch.After != nil && ch.Before.Size != ch.After.Size:
		size = formatBytes(ch.Before.Size) + " -> " + formatBytes(ch.After.Size)
	case ch.Before != nil && ch.After != nil && ch.Before.Mode != ch.After.Mode:
		size = fmt.Sprintf("mode %o -> %o", ch.Before.Mode, ch.After.Mode)
	case ch.After != nil && ch.After.Type == "file":
		size = formatBytes(ch.After.Size)
	case ch.After != nil && ch.After.Type == "symlink":
		size = "-> " + term.Line(ch.After.Link, 60)
	case ch.After != nil:
		size = ch.After.Type
	case ch.Before.Type == "file":
		size = formatBytes(ch.Before.Size)
	default:
		size = ch.Before.Type
	}
	if _, err := fmt.Fprintf(a.out, "%s %s  %s\n", sign, term.Line(ch.Path, 0), size); err != nil || !patch {
		return err
	}
	return showPatch(a.out, a.style(), []byte(ch.Patch))
}

func newCheckpointRestore(a *app) *cobra.Command {
	return &cobra.Command{Use: "restore SESSION CHECKPOINT", Short: "Take a session's machine back to a saved state",
		Args:              exactArgs("a session", "a checkpoint or @SEQ"),
		ValidArgsFunction: a.completeSessions,
		Long: "Take the files of a session's machine back to a saved state; the conversation stays. It " +
			"is rewind --machine, with a checkpoint.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheckpointRestore(cmd.Context(), a, args[0], args[1])
		}}
}

func runCheckpointRestore(ctx context.Context, a *app, ref, k string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	name, err := namedCheckpoint(ctx, c.Client, s.ID, k)
	if err != nil {
		return err
	}
	r := client.Rewinding{Machine: true, Checkpoint: name}
	if seq, err := strconv.ParseInt(name, 10, 64); err == nil {
		r = client.Rewinding{Machine: true, Seq: seq}
	}
	return rewind(ctx, a, c, s, r)
}

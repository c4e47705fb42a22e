package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/worktree"
	"github.com/spf13/cobra"
)

func newDiff(a *app) *cobra.Command {
	var stat, names bool
	cmd := &cobra.Command{Use: "diff SESSION", Short: "Show what a session changed", Args: exactArgs("a session"),
		ValidArgsFunction: a.completeSessions,
		Long: "Compare the session's newest saved workspace with the work that was sent. On a terminal control " +
			"characters are shown as\n" +
			"text; into a pipe or file goes the exact patch, which git apply takes.",
		RunE: func(cmd *cobra.Command, args []string) error {
			form := worktree.Patch
			switch {
			case stat && names:
				return usagef("--stat and --name-only exclude each other")
			case stat:
				form = worktree.Stat
			case names:
				form = worktree.NameOnly
			}
			return runDiff(cmd.Context(), a, form, args[0])
		}}
	cmd.Flags().BoolVar(&stat, "stat", false, "how much changed in which file")
	cmd.Flags().BoolVar(&names, "name-only", false, "names of changed files")
	return cmd
}

func runDiff(ctx context.Context, a *app, form worktree.Form, ref string) error {
	b, err := a.bringHome(ctx, ref, false)
	if err != nil {
		return err
	}
	defer b.Close()
	patch, err := b.diff(ctx, form)
	if err != nil {
		return err
	}
	if b.result != nil {
		warnLeft(a, b.result.Left)
	}
	if a.json {
		return a.object(map[string]any{"type": "diff", "session_id": b.session.ID, "base": b.sent.Base,
			"changed": len(patch) > 0, "diff": string(patch)})
	}
	if len(patch) == 0 {
		a.say("%s changed nothing", sessionName(b.session.ID))
		return nil
	}
	switch {
	case term.IsTerminal(a.out):
	case form == worktree.Patch:
		_, err = a.out.Write(patch)
		return err
	default: // a list for people, wherever it ends up: exact names are in --json
		_, err = io.WriteString(a.out, term.Clean(string(patch)))
		return err
	}
	return showPatch(a.out, a.style(), patch)
}

// showPatch prints a patch for people.
func showPatch(w io.Writer, st term.Style, patch []byte) error {
	for line := range bytes.Lines(patch) {
		text := strings.TrimSuffix(term.Clean(string(line)), "\n")
		switch {
		case strings.HasPrefix(text, "index "):
			continue // object ids are for git apply
		case strings.HasPrefix(text, "+++"), strings.HasPrefix(text, "---"), strings.HasPrefix(text, "diff "):
			text = st.Bold(text)
		case strings.HasPrefix(text, "+"):
			text = st.Good(text)
		case strings.HasPrefix(text, "-"):
			text = st.Bad(text)
		case strings.HasPrefix(text, "@@"):
			text = st.Warn(text)
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}

// home is a session's result, brought to this machine.
type home struct {
	session client.Session
	sent    *sent
	remade  *worktree.Remade // what was sent, when it was not sent from here
	result  *worktree.Result // nil when nothing was saved yet: nothing changed
}

// Close removes the temporary copies.
func (h *home) Close() error {
	var err error
	if h.result != nil {
		err = h.result.Close()
	}
	if h.remade != nil {
		err = errors.Join(err, h.remade.Close())
	}
	return err
}

func (h *home) diff(ctx context.Context, form worktree.Form) ([]byte, error) {
	if h.result == nil {
		return nil, nil
	}
	return h.result.Diff(ctx, form)
}

// began finds what was sent: what this machine remembers of it, or what the server has. To apply, there must be
// files to apply to: those that were sent, or a clone of the repository around the working directory.
func (h *home) began(ctx context.Context, c *conn, apply bool) (worktree.Sent, error) {
	rec, err := loadSent(c.data, h.session.ID)
	if err != nil && outboard.KindOf(err) != outboard.NotFound {
		return worktree.Sent{}, err
	}
	if err == nil {
		_, gone := os.Stat(rec.Root)
		if gone == nil {
			h.sent = rec
			return worktree.Sent{Base: rec.Base, Head: rec.Head, Start: rec.Start}, nil
		}
		if apply && errors.Is(gone, fs.ErrNotExist) {
			return worktree.Sent{}, outboard.Errorf(outboard.NotFound,
				"%s, where the session's files came from, is gone", rec.Root).
				WithHint("outboard pull %s . -o DIR brings the result into another directory",
					sessionName(h.session.ID))
		}
	}
	name := sessionName(h.session.ID)
	body, err := c.SentWorkspace(ctx, h.session.ID)
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return worktree.Sent{}, outboard.Errorf(outboard.NotFound, "the server has no work that was sent to %s", name).
			WithHint("outboard pull %s . -o DIR brings its files into a directory", name)
	}
	if err != nil {
		return worktree.Sent{}, err
	}
	defer body.Close()
	repo := ""
	if apply {
		repo = "."
	}
	h.remade, err = worktree.Remake(ctx, repo, workspacePrefix, body)
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return worktree.Sent{}, outboard.Errorf(outboard.NotFound,
			"the work of %s was not sent from this machine, and cannot be applied here: %w", name, err).
			WithHint("in a clone of its repository, git fetch; or anywhere: outboard diff %s | git apply", name)
	}
	if err != nil {
		return worktree.Sent{}, err
	}
	t := h.remade.Tree
	h.sent = &sent{Session: h.session.ID, Root: t.Root, GitDir: t.GitDir, Store: t.Store, Plain: t.Plain,
		Base: h.remade.Sent.Base}
	return h.remade.Sent, nil
}

// bringHome downloads a session's newest workspace and compares it with what was sent. With commits, the result
// can be applied, and a branch has the session's commits.
func (a *app) bringHome(ctx context.Context, ref string, commits bool) (*home, error) {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	h := &home{}
	if h.session, err = findSession(ctx, c.Client, ref); err != nil {
		return nil, err
	}
	began, err := h.began(ctx, c, commits)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	body, err := c.Workspace(ctx, h.session.ID)
	if outboard.KindOf(err) == outboard.NotFound {
		return h, nil
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	defer body.Close()
	h.result, err = h.sent.tree().Import(ctx, began, workspacePrefix, body, commits)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/worktree"
	"github.com/spf13/cobra"
)

type applyOptions struct {
	check  bool
	branch string
}

func newApply(a *app) *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{Use: "apply SESSION", Short: "Bring a session's result onto your files",
		Args: exactArgs("a session"), ValidArgsFunction: a.completeSessions,
		Long: "Merge what the session changed into the files it was sent from, on top of whatever you did " +
			"meanwhile. It is all or nothing:\n" +
			"when a file does not fit, none is touched, the result becomes a branch, and the exit code is 5. An apply that is killed\n" +
			"loses nothing: the next apply or run takes back what it had done.",
		RunE: func(cmd *cobra.Command, args []string) error { return runApply(cmd.Context(), a, o, args[0]) }}
	cmd.Flags().BoolVar(&o.check, "check", false, "only say whether it would fit")
	cmd.Flags().StringVar(&o.branch, "branch", "", "make the result a branch of this name, and leave the files alone")
	return cmd
}

type applyLine struct {
	Type    string            `json:"type"`
	Session string            `json:"session_id"`
	Outcome string            `json:"outcome"`          // applied, would_apply, nothing, already, branch, conflict
	Files   []string          `json:"files,omitempty"`  // what the result changes
	Merged  []string          `json:"merged,omitempty"` // of them, what holds changes of yours, too
	Clashes []worktree.Clash  `json:"clashes,omitempty"`
	Left    []string          `json:"left_out,omitempty"` // what the workspace holds and the result does not, and why
	Branch  string            `json:"branch,omitempty"`
	Commits []worktree.Commit `json:"commits,omitempty"` // on the branch: the session's own, oldest first
	Notes   []string          `json:"notes,omitempty"`   // what else there is to know of the branch
	Root    string            `json:"root"`
}

func runApply(ctx context.Context, a *app, o applyOptions, ref string) error {
	if o.check && o.branch != "" {
		return usagef("--check and --branch exclude each other")
	}
	h, err := a.bringHome(ctx, ref, true)
	if err != nil {
		return err
	}
	defer h.Close()
	line := applyLine{Type: "apply", Session: h.session.ID, Outcome: "nothing", Root: h.sent.Root}
	if h.result != nil {
		line.Left = h.result.Left
		warnLeft(a, line.Left)
	}
	if h.result == nil || !h.result.Changed() && o.branch == "" {
		return sayApplied(a, line)
	}
	if line.Files, err = h.result.Files(ctx); err != nil {
		return err
	}
	if err := warnLinks(ctx, a, h); err != nil {
		return err
	}
	if o.branch != "" {
		if err := makeBranch(ctx, a, h, o.branch, &line); err != nil {
			return err
		}
		if line.Branch != "" {
			line.Outcome = "branch"
		}
		return sayApplied(a, line)
	}
	rep, err := h.result.Apply(ctx, o.check)
	for _, n := range rep.Notes {
		a.say("%s", term.Line(n, 0))
	}
	if err != nil {
		return err
	}
	line.Merged, line.Clashes = rep.Merged, rep.Clashes
	switch rep.Outcome {
	case worktree.Refused:
		return refused(ctx, a, o, h, line)
	case worktree.Already:
		line.Outcome = "already"
	case worktree.Applied:
		line.Outcome = "applied"
		if o.check {
			line.Outcome = "would_apply"
		}
	}
	return sayApplied(a, line)
}

// makeBranch makes the result a branch, and says what is on it.
func makeBranch(ctx context.Context, a *app, h *home, name string, line *applyLine) error {
	b, err := h.result.Branch(ctx, name)
	if err != nil {
		return err
	}
	line.Branch, line.Commits, line.Notes = b.Name, b.Commits, b.Notes
	line.Left = append(line.Left, b.Left...)
	warnLeft(a, b.Left)
	for _, n := range b.Notes {
		a.say("%s", term.Line(n, 0))
	}
	for _, l := range b.Links {
		a.say("a commit of the session holds a link out of the tree: %s", term.Line(l, 0))
	}
	if n := len(b.Commits); n > 0 {
		text := count(n, "commit") + " of the session"
		if b.Rest {
			text += "; one more holds what it did not commit"
		}
		a.say("%s: %s", b.Name, text)
	}
	return nil
}

// maxShown bounds how many files of one kind are listed; --json has all of them.
const maxShown = 10

// warnLeft says what the workspace holds and the result does not.
func warnLeft(a *app, left []string) {
	for i, l := range left {
		if i == maxShown {
			a.say("not brought home: %d more; --json lists them", len(left)-i)
			return
		}
		a.say("not brought home: %s", term.Line(l, 0))
	}
}

// warnLinks names links that lead out of the tree: a program that later follows one reads or writes elsewhere.
func warnLinks(ctx context.Context, a *app, h *home) error {
	links, err := h.result.Links(ctx)
	if err != nil {
		return err
	}
	for _, l := range links {
		a.say("the result holds a link out of the tree: %s", term.Line(l, 0))
	}
	return nil
}

// refused puts the result where it can be merged from and says how.
func refused(ctx context.Context, a *app, o applyOptions, h *home, line applyLine) error {
	name := sessionName(h.session.ID)
	var why strings.Builder
	for i, c := range line.Clashes {
		if i == maxShown {
			fmt.Fprintf(&why, "\n%d more; --json lists them", len(line.Clashes)-i)
			break
		}
		fmt.Fprintf(&why, "\n%s: %s", term.Line(c.Path, 0), term.Line(c.Why, 0))
	}
	e := outboard.Errorf(outboard.Conflict, "the result of %s does not fit your files, which are unchanged%s", name,
		why.String()).WithCode("conflict")
	sparse := ""
	if add := h.result.SparseAdd(ctx, line.Clashes); add != "" {
		sparse = add + ", then apply again; or "
	}
	switch {
	case o.check:
		e = e.WithHint("%soutboard apply %s would make it a branch to merge", sparse, name)
	case h.sent.Plain:
		e = e.WithHint("outboard pull %s . -o DIR brings the result into another directory", name)
	default:
		if err := makeBranch(ctx, a, h, "outboard/"+name, &line); err != nil {
			return err
		}
		e = e.WithHint("%scommit or stash your work, then: git merge %s%s", sparse, unrelated(ctx, h), line.Branch)
	}
	if a.json {
		line.Outcome = "conflict"
		if err := a.object(line); err != nil {
			return err
		}
	}
	return e
}

// unrelated is the option without which git does not merge a branch that shares no commit.
func unrelated(ctx context.Context, h *home) string {
	if h.result.Rootless(ctx) {
		return "--allow-unrelated-histories "
	}
	return ""
}

func sayApplied(a *app, l applyLine) error {
	if a.json {
		return a.object(l)
	}
	name := sessionName(l.Session)
	var err error
	switch l.Outcome {
	case "nothing":
		a.say("%s changed nothing", name)
	case "already":
		a.say("%s holds the result of %s already", l.Root, name)
	case "branch":
		_, err = fmt.Fprintf(a.out, "%s\n", l.Branch)
		a.say("git merge %s brings it into the current branch", l.Branch)
	default:
		for _, f := range l.Files {
			if _, err = fmt.Fprintf(a.out, "%s\n", term.Line(f, 0)); err != nil {
				return err
			}
		}
		word := "applied to"
		if l.Outcome == "would_apply" {
			word = "fits"
		}
		a.say("%s; the result %s %s", count(len(l.Files), "file"), word, l.Root)
		for i, f := range l.Merged {
			if i == maxShown {
				a.say("merged with changes of yours: %d more", len(l.Merged)-i)
				break
			}
			a.say("merged with changes of yours: %s", term.Line(f, 0))
		}
	}
	return err
}

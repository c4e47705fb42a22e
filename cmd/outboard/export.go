package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newCheckpointExport(a *app) *cobra.Command {
	var out string
	var force bool
	cmd := &cobra.Command{Use: "export SESSION[@SEQ]", Short: "Write a session with its files to one portable file",
		Args:              exactArgs("a session"),
		ValidArgsFunction: a.completeSessions,
		Long: "Write one file that holds a session up to a position (by default: now): its log, its configuration " +
			"and its files as they\n" +
			"were there, with the hash of each part, signed by the server. import continues it, on this server or another. There are no secrets in it\n" +
			"besides those that the conversation or the files hold.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExport(cmd.Context(), a, args[0], out, force)
		}}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file, - for standard output (default NAME.outboard)")
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return cmd
}

func runExport(ctx context.Context, a *app, ref, out string, force bool) error {
	ref, seq, err := point(ref)
	if err != nil {
		return err
	}
	if out == "-" && term.IsTerminal(a.out) {
		return usagef("the export is not for terminals").WithHint("-o FILE names a file")
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	if out == "" {
		out = sessionName(s.ID) + ".outboard"
	}
	if _, err := os.Lstat(out); err == nil && !force && out != "-" {
		return outboard.Errorf(outboard.Conflict, "a file is already there: %s", term.Line(out, 0)).
			WithHint("--force replaces it, -o FILE names another place")
	}
	body, err := c.Export(ctx, s.ID, seq)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == "-" {
		w, flush := exact(a.out)
		defer flush()
		_, err := io.Copy(w, body)
		return err
	}
	n, err := saveAs(out, body)
	if err != nil {
		return fmt.Errorf("writing %s: %w", out, err)
	}
	if a.json {
		return a.object(map[string]any{"type": "export", "session_id": s.ID, "seq": body.Seq, "file": out,
			"size_bytes": n, "signed_by": body.SignedBy,
			"left_behind": body.LeftBehind})
	}
	a.say("%s at %d in %s (%s), %s", sessionName(s.ID), body.Seq, out, formatBytes(n), signedBy(body.SignedBy))
	if body.LeftBehind != "" {
		a.say("what bounds it here is not in the file: %s; where it is imported, set it anew",
			term.Line(body.LeftBehind, 0))
	}
	if body.SignedBy != "" {
		a.say("to import it elsewhere: outboard checkpoint import --trust %s %s", term.Line(body.SignedBy, 0),
			term.Line(out, 0))
	}
	return nil
}

// signedBy says who signed an export, by the name of the key.
func signedBy(key string) string {
	if key == "" {
		return "not signed"
	}
	name, _, _ := strings.Cut(key, "+")
	return "signed by " + term.Line(name, 0)
}

// saveAs writes a file whole or not at all. It is nobody else's to read: a conversation can hold anything.
func saveAs(name string, r io.Reader) (int64, error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".outboard-export-")
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return n, err
}

func newCheckpointImport(a *app) *cobra.Command {
	var in client.Importing
	cmd := &cobra.Command{Use: "import FILE|-", Short: "Continue a session from a file that export wrote",
		Args: exactArgs("a file"),
		Long: "Make a new session from a file that export wrote, here or elsewhere. It goes on with the same " +
			"conversation and the same\n" +
			"files. A file that was changed is refused, and the part that was changed is named; so is one that neither this server nor\n" +
			"one that it trusts has signed (exports.trusted in its configuration), unless --trust names the key " +
			"that did, or --unsigned.",
		RunE: func(cmd *cobra.Command, args []string) error { return runImport(cmd.Context(), a, args[0], in) }}
	f := cmd.Flags()
	f.StringVar(&in.Title, "title", "", "title of the session (default: the one in the file)")
	f.StringVar(&in.Environment, "environment", "", "id of an environment of this server (default: the "+
		"configuration in the file)")
	f.StringArrayVar(&in.Trust, "trust", nil, "public key of the server that exported it, which outboard audit "+
		"checkpoint --key shows there (repeatable)")
	f.BoolVar(&in.Unsigned, "unsigned", false, "take the file though nobody who is trusted has signed it")
	f.StringVarP(&in.Model, "model", "m", "", "a model of this server (default: the one in the file)")
	return cmd
}

func runImport(ctx context.Context, a *app, name string, in client.Importing) error {
	r := a.in
	if name != "-" {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			return outboard.Errorf(outboard.NotFound, "there is no file %s", term.Line(name, 0))
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return outboard.Errorf(outboard.Invalid, "%s is a directory; an export is one file", term.Line(name, 0))
		}
		r = f
	}
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	s, key, err := c.Import(ctx, r, in)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(map[string]any{"type": "import", "session_id": s.ID, "name": sessionName(s.ID),
			"signed_by": key})
	}
	_, err = fmt.Fprintln(a.out, sessionName(s.ID))
	a.say("imported, %s; outboard logs %s shows what it did, outboard send goes on", signedBy(key), sessionName(s.ID))
	return err
}

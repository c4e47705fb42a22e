package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/worktree"
	"github.com/spf13/cobra"
)

type pullOptions struct {
	dir   string
	force bool
}

func newPull(a *app) *cobra.Command {
	o := pullOptions{dir: "."}
	cmd := &cobra.Command{Use: "pull SESSION [PATH...]", Short: "Copy files of a session to this machine",
		Args:              rangeArgs(1, -1, "a session"),
		ValidArgsFunction: a.completeSessions,
		Long: "Copy files into a directory: with PATHs (files or directories of the workspace, . for all of it), " +
			"those; without, the\n" +
			"deliverables the agent put under /mnt/session/outputs. Existing files are kept unless --force.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPull(cmd.Context(), a, o, args[0], args[1:])
		}}
	cmd.Flags().StringVarP(&o.dir, "output", "o", o.dir, "directory to copy into; made when missing")
	cmd.Flags().BoolVar(&o.force, "force", false, "replace existing files")
	return cmd
}

type pullLine struct {
	Type    string `json:"type"`
	Session string `json:"session_id"`
	Dir     string `json:"dir"`
	Files   int    `json:"files"`
}

// existingFile is the name in an error about a file that exists.
func existingFile(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return term.Line(e.Path, 0)
	}
	return err.Error()
}

func runPull(ctx context.Context, a *app, o pullOptions, ref string, paths []string) error {
	want, err := pathFilter(paths)
	if err != nil {
		return err
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
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", o.dir, err)
	}
	var n int
	if len(paths) == 0 {
		n, err = pullOutputs(ctx, c.Client, s.ID, o)
	} else {
		var got worktree.Unpacked
		got, err = pullWorkspace(ctx, c.Client, s.ID, o, want)
		n = got.Files
		warnLeft(a, got.Left)
	}
	if errors.Is(err, os.ErrExist) {
		return outboard.Errorf(outboard.Conflict, "a file is already there: %s", existingFile(err)).
			WithHint("--force replaces it, -o DIR names another place")
	}
	if err != nil {
		return err
	}
	return sayPulled(a, pullLine{"pull", s.ID, o.dir, n}, paths)
}

func sayPulled(a *app, l pullLine, paths []string) error {
	if l.Files == 0 && len(paths) > 0 {
		return outboard.Errorf(outboard.NotFound, "nothing in the workspace of %s is named %s", sessionName(l.Session),
			strings.Join(paths, ", ")).
			WithHint("outboard pull %s . brings all of it", sessionName(l.Session))
	}
	if a.json {
		return a.object(l)
	}
	if l.Files == 0 {
		a.say("%s has no deliverables under /mnt/session/outputs; outboard pull %s . brings its workspace",
			sessionName(l.Session), sessionName(l.Session))
		return nil
	}
	a.say("%s in %s", count(l.Files, "file"), l.Dir)
	return nil
}

// pathFilter accepts names that are one of paths or below one; paths are relative to the workspace, or absolute inside.
func pathFilter(paths []string) (func(string) bool, error) {
	var clean []string
	for _, p := range paths {
		if path.IsAbs(p) {
			rest, ok := strings.CutPrefix(path.Clean(p)+"/", workspacePath+"/")
			if !ok {
				return nil, usagef("%s is not in %s", p, workspacePath)
			}
			p = strings.TrimSuffix(rest, "/")
		}
		p = path.Clean(filepath.ToSlash(p))
		if p != "." && !filepath.IsLocal(p) {
			return nil, usagef("%s is not in the workspace", p)
		}
		clean = append(clean, p)
	}
	return func(name string) bool {
		for _, p := range clean {
			if p == "." || name == p || strings.HasPrefix(name, p+"/") {
				return true
			}
		}
		return false
	}, nil
}

func pullWorkspace(ctx context.Context, c *client.Client, id string, o pullOptions,
	want func(string) bool) (worktree.Unpacked, error) {
	body, err := c.Workspace(ctx, id)
	if outboard.KindOf(err) == outboard.NotFound {
		return worktree.Unpacked{}, outboard.Errorf(outboard.NotFound, "%s has saved no workspace yet",
			sessionName(id)).WithHint("it is saved after the first call that may change it")
	}
	if err != nil {
		return worktree.Unpacked{}, err
	}
	defer body.Close()
	return worktree.Unpack(ctx, body, workspacePrefix, o.dir, want, o.force)
}

// pullOutputs downloads the deliverables. Their names are the agent's, so they may not leave the directory.
func pullOutputs(ctx context.Context, c *client.Client, id string, o pullOptions) (int, error) {
	root, err := os.OpenRoot(o.dir)
	if err != nil {
		return 0, fmt.Errorf("opening %s: %w", o.dir, err)
	}
	defer root.Close()
	n := 0
	for f, err := range c.Files(ctx, id) {
		if err != nil {
			return n, err
		}
		if !f.Downloadable {
			continue
		}
		name := path.Base(path.Clean("/" + filepath.ToSlash(f.Filename)))
		if name == "/" || !filepath.IsLocal(name) {
			return n, outboard.Errorf(outboard.Invalid, "the deliverable %q has no usable name",
				term.Line(f.Filename, 80))
		}
		if err := pullFile(ctx, c, root, f.ID, name, o.force); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func pullFile(ctx context.Context, c *client.Client, root *os.Root, id, name string, force bool) error {
	body, err := c.FileContent(ctx, id)
	if err != nil {
		return err
	}
	defer body.Close()
	if force {
		if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, body); err != nil {
		return errors.Join(fmt.Errorf("downloading %s: %w", name, err), f.Close(), root.Remove(name))
	}
	return f.Close()
}

package worktree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// IncludeFile is the file at the top of a work tree that names ignored files to send, in the form of .gitignore.
const IncludeFile = ".outboardinclude"

const (
	// maxIncludeFile bounds that file, maxIncluded the ignored files that are sent.
	maxIncludeFile = 64 << 10
	maxIncluded    = 10_000
)

// ignored adds the ignored files that are to be sent to a temporary index, and remembers which are not.
func (g *gathering) ignored(ctx context.Context, t *Tree, env []string, at string) error {
	if g.o.Clean {
		return nil
	}
	if patterns, err := g.patterns(t); err != nil {
		return err
	} else if len(patterns) > 0 && at == "" {
		if err := g.include(ctx, t, env, patterns); err != nil {
			return err
		}
	}
	if t.Plain {
		return nil
	}
	out, err := t.work(ctx, env, "ls-files", "-o", "-i", "--exclude-standard", "--directory", "--no-empty-directory",
		"-z")
	if err != nil {
		return fmt.Errorf("listing ignored files: %w", err)
	}
	for p := range records(out) {
		whole := path.Join(at, p)
		if strings.HasSuffix(p, "/") {
			whole += "/"
		}
		g.s.Ignored = append(g.s.Ignored, whole)
	}
	return nil
}

// patterns are those of the options and of the file in the work tree.
func (g *gathering) patterns(t *Tree) ([]string, error) {
	patterns := slices.Clone(g.o.Include)
	for _, p := range patterns {
		if strings.TrimSpace(p) == "" || strings.ContainsAny(p, "\n\x00") {
			return nil, outboard.Errorf(outboard.Invalid, "%q is no pattern of files to include", p).
				WithHint("--include .env.test, or --include 'gen/**'")
		}
	}
	root, err := os.OpenRoot(t.Root)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", t.Root, err)
	}
	defer root.Close()
	info, err := root.Stat(IncludeFile)
	if errors.Is(err, os.ErrNotExist) {
		return patterns, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxIncludeFile) {
		err = outboard.Errorf(outboard.Invalid, "it is no file of at most %d KB", maxIncludeFile>>10)
	}
	var b []byte
	if err == nil {
		b, err = root.ReadFile(IncludeFile)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", IncludeFile, err)
	}
	return append(strings.Split(string(b), "\n"), patterns...), nil
}

// include adds the files that patterns name and that git ignores.
func (g *gathering) include(ctx context.Context, t *Tree, env, patterns []string) error {
	file := g.tempIndex() // a name of ours
	if err := os.WriteFile(file, []byte(strings.Join(patterns, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing patterns: %w", err)
	}
	out, err := t.work(ctx, env, "ls-files", "-o", "-i", "--exclude-from="+file, "-z")
	if err != nil {
		return fmt.Errorf("finding files to include: %w", err)
	}
	for p := range records(out) {
		if len(g.s.Included) == maxIncluded {
			return outboard.Errorf(outboard.TooLarge, "the patterns of ignored files to send name more than %d",
				maxIncluded).
				WithHint("name fewer in --include and %s", filepath.Join(t.Root, IncludeFile))
		}
		if !strings.HasSuffix(p, "/") { // a repository of its own
			g.s.Included = append(g.s.Included, p)
		}
	}
	if len(g.s.Included) == 0 {
		return nil
	}
	_, err = t.workIn(ctx, append([]string{"GIT_LITERAL_PATHSPECS=1"}, env...), zeros(g.s.Included), "add", "-f",
		"--pathspec-from-file=-", "--pathspec-file-nul")
	if err != nil {
		return fmt.Errorf("including ignored files: %w", err)
	}
	return nil
}

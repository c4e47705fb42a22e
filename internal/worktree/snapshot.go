package worktree

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Options say what of a tree is sent.
type Options struct {
	Clean   bool     // the last commit, without uncommitted work
	Include []string // patterns, as in .gitignore, of ignored files that are sent as well
}

// Snapshot is the work of a tree at one moment.
type Snapshot struct {
	Base     string   // commit of all files that are sent, on Head
	Head     string   // the user's HEAD, "" when there is none
	Start    string   // commit that the workspace's repository is at: Head, or one with the files of submodules on it
	Index    string   // tree of the workspace's index: what the user has staged
	Modules  []string // submodules and nested repositories that are sent, as plain directories
	Absent   []string // those that are not sent
	Files    int      // files sent
	Changed  int      // of them, how many differ from Head
	Included []string // ignored files that are sent, since a pattern says so
	Ignored  []string // ignored entries that are not sent: files, and directories with a slash behind
	Sizes    []Sized  // of the files, largest first
	Notes    []string // what else the user must know

	HistoryLeft bool // Pack: Start has no parents
}

// Sized is a file that is sent.
type Sized struct {
	Path  string
	Bytes int64
	oid   string
}

// Snapshot commits the work, on no branch. An apply that was interrupted is taken back first, and one at work is
// waited for: half a result is not the user's work.
func (t *Tree) Snapshot(ctx context.Context, o Options) (Snapshot, error) {
	var s Snapshot
	unlock, err := lock(ctx, t.Root)
	if err != nil {
		return s, fmt.Errorf("locking %s: %w", t.Root, err)
	}
	defer unlock()
	if s.Notes, err = t.recover(); err != nil {
		return s, err
	}
	if s.Head = t.head(ctx); o.Clean && s.Head == "" {
		return s, outboard.Errorf(outboard.Invalid, "%s has no commit to send", t.Root).
			WithHint("leave out --clean to send the files as they are")
	}
	dir, err := os.MkdirTemp("", "outboard-index-")
	if err != nil {
		return s, fmt.Errorf("making a temporary index: %w", err)
	}
	defer os.RemoveAll(dir)
	g := gathering{store: t, dir: dir, o: o, s: &s}
	trees, err := g.repository(ctx, t, "")
	if err != nil {
		return s, err
	}
	work := trees.work
	if o.Clean {
		work = trees.head
	}
	if s.Base, err = t.commit(ctx, nil, work, s.Head, sentMessage); err != nil {
		return s, err
	}
	s.Start, s.Index = s.Head, trees.index
	if s.Head != "" {
		if s.Start, err = t.commit(ctx, nil, trees.head, s.Head,
			"Files of submodules and nested repositories"); err != nil {
			return s, err
		}
	} else if t.Plain {
		s.Start = s.Base
	}
	if o.Clean || t.Plain {
		s.Index = work
	}
	return s, t.describe(ctx, &s, trees.head, o.Clean)
}

// head returns the user's HEAD, "" where there is no commit.
func (t *Tree) head(ctx context.Context) string {
	out, err := t.work(ctx, nil, "rev-parse", "-q", "--verify", "HEAD^{commit}")
	if err != nil || t.Plain {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// commit returns a commit of tree on parent, or parent itself when it already is that tree.
func (t *Tree) commit(ctx context.Context, env []string, tree, parent, message string) (string, error) {
	args := []string{"commit-tree", tree, "-m", message}
	if parent != "" {
		same, err := t.oid(ctx, env, "rev-parse", "--verify", parent+"^{tree}")
		if err != nil || same == tree {
			return parent, err
		}
		args = append(args, "-p", parent)
	}
	id := []string{"GIT_AUTHOR_NAME=Outboard", "GIT_AUTHOR_EMAIL=outboard@localhost", "GIT_COMMITTER_NAME=Outboard",
		"GIT_COMMITTER_EMAIL=outboard@localhost"}
	return t.oid(ctx, append(id, env...), args...)
}

// describe counts what a snapshot holds, and names what it leaves behind.
func (t *Tree) describe(ctx context.Context, s *Snapshot, head string, clean bool) error {
	out, err := t.bare(ctx, nil, "ls-tree", "-r", "-l", "-z", s.Base)
	if err != nil {
		return fmt.Errorf("listing the work: %w", err)
	}
	for entry := range records(out) {
		meta, path, _ := strings.Cut(entry, "\t")
		f := strings.Fields(meta) // mode type oid size
		if len(f) != 4 || f[0] == modeModule {
			continue
		}
		var n int64
		fmt.Sscan(f[3], &n)
		s.Sizes = append(s.Sizes, Sized{path, n, f[2]})
	}
	if len(s.Absent) > 0 {
		s.Notes = append(s.Notes,
			"submodules and nested repositories that are not checked out are not sent: "+strings.Join(s.Absent, ", "))
	}
	if len(s.Included) > 0 {
		s.Notes = append(s.Notes, "ignored files that are sent: "+some(s.Included))
	}
	if len(s.Ignored) > 0 && !clean {
		s.Notes = append(s.Notes, fmt.Sprintf("ignored files and directories that are not sent: %d (%s); --include "+
			"PATTERN sends some", len(s.Ignored), some(s.Ignored)))
	}
	slices.SortStableFunc(s.Sizes, func(a, b Sized) int { return cmp.Compare(b.Bytes, a.Bytes) })
	if s.Files = len(s.Sizes); s.Head == "" {
		s.Changed = s.Files
		return nil
	}
	out, err = t.bare(ctx, nil, "diff-tree", "-r", "--no-ext-diff", "--no-renames", "--name-only", "-z", head, s.Base)
	if err != nil {
		return fmt.Errorf("counting uncommitted files: %w", err)
	}
	s.Changed = bytes.Count(out, []byte{0})
	return nil
}

// some names the first of a list.
func some(list []string) string {
	if len(list) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), len(list)-maxNamed)
	}
	return strings.Join(list, ", ")
}

// trees are what a repository has in HEAD, in its index and in its files. Submodules and nested repositories are
// directories in them.
type trees struct{ head, index, work string }

// gathering writes the files of a repository, and of those below it, into one private repository.
type gathering struct {
	store *Tree
	dir   string // of temporary indexes
	n     int
	o     Options
	s     *Snapshot
}

func (g *gathering) tempIndex() string {
	g.n++
	return filepath.Join(g.dir, fmt.Sprint(g.n))
}

// repository returns the trees of one repository, which lies at a path below the one that is sent.
func (g *gathering) repository(ctx context.Context, t *Tree, at string) (trees, error) {
	var tr trees
	head, err := t.headTree(ctx)
	if err != nil {
		return tr, err
	}
	tmp := g.tempIndex()
	env := []string{"GIT_INDEX_FILE=" + tmp}
	if !t.Plain {
		out, err := t.work(ctx, nil, "rev-parse", "--path-format=absolute", "--git-path", "index")
		if err != nil {
			return tr, fmt.Errorf("finding the index: %w", err)
		}
		if err := copyIndex(tmp, strings.TrimSuffix(string(out), "\n")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return tr, fmt.Errorf("copying the index: %w", err)
		}
	}
	staged, err := t.oid(ctx, env, "write-tree")
	if err != nil { // a merge is not finished
		staged = head
	}
	unborn, err := g.collect(ctx, t, env, at)
	if err != nil {
		return tr, err
	}
	modules, err := g.modules(ctx, t, env, at, unborn)
	if err != nil {
		return tr, err
	}
	if tr.work, err = g.flatten(ctx, t, "", tmp, modules, func(m module) string { return m.work }); err != nil {
		return tr, err
	}
	committed := func(m module) string { return m.head }
	if tr.head, err = g.flatten(ctx, t, head, g.tempIndex(), modules, committed); err != nil {
		return tr, err
	}
	tr.index, err = g.flatten(ctx, t, staged, g.tempIndex(), modules, committed)
	return tr, err
}

// headTree returns the tree of HEAD, or that of no files.
func (t *Tree) headTree(ctx context.Context) (string, error) {
	if head := t.head(ctx); head != "" {
		return t.oid(ctx, nil, "rev-parse", "--verify", head+"^{tree}")
	}
	return t.oid(ctx, nil, "hash-object", "-t", "tree", "-w", os.DevNull)
}

// collect brings a temporary index up to what git would commit now. It returns the nested repositories without a
// commit, which git does not add.
func (g *gathering) collect(ctx context.Context, t *Tree, env []string, at string) (unborn []string, err error) {
	if err := t.unhide(ctx, env); err != nil {
		return nil, err
	}
	args := []string{"-c", "advice.addEmbeddedRepo=false", "add", "-A", "--", "."}
	for {
		_, err := t.work(ctx, env, args...)
		e, failed := errors.AsType[*gitError](err)
		if err == nil {
			break
		}
		path, ok := "", false
		if failed && len(unborn) < maxModules {
			path, ok = unbornPath(e.stderr)
		}
		if !ok || slices.Contains(unborn, path) {
			return nil, fmt.Errorf("collecting the work in %s: %w", t.Root, err)
		}
		unborn = append(unborn, path)
		args = append(args, ":(exclude,top,literal)"+path)
	}
	return unborn, g.ignored(ctx, t, env, at)
}

// unbornPath finds the path in git's refusal to add a repository that has no commit.
func unbornPath(stderr string) (string, bool) {
	for line := range strings.SplitSeq(stderr, "\n") {
		if p, ok := strings.CutPrefix(line, "error: '"); ok {
			if p, ok = strings.CutSuffix(p, "' does not have a commit checked out"); ok {
				return strings.TrimSuffix(p, "/"), true
			}
		}
	}
	return "", false
}

// unhide makes git look at the files that its index says not to look at: those that are assumed to be unchanged,
// and those that are skipped although they are there.
func (t *Tree) unhide(ctx context.Context, env []string) error {
	out, err := t.work(ctx, env, "ls-files", "-v", "-z")
	if err != nil {
		return fmt.Errorf("reading the index: %w", err)
	}
	var assumed, skipped []string
	for line := range records(out) {
		tag, path, _ := strings.Cut(line, " ")
		if tag != strings.ToUpper(tag) {
			assumed = append(assumed, path)
		}
		if strings.EqualFold(tag, "S") && exists(filepath.Join(t.Root, path)) {
			skipped = append(skipped, path)
		}
	}
	for flag, paths := range map[string][]string{"--no-assume-unchanged": assumed, "--no-skip-worktree": skipped} {
		if len(paths) == 0 {
			continue
		}
		if _, err := t.workIn(ctx, env, zeros(paths), "update-index", flag, "-z", "--stdin"); err != nil {
			return fmt.Errorf("looking at hidden files: %w", err)
		}
	}
	return nil
}

// records are the parts of an output that end in a zero byte.
func records(out []byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(string(out), "\x00") {
			if part != "" && !yield(part) {
				return
			}
		}
	}
}

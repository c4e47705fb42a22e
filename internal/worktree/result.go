package worktree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Result is a workspace that came back, as a commit on top of what was sent. Close removes it.
type Result struct {
	Base   string
	Commit string // Base itself when nothing changed

	// Left names what the workspace holds and the result does not, and why, in words for the user.
	Left []string

	tree   *Tree
	dir    string
	env    []string
	format string             // of object ids
	at     func(point string) // tests: see stage.at
}

// Import unpacks a workspace tar and commits it on base, in a throwaway repository that only borrows the objects
// of the user's.
func (t *Tree) Import(ctx context.Context, base, prefix string, r io.Reader) (*Result, error) {
	dir, err := os.MkdirTemp("", "outboard-result-")
	if err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	res := &Result{Base: base, tree: t, dir: dir, at: func(string) {}}
	if err := res.load(ctx, prefix, r); err != nil {
		return nil, errors.Join(err, res.Close())
	}
	return res, nil
}

// Close removes the throwaway repository.
func (r *Result) Close() error { return os.RemoveAll(r.dir) }

// Changed reports whether the workspace differs from what was sent.
func (r *Result) Changed() bool { return r.Commit != r.Base }

func (r *Result) load(ctx context.Context, prefix string, tarball io.Reader) error {
	files, repo := filepath.Join(r.dir, "files"), filepath.Join(r.dir, "repo")
	if err := os.Mkdir(files, 0o700); err != nil {
		return fmt.Errorf("making a temporary directory: %w", err)
	}
	unpacked, err := Unpack(ctx, tarball, prefix, files, notStage, true)
	if err != nil {
		return err
	}
	r.Left = unpacked.Left
	if r.format, err = r.tree.objectFormat(ctx); err != nil {
		return err
	}
	init := []string{"init", "-q", "--bare", "--template=", "--object-format=" + r.format, repo}
	if _, err := run(ctx, r.dir, isolated(), nil, init...); err != nil {
		return fmt.Errorf("making a temporary repository: %w", err)
	}
	if err := r.borrow(repo); err != nil {
		return err
	}
	r.env = append(isolated(), "GIT_DIR="+repo)
	return r.commitFiles(ctx, files)
}

// borrow lets the throwaway repository read what was sent, and ignore what the user's repository ignores.
func (r *Result) borrow(repo string) error {
	objects := filepath.Join(r.tree.Store, "objects")
	if err := os.WriteFile(filepath.Join(repo, "objects", "info", "alternates"), []byte(objects+"\n"), 0o600); err != nil {
		return fmt.Errorf("borrowing objects: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(repo, "info"), 0o700); err != nil {
		return fmt.Errorf("preparing a temporary repository: %w", err)
	}
	err := copyFile(filepath.Join(repo, "info", "exclude"), filepath.Join(r.tree.GitDir, "info", "exclude"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("copying the list of ignored files: %w", err)
	}
	return copyShallow(repo, r.tree.Store)
}

func (r *Result) commitFiles(ctx context.Context, files string) error {
	if err := r.keepSubmodules(ctx, files); err != nil {
		return err
	}
	if _, err := r.git(ctx, "read-tree", r.Base); err != nil {
		return fmt.Errorf("reading what was sent: %w", err)
	}
	env := append(r.env, "GIT_WORK_TREE="+files)
	if _, err := run(ctx, files, env, nil, "add", "-A", "--", "."); err != nil {
		return fmt.Errorf("collecting the result: %w", err)
	}
	tree, err := r.git(ctx, "write-tree")
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	date, err := r.git(ctx, "log", "-1", "--format=%cI", r.Base)
	if err != nil {
		return fmt.Errorf("reading the date of what was sent: %w", err)
	}
	// With the date of its base, the same result is the same commit whenever it is brought home.
	when := strings.TrimSpace(string(date))
	env = append(r.env, "GIT_AUTHOR_DATE="+when, "GIT_COMMITTER_DATE="+when)
	t := &Tree{Root: files, GitDir: filepath.Join(r.dir, "repo")}
	r.Commit, err = t.commit(ctx, env, strings.TrimSpace(string(tree)), r.Base, "Result of the session")
	return err
}

// keepSubmodules makes the empty directories of submodules, without which they would count as removed. What the
// session has put into one is left: the submodule itself was not sent.
func (r *Result) keepSubmodules(ctx context.Context, files string) error {
	out, err := r.git(ctx, "ls-tree", "-r", "-z", r.Base)
	if err != nil {
		return fmt.Errorf("listing what was sent: %w", err)
	}
	root, err := os.OpenRoot(files)
	if err != nil {
		return fmt.Errorf("opening the result: %w", err)
	}
	defer root.Close()
	l := newLooker(root, "")
	for entry := range strings.SplitSeq(string(out), "\x00") {
		meta, path, _ := strings.Cut(entry, "\t")
		if !strings.HasPrefix(meta, modeModule+" ") {
			continue
		}
		if err := r.keepSubmodule(l, path); err != nil {
			return fmt.Errorf("keeping submodule %q: %w", path, err)
		}
	}
	return nil
}

func (r *Result) keepSubmodule(l *looker, path string) error {
	if err := l.see(path); err != nil {
		return err
	}
	h := l.now[path]
	const why = "%s: in a submodule or nested repository, which was not sent"
	switch {
	case h.behind != "":
		r.Left = append(r.Left, fmt.Sprintf("%s: the session put a file in place of the directory of the submodule %s", h.behind, path))
		if err := l.root.RemoveAll(h.behind); err != nil {
			return err
		}
	case h.dir:
		for i, f := range h.below {
			if i == maxLeft {
				r.Left = append(r.Left, fmt.Sprintf("%d more files in %s", len(h.below)-i, path))
				break
			}
			r.Left = append(r.Left, fmt.Sprintf(why, f))
		}
	case h.entry != entry{}:
		r.Left = append(r.Left, fmt.Sprintf("%s: a file in place of a submodule or nested repository, which was not sent", path))
	}
	if err := l.root.RemoveAll(path); err != nil {
		return err
	}
	return l.root.MkdirAll(path, 0o755)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (r *Result) git(ctx context.Context, args ...string) ([]byte, error) {
	return run(ctx, r.dir, r.env, nil, args...)
}

// Form is how a difference is printed.
type Form int

// The forms.
const (
	Patch Form = iota // for people and for git apply
	Stat
	NameOnly
)

// Diff returns the difference between what was sent and what came back. It is foreign text.
func (r *Result) Diff(ctx context.Context, form Form) ([]byte, error) {
	args := []string{"diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index"}
	switch form {
	case Stat:
		args = append(args, "--stat=100")
	case NameOnly:
		args = append(args, "--name-only")
	default:
		args = append(args, "--binary")
	}
	out, err := r.git(ctx, append(args, r.Base, r.Commit, "--")...)
	if err != nil {
		return nil, fmt.Errorf("comparing: %w", err)
	}
	return out, nil
}

// Links returns the symbolic links that the result adds or changes and that point out of the tree.
func (r *Result) Links(ctx context.Context) ([]string, error) {
	out, err := r.git(ctx, "diff", "--raw", "--no-abbrev", "--no-renames", "-z", r.Base, r.Commit, "--")
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	var links []string
	fields := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		f := strings.Fields(fields[i]) // :oldmode newmode oldid newid status
		if len(f) != 5 || f[1] != "120000" {
			continue
		}
		target, err := r.git(ctx, "cat-file", "blob", f[3])
		if err != nil {
			return nil, fmt.Errorf("reading a link: %w", err)
		}
		to := filepath.ToSlash(string(target))
		if strings.HasPrefix(to, "/") || !filepath.IsLocal(filepath.Join(filepath.Dir(fields[i+1]), to)) {
			links = append(links, fields[i+1]+" -> "+to)
		}
	}
	return links, nil
}

// Branch makes the result a branch of the user's repository and returns its name: name, or with a number behind
// it when another branch has the name. Objects are checked on the way in; nothing is checked out.
func (r *Result) Branch(ctx context.Context, name string) (string, error) {
	if r.tree.Plain {
		return "", outboard.Errorf(outboard.Invalid, "%s is not in a git repository, so the result cannot become a branch", r.tree.Root)
	}
	if _, err := run(ctx, r.dir, nil, nil, "check-ref-format", "--branch", name); err != nil {
		return "", outboard.Errorf(outboard.Invalid, "%q is not a branch name", name)
	}
	commit, err := r.withModules(ctx)
	if err != nil {
		return "", err
	}
	r.Commit = commit
	if _, err := r.git(ctx, "update-ref", "refs/heads/result", r.Commit); err != nil {
		return "", fmt.Errorf("naming the result: %w", err)
	}
	free, have, err := r.freeName(ctx, name)
	if err != nil || have {
		return free, err
	}
	args := []string{"-c", "fetch.fsckObjects=true", "fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
		"--no-auto-maintenance", filepath.Join(r.dir, "repo"), "refs/heads/result"}
	if _, err := r.tree.user(ctx, args...); err != nil {
		return "", fmt.Errorf("bringing the result into the repository: %w", err)
	}
	none := strings.Repeat("0", len(r.Commit)) // the branch must not exist: one made meanwhile is not moved
	if _, err := r.tree.user(ctx, "update-ref", "refs/heads/"+free, r.Commit, none); err != nil {
		return "", outboard.Errorf(outboard.Conflict, "the branch %s cannot be made: %w", free, err).WithHint("--branch NAME takes another name")
	}
	return free, nil
}

// withModules returns the result as a commit of the user's repository: submodules are plain directories in a
// workspace, and what their own repositories hold cannot be on a branch of the one around them. Left names what
// is not on it.
func (r *Result) withModules(ctx context.Context) (string, error) {
	parent, err := r.git(ctx, "rev-parse", "-q", "--verify", r.Base+"^")
	if err != nil {
		return r.Commit, nil // sent without a commit before it, or as that commit
	}
	head := strings.TrimSpace(string(parent))
	out, err := r.git(ctx, "ls-tree", "-r", "-z", head)
	if err != nil {
		return "", fmt.Errorf("listing submodules: %w", err)
	}
	var links strings.Builder
	var paths []string
	for line := range records(out) {
		meta, p, _ := strings.Cut(line, "\t")
		f := strings.Fields(meta)
		if len(f) != 3 || f[0] != modeModule {
			continue
		}
		if kind, err := r.git(ctx, "cat-file", "-t", r.Base+":"+p); err == nil && strings.TrimSpace(string(kind)) == "tree" {
			paths = append(paths, p)
			fmt.Fprintf(&links, "%s %s\t%s\x00", modeModule, f[2], p)
		}
	}
	if len(paths) == 0 {
		return r.Commit, nil
	}
	changed, err := r.git(ctx, append([]string{"diff", "--no-renames", "--name-only", "-z", r.Base, r.Commit, "--"}, paths...)...)
	if err != nil {
		return "", fmt.Errorf("comparing submodules: %w", err)
	}
	for p := range records(changed) {
		r.Left = append(r.Left, p+": in a submodule, which a branch of the repository around it cannot hold")
	}
	return r.commitModules(ctx, head, paths, links.String())
}

// commitModules commits the result with submodules where their directories are.
func (r *Result) commitModules(ctx context.Context, head string, paths []string, links string) (string, error) {
	env := append(slices.Clone(r.env), "GIT_INDEX_FILE="+filepath.Join(r.dir, "linked"), "GIT_WORK_TREE="+filepath.Join(r.dir, "files"))
	git := func(stdin io.Reader, args ...string) (string, error) {
		out, err := run(ctx, r.dir, env, stdin, args...)
		if err != nil {
			return "", fmt.Errorf("making a branch of the result: %w", err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if _, err := git(nil, "read-tree", r.Commit); err != nil {
		return "", err
	}
	out, err := git(nil, append([]string{"ls-files", "-z", "--"}, paths...)...)
	if err != nil {
		return "", err
	}
	if _, err := git(strings.NewReader(out), "update-index", "--force-remove", "-z", "--stdin"); err != nil {
		return "", err
	}
	if _, err := git(strings.NewReader(links), "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	tree, err := git(nil, "write-tree")
	if err != nil {
		return "", err
	}
	date, err := git(nil, "log", "-1", "--format=%cI", r.Base)
	if err != nil {
		return "", err
	}
	t := &Tree{Root: filepath.Join(r.dir, "files"), GitDir: filepath.Join(r.dir, "repo")}
	return t.commit(ctx, append(slices.Clone(r.env), "GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date), tree, head, "Result of the session")
}

// Rootless reports whether what was sent shares no history with what the user is on: then git merges the result
// only when told to.
func (r *Result) Rootless(ctx context.Context) bool {
	_, err := r.tree.work(ctx, nil, "merge-base", "HEAD", r.Base)
	return err != nil
}

// freeName returns name or the first numbered form of it that no branch has, or that is the result already.
func (r *Result) freeName(ctx context.Context, name string) (free string, have bool, err error) {
	for n, try := 1, name; n <= 100; n++ {
		if n > 1 {
			try = fmt.Sprintf("%s-%d", name, n)
		}
		out, err := r.tree.user(ctx, "rev-parse", "-q", "--verify", "refs/heads/"+try)
		switch at := strings.TrimSpace(string(out)); {
		case err != nil && at == "":
			return try, false, nil
		case at == r.Commit:
			return try, true, nil
		}
	}
	return "", false, outboard.Errorf(outboard.Conflict, "a hundred branches named %s exist", name)
}

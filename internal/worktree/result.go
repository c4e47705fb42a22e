package worktree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Result is a workspace that came back, as a commit on top of what was sent. Close removes it.
type Result struct {
	Base   string
	Commit string // Base itself when nothing changed

	// Left names what the workspace holds and the result does not, and why, in words for the user.
	Left []string

	sent   Sent
	tree   *Tree
	dir    string
	theirs *foreign // the workspace's own repository; nil when nobody asked for its commits

	headModules, baseModules map[string]entry // Branch: see findModules
	env                      []string
	format                   string             // of object ids
	at                       func(point string) // tests: see stage.at
}

// Sent says what a workspace began as.
type Sent struct {
	Base  string // commit of all files
	Head  string // the user's HEAD, "" when there was none
	Start string // commit that the workspace's repository was at, "" when it had none
	Far   bool   // Head is only one before it: the user's HEAD is not in this repository
}

// Sent returns what a workspace begins as that Pack has written.
func (s *Snapshot) Sent() Sent { return Sent{Base: s.Base, Head: s.Head, Start: s.Start} }

// Import unpacks a workspace tar and commits it on what was sent, in a throwaway repository that only borrows
// the objects of the user's. With commits, Branch can bring those that were made in the workspace.
func (t *Tree) Import(ctx context.Context, sent Sent, prefix string, r io.Reader, commits bool) (*Result, error) {
	dir, err := os.MkdirTemp("", "outboard-result-")
	if err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	res := &Result{Base: sent.Base, sent: sent, tree: t, dir: dir, at: func(string) {}}
	if commits && !t.Plain {
		res.theirs, err = newForeign(filepath.Join(dir, "theirs"))
	}
	if err == nil {
		err = res.load(ctx, prefix, r)
	}
	if err != nil {
		return nil, errors.Join(err, res.Close())
	}
	return res, nil
}

// Close removes the throwaway repository.
func (r *Result) Close() error {
	if r.theirs != nil {
		r.theirs.root.Close()
	}
	return os.RemoveAll(r.dir)
}

// Changed reports whether the workspace differs from what was sent.
func (r *Result) Changed() bool { return r.Commit != r.Base }

func (r *Result) load(ctx context.Context, prefix string, tarball io.Reader) error {
	files, repo := filepath.Join(r.dir, "files"), filepath.Join(r.dir, "repo")
	if err := os.Mkdir(files, 0o700); err != nil {
		return fmt.Errorf("making a temporary directory: %w", err)
	}
	unpacked, err := unpack(ctx, tarball, unpacker{prefix: prefix, overwrite: true, want: notStage, repo: r.theirs},
		files)
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
	if err := os.WriteFile(filepath.Join(repo, "objects", "info", "alternates"), []byte(objects+"\n"),
		0o600); err != nil {
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
	date, err := r.date(ctx, r.Base) // with it, the same result is the same commit whenever it is brought home
	if err != nil {
		return err
	}
	r.Commit, err = r.commitAt(ctx, strings.TrimSpace(string(tree)), r.Base, resultMessage, date)
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
		r.Left = append(r.Left, fmt.Sprintf("%s: the session put a file in place of the directory of the submodule %s",
			h.behind, path))
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
		r.Left = append(r.Left, fmt.Sprintf("%s: a file in place of a submodule or nested repository, which was not "+
			"sent", path))
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
	list, err := r.changes(ctx)
	if err != nil {
		return nil, err
	}
	return r.leading(ctx, list)
}

// Package worktree carries a directory on the user's machine into a session's workspace and brings
// the result home.
//
// Up: the work is what git would commit now (tracked and untracked files, never ignored ones),
// taken through a temporary index. Everything that this makes is written to a private repository,
// which borrows the objects of the user's. The workspace gets a repository with the user's HEAD on
// branch "work" and the uncommitted work as such. Submodules and nested repositories are plain
// directories there. A directory outside any repository works the same, with one commit of its
// files.
//
// Down: a workspace is hostile input. It is unpacked below an os.Root without any .git entry and
// committed in a throwaway repository that reads no configuration. What it changed is merged, file
// by file, with what the user has now. A pure plan says what will be different. Everything new is
// written beside the user's files and flushed; then it is swapped in by renames that a journal can
// take back.
//
// Invariants:
//   - Sending adds no object and no ref to the user's repository.
//   - The workspace never sees the user's repository, remotes, hooks or configuration.
//   - A result that does not fit changes nothing; it becomes a branch.
//
// Start reading at Tree and Open, then at plan.go.
package worktree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
)

const (
	// maxGitOutput bounds what one git command may print into memory: file lists of very large trees fit.
	maxGitOutput = 64 << 20
	// maxHistory is the size of the packed history above which only the files are sent, so that the upload stays
	// in seconds.
	maxHistory = 100 << 20
)

// Tree is a directory whose work can be sent.
type Tree struct {
	Root   string // top of the work tree: an absolute path
	GitDir string // the user's repository, or the private one
	Store  string // the private repository that holds what was sent
	Plain  bool   // Root is in no repository; GitDir is private
	Dir    string // where in Root the user was, with slashes; "" is Root
}

// Open finds the repository around dir, and makes or reuses a private one at private, which remembers what is
// sent. Where there is no repository around dir and plain is false, the error is NotFound. A repository that git
// does not open is Invalid, with git's reason.
func Open(ctx context.Context, dir, private string, plain bool) (*Tree, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", dir, err)
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return nil, outboard.Errorf(outboard.NotFound, "%s is not a directory", dir)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "git is not installed").
			WithHint("install git, or start with an empty workspace: --from none")
	}
	t := &Tree{Root: dir}
	switch found, err := t.find(ctx); {
	case err != nil:
		return nil, err
	case !found && !plain:
		return nil, outboard.Errorf(outboard.NotFound, "%s is not in a git repository", dir)
	case !found:
		t.GitDir, t.Plain = private, true
	}
	t.Store = private
	return t, t.makeStore(ctx)
}

// makeStore makes the private repository, which reads the objects of the user's.
func (t *Tree) makeStore(ctx context.Context) error {
	format := "sha1"
	if !t.Plain {
		out, err := t.git(ctx, nil, "rev-parse", "--show-object-format")
		if err != nil {
			return fmt.Errorf("opening %s: %w", t.GitDir, err)
		}
		format = strings.TrimSpace(string(out))
	}
	if !exists(filepath.Join(t.Store, "HEAD")) {
		init := []string{"init", "-q", "--bare", "--template=", "--object-format=" + format, t.Store}
		if _, err := run(ctx, t.Root, isolated(), nil, init...); err != nil {
			return fmt.Errorf("making a private repository: %w", err)
		}
	}
	if t.Plain {
		return nil
	}
	if err := t.borrow(ctx, t.Root); err != nil {
		return err
	}
	return copyShallow(t.Store, t.GitDir)
}

// borrow lets the private repository read the objects of the one whose work tree is dir.
func (t *Tree) borrow(ctx context.Context, dir string) error {
	out, err := run(ctx, dir, nil, nil, "rev-parse", "--path-format=absolute", "--git-path", "objects")
	if err != nil {
		return fmt.Errorf("finding the objects of %s: %w", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(t.Store, "objects", "info", "alternates"), os.O_CREATE|os.O_WRONLY|os.O_APPEND,
		0o600)
	if err != nil {
		return fmt.Errorf("borrowing objects: %w", err)
	}
	_, err = f.Write(out)
	return errors.Join(err, f.Close())
}

// copyShallow tells repository to where the history that it borrows ends.
func copyShallow(to, from string) error {
	err := copyFile(filepath.Join(to, "shallow"), filepath.Join(from, "shallow"))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("copying the shallow boundary: %w", err)
	}
	return nil
}

// find fills in the repository around t.Root and reports whether there is one. Git has the same exit code for a
// directory in no repository and for one whose repository it does not open, such as somebody else's: work that
// is there must not count as none.
func (t *Tree) find(ctx context.Context) (bool, error) {
	out, err := t.git(ctx, nil, "rev-parse", "--path-format=absolute", "--is-inside-work-tree", "--show-toplevel",
		"--git-common-dir",
		"--show-prefix")
	if e, ok := errors.AsType[*gitError](err); ok {
		if strings.HasPrefix(e.stderr, "fatal: not a git repository (or any ") {
			return false, nil
		}
		if out, err := t.git(ctx, nil, "rev-parse", "--is-bare-repository"); err == nil &&
			strings.TrimSpace(string(out)) == "true" {
			return false, outboard.Errorf(outboard.Invalid, "%s is a bare repository: it has no files to send", t.Root).
				WithHint("run in a checkout of it")
		}
		return false, outboard.Errorf(outboard.Invalid, "git does not open the repository of %s: %w", t.Root, err).
			WithHint("once git status works there, this does; --from none starts with an empty workspace")
	}
	if err != nil {
		return false, err
	}
	f := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(f) != 4 {
		return false, outboard.Errorf(outboard.Invalid, "the path of the repository of %s has a line break in it",
			t.Root)
	}
	t.Root, t.GitDir, t.Dir = filepath.FromSlash(f[1]), filepath.FromSlash(f[2]), strings.TrimSuffix(f[3], "/")
	return true, nil
}

// historySize returns the bytes of everything that commit reaches and its own files do not need, as packed.
func (t *Tree) historySize(ctx context.Context, commit string) (int64, error) {
	out, err := t.bare(ctx, nil, "rev-list", "--objects", "--disk-usage", commit, "--not", commit+"^{tree}")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
}

// work runs git on the user's files, user on the user's repository alone, bare on the one that holds what was sent.
func (t *Tree) work(ctx context.Context, env []string, args ...string) ([]byte, error) {
	return t.workIn(ctx, env, nil, args...)
}

// workIn is work with something on the standard input.
func (t *Tree) workIn(ctx context.Context, env []string, stdin io.Reader, args ...string) ([]byte, error) {
	if t.Plain {
		env = append([]string{"GIT_DIR=" + t.GitDir, "GIT_WORK_TREE=" + t.Root}, env...)
	} else if t.Store != "" { // what git makes goes there; it borrows the objects of the user's repository
		objects := filepath.Join(t.Store, "objects")
		env = append([]string{"GIT_OBJECT_DIRECTORY=" + objects}, env...)
	}
	return run(ctx, t.Root, env, stdin, args...)
}

func (t *Tree) user(ctx context.Context, args ...string) ([]byte, error) {
	return t.git(ctx, []string{"GIT_DIR=" + t.GitDir}, args...)
}

func (t *Tree) bare(ctx context.Context, env []string, args ...string) ([]byte, error) {
	return t.git(ctx, append([]string{"GIT_DIR=" + t.Store}, env...), args...)
}

func (t *Tree) git(ctx context.Context, env []string, args ...string) ([]byte, error) {
	return run(ctx, t.Root, env, nil, args...)
}

// oid runs a git command that prints one object id.
func (t *Tree) oid(ctx context.Context, env []string, args ...string) (string, error) {
	out, err := t.work(ctx, env, args...)
	if err != nil {
		return "", fmt.Errorf("running git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// run executes git in dir with a clean environment: no variable of a surrounding git command, no hooks, no file
// system monitor (a program a repository's configuration may name), no prompts, messages in English.
func run(ctx context.Context, dir string, env []string, stdin io.Reader, args ...string) ([]byte, error) {
	base := []string{"-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false", "-c",
		"core.untrackedCache=false",
		"-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "protocol.ext.allow=never", "-c", "core.protectNTFS=true",
		"-c", "core.protectHFS=true", "-c", "core.quotePath=false"}
	cmd := exec.CommandContext(ctx, "git", append(base, args...)...)
	cmd.Dir, cmd.Stdin = dir, stdin
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GIT_") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "LANG") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_ALLOW_PROTOCOL=file")
	cmd.Env = append(cmd.Env, env...)
	var out, errs capped
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if out.over {
			return nil, outboard.Errorf(outboard.TooLarge, "git %s printed more than %d MB", args[0], maxGitOutput>>20)
		}
		return nil, &gitError{args: args, stderr: strings.TrimSpace(errs.buf.String()), err: err}
	}
	return out.buf.Bytes(), nil
}

// gitError is a git command that failed.
type gitError struct {
	args   []string
	stderr string
	err    error
}

// Error returns git's own last words.
func (e *gitError) Error() string {
	if e.stderr == "" {
		return e.err.Error()
	}
	return e.stderr
}

// Unwrap returns the process error.
func (e *gitError) Unwrap() error { return e.err }

// capped is a buffer that takes at most maxGitOutput. It does not embed one: io.Copy would find its ReadFrom,
// which has no limit.
type capped struct {
	buf  bytes.Buffer
	over bool
}

// Write keeps what fits. An error ends the program that writes: what it prints may have no end.
func (c *capped) Write(p []byte) (int, error) {
	if c.buf.Len()+len(p) > maxGitOutput {
		c.over = true
		return 0, io.ErrShortWrite
	}
	return c.buf.Write(p)
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// copyIndex copies an index with its time: git compares the content of files that are not older than their
// index, and believes the size and the time of all others. A copy that is newer would hide a change of the same
// second.
func copyIndex(dst, src string) error {
	st, err := os.Stat(src)
	if err == nil {
		err = copyFile(dst, src)
	}
	if err == nil {
		err = os.Chtimes(dst, st.ModTime(), st.ModTime())
	}
	return err
}

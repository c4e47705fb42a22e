// Package worktree carries a directory on the user's machine into a session's workspace and brings the result home.
//
// Up: the work is what git would commit now (tracked and untracked files, ignored ones never), taken through a temporary
// index, so that the user's index, HEAD, branches and stash are untouched. The workspace gets a repository of its own with that
// commit on branch "work"; it never sees the user's repository, remotes, hooks or configuration. A directory outside any
// repository works the same, with a private repository beside it to remember what was sent.
//
// Down: a workspace is hostile input. It is unpacked below an os.Root without any .git entry and committed in a throwaway
// repository that reads no configuration. What it changed is merged, file by file, with what the user has now: a pure plan says
// what will be different; everything new is written beside the user's files and flushed; then it is swapped in by renames that
// a journal can take back. A result that does not fit changes nothing; it becomes a branch.
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
	// maxHistory is the size of the packed history above which only the files are sent, so that the upload stays in seconds.
	maxHistory = 100 << 20
)

// Tree is a directory whose work can be sent.
type Tree struct {
	Root   string // top of the work tree: an absolute path
	GitDir string // repository that holds Root's base commits: the user's own, or the private one
	Plain  bool   // Root is in no repository; GitDir is private
}

// Snapshot is the work of a tree at one moment.
type Snapshot struct {
	Base    string   // commit that holds the work
	Head    string   // the user's HEAD, "" when there is none
	Files   int      // files sent
	Changed int      // of them, how many differ from HEAD
	Notes   []string // what was left behind and why, in words for the user
}

// Open finds the repository around dir. Where there is none it makes or reuses a private one at private; with private "" the
// error is NotFound. A repository that git does not open is Invalid, with git's reason.
func Open(ctx context.Context, dir, private string) (*Tree, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", dir, err)
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return nil, outboard.Errorf(outboard.NotFound, "%s is not a directory", dir)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "git is not installed").WithHint("install git, or start with an empty workspace: --from none")
	}
	t := &Tree{Root: dir}
	switch found, err := t.find(ctx); {
	case err != nil:
		return nil, err
	case found:
		return t, nil
	case private == "":
		return nil, outboard.Errorf(outboard.NotFound, "%s is not in a git repository", dir)
	}
	t.GitDir, t.Plain = private, true
	if _, err := os.Stat(filepath.Join(private, "HEAD")); err != nil {
		if _, err := t.bare(ctx, nil, "init", "-q", "--bare", "--template=", private); err != nil {
			return nil, fmt.Errorf("making a private repository: %w", err)
		}
	}
	return t, nil
}

// find fills in the repository around t.Root and reports whether there is one. Git has the same exit code for a directory in no
// repository and for one whose repository it does not open, such as somebody else's: work that is there must not count as none.
func (t *Tree) find(ctx context.Context) (bool, error) {
	out, err := t.git(ctx, nil, "rev-parse", "--path-format=absolute", "--is-inside-work-tree", "--show-toplevel", "--git-common-dir")
	if e, ok := errors.AsType[*gitError](err); ok {
		if strings.HasPrefix(e.stderr, "fatal: not a git repository (or any ") {
			return false, nil
		}
		if out, err := t.git(ctx, nil, "rev-parse", "--is-bare-repository"); err == nil && strings.TrimSpace(string(out)) == "true" {
			return false, outboard.Errorf(outboard.Invalid, "%s is a bare repository: it has no files to send", t.Root).WithHint("run in a checkout of it")
		}
		return false, outboard.Errorf(outboard.Invalid, "git does not open the repository of %s: %w", t.Root, err).
			WithHint("once git status works there, this does; --from none starts with an empty workspace")
	}
	if err != nil {
		return false, err
	}
	f := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(f) != 3 {
		return false, outboard.Errorf(outboard.Invalid, "the path of the repository of %s has a line break in it", t.Root)
	}
	t.Root, t.GitDir = filepath.FromSlash(f[1]), filepath.FromSlash(f[2])
	return true, nil
}

// Reopen returns the tree that an earlier Open returned.
func Reopen(root, gitDir string, plain bool) *Tree {
	return &Tree{Root: root, GitDir: gitDir, Plain: plain}
}

// Snapshot commits the work to the repository's object store, on no branch. With clean it takes HEAD as it is. An apply that was
// interrupted is taken back first, and one at work is waited for: half a result is not the user's work.
func (t *Tree) Snapshot(ctx context.Context, clean bool) (Snapshot, error) {
	var s Snapshot
	unlock, err := lock(ctx, t.Root)
	if err != nil {
		return s, fmt.Errorf("locking %s: %w", t.Root, err)
	}
	defer unlock()
	if s.Notes, err = t.recover(); err != nil {
		return s, err
	}
	if out, err := t.work(ctx, nil, "rev-parse", "-q", "--verify", "HEAD^{commit}"); err == nil && !t.Plain {
		s.Head = strings.TrimSpace(string(out))
	}
	if clean && s.Head == "" {
		return s, outboard.Errorf(outboard.Invalid, "%s has no commit to send", t.Root).WithHint("leave out --clean to send the files as they are")
	}
	tree, err := t.writeTree(ctx, s.Head, clean)
	if err != nil {
		return s, err
	}
	if s.Base, err = t.commit(ctx, nil, tree, s.Head, "Work sent to the sandbox"); err != nil {
		return s, err
	}
	return s, t.describe(ctx, &s)
}

// writeTree returns the tree of the work, through a temporary copy of the index.
func (t *Tree) writeTree(ctx context.Context, head string, clean bool) (string, error) {
	if clean {
		return t.oid(ctx, nil, "rev-parse", "--verify", head+"^{tree}")
	}
	dir, err := os.MkdirTemp("", "outboard-index-")
	if err != nil {
		return "", fmt.Errorf("making a temporary index: %w", err)
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "index")
	if !t.Plain {
		out, err := t.work(ctx, nil, "rev-parse", "--path-format=absolute", "--git-path", "index")
		if err != nil {
			return "", fmt.Errorf("finding the index: %w", err)
		}
		if err := copyFile(tmp, strings.TrimSuffix(string(out), "\n")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("copying the index: %w", err)
		}
	}
	env := []string{"GIT_INDEX_FILE=" + tmp}
	if _, err := t.work(ctx, env, "-c", "advice.addEmbeddedRepo=false", "add", "-A", "--", "."); err != nil {
		return "", fmt.Errorf("collecting the work in %s: %w", t.Root, err)
	}
	return t.oid(ctx, env, "write-tree")
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
	id := []string{"GIT_AUTHOR_NAME=Outboard", "GIT_AUTHOR_EMAIL=outboard@localhost", "GIT_COMMITTER_NAME=Outboard", "GIT_COMMITTER_EMAIL=outboard@localhost"}
	return t.oid(ctx, append(id, env...), args...)
}

// describe counts what a snapshot holds and names what it leaves behind.
func (t *Tree) describe(ctx context.Context, s *Snapshot) error {
	out, err := t.bare(ctx, nil, "ls-tree", "-r", "-z", s.Base)
	if err != nil {
		return fmt.Errorf("listing the work: %w", err)
	}
	var links []string
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		switch {
		case entry == "":
		case strings.HasPrefix(entry, "160000 "):
			_, path, _ := strings.Cut(entry, "\t")
			links = append(links, path)
		default:
			s.Files++
		}
	}
	if len(links) > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("submodules and nested repositories are not sent: %s", strings.Join(links, ", ")))
	}
	if s.Head == "" {
		s.Changed = s.Files
		return nil
	}
	out, err = t.bare(ctx, nil, "diff", "--no-ext-diff", "--no-renames", "--name-only", "-z", s.Head, s.Base)
	if err != nil {
		return fmt.Errorf("counting uncommitted files: %w", err)
	}
	s.Changed = bytes.Count(out, []byte{0})
	return nil
}

// Keep holds the base commit of a session against garbage collection.
func (t *Tree) Keep(ctx context.Context, session, base string) error {
	if _, err := t.bare(ctx, nil, "update-ref", keepRef(session), base); err != nil {
		return fmt.Errorf("remembering what was sent: %w", err)
	}
	return nil
}

// Forget drops what Keep holds. A missing ref is fine.
func (t *Tree) Forget(ctx context.Context, session string) error {
	if _, err := t.bare(ctx, nil, "update-ref", "-d", keepRef(session)); err != nil {
		return fmt.Errorf("forgetting what was sent: %w", err)
	}
	return nil
}

func keepRef(session string) string { return "refs/outboard/" + session }

// historySize returns the bytes of everything that commit reaches and its own files do not need, as packed.
func (t *Tree) historySize(ctx context.Context, commit string) (int64, error) {
	out, err := t.bare(ctx, nil, "rev-list", "--objects", "--disk-usage", commit, "--not", commit+"^{tree}")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
}

// work runs git on the user's files, bare on the repository alone.
func (t *Tree) work(ctx context.Context, env []string, args ...string) ([]byte, error) {
	if t.Plain {
		env = append([]string{"GIT_DIR=" + t.GitDir, "GIT_WORK_TREE=" + t.Root}, env...)
	}
	return t.git(ctx, env, args...)
}

func (t *Tree) bare(ctx context.Context, env []string, args ...string) ([]byte, error) {
	if t.Plain || t.GitDir != "" {
		env = append([]string{"GIT_DIR=" + t.GitDir}, env...)
	}
	return t.git(ctx, env, args...)
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

// run executes git in dir with a clean environment: no variable of a surrounding git command, no hooks, no file system monitor
// (a program a repository's configuration may name), no prompts, messages in English.
func run(ctx context.Context, dir string, env []string, stdin io.Reader, args ...string) ([]byte, error) {
	base := []string{"-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false",
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
		return nil, &gitError{args: args, stderr: strings.TrimSpace(errs.String()), err: err}
	}
	if out.over {
		return nil, outboard.Errorf(outboard.TooLarge, "git %s printed more than %d MB", args[0], maxGitOutput>>20)
	}
	return out.Bytes(), nil
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

// capped is a buffer that keeps at most maxGitOutput.
type capped struct {
	bytes.Buffer
	over bool
}

// Write keeps what fits and drops the rest.
func (c *capped) Write(p []byte) (int, error) {
	if c.Len()+len(p) > maxGitOutput {
		c.over = true
		return len(p), nil
	}
	return c.Buffer.Write(p)
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

package worktree

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// repo is a user's repository in a temporary directory.
type repo struct {
	t   *testing.T
	dir string
}

func newRepo(t *testing.T) *repo {
	t.Helper()
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	r := &repo{t, filepath.Join(t.TempDir(), "repo")}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("init", "-q", "-b", "main")
	r.git("config", "user.name", "Ada")
	r.git("config", "user.email", "ada@example.org")
	return r
}

func (r *repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *repo) write(files map[string]string) {
	r.t.Helper()
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *repo) read(name string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

func (r *repo) commit(files map[string]string) {
	r.t.Helper()
	r.write(files)
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "work")
}

// state is everything of a repository that sending must not change.
func (r *repo) state() string {
	r.t.Helper()
	index, err := os.ReadFile(filepath.Join(r.dir, ".git", "index"))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	return r.git("for-each-ref") + r.git("stash", "list") + string(index) +
		r.git("status", "--porcelain=v2", "--branch", "--ignored")
}

func (r *repo) open() *Tree {
	r.t.Helper()
	t, err := Open(r.t.Context(), r.dir, filepath.Join(r.t.TempDir(), "store.git"), false)
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}

// send packs the work and returns the tree, its snapshot and the unpacked workspace.
func (r *repo) send() (*Tree, Snapshot, *repo) {
	r.t.Helper()
	tree := r.open()
	snap, box := sendTree(r.t, tree)
	return tree, snap, box
}

func sendTree(t *testing.T, tree *Tree) (Snapshot, *repo) {
	t.Helper()
	snap, err := tree.Snapshot(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tree.Pack(t.Context(), &snap, "workspace/", &buf); err != nil {
		t.Fatal(err)
	}
	box := &repo{t, filepath.Join(t.TempDir(), "box")}
	untar(t, &buf, box.dir)
	return snap, box
}

// untar unpacks a tar of our own making, .git and all, the way a sandbox does.
func untar(t *testing.T, r *bytes.Buffer, dir string) {
	t.Helper()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err != nil {
			return
		}
		path := filepath.Join(dir, strings.TrimPrefix(h.Name, "workspace"))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			var b bytes.Buffer
			b.ReadFrom(tr)
			err = os.WriteFile(path, b.Bytes(), os.FileMode(h.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tarball makes a workspace tar of the box's files.
func (r *repo) tarball() *bytes.Buffer {
	r.t.Helper()
	var buf bytes.Buffer
	if err := writeTar(r.t.Context(), r.dir, "workspace/", &buf); err != nil {
		r.t.Fatal(err)
	}
	return &buf
}

func (r *repo) result(tree *Tree, snap Snapshot) *Result {
	r.t.Helper()
	res, err := tree.Import(r.t.Context(), snap.Sent(), "workspace/", r.tarball(), true)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { res.Close() })
	return res
}

func (r *repo) apply(res *Result, want Outcome) Report {
	r.t.Helper()
	rep, err := res.Apply(r.t.Context(), false)
	if err != nil || rep.Outcome != want {
		r.t.Fatalf("Apply = %+v, %v; want %v", rep, err, want)
	}
	if exists(filepath.Join(r.dir, stageName)) {
		r.t.Fatalf("%s is left", stageName)
	}
	return rep
}

// If sending touched index, HEAD, refs or stash, a user would lose staged work; if it left out work, the agent
// would see old files; if it sent ignored files, secrets would leave the machine.
func TestSendCommittedAndUncommittedWork(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "one\n", "gone.txt": "x\n", ".gitignore": "*.secret\n", "dir/b.txt": "b\n"})
	r.write(map[string]string{"stashed.txt": "s\n"})
	r.git("stash", "-u", "-q")
	r.write(map[string]string{"staged.txt": "staged\n", "a.txt": "one\ntwo\n", "untracked é\n.txt": "u\n",
		"key.secret": "hunter2\n", "-rf": "dash\n"})
	r.git("add", "staged.txt")
	if err := os.Remove(filepath.Join(r.dir, "gone.txt")); err != nil {
		t.Fatal(err)
	}
	before := r.state()
	_, snap, box := r.send()
	if after := r.state(); after != before {
		t.Errorf("sending changed the repository:\n%s\nbefore:\n%s", after, before)
	}
	for name, want := range map[string]string{"a.txt": "one\ntwo\n", "staged.txt": "staged\n",
		"untracked é\n.txt": "u\n", "-rf": "dash\n", "dir/b.txt": "b\n"} {
		if got := box.read(name); got != want {
			t.Errorf("%q in the box = %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"key.secret", "gone.txt", "stashed.txt"} {
		if exists(filepath.Join(box.dir, name)) {
			t.Errorf("%s reached the box", name)
		}
	}
	if got, want := box.git("status", "--porcelain", "-z"), r.git("status", "--porcelain", "-z"); got != want {
		t.Errorf("the box's status is %q, want the user's %q", got, want)
	}
	if got, want := box.git("log", "--format=%H", "work"), r.git("log", "--format=%H", "main"); got != want {
		t.Errorf("the box has the commits %s, want the user's %s", got, want)
	}
	if snap.Changed != 5 || snap.Files != 6 {
		t.Errorf("snapshot counts %d files, %d changed; want 6 and 5", snap.Files, snap.Changed)
	}
}

// The box must learn nothing of the user's repository beyond the work: remotes, credentials in their URLs,
// hooks, other branches.
func TestSendLeavesTheRepositoryAtHome(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "one\n"})
	r.git("remote", "add", "origin", "https://token@example.org/x.git")
	r.git("branch", "private")
	hook := filepath.Join(r.dir, ".git", "hooks", "pre-push")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("config", "core.fsmonitor", "touch "+ran+"; false")
	_, _, box := r.send()
	if exists(ran) {
		t.Error("a hook or monitor of the repository ran")
	}
	if got := box.git("for-each-ref", "--format=%(refname)"); got != "refs/heads/work" {
		t.Errorf("refs in the box: %s", got)
	}
	if config := box.read(".git/config"); strings.Contains(config, "token") || strings.Contains(config, "remote") ||
		strings.Contains(config, r.dir) {
		t.Errorf("the box's configuration tells too much: %s", config)
	}
}

// A directory outside git must make the same round trip without becoming a repository.
func TestPlainDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plain")
	r := &repo{t, dir}
	r.write(map[string]string{"a.txt": "1\n", "b.txt": "1\n"})
	private := filepath.Join(t.TempDir(), "private.git")
	if _, err := Open(t.Context(), dir, private, false); outboard.KindOf(err) != outboard.NotFound {
		t.Fatalf("Open without a private repository: %v", err)
	}
	tree, err := Open(t.Context(), dir, private, true)
	if err != nil {
		t.Fatal(err)
	}
	snap, box := sendTree(t, tree)
	if err := os.Remove(filepath.Join(box.dir, "b.txt")); err != nil {
		t.Fatal(err)
	}
	box.write(map[string]string{"a.txt": "2\n", "c/d.txt": "new\n"})
	res := box.result(&Tree{Root: tree.Root, GitDir: tree.GitDir, Store: tree.Store, Plain: true}, snap)
	r.apply(res, Applied)
	if r.read("a.txt") != "2\n" || r.read("c/d.txt") != "new\n" || exists(filepath.Join(dir, "b.txt")) ||
		exists(filepath.Join(dir, ".git")) {
		t.Error("the result did not arrive as it should")
	}
	r.apply(res, Already)
	if _, err := res.Branch(t.Context(), "x"); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("Branch: %v", err)
	}
}

// Applying must keep every uncommitted line of the user's, and when it cannot, change nothing and offer a branch.
func TestApplyOnADirtyTree(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "other.txt": "o\n", "bin": "\x00\x01\x02"})
	r.write(map[string]string{"a.txt": "1\n2\n3\n4\n5\n6\n7\n8\nnine\n"})
	tree, snap, box := r.send()
	box.write(map[string]string{"a.txt": "one\n2\n3\n4\n5\n6\n7\n8\nnine\n", "new.txt": "n\n", "bin": "\x00\xff\x02"})
	r.write(map[string]string{"other.txt": "changed meanwhile\n", "mine.txt": "untracked\n"})
	r.git("add", "other.txt")
	head := r.git("rev-parse", "HEAD")
	res := box.result(tree, snap)
	if got, err := res.Apply(t.Context(), true); err != nil || got.Outcome != Applied ||
		exists(filepath.Join(r.dir, "new.txt")) {
		t.Fatalf("check = %+v, %v", got, err)
	}
	r.apply(res, Applied)
	for name, want := range map[string]string{"a.txt": "one\n2\n3\n4\n5\n6\n7\n8\nnine\n", "new.txt": "n\n",
		"bin":       "\x00\xff\x02",
		"other.txt": "changed meanwhile\n", "mine.txt": "untracked\n"} {
		if got := r.read(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if r.git("rev-parse", "HEAD") != head || r.git("diff", "--cached", "--name-only") != "other.txt" {
		t.Error("HEAD or the index changed")
	}
	r.apply(res, Already)
}

// A conflict that overwrote one line of the user's would be the one unforgivable thing.
func TestApplyConflictBecomesABranch(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n", "b.txt": "1\n"})
	tree, snap, box := r.send()
	box.write(map[string]string{"a.txt": "agent\n", "b.txt": "agent\n", "clash.txt": "agent\n"})
	r.write(map[string]string{"a.txt": "mine\n", "clash.txt": "mine\n"})
	before := r.state()
	res := box.result(tree, snap)
	want := []Clash{{"a.txt", "you and the session changed the same lines"},
		{"clash.txt", "a file of yours that was not sent is there"}}
	if rep := r.apply(res, Refused); !slices.Equal(rep.Clashes, want) {
		t.Errorf("clashes = %+v", rep.Clashes)
	}
	if r.state() != before || r.read("b.txt") != "1\n" || r.read("clash.txt") != "mine\n" {
		t.Error("a refused patch changed something")
	}
	const name = "outboard/calm-otter"
	if made, err := res.Branch(t.Context(), name); err != nil || made.Name != name || len(made.Commits) > 0 ||
		!made.Rest {
		t.Fatalf("Branch = %+v, %v", made, err)
	}
	if got := r.git("show", name+":b.txt"); got != "agent" {
		t.Errorf("b.txt on the branch = %q", got)
	}
	if again, err := res.Branch(t.Context(), name); err != nil || again.Name != name {
		t.Errorf("the same result again = %+v, %v", again, err)
	}
	box.write(map[string]string{"b.txt": "agent 2\n"})
	for range 2 { // the second time it is there already
		if next, err := box.result(tree, snap).Branch(t.Context(), name); err != nil || next.Name != name+"-2" {
			t.Errorf("another result = %+v, %v", next, err)
		}
	}
	if _, err := res.Branch(t.Context(), "bad..name"); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("bad name: %v", err)
	}
}

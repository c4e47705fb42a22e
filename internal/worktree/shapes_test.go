package worktree

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// A repository without a commit has work to send all the same.
func TestSendWithoutCommit(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{"new.txt": "n\n"})
	tree, snap, box := r.send()
	if box.read("new.txt") != "n\n" || snap.Head != "" {
		t.Errorf("snapshot %+v", snap)
	}
	if _, err := tree.Snapshot(t.Context(), Options{Clean: true}); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("--clean without a commit: %v", err)
	}
}

// An empty repository must still bring a result home.
func TestSendEmptyRepository(t *testing.T) {
	r := newRepo(t)
	tree, snap, box := r.send()
	box.write(map[string]string{"made.txt": "m\n"})
	r.apply(box.result(tree, snap), Applied)
	if r.read("made.txt") != "m\n" {
		t.Error("result missing")
	}
}

// Run from a subdirectory, or from a hook with its variables, the whole right repository must be sent.
func TestSendFromSubdirectory(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"top.txt": "t\n", "sub/x.txt": "x\n"})
	t.Setenv("GIT_DIR", "/nonexistent")
	t.Setenv("GIT_INDEX_FILE", "/nonexistent/index")
	tree, err := Open(t.Context(), filepath.Join(r.dir, "sub"), filepath.Join(t.TempDir(), "store.git"), false)
	if err != nil {
		t.Fatal(err)
	}
	_, box := sendTree(t, tree)
	if got, err := os.ReadFile(filepath.Join(box.dir, "top.txt")); err != nil || string(got) != "t\n" {
		t.Errorf("top.txt: %q, %v", got, err)
	}
}

// A merge in progress must neither stop the sending nor be disturbed by it.
func TestSendDuringMergeConflict(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "base\n"})
	r.git("checkout", "-q", "-b", "other")
	r.commit(map[string]string{"a.txt": "other\n"})
	r.git("checkout", "-q", "main")
	r.commit(map[string]string{"a.txt": "main\n"})
	cmd := exec.CommandContext(t.Context(), "git", "merge", "other")
	cmd.Dir = r.dir
	if err := cmd.Run(); err == nil {
		t.Fatal("the merge was meant to conflict")
	}
	before := r.state()
	_, _, box := r.send()
	if got := box.read("a.txt"); !strings.Contains(got, "<<<<<<<") {
		t.Errorf("a.txt = %q", got)
	}
	if r.state() != before {
		t.Error("the merge in progress was disturbed")
	}
}

// withModule is a repository with a checked out submodule at mod.
func withModule(t *testing.T) *repo {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "a\n"})
	inner := newRepo(t)
	inner.commit(map[string]string{"inner.txt": "i\n"})
	r.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", inner.dir, "mod")
	r.git("commit", "-q", "-m", "module")
	return r
}

// A submodule that is not checked out has no files to send: it must be named, and not come back as removed.
func TestSubmodulesStayAtHome(t *testing.T) {
	r := withModule(t)
	r.git("submodule", "deinit", "-q", "-f", "mod")
	tree, snap, box := r.send()
	if len(snap.Notes) != 1 || !strings.Contains(snap.Notes[0], "mod") {
		t.Errorf("notes = %q", snap.Notes)
	}
	if err := os.RemoveAll(filepath.Join(box.dir, "mod")); err != nil {
		t.Fatal(err)
	}
	box.write(map[string]string{"a.txt": "b\n"})
	res := box.result(tree, snap)
	if names, err := res.Diff(t.Context(), NameOnly); err != nil || string(names) != "a.txt\n" {
		t.Errorf("changed: %q, %v", names, err)
	}
}

// The files of a submodule and of a nested repository must reach the sandbox and what is done to them must come
// home, while the repositories themselves stay as they are.
func TestSubmodulesAreSent(t *testing.T) {
	r := withModule(t)
	r.write(map[string]string{"mod/inner.txt": "changed\n", "mod/new.txt": "n\n", "nested/n.txt": "n\n"})
	r.git("-C", "nested", "init", "-q") // without a commit
	before := r.git("-C", "mod", "rev-parse", "HEAD") + r.git("ls-files", "-s")
	tree, snap, box := r.send()
	if box.read("mod/inner.txt") != "changed\n" || box.read("mod/new.txt") != "n\n" ||
		box.read("nested/n.txt") != "n\n" {
		t.Errorf("files are missing; snapshot %+v", snap)
	}
	if exists(filepath.Join(box.dir, "mod", ".git")) || exists(filepath.Join(box.dir, "nested", ".git")) {
		t.Error("a repository of the user's was sent")
	}
	if got := box.git("status", "--porcelain"); !strings.Contains(got, " M mod/inner.txt") &&
		!strings.Contains(got, "M mod/inner.txt") {
		t.Errorf("the uncommitted work of the submodule is not seen: %q", got)
	}
	box.write(map[string]string{"mod/inner.txt": "agent\n", "nested/n.txt": "agent\n", "mod/.git/config": "evil\n"})
	box.write(map[string]string{"a.txt": "agent\n"})
	branch, err := box.result(tree, snap).Branch(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	} else if r.git("show", "b:a.txt") != "agent" || !strings.HasPrefix(r.git("ls-tree", "b", "mod"), modeModule) {
		t.Errorf("a branch: %s", r.git("ls-tree", "b"))
	}
	if left := strings.Join(branch.Left, "\n"); !strings.Contains(left, "mod/inner.txt: in a submodule") {
		t.Errorf("not on the branch, and not named: %q", left)
	}
	r.apply(box.result(tree, snap), Applied)
	if r.read("mod/inner.txt") != "agent\n" || r.read("nested/n.txt") != "agent\n" ||
		strings.Contains(r.read("mod/.git"), "evil") {
		t.Error("the changes did not come home, or more than they")
	}
	if after := r.git("-C", "mod", "rev-parse", "HEAD") + r.git("ls-files", "-s"); after != before {
		t.Error("sending or applying changed a repository")
	}
}

// A bare repository has nothing to send: that must be said, not found out later.
func TestOpenBareRepository(t *testing.T) {
	r := newRepo(t)
	r.git("config", "core.bare", "true")
	if _, err := Open(t.Context(), filepath.Join(r.dir, ".git"), filepath.Join(t.TempDir(), "store.git"),
		false); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("Open: %v", err)
	}
}

// Large files must not count as history, which would then stay at home for their sake; what only history has must.
func TestHistorySize(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "a\n"})
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise) // never fails
	r.write(map[string]string{"large": string(noise)})
	size := func() int64 {
		tree, snap, _ := r.send()
		n, err := tree.historySize(t.Context(), snap.Base)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := size(); n <= 0 || n > 100<<10 {
		t.Errorf("a large file that is there: history of %d bytes", n)
	}
	r.commit(nil)
	r.git("rm", "-q", "large")
	if n := size(); n < 1<<20 {
		t.Errorf("a large file that was removed: history of %d bytes", n)
	}
}

// Git has to be told to merge what shares no history with the user's branch, and must not be where it does: a
// first commit is history.
func TestRootless(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{"a.txt": "a\n"})
	tree, snap, box := r.send()
	r.commit(nil)
	if res := box.result(tree, snap); !res.Rootless(t.Context()) {
		t.Error("sent before the first commit: shares no history with it")
	}
	tree, snap, box = r.send()
	if res := box.result(tree, snap); res.Rootless(t.Context()) {
		t.Error("sent as the first commit: shares it")
	}
}

// A repository that git does not open must not pass for a directory in none: the session would begin without the work.
func TestOpenRefusedRepository(t *testing.T) {
	r := newRepo(t)
	linked := filepath.Join(t.TempDir(), "linked")
	r.commit(map[string]string{"a.txt": "a\n"})
	r.git("worktree", "add", "-q", linked)
	if err := os.RemoveAll(filepath.Join(r.dir, ".git")); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(t.TempDir(), "private.git")
	for _, plain := range []bool{false, true} {
		if _, err := Open(t.Context(), linked, private, plain); outboard.KindOf(err) != outboard.Invalid ||
			!strings.Contains(err.Error(), "not a git repository: ") {
			t.Errorf("a work tree without its repository, plain %v: %v", plain, err)
		}
	}
	if _, err := Open(t.Context(), t.TempDir(), private, false); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("no repository at all: %v", err)
	}
}

// A shallow clone lacks history that git refuses to make up: it must make the round trip.
func TestShallowClone(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n"})
	r.commit(map[string]string{"a.txt": "2\n"})
	clone := &repo{t, filepath.Join(t.TempDir(), "clone")}
	r.git("clone", "-q", "--depth", "1", "file://"+r.dir, clone.dir)
	tree, snap, box := clone.send()
	box.write(map[string]string{"a.txt": "3\n"})
	clone.apply(box.result(tree, snap), Applied)
	if clone.read("a.txt") != "3\n" {
		t.Error("result missing")
	}
}

// In a linked worktree, index and files are its own and objects are shared: neither may be mixed up.
func TestLinkedWorktree(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n"})
	linked := &repo{t, filepath.Join(t.TempDir(), "linked")}
	r.git("worktree", "add", "-q", "-b", "side", linked.dir)
	linked.write(map[string]string{"only-here.txt": "x\n"})
	tree, snap, box := linked.send()
	box.write(map[string]string{"a.txt": "2\n"})
	linked.apply(box.result(tree, snap), Applied)
	if linked.read("a.txt") != "2\n" || r.read("a.txt") != "1\n" || box.read("only-here.txt") != "x\n" {
		t.Error("the wrong work tree was read or written")
	}
}

// A repository that names its objects by SHA-256 can exchange none with one that does not: the copy has to be of
// its kind.
func TestSHA256Repository(t *testing.T) {
	r := newRepo(t)
	r.git("init", "-q", "--object-format=sha256", "-b", "main", "other")
	other := &repo{t, filepath.Join(r.dir, "other")}
	other.git("config", "user.name", "Ada")
	other.git("config", "user.email", "ada@example.org")
	other.commit(map[string]string{"a.txt": "1\n"})
	other.write(map[string]string{"new.txt": "n\n"})
	tree, snap, box := other.send()
	if log, status := box.git("log", "--format=%s"), box.git("status", "--porcelain"); log != "work" ||
		status != "?? new.txt" {
		t.Errorf("in the workspace: log %q, status %q", log, status)
	}
	box.write(map[string]string{"a.txt": "2\n"})
	other.apply(box.result(tree, snap), Applied)
	if other.read("a.txt") != "2\n" {
		t.Error("result missing")
	}
}

// An ignored file that is needed must be sent when it is named, and no other; what is done to it must come home.
func TestIncludeIgnoredFiles(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{".gitignore": ".env*\ngen/\n", IncludeFile: "gen/\n"})
	r.write(map[string]string{".env": "secret\n", ".env.test": "t\n", "gen/a/x.go": "x\n"})
	tree := r.open()
	snap, err := tree.Snapshot(t.Context(), Options{Include: []string{".env.test"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(snap.Included, " ") + "; " + strings.Join(snap.Ignored,
		" "); got != ".env.test gen/a/x.go; .env" {
		t.Errorf("included; ignored: %s", got)
	}
	if names := r.tarNames(tree, &snap); !strings.Contains(names, "gen/a/x.go") ||
		strings.Contains(names, "workspace/.env\n") {
		t.Errorf("sent: %s", names)
	}
}

// Files that git is told to take for unchanged, or to skip, are sent as they are on disk.
func TestHiddenChangesAreSent(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"assumed": "1\n", "skipped": "1\n"})
	r.git("update-index", "--assume-unchanged", "assumed")
	r.git("update-index", "--skip-worktree", "skipped")
	r.write(map[string]string{"assumed": "2\n", "skipped": "2\n"})
	tree, snap, box := r.send()
	if box.read("assumed") != "2\n" || box.read("skipped") != "2\n" {
		t.Fatal("the committed versions were sent")
	}
	box.write(map[string]string{"assumed": "3\n"})
	r.apply(box.result(tree, snap), Applied)
	if refs := r.git("for-each-ref", "--format=%(refname)"); refs != "refs/heads/main" {
		t.Errorf("refs of the user's repository: %s", refs)
	}
}

// A change in the second of the commit, of the same size, must be sent: git tells it by the time of its index alone.
func TestChangesOfTheSameSecondAreSent(t *testing.T) {
	r := newRepo(t)
	at := time.Now().Truncate(time.Second)
	same := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Chtimes(filepath.Join(r.dir, name), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.write(map[string]string{"a": "1\n"})
	same("a")
	r.commit(nil)
	r.write(map[string]string{"a": "2\n"})
	same("a", ".git/index")
	_, snap, box := r.send()
	if got := box.read("a"); got != "2\n" || snap.Changed != 1 {
		t.Errorf("sent %q, %d changed", got, snap.Changed)
	}
}

// What is too large must be refused before it is packed, by the names of what takes the room.
func TestFitsNamesTheLargest(t *testing.T) {
	r := newRepo(t)
	noise := make([]byte, 3<<20)
	_, _ = rand.Read(noise) // never fails
	r.write(map[string]string{"model.bin": string(noise), "zeros": strings.Repeat("0", 3<<20), "a.txt": "a\n"})
	tree := r.open()
	snap, err := tree.Snapshot(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Fits(t.Context(), &snap, 2<<20); outboard.KindOf(err) != outboard.TooLarge ||
		!strings.Contains(err.Error(), "model.bin (3 MB)") {
		t.Errorf("three MB that do not compress: %v", err)
	}
	if err := tree.Fits(t.Context(), &snap, 4<<20); err != nil {
		t.Errorf("the control: six MB that compress to three: %v", err)
	}
}

func (r *repo) tarNames(tree *Tree, snap *Snapshot) string {
	r.t.Helper()
	var buf bytes.Buffer
	if err := tree.Pack(r.t.Context(), snap, "workspace/", &buf); err != nil {
		r.t.Fatal(err)
	}
	var names strings.Builder
	for tr := tar.NewReader(&buf); ; {
		h, err := tr.Next()
		if err != nil {
			return names.String()
		}
		names.WriteString(h.Name + "\n")
	}
}

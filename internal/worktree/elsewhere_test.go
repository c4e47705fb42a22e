package worktree

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Where nothing is remembered of what was sent, the result must compare and apply as it does where it was sent from.
func TestApplyElsewhere(t *testing.T) {
	r := newRepo(t)
	inner := newRepo(t)
	inner.commit(map[string]string{"inner": "i\n"})
	r.commit(map[string]string{"old.txt": "o\n"})
	r.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", inner.dir, "absent")
	r.commit(map[string]string{"a.txt": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", ".gitignore": "*.log\n", "crlf": "1\n",
		".gitattributes": "crlf eol=crlf\n"})
	r.git("submodule", "deinit", "-q", "-f", "absent")
	clone := &repo{t, filepath.Join(t.TempDir(), "clone")}
	r.git("clone", "-q", r.dir, clone.dir)
	r.write(map[string]string{"u.txt": "uncommitted\n", "kept.log": "sent\n"})
	tree := r.open()
	snap, err := tree.Snapshot(t.Context(), Options{Include: []string{"kept.log"}})
	if err != nil {
		t.Fatal(err)
	}
	var sent bytes.Buffer
	if err := tree.Pack(t.Context(), &snap, "workspace/", &sent); err != nil {
		t.Fatal(err)
	}
	box := &repo{t, filepath.Join(t.TempDir(), "box")}
	untar(t, bytes.NewBuffer(sent.Bytes()), box.dir)
	box.write(map[string]string{"a.txt": "one\n2\n3\n4\n5\n6\n7\n8\n9\n"})
	box.git("add", "a.txt")
	box.git("commit", "-q", "-m", "by the session")
	box.write(map[string]string{"new.txt": "n\n", "made.log": "ignored\n"})
	remake := func(repo string) (*Result, error) {
		m, err := Remake(t.Context(), repo, "workspace/", bytes.NewReader(sent.Bytes()))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { m.Close() })
		return box.result(m.Tree, Snapshot{Base: m.Sent.Base, Head: m.Sent.Head, Start: m.Sent.Start}), nil
	}
	want, err := box.result(tree, snap).Diff(t.Context(), Patch)
	if err != nil {
		t.Fatal(err)
	}
	res, err := remake("")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := res.Diff(t.Context(), Patch); err != nil || string(got) != string(want) || len(want) == 0 {
		t.Errorf("the difference is %s, %v; want %s", got, err, want)
	}
	clone.write(map[string]string{"a.txt": "1\n2\n3\n4\n5\n6\n7\n8\nnine\n"})
	if res, err = remake(clone.dir); err != nil {
		t.Fatal(err)
	}
	before := clone.git("for-each-ref")
	clone.apply(res, Applied)
	if clone.read("a.txt") != "one\n2\n3\n4\n5\n6\n7\n8\nnine\n" || clone.read("new.txt") != "n\n" ||
		exists(filepath.Join(clone.dir, "u.txt")) {
		t.Errorf("the clone has %q", clone.tree())
	}
	if clone.git("for-each-ref") != before {
		t.Error("refs changed")
	}
	b := clone.branch(res.tree, Snapshot{Base: res.sent.Base, Head: res.sent.Head, Start: res.sent.Start}, box)
	if got := clone.log("main", "b"); got != "Result of the session; Work sent to the sandbox; by the session" ||
		b.Rest != true {
		t.Errorf("the branch has %q", got)
	}
	if got := modulesIn(clone.git("ls-tree", "-r", "b")); got != "absent" {
		t.Errorf("submodules of the branch: %q", got)
	}
	other := newRepo(t)
	other.commit(map[string]string{"a.txt": "1\n"})
	for dir, why := range map[string]string{other.dir: "no commit of the one", t.TempDir(): "not in a git repository"} {
		if _, err := remake(dir); outboard.KindOf(err) != outboard.NotFound || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A clone that lacks the newest commits must take the result into its files, and say why it cannot be a branch there.
func TestApplyElsewhereBehind(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n"})
	clone := &repo{t, filepath.Join(t.TempDir(), "clone")}
	r.git("clone", "-q", r.dir, clone.dir)
	r.commit(map[string]string{"b.txt": "1\n"})
	r.commit(map[string]string{"b.txt": "2\n"})
	tree, snap, box := r.send()
	var sent bytes.Buffer
	if err := tree.Pack(t.Context(), &snap, "workspace/", &sent); err != nil {
		t.Fatal(err)
	}
	box.write(map[string]string{"a.txt": "2\n"})
	m, err := Remake(t.Context(), clone.dir, "workspace/", &sent)
	if err != nil || !m.Sent.Far {
		t.Fatalf("%+v, %v", m, err)
	}
	defer m.Close()
	res, err := m.Tree.Import(t.Context(), m.Sent, "workspace/", box.tarball(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	if _, err := res.Branch(t.Context(), "b"); outboard.KindOf(err) != outboard.NotFound ||
		!strings.Contains(err.Error(), "no branch can start there") {
		t.Errorf("Branch: %v", err)
	}
	clone.apply(res, Applied)
	if clone.read("a.txt") != "2\n" || exists(filepath.Join(clone.dir, "b.txt")) {
		t.Errorf("the clone has %q", clone.tree())
	}
	if _, err := os.Stat(m.Tree.Store); err != nil {
		t.Error(err)
	}
}

package worktree

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outboard-dev/outboard"
)

// tree is every file below the repository but git's own, with kinds and content.
func (r *repo) tree() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(r.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(r.dir, p)
		switch {
		case d.Name() == ".git":
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			out[name] = "-> " + to
			return err
		case d.Type().IsRegular():
			info, _ := d.Info()
			b, err := os.ReadFile(p)
			out[name] = string(b)
			if info.Mode()&0o100 != 0 {
				out[name] = "x " + out[name]
			}
			return err
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *repo) remove(names ...string) {
	r.t.Helper()
	for _, n := range names {
		if err := os.RemoveAll(filepath.Join(r.dir, n)); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *repo) link(to, name string) {
	r.t.Helper()
	if err := os.Symlink(to, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repo) chmod(name string, mode fs.FileMode) {
	r.t.Helper()
	if err := os.Chmod(filepath.Join(r.dir, name), mode); err != nil {
		r.t.Fatal(err)
	}
}

// What the user did since the work was sent meets what the session did, in each way in which they can: nothing
// of the user's may be lost, nothing written through a link, and the reason of each refusal must be told. In
// every case the session also changes control.txt, which arrives exactly when nothing is refused.
func TestApplyMeetsLocalWork(t *testing.T) {
	nine := "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
	for _, c := range []struct {
		name    string
		session func(box *repo)
		user    func(r *repo)
		why     string            // of the refusal; "" when it fits
		want    map[string]string // when it fits; "" is absent
	}{
		{"different lines of a file",
			func(b *repo) { b.write(map[string]string{"nine": "one\n2\n3\n4\n5\n6\n7\n8\n9\n"}) },
			func(r *repo) { r.write(map[string]string{"nine": "1\n2\n3\n4\n5\n6\n7\n8\nnine\n"}) }, "",
			map[string]string{"nine": "one\n2\n3\n4\n5\n6\n7\n8\nnine\n"}},
		{"the same line", func(b *repo) { b.write(map[string]string{"a": "session\n"}) },
			func(r *repo) { r.write(map[string]string{"a": "user\n"}) },
			"a: you and the session changed the same lines", nil},
		{"a binary file on both sides", func(b *repo) { b.write(map[string]string{"bin": "\x00s"}) },
			func(r *repo) { r.write(map[string]string{"bin": "\x00u"}) },
			"bin: you and the session changed the same lines", nil},
		{"the same change", func(b *repo) { b.write(map[string]string{"a": "same\n"}) },
			func(r *repo) { r.write(map[string]string{"a": "same\n"}) }, "",
			map[string]string{"a": "same\n"}},
		{"deleted here, changed there", func(b *repo) { b.write(map[string]string{"a": "session\n"}) },
			func(r *repo) { r.remove("a") },
			"a: you deleted it and the session changed it", nil},
		{"changed here, deleted there", func(b *repo) { b.remove("a") },
			func(r *repo) { r.write(map[string]string{"a": "user\n"}) },
			"a: you changed it and the session deleted it", nil},
		{"deleted on both sides", func(b *repo) { b.remove("a") }, func(r *repo) { r.remove("a") }, "",
			map[string]string{"a": ""}},
		{"an untracked file", func(b *repo) { b.write(map[string]string{"u": "session\n"}) },
			func(r *repo) { r.write(map[string]string{"u": "user\n"}) },
			"u: a file of yours that was not sent is there", nil},
		{"an ignored file", func(b *repo) { b.write(map[string]string{".gitignore": "", "k.key": "session\n"}) },
			func(r *repo) { r.write(map[string]string{"k.key": "user\n"}) },
			"k.key: a file of yours that was not sent is there", nil},
		{"a directory where a file was", func(b *repo) { b.remove("a"); b.write(map[string]string{"a/x": "s\n"}) },
			func(r *repo) {}, "", map[string]string{"a/x": "s\n"}},
		{"a directory where a changed file is",
			func(b *repo) { b.remove("a"); b.write(map[string]string{"a/x": "s\n"}) },
			func(r *repo) { r.write(map[string]string{"a": "user\n"}) }, "a/x: your file a is where the result has " +
				"a directory", nil},
		{"a file where a directory was", func(b *repo) { b.remove("d"); b.write(map[string]string{"d": "s\n"}) },
			func(r *repo) {}, "", map[string]string{"d": "s\n", "d/one": ""}},
		{"a file where a directory has more", func(b *repo) { b.remove("d"); b.write(map[string]string{"d": "s\n"}) },
			func(r *repo) { r.write(map[string]string{"d/deep/mine.key": "user\n"}) }, "d: your directory of this " +
				"name holds d/deep/mine.key", nil},
		{"below the user's link", func(b *repo) { b.write(map[string]string{"d/new": "s\n"}) },
			func(r *repo) { r.remove("d"); r.link("elsewhere", "d") },
			"d/new: your symbolic link d is where the result has a directory", nil},
		{"below the user's link out of the tree", func(b *repo) { b.write(map[string]string{"fresh/new": "s\n"}) },
			func(r *repo) { r.link(filepath.Join(r.dir, "..", "outside"), "fresh") },
			"fresh/new: your symbolic link fresh is where the result has a directory", nil},
		{"a link that was sent becomes a directory",
			func(b *repo) { b.remove("lnk"); b.write(map[string]string{"lnk/new": "s\n"}) }, func(r *repo) {}, "",
			map[string]string{"lnk/new": "s\n", "elsewhere/new": ""}},
		{"a file becomes a link", func(b *repo) { b.remove("a"); b.link("/etc/passwd", "a") }, func(r *repo) {}, "",
			map[string]string{"a": "-> /etc/passwd"}},
		{"the user made it a link", func(b *repo) { b.write(map[string]string{"a": "session\n"}) },
			func(r *repo) { r.remove("a"); r.link("nine", "a") },
			"a: you and the session made different things of it", nil},
		{"a link on both sides", func(b *repo) { b.remove("lnk"); b.link("s", "lnk") },
			func(r *repo) { r.remove("lnk"); r.link("u", "lnk") },
			"lnk: you and the session made different things of it", nil},
		{"modes", func(b *repo) { b.chmod("a", 0o755); b.chmod("nine", 0o755) },
			func(r *repo) { r.write(map[string]string{"a": "user\n"}); r.chmod("nine", 0o600) }, "",
			map[string]string{"a": "x user\n", "nine": "x " + nine}},
		{"a mode here, lines there", func(b *repo) { b.write(map[string]string{"a": "session\n"}) },
			func(r *repo) { r.chmod("a", 0o755) }, "", map[string]string{"a": "x session\n"}},
		{"names in another case", func(b *repo) { b.remove("a"); b.write(map[string]string{"A": "1\n"}) },
			func(r *repo) {}, "", map[string]string{"A": "1\n", "a": ""}},
		{"strange names", func(b *repo) {
			b.write(map[string]string{"-rf": "s\n", "new\nline": "s\n", "bad\xff\xfe": "s\n", "\"q\"\t": "s\n"})
		},
			func(r *repo) {}, "", map[string]string{"-rf": "s\n", "new\nline": "s\n", "bad\xff\xfe": "s\n",
				"\"q\"\t": "s\n"}},
		{"a strange name of the user's", func(b *repo) { b.write(map[string]string{"bad\xff\xfe": "s\n"}) },
			func(r *repo) { r.write(map[string]string{"bad\xff\xfe": "u\n"}) },
			"bad\xff\xfe: a file of yours that was not sent is there", nil},
		{"the last file of a directory", func(b *repo) { b.remove("d") }, func(r *repo) {}, "",
			map[string]string{"d": "", "d/one": ""}},
		{"staged work", func(b *repo) { b.write(map[string]string{"a": "session\n"}) },
			func(r *repo) {
				r.write(map[string]string{"nine": "staged\n"})
				r.git("add",
					"nine")
			}, "", map[string]string{"a": "session\n", "nine": "staged\n"}},
		{"a detached head and other commits", func(b *repo) { b.write(map[string]string{"a": "session\n"}) },
			func(r *repo) {
				r.git("checkout", "-q",
					"--detach")
				r.commit(map[string]string{"more": "m\n"})
			}, "", map[string]string{"a": "session\n", "more": "m\n"}},
		{"lines that the index says to ignore", func(b *repo) { b.write(map[string]string{"a": "session\n"}) },
			func(r *repo) {
				r.git("update-index", "--assume-unchanged", "a")
				r.write(map[string]string{"a": "user\n"})
			}, "a: you and the session changed the same lines", nil},
		{"a sparse checkout", func(b *repo) { b.remove("d/one") },
			func(r *repo) { r.git("sparse-checkout", "set", "--no-cone", "/*", "!/d") },
			"d/one: it is outside your sparse checkout", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRepo(t)
			r.write(map[string]string{"a": "1\n", "nine": nine, "bin": "\x00b", "d/one": "1\n", "elsewhere/keep": "k\n",
				"control.txt": "before\n", ".gitignore": "*.key\n"})
			r.link("elsewhere", "lnk")
			r.commit(nil)
			if err := os.Mkdir(filepath.Join(r.dir, "..", "outside"), 0o755); err != nil {
				t.Fatal(err)
			}
			tree, snap, box := r.send()
			box.write(map[string]string{"control.txt": "after\n"})
			c.session(box)
			c.user(r)
			before, state := r.tree(), r.indexState()
			res := box.result(tree, snap)
			if c.why != "" {
				rep := r.apply(res, Refused)
				if !slices.ContainsFunc(rep.Clashes, func(cl Clash) bool { return cl.Path+": "+cl.Why == c.why }) ||
					len(rep.Clashes) > 2 {
					t.Errorf("clashes = %+v", rep.Clashes)
				}
				if after := r.tree(); !maps.Equal(after, before) {
					t.Errorf("a refused result changed files: %q", after)
				}
			} else {
				r.apply(res, Applied)
				want := maps.Clone(before)
				maps.Copy(want, c.want)
				want["control.txt"] = "after\n"
				for name, text := range c.want {
					if text == "" {
						delete(want, name)
					}
				}
				for name := range want { // what became a directory is no file
					if c.want[name] == "" && slices.ContainsFunc(slices.Collect(maps.Keys(c.want)),
						func(k string) bool { return strings.HasPrefix(k, name+"/") }) {
						delete(want, name)
					}
				}
				if after := r.tree(); !maps.Equal(after, want) {
					t.Errorf("files = %q\nwant    %q", after, want)
				}
				again := r.tree()
				if rep := r.apply(res, Already); len(rep.Paths) > 0 || !maps.Equal(r.tree(), again) {
					t.Errorf("applying again: %+v", rep)
				}
			}
			if r.indexState() != state {
				t.Error("index, HEAD or refs changed")
			}
			if left, _ := os.ReadDir(filepath.Join(r.dir, "..", "outside")); len(left) > 0 {
				t.Error("something was written through a link")
			}
		})
	}
}

// What a sparse checkout leaves out must not appear beside what the index says, and the command that the user is
// given must be all it takes.
func TestSparseAdd(t *testing.T) {
	for _, c := range []struct{ mode, file, command string }{
		{"--cone", "d/one", "sparse-checkout add d"},
		{"--cone", "d e/it's*", `sparse-checkout add 'd e'`},
		{"--no-cone", "d/one", "sparse-checkout add /d/one"},
		{"--no-cone", "d e/it's*", `sparse-checkout add '/d e/it'\''s\*'`},
	} {
		t.Run(c.mode+" "+c.file, func(t *testing.T) {
			r := newRepo(t)
			r.commit(map[string]string{"keep/a": "1\n", c.file: "1\n"})
			tree, snap, box := r.send()
			box.write(map[string]string{c.file: "2\n", "keep/a": "2\n"})
			r.git("sparse-checkout", "set", c.mode, map[string]string{"--cone": "keep", "--no-cone": "/keep/"}[c.mode])
			res := box.result(tree, snap)
			rep := r.apply(res, Refused)
			command := res.SparseAdd(t.Context(), rep.Clashes)
			if len(rep.Clashes) != 1 || !strings.HasSuffix(command, c.command) || exists(filepath.Join(r.dir, c.file)) {
				t.Fatalf("%+v, %s", rep.Clashes, command)
			}
			sh := exec.CommandContext(t.Context(), "sh", "-c", command)
			if out, err := sh.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
			r.apply(res, Applied)
			if r.read(c.file) != "2\n" || r.read("keep/a") != "2\n" {
				t.Error("the result is not there")
			}
			if got := res.SparseAdd(t.Context(),
				[]Clash{{"a", "you deleted it and the session changed it"}}); got != "" {
				t.Errorf("the control: another clash: %s", got)
			}
		})
	}
}

func (r *repo) indexState() string {
	r.t.Helper()
	return r.git("for-each-ref") + r.git("ls-files", "-s", "-v", "-z") + r.git("rev-parse", "HEAD")
}

// A hard link is another name of the user's for a file: what it names must stay when the file is replaced. And a
// file keeps the permissions that the user gave it.
func TestApplyKeepsHardLinksAndPermissions(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a": "1\n"})
	r.chmod("a", 0o600)
	other := filepath.Join(r.dir, "..", "other name")
	if err := os.Link(filepath.Join(r.dir, "a"), other); err != nil {
		t.Fatal(err)
	}
	tree, snap, box := r.send()
	box.write(map[string]string{"a": "2\n"})
	r.apply(box.result(tree, snap), Applied)
	b, err := os.ReadFile(other)
	info, serr := os.Stat(filepath.Join(r.dir, "a"))
	if err != nil || serr != nil || string(b) != "1\n" || r.read("a") != "2\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("other name = %q, a = %q with %v; %v %v", b, r.read("a"), info.Mode(), err, serr)
	}
}

// Line ends that git converts must come back as they are, and where that cannot be, the file stays.
func TestApplyKeepsLineEnds(t *testing.T) {
	r := newRepo(t)
	r.git("config", "core.autocrlf", "true")
	r.write(map[string]string{"crlf": "1\r\n2\r\n3\r\n4\r\n", "lf": "1\n2\n", "mixed": "1\r\n2\n"})
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "work")
	tree, snap, box := r.send()
	if box.read("crlf") != "1\n2\n3\n4\n" {
		t.Fatalf("the box has %q", box.read("crlf"))
	}
	box.write(map[string]string{"crlf": "one\n2\n3\n4\n", "lf": "one\n2\n", "new": "1\n"})
	r.write(map[string]string{"crlf": "1\r\n2\r\n3\r\nfour\r\n"})
	r.apply(box.result(tree, snap), Applied)
	for name, want := range map[string]string{"crlf": "one\r\n2\r\n3\r\nfour\r\n", "lf": "one\n2\n", "new": "1\r\n"} {
		if got := r.read(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	box.write(map[string]string{"mixed": "one\n2\n", "new": "2\n"})
	rep := r.apply(box.result(tree, snap), Refused)
	if !slices.ContainsFunc(rep.Clashes,
		func(c Clash) bool { return c.Path == "mixed" && strings.Contains(c.Why, "line ends") }) ||
		r.read("mixed") != "1\r\n2\n" {
		t.Errorf("clashes %+v, mixed %q", rep.Clashes, r.read("mixed"))
	}
}

// No program that the user's repository names may run because of, or on, what came from a sandbox.
func TestApplyRunsNoProgram(t *testing.T) {
	r := newRepo(t)
	ran := filepath.Join(t.TempDir(), "ran")
	program := "touch " + ran + "; tr a-z A-Z"
	r.commit(map[string]string{"plain": "1\n", "filtered.up": "text\n", ".gitattributes": ""})
	for _, key := range []string{"filter.up.clean", "filter.up.smudge", "merge.up.driver", "diff.up.command",
		"diff.up.textconv", "core.fsmonitor"} {
		r.git("config", key, program)
	}
	hooks := filepath.Join(r.dir, ".git", "hooks")
	if err := os.MkdirAll(hooks, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, h := range []string{"post-checkout", "post-merge", "pre-commit", "post-index-change",
		"reference-transaction", "post-rewrite"} {
		if err := os.WriteFile(filepath.Join(hooks, h), []byte("#!/bin/sh\n"+program+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tree, snap, box := r.send()
	box.write(map[string]string{".gitattributes": "* filter=up merge=up diff=up\n", "plain": "2\n",
		"filtered.up": "other\n", "new.up": "n\n"})
	r.write(map[string]string{"plain": "1\n2\n"})
	r.apply(box.result(tree, snap), Refused)
	r.write(map[string]string{"plain": "1\n"})
	res := box.result(tree, snap)
	r.apply(res, Applied)
	if r.read("new.up") != "n\n" || r.read("filtered.up") != "other\n" {
		t.Errorf("new.up = %q, filtered.up = %q", r.read("new.up"), r.read("filtered.up"))
	}
	if _, err := res.Branch(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
	if exists(ran) {
		t.Error("a program of the repository ran")
	}
	// The same program does run for git itself, so that the test could have seen it; and a file that it has made
	// what it is stays.
	r.write(map[string]string{".gitattributes": "*.up filter=up\n"})
	tree, snap, box = r.send()
	if !exists(ran) {
		t.Error("the control: git did not run the filter")
	}
	box.write(map[string]string{"filtered.up": "changed\n"})
	rep := r.apply(box.result(tree, snap), Refused)
	if len(rep.Clashes) != 1 || !strings.Contains(rep.Clashes[0].Why, "your git filter up is not run") {
		t.Errorf("clashes = %+v", rep.Clashes)
	}
}

// What a workspace holds and a result cannot must be named, never dropped in silence.
func TestResultNamesWhatItLeaves(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "a\n"})
	for _, name := range []string{"mod", "swapped", "deep/mod"} {
		inner := newRepo(t)
		inner.commit(map[string]string{"inner.txt": "i\n"})
		r.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", inner.dir, name)
	}
	r.git("commit", "-q", "-m", "modules")
	r.git("submodule", "deinit", "-q", "-f", "--all") // those that are checked out are sent
	tree, snap, box := r.send()
	box.remove("swapped", "deep")
	box.write(map[string]string{"a.txt": "b\n", "mod/new.txt": "n\n", "swapped": "file\n", "deep": "file\n",
		"vendor/x/.git/config": "evil\n", "vendor/x/.GIT": "evil\n",
		"vendor/x/file": "fine\n", stageName + "/journal.json": "{}"})
	res := box.result(tree, snap)
	got := strings.Join(res.Left, "\n")
	for _, want := range []string{"mod/new.txt: in a submodule", "swapped: a file in place of a submodule",
		"deep: the session put a file in place", "vendor/x/.git: no result",
		"vendor/x/.GIT: no result"} {
		if !strings.Contains(got, want) {
			t.Errorf("left out: %q lacks %q", got, want)
		}
	}
	r.apply(res, Applied)
	if r.read("vendor/x/file") != "fine\n" || exists(filepath.Join(r.dir, "vendor/x/.git")) ||
		exists(filepath.Join(r.dir, "mod/new.txt")) {
		t.Error("the wrong files arrived")
	}
	if got := r.git("status", "--porcelain"); got != "M a.txt\n?? vendor/" {
		t.Errorf("status: %s", got)
	}
}

// Whatever path a plan is asked to write, one that git takes for its own must be refused.
func TestPlanRefusesGitsOwnPaths(t *testing.T) {
	f := entry{modeFile, "1"}
	for _, p := range []string{".git", ".git/hooks/pre-commit", "a/.GIT/config", "git~1/x", ".git /x", ".g\u200cit/x",
		"a/../b", "/abs", stageName + "/x"} {
		got, err := makePlan([]change{{path: p, theirs: f}}, nil, false, nil)
		if err != nil || len(got.steps) > 0 || len(got.clashes) != 1 {
			t.Errorf("%q: %+v, %v", p, got, err)
		}
	}
	got, err := makePlan([]change{{path: ".github/hooks", theirs: f}}, nil, false, nil)
	if err != nil || len(got.steps) != 1 {
		t.Errorf("the control: %+v, %v", got, err)
	}
	got, _ = makePlan([]change{{path: "Makefile", theirs: f}, {path: "makefile", theirs: f}}, nil, true, nil)
	if len(got.clashes) != 1 {
		t.Errorf("two names of one file: %+v", got)
	}
}

// A directory that is removed by name must be one: the slash that says so must mean it on this system.
func TestRmdirRemovesDirectoriesOnly(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{"file": "f\n", "full/x": "x\n"})
	if err := os.Mkdir(filepath.Join(r.dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.link("empty", "link")
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	s := &stage{root: root}
	for _, name := range []string{"file", "link", "full"} {
		if err := s.rmdir(name); err == nil || !exists(filepath.Join(r.dir, name)) {
			t.Errorf("rmdir removed %s: %v", name, err)
		}
	}
	if err := s.rmdir("empty"); err != nil || exists(filepath.Join(r.dir, "empty")) {
		t.Errorf("the control: %v", err)
	}
}

// Two applies at once must end as one after the other does.
func TestAppliesAtOnce(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a": "1\n2\n3\n4\n5\n6\n7\n8\n9\n"})
	tree, snap, box := r.send()
	box.write(map[string]string{"a": "one\n2\n3\n4\n5\n6\n7\n8\n9\n", "same": "s\n"})
	first := box.result(tree, snap)
	box.write(map[string]string{"a": "1\n2\n3\n4\n5\n6\n7\n8\nnine\n", "same": "s\n"})
	second := box.result(tree, snap)
	var wg sync.WaitGroup
	for _, res := range []*Result{first, second, first, second} {
		wg.Go(func() {
			if rep, err := res.Apply(t.Context(), false); err != nil || rep.Outcome == Refused {
				t.Errorf("Apply = %+v, %v", rep, err)
			}
		})
	}
	wg.Wait()
	want := map[string]string{"a": "one\n2\n3\n4\n5\n6\n7\n8\nnine\n", "same": "s\n"}
	if got := r.tree(); !maps.Equal(got, want) {
		t.Errorf("files = %q", got)
	}
}

// A branch that exists, or is checked out somewhere, must stay where it is; a name that cannot be must be said.
func TestBranchLeavesBranchesAlone(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a": "1\n"})
	r.git("branch", "taken")
	r.git("worktree", "add", "-q", "-b", "elsewhere", filepath.Join(t.TempDir(), "wt"))
	tree, snap, box := r.send()
	box.write(map[string]string{"a": "2\n"})
	res := box.result(tree, snap)
	before := r.git("for-each-ref", "refs/heads")
	for name, want := range map[string]string{"taken": "taken-2", "elsewhere": "elsewhere-2", "main": "main-2",
		"free": "free"} {
		if got, err := res.Branch(t.Context(), name); err != nil || got.Name != want {
			t.Errorf("Branch(%s) = %+v, %v", name, got, err)
		}
	}
	if after := r.git("for-each-ref", "refs/heads/taken", "refs/heads/elsewhere",
		"refs/heads/main"); len(strings.Split(before, "\n")) != 3 ||
		!strings.Contains(after, strings.Split(before, "\n")[0]) {
		t.Errorf("branches before:\n%s\nafter:\n%s", before, after)
	}
	if _, err := res.Branch(t.Context(), "taken/below"); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("a branch below another: %v", err)
	}
}

package worktree

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// feed runs git with something on the standard input.
func (r *repo) feed(stdin string, args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// log is the subjects of what to adds to from, newest first.
func (r *repo) log(from, to string) string {
	r.t.Helper()
	return strings.ReplaceAll(r.git("log", "--format=%s", from+".."+to), "\n", "; ")
}

// commitAs makes a commit of everything with an author and a date of its own.
func (r *repo) commitAs(author, date, message string, files map[string]string) {
	r.t.Helper()
	r.write(files)
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "--author="+author, "--date="+date, "-m", message)
}

// branch brings the result home as the branch b.
func (r *repo) branch(tree *Tree, snap Snapshot, box *repo) Branched {
	r.t.Helper()
	b, err := box.result(tree, snap).Branch(r.t.Context(), "b")
	if err != nil || b.Name != "b" && b.Name != "" {
		r.t.Fatalf("Branch = %+v, %v", b, err)
	}
	return b
}

// Commits that lost their message, author, date or content on the way home would have to be written again by hand.
func TestBranchBringsCommits(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n"})
	tree, snap, box := r.send()
	box.commitAs("Bot <bot@example.org>", "2020-02-03T04:05:06+0100", "first\n\nwith a body",
		map[string]string{"a.txt": "2\n"})
	box.commitAs("Eve Ünal <eve@example.org>", "2021-02-03T04:05:06Z", "second", map[string]string{"b.txt": "b\n"})
	box.write(map[string]string{"c.txt": "not committed\n"})
	b := r.branch(tree, snap, box)
	if got := r.log("main", "b"); got != "Result of the session; second; first" || !b.Rest {
		t.Fatalf("the branch has %q, %+v", got, b)
	}
	// On a clean tree, what git was given is what git had: to the bit, the session's commits are the same.
	if want := box.git("rev-parse", "work"); r.git("rev-parse", "b~1") != want || len(b.Commits) != 2 ||
		b.Commits[1].ID != want {
		t.Errorf("the last commit is %s, %+v; want %s", r.git("rev-parse", "b~1"), b.Commits, want)
	}
	if c := b.Commits[0]; c.Subject != "first" || c.Author != "Bot" || c.Email != "bot@example.org" ||
		c.At.Format(time.RFC3339) != "2020-02-03T03:05:06Z" {
		t.Errorf("the first commit is %+v", c)
	}
	if r.git("show", "b:c.txt") != "not committed" || r.git("diff", "--name-only", "b~1", "b") != "c.txt" ||
		r.read("a.txt") != "1\n" {
		t.Error("the rest is wrong, or the files were touched")
	}
	if again := r.branch(tree, snap, box); again.Name != "b" {
		t.Errorf("the same result again = %+v", again)
	}
}

// In whatever state the two repositories are, each commit must arrive once, and the branch must end with exactly
// the result.
func TestBranchBringsCommitsOf(t *testing.T) {
	for _, c := range []struct {
		name    string
		user    func(r *repo)   // before the work is sent
		session func(box *repo) // and what it does
		log     string          // what main..b has
		note    string
		also    string // a file of the result
	}{
		{"uncommitted work that the session leaves alone",
			func(r *repo) { r.write(map[string]string{"a": "mine\n", "u": "u\n"}) }, func(b *repo) {
				b.write(map[string]string{"new": "n\n"})
				b.git("add", "new")
				b.git("commit", "-q", "-m", "one")
				b.write(map[string]string{"rest": "r\n"})
			}, "Result of the session; Work sent to the sandbox; one", "", "u"},
		{"uncommitted work that the session commits",
			func(r *repo) { r.write(map[string]string{"a": "mine\n", "u": "u\n"}) },
			func(b *repo) { b.commitAs("B <b@b>", "@1 +0000", "yours", nil) }, "yours", "", "u"},
		{"staged work", func(r *repo) { r.write(map[string]string{"s": "s\n"}); r.git("add", "s") },
			func(b *repo) { b.git("commit", "-q", "-m", "staged") }, "staged", "", "s"},
		{"nothing committed", func(r *repo) { r.write(map[string]string{"u": "u\n"}) },
			func(b *repo) { b.write(map[string]string{"new": "n\n"}) },
			"Result of the session; Work sent to the sandbox", "", "new"},
		{"commits without any change", func(r *repo) {},
			func(b *repo) { b.commitAs("B <b@b>", "@1 +0000", "empty", nil) }, "empty", "", "a"},
		{"a merge", func(r *repo) {}, func(b *repo) {
			b.git("checkout", "-q", "-b", "side")
			b.commit(map[string]string{"side": "s\n"})
			b.git("checkout", "-q", "work")
			b.commitAs("B <b@b>", "@1 +0000", "main line", map[string]string{"new": "n\n"})
			b.git("merge", "-q", "-m", "merged", "side")
		}, "merged; main line", "merges among the session's commits: 1", "side"},
		{"the last commit amended", func(r *repo) {}, func(b *repo) {
			b.write(map[string]string{"new": "n\n"})
			b.git("add", "new")
			b.git("commit", "-q", "--amend", "-m", "amended")
		}, "amended", "", "new"},
		{"another branch, checked out", func(r *repo) {}, func(b *repo) {
			b.git("checkout", "-q", "-b", "fix/it")
			b.commitAs("B <b@b>", "@1 +0000", "fixed", map[string]string{"new": "n\n"})
		}, "fixed", "", "new"},
		{"a detached head", func(r *repo) {}, func(b *repo) {
			b.commit(map[string]string{"later": "n\n"})
			b.git("checkout", "-q", "--detach", "HEAD~1")
			b.commitAs("B <b@b>", "@1 +0000", "detached", map[string]string{"new": "n\n"})
		}, "detached", "", "new"},
		{"packed objects and refs", func(r *repo) {}, func(b *repo) {
			b.commitAs("B <b@b>", "@1 +0000", "packed", map[string]string{"new": "n\n"})
			b.git("pack-refs", "--all")
			b.git("gc", "-q")
		}, "packed", "", "new"},
		{"a new repository", func(r *repo) {}, func(b *repo) {
			b.remove(".git")
			b.git("init", "-q")
			b.git("config", "user.name", "x")
			b.git("config", "user.email", "x@x")
			b.commit(map[string]string{"new": "n\n"})
		}, "Result of the session", "does not hold the commit that was sent any more", "new"},
		{"no repository", func(r *repo) {},
			func(b *repo) { b.remove(".git"); b.write(map[string]string{"new": "n\n"}) }, "Result of the session", "no git repository any more", "new"},
		{"a repository inside", func(r *repo) {}, func(b *repo) {
			b.write(map[string]string{"in/side": "i\n"})
			b.git("init", "-q", "in")
			b.git("-C", "in", "add", "side")
			b.git("-C", "in", "-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "-m", "inner")
			b.commitAs("B <b@b>", "@1 +0000", "outer", map[string]string{"new": "n\n"})
		}, "Result of the session; outer", "", "in/side"},
		{"submodules, sent and not", func(r *repo) {
			for _, name := range []string{"mod", "absent"} {
				inner := newRepo(t)
				inner.commit(map[string]string{"inner": "i\n"})
				r.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", inner.dir, name)
			}
			r.git("commit", "-q", "-m", "modules")
			r.git("submodule", "deinit", "-q", "-f", "absent")
		}, func(b *repo) {
			b.commitAs("B <b@b>", "@1 +0000", "one", map[string]string{"new": "n\n", "mod/inner": "changed\n"})
			b.remove("absent")
			b.commitAs("B <b@b>", "@1 +0000", "two", map[string]string{"more": "n\n"})
		}, "two; one", "", "more"},
		{"a shallow clone", func(r *repo) {
			deep := newRepo(t)
			deep.commit(map[string]string{"a": "0\n"})
			deep.commit(map[string]string{"a": "1\n", "control": "before\n"})
			r.remove(".git", "a", "control")
			r.git("clone", "-q", "--depth", "1", "file://"+deep.dir, ".")
		}, func(b *repo) {
			b.commitAs("B <b@b>", "@1 +0000", "one",
				map[string]string{"new": "n\n"})
		}, "one", "", "new"},
		{"before the first commit", func(r *repo) { r.git("update-ref", "-d", "HEAD") }, func(b *repo) {
			b.git("add", "a")
			b.git("commit", "-q", "-m", "root")
		}, "Work sent to the sandbox; root", "", "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRepo(t)
			r.commit(map[string]string{"a": "1\n", "control": "before\n"})
			c.user(r)
			links := r.git("ls-files", "-s")
			tree, snap, box := r.send()
			c.session(box)
			result := box.result(tree, snap)
			b := r.branch(tree, snap, box)
			from := "main"
			if snap.Head == "" {
				from = "--"
			}
			got := strings.ReplaceAll(r.git(slices.DeleteFunc([]string{"log", "--format=%s", "b", "^" + from},
				func(s string) bool { return s == "^--" })...), "\n", "; ")
			if got != c.log {
				t.Errorf("the branch has %q, want %q", got, c.log)
			}
			if notes := strings.Join(b.Notes, "\n"); !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
			r.git("cat-file", "-e", "b:"+c.also)
			if links = modulesIn(links); links != modulesIn(r.git("ls-tree", "-r", "b")) || links != "" &&
				links != modulesIn(r.git("ls-tree", "-r", "b~1")) {
				t.Errorf("submodules %q became %q", links, r.git("ls-tree", "-r", "b"))
			}
			if links == "" && r.git("rev-parse", "b^{tree}") != strings.TrimSpace(r.treeOf(result)) {
				t.Error("the branch does not end with the result")
			}
			r.git("fsck", "--strict", "--no-dangling")
		})
	}
}

// treeOf is the tree of a result.
func (r *repo) treeOf(res *Result) string {
	r.t.Helper()
	out, err := res.git(r.t.Context(), "rev-parse", res.Commit+"^{tree}")
	if err != nil {
		r.t.Fatal(err)
	}
	return string(out)
}

// modulesIn is the paths of submodules in a listing.
func modulesIn(listing string) string {
	var out []string
	for line := range strings.Lines(listing) {
		if strings.HasPrefix(line, modeModule) {
			_, p, _ := strings.Cut(strings.TrimSpace(line), "\t")
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}

// raw puts a commit of a tree on the branch, whatever git thinks of either.
func (r *repo) raw(tree string) {
	r.t.Helper()
	who := "B <b@b> 1600000000 +0000"
	r.rawCommit(fmt.Sprintf("tree %s\nparent %s\nauthor %s\ncommitter %s\n\nraw\n", tree, r.git("rev-parse", "HEAD"),
		who, who))
}

func (r *repo) rawCommit(text string) {
	r.t.Helper()
	r.git("update-ref", "refs/heads/work", r.feed(text, "hash-object", "--literally", "-t", "commit", "-w", "--stdin"))
}

// tree makes a tree of one entry whose path is not looked at.
func (r *repo) oneTree(mode, kind, id, name string) string {
	r.t.Helper()
	return r.feed(fmt.Sprintf("%s %s %s\t%s\x00", mode, kind, id, name), "mktree", "-z")
}

// No commit of the session may bring what its files may not, in any of its trees; and what cannot be brought
// costs the commits, not the work. In each case a good commit comes first and another last, and control.txt must
// arrive.
func TestHostileCommits(t *testing.T) {
	blob := func(b *repo, text string) string { return b.feed(text, "hash-object", "-w", "--stdin") }
	for _, c := range []struct {
		name    string
		session func(b *repo)
		note    string // why it is one commit
	}{
		{"a hook in a repository", func(b *repo) {
			hooks := b.oneTree("040000", "tree", b.oneTree("100755", "blob", blob(b, "#!/bin/sh\n"), "x"), "hooks")
			b.raw(b.oneTree("040000", "tree", hooks, ".git"))
		}, ".git"},
		{"a repository in another case, below", func(b *repo) {
			b.raw(b.oneTree("040000", "tree", b.oneTree("100644", "blob", blob(b, "x"), ".GIT"), "sub"))
		}, ".git"},
		{"an NTFS stream", func(b *repo) {
			b.raw(b.oneTree("100644", "blob", blob(b, "x"),
				".git::$INDEX_ALLOCATION"))
		}, "git"},
		{"dot dot", func(b *repo) {
			b.raw(b.oneTree("040000", "tree", b.oneTree("100644", "blob", blob(b, "x"), "evil"), ".."))
		}, "'..'"},
		{"a name with a slash", func(b *repo) {
			b.raw(b.feed(rawTree("100644", "../evil", blob(b, "x")), "hash-object", "--literally", "-t", "tree", "-w",
				"--stdin"))
		}, "full pathnames"},
		{"the place of an apply", func(b *repo) {
			b.raw(b.oneTree("040000", "tree", b.oneTree("100644", "blob", blob(b, "{}"), "journal.json"), stageName))
		}, "the name is used while a result is applied"},
		{"a link as .gitmodules",
			func(b *repo) { b.raw(b.oneTree("120000", "blob", blob(b, "/etc/passwd"), ".gitmodules")) }, ".gitmodules"},
		{"an option as the address of a submodule", func(b *repo) {
			b.raw(b.oneTree("100644", "blob", blob(b, "[submodule \"x\"]\n\tpath = x\n\turl = -u./evil\n"),
				".gitmodules"))
		}, "submodule url"},
		{"a link that is long", func(b *repo) {
			b.raw(b.oneTree("120000", "blob", blob(b, strings.Repeat("x", maxLinkBytes+1)), "long"))
		}, "usable target"},
		{"a forged header", func(b *repo) {
			tree, parent := b.git("rev-parse", "HEAD^{tree}"), b.git("rev-parse", "HEAD")
			b.rawCommit("tree " + tree + "\nparent " + parent +
				"\nauthor B <b@b> 1600000000 +0000\nauthor C <c@c> 1 +0000\ncommitter B <b@b> 1 +0000\n\nx\n")
		}, "author"},
		{"no date", func(b *repo) {
			tree, parent := b.git("rev-parse", "HEAD^{tree}"), b.git("rev-parse", "HEAD")
			b.rawCommit("tree " + tree + "\nparent " + parent + "\nauthor B <b@b>\ncommitter B <b@b> 1 +0000\n\nx\n")
		}, "author/committer line"},
		{"a zero byte in a message", func(b *repo) {
			who := "B <b@b> 1 +0000"
			b.rawCommit("tree " + b.git("rev-parse", "HEAD^{tree}") + "\nparent " + b.git("rev-parse", "HEAD") +
				"\nauthor " + who + "\ncommitter " + who + "\n\nx\x00y\n")
		}, "NUL byte"},
		{"an object under another's name", func(b *repo) {
			id := b.git("rev-parse", "HEAD")
			forged := b.feed(strings.Replace(b.feed("", "cat-file", "commit", "HEAD"), "good", "forged", 1)+"\n",
				"hash-object", "-t", "commit", "-w", "--stdin")
			from, to := filepath.Join(b.dir, ".git/objects", forged[:2], forged[2:]), filepath.Join(b.dir,
				".git/objects", id[:2], id[2:])
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}, "bad object"},
		{"objects somewhere else", func(b *repo) {
			other := filepath.Join(t.TempDir(), "objects")
			if err := os.Rename(filepath.Join(b.dir, ".git/objects"), other); err != nil {
				t.Fatal(err)
			}
			b.write(map[string]string{".git/objects/info/alternates": other + "\n"})
		}, "does not hold the commit that was sent"},
		{"HEAD as a link", func(b *repo) {
			b.remove(".git/HEAD")
			b.link("/etc/passwd", ".git/HEAD")
		}, ".git/HEAD is not a plain file"},
		{"HEAD as text", func(b *repo) { b.write(map[string]string{".git/HEAD": "--upload-pack=evil\n"}) },
			"HEAD names no commit"},
		{"a ref as text", func(b *repo) { b.write(map[string]string{".git/refs/heads/work": "ref: ../../config\n"}) },
			"HEAD names no commit"},
		{"an object that is a link", func(b *repo) {
			if err := os.MkdirAll(filepath.Join(b.dir, ".git/objects/00"), 0o755); err != nil {
				b.t.Fatal(err)
			}
			b.link("/etc/passwd", ".git/objects/00/"+strings.Repeat("0", 38))
			b.link("/etc/passwd", ".git/objects/pack/pack-"+strings.Repeat("0", 40)+".pack")
		}, "is not a plain file"},
		{"a pack that is none", func(b *repo) {
			b.write(map[string]string{".git/objects/pack/pack-" + strings.Repeat("0", 40) +
				".pack": "PACK\x00\x00\x00\x02\xff\xff\xff\xff"})
		}, "size_t overflow"},
		{"more commits than anybody reads", func(b *repo) {
			var in strings.Builder
			for n := range maxCommits + 1 {
				fmt.Fprintf(&in, "commit refs/heads/work\ncommitter B <b@b> %d +0000\ndata 2\nx\n", 1600000000+n)
				if n == 0 {
					in.WriteString("from " + b.git("rev-parse", "HEAD") + "\n")
				}
			}
			b.feed(in.String(), "fast-import", "--quiet", "--force")
		}, "more than 1000"},
		{"a tree of a billion files", func(b *repo) {
			tree := b.oneTree("100644", "blob", blob(b, "x"), "f")
			for range 9 {
				var in strings.Builder
				for n := range 10 {
					fmt.Fprintf(&in, "040000 tree %s\t%d\x00", tree, n)
				}
				tree = b.feed(in.String(), "mktree", "-z")
			}
			b.raw(tree)
		}, "printed more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRepo(t)
			r.commit(map[string]string{"a.txt": "1\n"})
			tree, snap, box := r.send()
			box.commitAs("B <b@b>", "@1 +0000", "good", map[string]string{"good": "g\n"})
			box.write(map[string]string{"control.txt": "after\n"})
			files := box.git("rev-parse", "HEAD^{tree}")
			c.session(box)
			if exec.Command("git", "-C", box.dir, "cat-file", "-e", "HEAD^{commit}").Run() == nil {
				box.raw(files) // the last tree is in order
			}
			b := r.branch(tree, snap, box)
			if len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "commits are not brought") ||
				!strings.Contains(b.Notes[0], c.note) || len(b.Commits) > 0 {
				t.Errorf("%+v, want one commit because of %q", b, c.note)
			}
			if got := r.log("main", "b"); got != "Result of the session" || r.git("show", "b:control.txt") != "after" {
				t.Errorf("the branch has %q", got)
			}
			r.git("fsck", "--strict", "--no-dangling")
		})
	}
}

// rawTree is a tree object with one entry.
func rawTree(mode, name, id string) string {
	var b strings.Builder
	b.WriteString(mode + " " + name + "\x00")
	for i := 0; i < len(id); i += 2 {
		var n byte
		fmt.Sscanf(id[i:i+2], "%02x", &n)
		b.WriteByte(n)
	}
	return b.String()
}

// Text that a session writes into a commit must not speak to the terminal that shows it, nor come from the
// future; links out of the tree are named in every commit; and nothing that its repository names runs.
func TestForeignCommitsAreCleaned(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n"})
	sent := r.git("log", "-1", "--format=%ct")
	tree, snap, box := r.send()
	ran := filepath.Join(t.TempDir(), "ran")
	box.write(map[string]string{".git/info/attributes": "* filter=evil\n", "b.txt": "b\n"})
	for _, hook := range []string{"pre-auto-gc", "reference-transaction", "post-index-change", "pre-push"} {
		box.write(map[string]string{".git/hooks/" + hook: "#!/bin/sh\ntouch " + ran + "\n"})
	}
	box.link("/etc/passwd", "link")
	box.git("add", "-A")
	linked := box.feed("", "write-tree")
	who := "E\x1b]0;title\x07ve\u202e <e\x9b@x> 253402300799 +0000"
	text := "tree " + linked + "\nparent " + box.git("rev-parse", "HEAD") + "\nauthor " + who + "\ncommitter " + who +
		"\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\nsub\x1b[31mject\u202e\r\n\n\tbody\x9b\n"
	box.rawCommit(text)
	box.remove("link")
	box.commitAs("Good <g@g>", "@1500000000 +0000", "last", nil)
	box.git("config", "core.fsmonitor", "touch "+ran)
	box.git("config", "filter.evil.clean", "touch "+ran)
	for _, hook := range []string{"pre-auto-gc", "reference-transaction", "post-index-change", "pre-push"} {
		box.chmod(".git/hooks/"+hook, 0o755)
	}
	b := r.branch(tree, snap, box)
	if len(b.Commits) != 2 || len(b.Notes) > 0 || b.Rest {
		t.Fatalf("%+v", b)
	}
	want := "sub[31mject\n\n\tbody\uFFFD|E]0;titleve|e\uFFFD@x|" + sent + "|" + sent
	if got := r.git("log", "-1", "--format=%B%x7c%an%x7c%ae%x7c%at%x7c%ct", "b~1"); strings.ReplaceAll(got, "\n|",
		"|") != want {
		t.Errorf("the commit is %q, want %q", got, want)
	}
	if strings.Contains(r.git("cat-file", "commit", "b~1"), "gpgsig") {
		t.Error("a signature came along that cannot be right")
	}
	if !slices.Equal(b.Links, []string{"link -> /etc/passwd"}) || r.git("log", "-1", "--format=%at",
		"b") != "1500000000" {
		t.Errorf("links %q, %+v", b.Links, b.Commits)
	}
	if exists(ran) {
		t.Error("a program that the session's repository names ran")
	}
	box.git("status") // the control: for git itself, it does
	if !exists(ran) {
		t.Error("the control: nothing of it runs for git itself")
	}
}

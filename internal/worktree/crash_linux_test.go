package worktree

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// crashCase is what a process that is to be killed applies.
type crashCase struct {
	Root, Store, Base, Tar string
	Kill                   int // at which point; 0: print how many there are
}

// TestCrashChild is the process that is killed; it does nothing in a test run of its own.
func TestCrashChild(t *testing.T) {
	env := os.Getenv("WORKTREE_CRASH")
	if env == "" {
		t.Skip("a child of TestApplySurvivesKill")
	}
	var c crashCase
	if err := json.Unmarshal([]byte(env), &c); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(c.Tar)
	if err != nil {
		t.Fatal(err)
	}
	res, err := treeAt(c.Root, c.Store).Import(context.Background(), Sent{Base: c.Base}, "workspace/", f, false)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	n := 0
	res.at = func(point string) {
		if n++; n == c.Kill {
			fmt.Fprintf(os.Stderr, "killed before %q\n", point)
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	if rep, err := res.Apply(context.Background(), false); err != nil || rep.Outcome != Applied {
		t.Fatalf("Apply = %+v, %v", rep, err)
	}
	fmt.Printf("points=%d\n", n)
}

// run kills the apply at a point and returns what it printed.
func (c crashCase) run(t *testing.T) (string, error) {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashChild$")
	// what a killed one leaves goes with the test
	cmd.Env = append(os.Environ(), "WORKTREE_CRASH="+string(b), "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// treeAt is a copy of the repository that was sent from.
func treeAt(dir, store string) *Tree {
	return &Tree{Root: dir, GitDir: filepath.Join(dir, ".git"), Store: store}
}

// crashed is a repository with every kind of change to apply, among them merges with uncommitted work.
func crashed(t *testing.T) (*repo, *Tree, string, *bytes.Buffer, map[string]string) {
	t.Helper()
	r := newRepo(t)
	r.write(map[string]string{"merge": "1\n2\n3\n4\n5\n", "gone/one": "1\n", "dir/x": "x\n", "flip": "f\n",
		"mode": "m\n", "plain": "p\n"})
	r.link("plain", "link")
	r.commit(nil)
	tree, snap, box := r.send()
	box.remove("gone", "dir", "flip", "link")
	box.write(map[string]string{"merge": "one\n2\n3\n4\n5\n", "dir": "file now\n", "flip/y": "y\n", "new/deep/z": "z\n",
		"plain": "p2\n"})
	box.link("mode", "link")
	box.chmod("mode", 0o755)
	r.write(map[string]string{"merge": "1\n2\n3\n4\nfive\n", "mine": "untracked\n"})
	want := map[string]string{"merge": "one\n2\n3\n4\nfive\n", "dir": "file now\n", "flip/y": "y\n",
		"new/deep/z": "z\n", "plain": "p2\n", "link": "-> mode",
		"mode": "x m\n", "mine": "untracked\n"}
	return r, tree, snap.Base, box.tarball(), want
}

// Killed before any of the things that change the disk, an apply must have lost nothing, and the next one must finish.
func TestApplySurvivesKill(t *testing.T) {
	r, tree, base, tarball, want := crashed(t)
	tar := filepath.Join(t.TempDir(), "tar")
	if err := os.WriteFile(tar, tarball.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	before := r.tree()
	fresh := filepath.Join(t.TempDir(), "fresh")
	if err := exec.Command("cp", "-a", r.dir, fresh).Run(); err != nil {
		t.Fatal(err)
	}
	again := func(n int) *repo {
		dir := filepath.Join(t.TempDir(), "again"+strconv.Itoa(n))
		if err := exec.Command("cp", "-a", fresh, dir).Run(); err != nil {
			t.Fatal(err)
		}
		return &repo{t, dir}
	}
	points := 0
	out, err := crashCase{r.dir, tree.Store, base, tar, 0}.run(t)
	if _, serr := fmt.Sscanf(out[strings.Index(out, "points="):], "points=%d", &points); err != nil || serr != nil ||
		points < 25 {
		t.Fatalf("%d points: %v, %v\n%s", points, err, serr, out)
	}
	if got := r.tree(); !maps.Equal(got, want) {
		t.Fatalf("undisturbed: %q\nwant %q", got, want)
	}
	for n := 1; n <= points; n++ {
		r := again(n)
		out, err := crashCase{r.dir, tree.Store, base, tar, n}.run(t)
		if err == nil {
			t.Fatalf("not killed at %d: %s", n, out)
		}
		tree := treeAt(r.dir, tree.Store)
		if n%2 == 0 { // sending work finds none of a half-applied result
			if _, err := tree.Snapshot(t.Context(), Options{}); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			if got := r.tree(); !maps.Equal(got, before) && !maps.Equal(got, want) {
				t.Fatalf("%s: taken back: %q", out, got)
			}
		}
		res, err := tree.Import(t.Context(), Sent{Base: base}, "workspace/", bytes.NewReader(tarball.Bytes()), false)
		if err != nil {
			t.Fatal(err)
		}
		rep, err := res.Apply(t.Context(), false)
		if got := r.tree(); err != nil || rep.Outcome == Refused || !maps.Equal(got, want) {
			t.Errorf("%s: %+v, %v: %q", out, rep, err, got)
		}
		res.Close()
	}
}

// What the user writes between an apply that was killed and the next one is work like any other: it stays, and
// so does what was there before.
func TestTakingBackKeepsLaterWork(t *testing.T) {
	r, tree, base, tarball, _ := crashed(t)
	tar := filepath.Join(t.TempDir(), "tar")
	if err := os.WriteFile(tar, tarball.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ { // up to the point where everything is in place
		out, _ := crashCase{r.dir, tree.Store, base, tar, n}.run(t)
		if strings.Contains(out, `"done"`) {
			break
		}
		if _, err := tree.recover(); err != nil || n > 100 {
			t.Fatal(err, out)
		}
	}
	r.write(map[string]string{"merge": "later\n", "plain": "later\n", "new/deep/z": "later\n", "new/mine": "later\n"})
	notes, err := tree.recover()
	got := r.tree()
	if err != nil || len(notes) != 3 {
		t.Errorf("notes %q, %v", notes, err)
	}
	want := map[string]string{"merge": "later\n", "merge.before-apply": "1\n2\n3\n4\nfive\n", "plain": "later\n",
		"plain.before-apply": "p\n", "new/deep/z": "later\n",
		"new/mine": "later\n", "gone/one": "1\n", "dir/x": "x\n", "flip": "f\n", "mode": "m\n", "link": "-> plain", "mine": "untracked\n"}
	if !maps.Equal(got, want) {
		t.Errorf("files %q\nwant  %q", got, want)
	}
}

// The user goes on working while a result is applied: whatever is written at whatever moment, it must be there
// in the end.
func TestApplyUnderAnEditor(t *testing.T) {
	points := []string{"stage", "export", "flush plain", "journal", "move plain", "place plain", "move merge",
		"place new/deep/z", "done", "clean"}
	for _, point := range points {
		for how, edit := range map[string]func(p string) error{
			"in place": func(p string) error {
				f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					return err
				}
				defer f.Close()
				_, err = f.WriteString("edited\n")
				return err
			},
			"by rename": func(p string) error {
				if err := os.WriteFile(p+"~", []byte("edited\n"), 0o644); err != nil {
					return err
				}
				return os.Rename(p+"~", p)
			},
		} {
			t.Run(point+" "+how, func(t *testing.T) {
				r, tree, base, tarball, want := crashed(t)
				res, err := tree.Import(t.Context(), Sent{Base: base}, "workspace/", tarball, false)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Close()
				done := false
				res.at = func(p string) {
					if p == point && !done {
						done = true
						if err := edit(filepath.Join(r.dir, "plain")); err != nil && !os.IsNotExist(err) {
							t.Error(err)
						} else if err != nil {
							done = false // an editor cannot open what is not there in this moment; it tries again
							point = "none"
						}
					}
				}
				rep, err := res.Apply(t.Context(), false)
				got := r.tree()
				all := fmt.Sprint(got)
				if done && !strings.Contains(all, "edited") {
					t.Errorf("the edit is lost: %+v, %v: %q", rep, err, got)
				}
				if rep.Outcome == Applied && err == nil && got["merge"] != want["merge"] ||
					!strings.Contains(got["merge"], "five") {
					t.Errorf("merge = %q after %+v, %v", got["merge"], rep, err)
				}
				if exists(filepath.Join(r.dir, stageName)) {
					t.Errorf("%s is left: %+v, %v", stageName, rep, err)
				}
			})
		}
	}
}

// A disk that fills up while the result is written beside the files must leave them as they were, and the apply
// works once there is room.
func TestApplyOnAFullDisk(t *testing.T) {
	mnt := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", mnt, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(mnt, 0) })
	origin, sent, base, tarball, want := crashed(t)
	dir := filepath.Join(mnt, "r")
	if err := exec.Command("cp", "-a", origin.dir, dir).Run(); err != nil {
		t.Fatal(err)
	}
	r := &repo{t, dir}
	tree := treeAt(dir, sent.Store)
	before := r.tree()
	refused := 0
	for room := range 24 { // pages that are free: it fails at a later point each time
		res, err := tree.Import(t.Context(), Sent{Base: base}, "workspace/", bytes.NewReader(tarball.Bytes()), false)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, filepath.Join(mnt, "fill"), room)
		rep, err := res.Apply(t.Context(), false)
		res.Close()
		if err == nil && rep.Outcome == Applied {
			break
		}
		refused++
		if got := r.tree(); !maps.Equal(got, before) || !strings.Contains(fmt.Sprint(err), "nothing was applied") {
			t.Fatalf("%d pages: %v, %q", room, err, got)
		}
	}
	if got := r.tree(); refused < 3 || !maps.Equal(got, want) {
		t.Errorf("refused %d times, then %q", refused, got)
	}
}

// fill leaves so many pages of a file system free.
func fill(t *testing.T, name string, pages int) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(0)
	for err == nil {
		var n int
		n, err = f.Write(make([]byte, 4096))
		size += int64(n)
	}
	if err := f.Truncate(size - int64(pages)*4096); err != nil {
		t.Fatal(err)
	}
}

// A directory that may not be written must end the apply with everything taken back. It is immutable, which
// refuses root as well.
func TestApplyWithoutPermission(t *testing.T) {
	r, tree, base, tarball, want := crashed(t)
	before := r.tree()
	if err := exec.Command("chattr", "+i", filepath.Join(r.dir, "gone")).Run(); err != nil {
		t.Skipf("cannot make a directory immutable: %v", err)
	}
	free := func() { exec.Command("chattr", "-i", filepath.Join(r.dir, "gone")).Run() }
	t.Cleanup(free)
	res, err := tree.Import(t.Context(), Sent{Base: base}, "workspace/", tarball, false)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	_, err = res.Apply(t.Context(), false)
	if got := r.tree(); err == nil || !maps.Equal(got, before) || exists(filepath.Join(r.dir, stageName)) {
		t.Errorf("%v, %q", err, got)
	}
	free()
	r.apply(res, Applied)
	if got := r.tree(); !maps.Equal(got, want) {
		t.Errorf("afterwards: %q", got)
	}
}

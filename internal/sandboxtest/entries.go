//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/outboard-dev/outboard/internal/guest"
)

func ref(p string) guest.FileRef { return guest.FileRef{Path: guest.Name(p)} }

func (b *box) writeFile(p, content string, attrs map[string]string) guest.Entry {
	b.t.Helper()
	e, err := b.WriteFile(ctx(b.t), ref(p), attrs, strings.NewReader(content))
	if err != nil {
		b.t.Fatalf("WriteFile %s: %v", p, err)
	}
	return e
}

func (b *box) readFile(p string, offset, length int64) string {
	b.t.Helper()
	var w strings.Builder
	if err := b.ReadFile(ctx(b.t), ref(p), offset, length, &w); err != nil {
		b.t.Fatalf("ReadFile %s: %v", p, err)
	}
	return w.String()
}

// If this fails, a client sees other files than the programs inside.
func testEntries(t *testing.T, r *rig) {
	b := r.create(t)
	e := b.writeFile("a/b/file", "0123456789", map[string]string{"k": "v"})
	home := strings.TrimSuffix(string(e.Path), "/a/b/file")
	want(t, "path", string(e.Path), home+"/a/b/file")
	want(t, "kind", e.Kind, guest.KindFile)
	want(t, "size", e.Size, 10)
	want(t, "mode", e.Mode, 0o644)
	want(t, "owner", e.Owner, "user")
	want(t, "attribute", e.Attrs["e2b.k"], "v")
	want(t, "a part", b.readFile("~/a/b/file", 3, 4), "3456")
	want(t, "to the end", b.readFile(home+"/a/b/file", 7, 0), "789")
	e = b.writeFile("a/b/file", "new", nil)
	want(t, "replaced", b.readFile("a/b/file", 0, 0), "new")
	want(t, "attributes of the replaced file", len(e.Attrs), 0)

	b.sh("cd " + home + "/a 2>/dev/null || cd ~/a; ln -s b/file link; ln -s nowhere broken; mkdir -p d/e/f; touch " +
		"$'odd\\nname' d/e/x")
	list, err := b.ReadDir(ctx(t), ref("a"), 2)
	if err != nil {
		t.Fatalf("ReadDir: %v", err)
	}
	var names []string
	for _, e := range list {
		names = append(names, strings.TrimPrefix(string(e.Path), home+"/a/")+":"+e.Kind)
	}
	want(t, "the list", strings.Join(names, " "), "b:directory b/file:file broken:link d:directory d/e:directory "+
		"link:file odd\nname:file")
	link, err := b.Stat(ctx(t), ref("a/link"))
	if err != nil || string(link.Target) != home+"/a/b/file" || link.Size != 3 {
		t.Errorf("a link: %+v, %v", link, err)
	}
	if _, err := b.Mkdir(ctx(t), ref("a/new/deep")); err != nil {
		t.Errorf("Mkdir: %v", err)
	}
	moved, err := b.Move(ctx(t), ref("a/b"), "a/moved/b")
	if err != nil || moved.Kind != guest.KindDirectory {
		t.Errorf("Move: %+v, %v", moved, err)
	}
	want(t, "after the move", b.readFile("a/moved/b/file", 0, 0), "new")
	for range 2 {
		if err := b.Remove(ctx(t), ref("a/moved")); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	for what, c := range map[string]struct{ err, code string }{
		"a file that is not there": {refusal(second(b.Stat(ctx(t), ref("a/moved/b")))), guest.NotFound},
		"what is below a file":     {refusal(second(b.Stat(ctx(t), ref("a/d/e/x/y")))), guest.NotFound},
		"a directory that is":      {refusal(second(b.Mkdir(ctx(t), ref("a/new")))), guest.Conflict},
		"a file in the way":        {refusal(second(b.Mkdir(ctx(t), ref("a/d/e/x/y")))), guest.Invalid},
		"listing a file":           {refusal(second(b.ReadDir(ctx(t), ref("a/d/e/x"), 1))), guest.Invalid},
		"reading a directory":      {refusal(b.ReadFile(ctx(t), ref("a"), 0, 0, new(strings.Builder))), guest.Invalid},
		"moving nothing":           {refusal(second(b.Move(ctx(t), ref("a/none"), "x"))), guest.NotFound},
		"moving on a full one":     {refusal(second(b.Move(ctx(t), ref("a/new"), "a/d"))), guest.Invalid},
		"a NUL":                    {refusal(second(b.Stat(ctx(t), ref("a\x00b")))), guest.Invalid},
		"the guest's own /proc": {refusal(b.ReadFile(ctx(t), ref("/proc/self/environ"), 0, 0, new(strings.Builder))),
			guest.Invalid},
	} {
		want(t, what, c.err, c.code)
	}
}

func second[T any](_ T, err error) error { return err }

// If this fails, what the guest does for a user who may not could be led astray by a link.
func testEntryLinks(t *testing.T, r *rig) {
	if !r.p.Capabilities().SeparateID {
		t.Log("tools share the guest's identity here")
		return
	}
	b := r.create(t)
	b.writeFile("/etc/made-by-client", "x", nil) // the positive control: the user itself may not
	want(t, "written for the user", b.sh("cat /etc/made-by-client; stat -c %U /etc/made-by-client"), "xuser\n")
	b.sh("mkdir -p ~/t; ln -s /etc ~/t/etc")
	_, err := b.WriteFile(ctx(t), ref("/home/user/t/etc/passwd"), nil, strings.NewReader("evil"))
	want(t, "through a planted link", refusal(err), guest.Invalid)
	want(t, "the file behind it", strings.Contains(b.sh("cat /etc/passwd"), "evil"), false)
}

// If this fails, a copy into a sandbox that broke off stands where a file was, or has left something beside it;
// or a whole one changes more than the content.
func testEntryWhole(t *testing.T, r *rig) {
	b := r.create(t)
	put := func(p, content string, broken, whole bool) error {
		from := io.Reader(strings.NewReader(content))
		if broken {
			from = io.MultiReader(from, iotest.ErrReader(errors.New("broken off")))
		}
		f := ref(p)
		f.Whole = whole
		_, err := b.WriteFile(ctx(t), f, map[string]string{"by": "test"}, from)
		return err
	}
	// more than can be under way: the guest has written some of it before all is sent
	long := strings.Repeat("half", 1<<20)
	b.sh("mkdir ~/w && cd ~/w && echo -n before > file && chmod 750 file && ln -s file link && ln -s new dangling " +
		"&& mkfifo pipe && touch /tmp/w && ln -s /tmp/w away")
	look := func() string { // once the guest has seen the end
		return b.sh("cd ~/w && for i in $(seq 500); do ls -A . /tmp/w | grep -q outboard- || break; sleep 0.01; " +
			"done; ls -lA --time-style=+ && cat file && ls -A /tmp/w")
	}
	before := look()
	for _, p := range []string{"w/link", "w/dangling", "w/none", "w/away"} {
		if err := put(p, long, true, true); err == nil {
			t.Errorf("%s: a copy that broke off is said to be whole", p)
		}
		want(t, "after "+p+" broke off", look(), before)
	}
	if err := put("w/not-whole", long, true, false); err == nil { // the control: the halves have come
		t.Error("what broke off is said to be whole")
	}
	want(t, "one that need not be whole",
		b.sh("cd ~/w && [ -s not-whole ] && rm not-whole && echo half") /* of it is there */, "half\n")
	for _, p := range []string{"w/link", "w/dangling", "w/dir/other", "w/away"} {
		if err := put(p, "whole", false, true); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	want(t, "whole", b.sh("cd ~/w && cat file new dir/other /tmp/w && stat -c %a file new dir/other && readlink "+
		"link dangling && ls -A . dir"),
		"wholewholewholewhole750\n644\n644\nfile\nnew\n.:\naway\ndangling\ndir\nfile\nlink\nnew\npipe\n\ndir:\nother\n")
	if e, err := b.Stat(ctx(t), ref("w/file")); err != nil || e.Attrs["e2b.by"] != "test" {
		t.Errorf("attributes: %+v, %v", e, err)
	}
	if refused := refusal(put("w/pipe", "x", false, true)); refused != guest.Invalid {
		t.Errorf("into a pipe: %s", refused)
	}
	if !r.p.Capabilities().SeparateID {
		return
	}
	if err := put("/etc/whole", "x", false, true); err != nil { // where only the guest may
		t.Error(err)
	}
	want(t, "for the user", b.sh("cat /etc/whole; stat -c %U /etc/whole; ls -A /etc | grep -c outboard-; true"),
		"xuser\n0\n")
}

// If this fails, a client does not learn what changes, or learns it about another directory.
func testWatch(t *testing.T, r *rig) {
	b := r.create(t)
	b.writeFile("w/old", "x", nil)
	c, stop := context.WithCancel(ctx(t))
	events, done := make(chan guest.Change, 1000), make(chan error, 1)
	go func() {
		done <- b.Watch(c, ref("w"), true, func(e guest.Change) error {
			events <- e
			return nil
		})
	}()
	until := func(name, op string) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if string(e.Name) == name && e.Op == op {
					return
				}
			case err := <-done:
				t.Fatalf("the watch ended waiting for %s %s: %v", op, name, err)
			case <-ctx(t).Done():
				t.Fatalf("no %s %s", op, name)
			}
		}
	}
	until("", guest.OpReady)
	b.writeFile("w/old", "y", nil)
	until("old", guest.OpWrite)
	b.writeFile("w/sub/deep/new", "x", nil)
	until(path.Join("sub", "deep", "new"), guest.OpCreate)
	b.writeFile("w/sub/deep/new", "z", nil)
	until(path.Join("sub", "deep", "new"), guest.OpWrite)
	if _, err := b.Move(ctx(t), ref("w/old"), "w/renamed"); err != nil {
		t.Fatal(err)
	}
	until("old", guest.OpRename)
	until("renamed", guest.OpCreate)
	if err := b.Remove(ctx(t), ref("w/renamed")); err != nil {
		t.Fatal(err)
	}
	until("renamed", guest.OpRemove)
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch: %v", err)
	}
	none := func(guest.Change) error { return nil }
	want(t, "watching nothing", refusal(b.Watch(ctx(t), ref("none"), false, none)), guest.NotFound)
	b.writeFile("file", "", nil)
	want(t, "watching a file", refusal(b.Watch(ctx(t), ref("file"), false, none)), guest.Invalid)
	go func() {
		done <- b.Watch(ctx(t), ref("w"), false, func(e guest.Change) error {
			events <- e
			return nil
		})
	}()
	until("", guest.OpReady)
	if err := b.Remove(ctx(t), ref("w")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("a watch whose directory is gone: %v", err)
	}
}

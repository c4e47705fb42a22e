//go:build linux

package native_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// asRoot runs a script as root inside and returns how it ended.
func (b *testSandbox) asRoot(t *testing.T, script string) int {
	t.Helper()
	out, code := b.runAs(t, "root", script)
	t.Logf("%s", out)
	return code
}

// TestCommit: what was built in one sandbox would be missing, or belong to somebody else, in the next one, or
// bring what must not be there.
func TestCommit(t *testing.T) {
	p, _ := newProvider(t)
	if !isRoot() {
		if _, err := p.Create(t.Context(), sandbox.Spec{ID: newID(), Generation: "g",
			Build: true}); outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("building without root: %v", err)
		}
		return
	}
	below := layerDir(t, map[string]string{"opt/gone": "x", "opt/kept": "kept", "opt/hidden/old": "x"})
	b := create(t, p, sandbox.Spec{Build: true, Layers: []string{below}})
	// Giving files away is what package managers need and nobody else may.
	code := b.asRoot(t, "set -e; mkdir -p /opt/new /home/user/repo; echo built > /opt/new/f; chown 1000:7 "+
		"/opt/new/f; chmod 4755 /opt/new/f; ln /opt/new/f /opt/new/g; "+
		"rm /opt/gone; rm -r /opt/hidden; mkdir /opt/hidden; ln -s /etc /opt/new/link; mkfifo /opt/new/pipe; echo "+
		"repo > /home/user/repo/f; chown -R user:user /home/user/repo; echo w > /workspace/w; echo t > /tmp/t; "+
		"touch /tmp/.x; rm -r /tmp; ln -s /etc /tmp")
	if code != 0 {
		t.Fatalf("building: exit status %d", code)
	}
	dir := filepath.Join(t.TempDir(), "layer")
	if err := p.Commit(t.Context(), b.ID(), dir); err != nil {
		t.Fatalf("making a layer: %v", err)
	}
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "opt/new/f"), &st); err != nil || st.Uid != 1000 || st.Gid != 7 ||
		st.Mode&0o7777 != 0o755 || st.Nlink != 2 {
		t.Errorf("the file: %d:%d mode %o, %d names, %v", st.Uid, st.Gid, st.Mode, st.Nlink, err)
	}
	if err := unix.Lstat(filepath.Join(dir, "tmp"), &st); err != unix.ENOENT {
		t.Errorf("the layer has a /tmp: %v", err)
	}
	if err := unix.Lstat(filepath.Join(dir, "opt/new/pipe"), &st); err != unix.ENOENT {
		t.Errorf("the pipe: %v", err)
	}
	for range 2 { // two sandboxes with ranges of their own
		c := create(t, p, sandbox.Spec{Layers: []string{dir, below}, Path: "/opt/new"})
		out := c.sh(t, "cat /opt/new/g /opt/kept /home/user/repo/f /workspace/w; ls /opt /opt/hidden; stat -c %U "+
			"/opt/new/f /home/user/repo; readlink /opt/new/link; echo mine >> /home/user/repo/f; echo mine > "+
			"/workspace/mine; command -v f")
		want := "built\nkeptrepo\nw\n/opt:\nhidden\nkept\nnew\n\n/opt/hidden:\nuser\nuser\n/etc\n/opt/new/f\n"
		if out != want {
			t.Errorf("got %q\nwant %q", out, want)
		}
		if code := c.asRoot(t, "touch /tmp/x && chown 7 /tmp/x"); code == 0 {
			t.Error("root of an ordinary sandbox gives files away")
		}
		if err := p.Commit(t.Context(), c.ID(), filepath.Join(t.TempDir(),
			"x")); outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("a layer of an ordinary sandbox: %v", err)
		}
		if err := p.Destroy(t.Context(), c.ID()); err != nil {
			t.Fatal(err)
		}
	}
}

//go:build linux

package fleet

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// shellFiles are a shell and what it loads, as files of an image.
func shellFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	out, err := exec.Command("ldd", "/bin/sh").Output()
	if err != nil {
		t.Fatalf("asking what a shell loads: %v", err)
	}
	for _, name := range append(strings.Fields(string(out)), "/bin/sh") {
		if !strings.HasPrefix(name, "/") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(name, "/")] = string(b)
	}
	return files
}

// tool runs a tool to its end and returns its output.
func (r *rig) tool(t *testing.T, b *Lease, op string, input map[string]any) string {
	t.Helper()
	in, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprint("call-", r.keys.Add(1))
	s := guest.Start{Key: key, Epoch: 1, Generation: b.Generation(), Digest: key, Op: op, Input: in, TimeoutMs: 60_000,
		OutputLimit: 10_000}
	res, err := b.Start(t.Context(), s)
	if err == nil && res.State != guest.StateDone {
		res, err = b.Wait(t.Context(), key, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(res.Output)
}

// If this failed, the agent of a session would begin elsewhere than the image or template says, without the
// variables that it sets; or would work, unasked, where its work is lost with the machine.
func TestSessionBegins(t *testing.T) {
	r := newRig(t)
	r.provider = nativeProvider(t)
	store := images(t)
	f := r.fleet(func(c *Config) { c.Images = store })
	t.Cleanup(f.Stop)
	files := shellFiles(t)
	const look = `pwd; echo "$FROM_IMAGE"`
	for _, c := range []struct{ dir, want string }{
		{"", "/workspace\nyes\n"},
		{"/workspace/app/deep", "/workspace/app/deep\nyes\n"},
		{"/home/user/app", "/home/user/app\nyes\n"},
		{"/srv/app", "/workspace\nyes\n"},
		{"/workspaces", "/workspace\nyes\n"},
	} {
		ref := imageServer(t, v1.Config{Env: []string{"FROM_IMAGE=yes"}, WorkingDir: c.dir}, files)
		id := r.sessionIn(t, outboard.EnvConfig{Kind: "cloud", Image: ref})
		box := r.acquire(t, f, id)
		if got := r.bash(t, box, look); got != c.want {
			t.Errorf("with WORKDIR %q: %q, want %q", c.dir, got, c.want)
		}
		if c.dir != "/workspace/app/deep" {
			continue
		}
		r.tool(t, box, "write", map[string]any{"file_path": "note", "content": "kept"})
		if got := r.bash(t, box, "read x < /workspace/app/deep/note; echo $x"); got != "kept\n" {
			t.Errorf("a relative name leads elsewhere: %q", got)
		}
		if got := r.tool(t, box, "glob", map[string]any{"pattern": "n*"}); !strings.Contains(got,
			"/workspace/app/deep/note") {
			t.Errorf("a search begins elsewhere: %q", got)
		}
		r.checkpoint(t, f, box, id)
		release(t, f, box)
		if err := r.provider.Destroy(t.Context(), box.ID()); err != nil {
			t.Fatal(err)
		}
		if got := r.bash(t, r.acquire(t, f, id), look+"; read x < note; echo $x"); got != c.want+"kept\n" {
			t.Errorf("in its second sandbox: %q", got)
		}
	}
}

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/client"
)

// traces are what is on this host of sandboxes: their directories, mounts and control groups.
func traces(t *testing.T, dir string, ids []string) []string {
	t.Helper()
	var out []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := os.Lstat(filepath.Join(dir, id)); err == nil {
			out = append(out, "directory of "+id)
		}
		if strings.Contains(string(mounts), id) {
			out = append(out, "mounts of "+id)
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		for _, id := range ids {
			if err == nil && d.IsDir() && d.Name() == id {
				out = append(out, path)
			}
		}
		return nil // groups end while they are looked at
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// names lists a directory.
func names(t *testing.T, dir, prefix string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	return out
}

// If this fails, a server that is killed in the middle of a build leaves it going on for ever, or leaves its
// sandbox, processes, mounts or half a layer behind, or the template cannot be built again.
func TestTemplateKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("layers are built as root only")
	}
	data := t.TempDir()
	sandboxes, half := filepath.Join(data, "sandboxes"), filepath.Join(data, "images", "tmp")
	c := spawn(t, data)
	mark := fmt.Sprintf("87001.%d", os.Getpid())
	first := map[string]any{"type": "run", "command": "echo one > /workspace/one"}
	begin := func(c *spawned, second string) client.TemplateBuild {
		b, err := c.c.BuildTemplate(t.Context(), map[string]any{"name": "killed",
			"steps": []any{first, map[string]any{"type": "run", "command": second}}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	over := func(c *spawned, b client.TemplateBuild) client.TemplateBuild {
		c.until(func() bool {
			var err error
			if b, err = c.c.TemplateBuild(t.Context(), "killed", b.ID); err != nil {
				t.Fatal(err)
			}
			return b.Over()
		}, "the build is over")
		return b
	}
	b := begin(c, "sleep "+mark+"; true")
	c.until(func() bool { return processesMarked(mark) == 1 }, "the second step runs")
	ids := names(t, sandboxes, "sbx_")
	if there := traces(t, sandboxes, ids); len(there) < 2 {
		t.Fatalf("the sandbox of a build leaves no traces that can be looked for: %q", there)
	}
	c.kill9()

	again := spawn(t, data)
	if b = over(again, b); b.State != "error" || !strings.Contains(b.Error.Message,
		"the server ended while it was being built") {
		t.Errorf("the build of a server that was killed: %s %+v", b.State, b.Error)
	}
	again.until(func() bool { return processesMarked(mark) == 0 && len(traces(t, sandboxes, ids)) == 0 },
		"nothing of its sandbox is left")
	again.until(func() bool { return len(names(t, half, "")) == 0 }, "no half-made layer is left")
	locks := names(t, filepath.Join(data, "locks"), "build-")
	if len(locks) != 0 {
		t.Errorf("locks left: %v", locks)
	}

	b = over(again, begin(again, "cat /workspace/one"))
	l, err := again.c.TemplateLog(t.Context(), "killed", b.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, line := range l.Data {
		said = append(said, line.Message)
	}
	if log := strings.Join(said, "\n"); b.State != "ready" || !strings.Contains(log, "CACHED\n") ||
		!strings.Contains(log, "\none\n") {
		t.Errorf("the second build: %s %+v\n%s", b.State, b.Error, log)
	}
}

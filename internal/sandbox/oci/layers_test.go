//go:build linux

package oci_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

// If this fails, an image of many layers, or a data directory with a long name, gives no sandbox; or an upper
// layer does not hide what lies below. The names of these layers fill five times the page that mount(2) has for
// them.
func TestManyLayers(t *testing.T) {
	each(t, func(t *testing.T, p *container.Provider, _ string) {
		dir := filepath.Join(t.TempDir(), strings.Repeat("long", 20))
		var layers []string // bottom first
		for i := range 150 {
			opt := filepath.Join(dir, fmt.Sprint(i), "opt")
			err := errors.Join(os.MkdirAll(opt, 0o755), os.WriteFile(filepath.Join(opt, "top"), fmt.Append(nil, i),
				0o644),
				os.WriteFile(filepath.Join(opt, fmt.Sprint("only", i)), nil, 0o644))
			if err != nil {
				t.Fatal(err)
			}
			layers = append([]string{filepath.Dir(opt)}, layers...)
		}
		for n, want := range map[int]string{1: "1 149\n", 150: "150 149\n"} { // one is the control
			sb := create(t, p, sandbox.Spec{Layers: layers[:n]})
			if got := sandboxtest.Bash(t, sb, "1",
				`echo $(ls /opt | grep -c only) $(cat /opt/top); echo new > /tmp/x`); got != want {
				t.Errorf("%d layers: %q, want %q", n, got, want)
			}
		}
	})
}

// If this fails, what a template's steps or packages left to the tool's user, or an image to its uid, is
// somebody else's in a container: it cannot be written to, and the next step of a build fails. Or the files of
// others become the tool's.
func TestLayersOfTheTool(t *testing.T) {
	each(t, func(t *testing.T, p *container.Provider, _ string) {
		layer := t.TempDir()
		var fs unix.Statfs_t
		if err := unix.Statfs(layer, &fs); err != nil || fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
			t.Skip("the file system of temporary files cannot map owners")
		}
		app := filepath.Join(layer, "home/user/app")
		if err := errors.Join(os.Chmod(layer, 0o755), os.MkdirAll(app, 0o755),
			os.WriteFile(filepath.Join(app, "file"), []byte("old\n"), 0o644), os.Chown(app, 1000, 1000),
			os.Chown(filepath.Join(app, "file"), 1000, 1000)); err != nil {
			t.Fatal(err)
		}
		for name, id := range map[string]int{"roots": 0, "before": 999, "after": 1001, "high": 70000} {
			if err := errors.Join(os.WriteFile(filepath.Join(app, name), nil, 0o644),
				os.Chown(filepath.Join(app, name), id, id)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // two sandboxes with uids of their own
			sb := create(t, p, sandbox.Spec{Layers: []string{layer}})
			got := sandboxtest.Bash(t, sb, "1",
				`cd ~/app; stat -c %U:%G . file; stat -c %u:%g after before high roots; echo mine >> file && touch new && cat file; stat -c %U new; [ -w roots ] || echo no`)
			want := "user:user\nuser:user\n1001:1001\n999:999\n70000:70000\n0:0\nold\nmine\nuser\nno\n"
			if got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		}
		if b, err := os.ReadFile(filepath.Join(app, "file")); err != nil || string(b) != "old\n" {
			t.Errorf("the layer itself was written to: %q, %v", b, err)
		}
	})
}

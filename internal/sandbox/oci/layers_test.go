//go:build linux

package oci_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

// If this fails, an image of many layers, or a data directory with a long name, gives no sandbox; or an upper layer does not hide what
// lies below. The names of these layers fill five times the page that mount(2) has for them.
func TestManyLayers(t *testing.T) {
	each(t, func(t *testing.T, p *container.Provider, _ string) {
		dir := filepath.Join(t.TempDir(), strings.Repeat("long", 20))
		var layers []string // bottom first
		for i := range 150 {
			opt := filepath.Join(dir, fmt.Sprint(i), "opt")
			err := errors.Join(os.MkdirAll(opt, 0o755), os.WriteFile(filepath.Join(opt, "top"), fmt.Append(nil, i), 0o644),
				os.WriteFile(filepath.Join(opt, fmt.Sprint("only", i)), nil, 0o644))
			if err != nil {
				t.Fatal(err)
			}
			layers = append([]string{filepath.Dir(opt)}, layers...)
		}
		for n, want := range map[int]string{1: "1 149\n", 150: "150 149\n"} { // one is the control
			sb := create(t, p, sandbox.Spec{Layers: layers[:n]})
			if got := sandboxtest.Bash(t, sb, "1", `echo $(ls /opt | grep -c only) $(cat /opt/top); echo new > /tmp/x`); got != want {
				t.Errorf("%d layers: %q, want %q", n, got, want)
			}
		}
	})
}

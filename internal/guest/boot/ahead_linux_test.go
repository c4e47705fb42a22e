package boot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Broken if a sandbox that cannot be made takes some of the server's open files each time it is tried, until
// there can be none at all.
func TestAheadKeepsNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes mount namespaces")
	}
	var void *os.File
	if err := spent(func() (err error) { void, err = Void(); return err }); err != nil {
		t.Fatal(err)
	}
	defer void.Close()
	ahead := func(owned string) error {
		top := t.TempDir()
		cfg := &Config{Upper: filepath.Join(top, "top"), Lower: []string{filepath.Join(top, "low")}, Trees: 2,
			Base: 1 << 20, ToolUID: 1000,
			Owned: []Dir{{Path: owned, Mode: 0o755}}, ShmSize: 1 << 20}
		var sources []int
		for _, dir := range cfg.Sources() {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "upper"), 0o755),
				os.Mkdir(filepath.Join(dir, "work"), 0o755)); err != nil {
				t.Fatal(err)
			}
			tree, err := openTree(dir)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, int(tree))
		}
		return spent(func() error {
			place, err := Ahead(void, cfg, -1, sources, false)
			if err != nil {
				return err
			}
			for _, tree := range place.Trees {
				syscall.Close(tree)
			}
			return errors.Join(place.Mount.Close(), place.Net.Close())
		})
	}
	if err := ahead("/data"); err != nil {
		t.Fatalf("control: %v", err)
	}
	before := openFiles(t)
	for range 5 {
		if err := ahead("data"); err == nil || !strings.Contains(err.Error(), "absolute") {
			t.Fatalf("a directory that cannot be made: %v", err)
		}
	}
	if err := ahead("/data"); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d open files became %d", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

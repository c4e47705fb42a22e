package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOutputOnFullDisk: of a call's output for which there is no room on the disk, the end, which says how it
// went, would be lost, or that some is missing would not be said.
func TestOutputOnFullDisk(t *testing.T) {
	var lines strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&lines, "line %d\n", i)
	}
	check := func(name string, k *sink) {
		t.Helper()
		for part := range strings.SplitAfterSeq(lines.String(), "000\n") {
			k.Write([]byte(part))
		}
		var o outcome
		k.close(&o)
		o.Limit = 1 << 20
		if out := string(o.render(k.path)); !strings.HasSuffix(out, "\nline 39998\nline 39999\n") ||
			!strings.Contains(out, "bytes of output were not kept]\n") {
			t.Errorf("%s: %d bytes: ... %q", name, len(out), out[max(0, len(out)-100):])
		}
	}
	f, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	check("nothing stored", &sink{path: filepath.Join(t.TempDir(), "out"), file: f})
	check("no file", &sink{path: "/proc/out"})

	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=200k"); err != nil {
		t.Skip("the rest needs a small disk:", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	k := &sink{path: filepath.Join(dir, "out")}
	check("the beginning stored", k)
	if info, err := os.Stat(k.path); err != nil || info.Size() < 150_000 {
		t.Errorf("control: the beginning: %v, %v", info, err)
	}
}

// If this fails, two calls at a time read their output into one buffer, and each shows the other's; or every
// call makes the heap grow for one.
func TestBuffersAreOfOne(t *testing.T) {
	a, b := takeBuffer(), takeBuffer()
	if a == b {
		t.Error("two have the same buffer")
	}
	giveBuffer(b)
	giveBuffer(a)
	if again := takeBuffer(); again != a {
		t.Error("the one that is no part of the heap is not taken again")
	} else {
		giveBuffer(again)
	}
}

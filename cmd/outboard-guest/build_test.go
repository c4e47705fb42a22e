//go:build linux

package main

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// If this fails, the guest that make builds has parts that large pages do not begin with, and each start of a
// sandbox finds what it reads of them in dozens of small ones; or it has debugging information that nobody
// reads.
func TestBuiltForLargePages(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("there is no make here")
	}
	plan := exec.CommandContext(t.Context(), "make", "-n", "build")
	plan.Dir = "../.."
	out, err := plan.Output()
	if err != nil {
		t.Fatalf("asking make: %v", err)
	}
	const target = "bin/outboard-guest"
	var line string
	for l := range strings.Lines(string(out)) {
		if strings.Contains(l, target) {
			line = l
		}
	}
	program := filepath.Join(t.TempDir(), "outboard-guest")
	build := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(line, target, program))
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil || line == "" {
		t.Fatalf("%q: %v\n%s", line, err, out)
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Section(".debug_info") != nil || f.Section(".zdebug_info") != nil {
		t.Error("it has debugging information")
	}
	const large = 2 << 20
	parts := 0
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		parts++
		if p.Vaddr%large != 0 || p.Off%large != 0 {
			t.Errorf("a part of %d bytes begins at %#x, and in the file at %#x", p.Filesz, p.Vaddr, p.Off)
		}
	}
	if parts < 3 {
		t.Errorf("%d parts: the program's code, what it reads and what it writes are not apart", parts)
	}
}

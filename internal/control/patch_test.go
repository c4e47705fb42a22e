package control

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// If this fails, a patch that is shown does not lead from the one text to the other.
func TestPatchLeadsFromOneToTheOther(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.Custom(func(rt *rapid.T) string {
			ls := rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "d d\n", "\n"}), 0, 30).
				Draw(rt, "lines")
			return strings.Join(ls, "") + rapid.SampledFrom([]string{"", "end"}).Draw(rt, "last")
		})
		a, b := text.Draw(rt, "a"), text.Draw(rt, "b")
		var left, right []string
		for _, e := range diff(lines(a), lines(b)) {
			if e.op != '+' {
				left = append(left, e.line)
			}
			if e.op != '-' {
				right = append(right, e.line)
			}
		}
		if strings.Join(left, "") != a || strings.Join(right, "") != b {
			rt.Fatalf("the edits lead from %q to %q", left, right)
		}
		if n++; a == b || n > 60 { // each is a process
			return
		}
		name := filepath.Join(dir, "f")
		if err := os.WriteFile(name, []byte(a), 0o600); err != nil {
			rt.Fatal(err)
		}
		ch := FileChange{Path: "f", Before: &FileState{Type: "file", text: []byte(a)},
			After: &FileState{Type: "file", text: []byte(b)}}
		cmd := exec.CommandContext(t.Context(), git, "apply", "--unidiff-zero", "-")
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(ch.patch())
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		if out, err := cmd.CombinedOutput(); err != nil {
			rt.Fatalf("git: %v %s\n%s", err, out, ch.patch())
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != b {
			rt.Fatalf("the patch makes %q of %q, want %q\n%s", got, a, b, ch.patch())
		}
	})
}

// If this fails, two texts with little in common take memory or time without bound, or a name breaks out of its line.
func TestPatchLimits(t *testing.T) {
	var a, b []string
	for i := range 20_000 {
		a, b = append(a, fmt.Sprint("a", i, "\n")), append(b, fmt.Sprint("b", i, "\n"))
	}
	if got := len(diff(a, b)); got != 40_000 {
		t.Errorf("%d edits", got)
	}
	c := slices.Clone(a)
	c[10_000] = "x\n"
	if got := strings.Count(unified(a, c), "\n"); got != 1+2*patchContext+2 {
		t.Errorf("a change of one line is shown in %d", got)
	}
	if got := patchName("a/", "x\ny"); got != `"a/x\ny"` {
		t.Errorf("a name with a newline is shown as %s", got)
	}
}

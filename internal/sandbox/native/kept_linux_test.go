package native

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeptFrozen: without a group that stays frozen, the kernel would rewrite its own code with each sandbox
// that is frozen and thawed. A second provider finds the group as the first one left it.
func TestKeptFrozen(t *testing.T) {
	NeedRoot(t)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		dir := detectCgroups(string(mounts), "").roots["freezer"]
		if dir == "" {
			t.Skip("this host has no freezer of version 1")
		}
		kept := filepath.Join(dir, keptFrozen)
		state, err := os.ReadFile(filepath.Join(kept, "freezer.state"))
		if err != nil || strings.TrimSpace(string(state)) != "FROZEN" {
			t.Errorf("%s is %q: %v", kept, state, err)
		}
		if inside, err := os.ReadFile(filepath.Join(kept, "cgroup.procs")); err != nil || len(inside) > 0 {
			t.Errorf("a frozen group holds processes %q: %v", inside, err)
		}
	}
}

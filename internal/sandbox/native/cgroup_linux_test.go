package native

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// TestUnifiedCgroup: freezing, killing or removing a group of version 2 would not work. Where a host's
// controllers are of version 1, as on machines that mount both, the limits of version 2 are not covered by this
// test; everything else is.
func TestUnifiedCgroup(t *testing.T) {
	NeedRoot(t)
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var unified strings.Builder
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, " - cgroup2 ") {
			unified.WriteString(line)
		}
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	c := detectCgroups(unified.String(), string(self))
	if c.version != 2 {
		missing(t, false, "a writable cgroup of version 2")
	}
	t.Logf("limits that hold here: %v", c.limits)
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	g := c.plan(id)
	if err := c.makeGroup(g, withDefaults(outboard.SandboxLimits{})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	t.Cleanup(func() {
		if err := g.remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	child := exec.CommandContext(ctx, "sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.attach(child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for _, frozen := range []bool{true, false, true} {
		if err := g.setFrozen(ctx, frozen); err != nil {
			t.Fatalf("frozen %v: %v", frozen, err)
		}
	}
	if err := g.kill(); err != nil { // a frozen process of version 2 dies all the same
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	if err := g.remove(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.dirs[0]); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
}

// TestControlGroupPaths: a client would be told a path of the server's host when a control group cannot be made,
// or nobody why it cannot.
func TestControlGroupPaths(t *testing.T) {
	top := t.TempDir() // what is there now and is not when it is needed
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	c := cgroups{version: 2, root: filepath.Join(top, "gone"), limits: []string{"memory"}}
	there := cgroups{version: 2, root: top}
	made := there.plan(id)
	if err := there.makeGroup(made, outboard.SandboxLimits{}); err != nil {
		t.Fatal("control:", err)
	}
	// a directory has no memory.max to write to
	limited := cgroups{version: 2, root: filepath.Join(top, string(id)), limits: []string{"memory"}}
	enter := group{version: 2, dirs: []string{filepath.Join(top, "gone")}}
	_, doors := group{version: 1, dirs: enter.dirs}.doors()
	for what, err := range map[string]error{
		"making one": c.makeGroup(c.plan(id),
			outboard.SandboxLimits{}), "limiting one": limited.makeGroup(limited.plan(id), outboard.SandboxLimits{}),
		"entering one": enter.attach(os.Getpid()), "opening one": doors,
	} {
		err = outboard.Errorf(outboard.Unavailable, "sandbox: %w", err)
		told := outboard.PublicOf(err)
		if !strings.Contains(err.Error(), top) || strings.Contains(told, "/") ||
			!strings.Contains(told, "no such file or directory") || outboard.HintOf(err) != doctorHint {
			t.Errorf("%s: the log has %q, a client is told %q, with the hint %q", what, err, told, outboard.HintOf(err))
		}
	}
}

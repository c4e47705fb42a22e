//go:build linux

package native_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"os/exec"
	"syscall"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// asNobody runs a program on the host as an ordinary user.
func asNobody(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v as nobody: %v", argv, err)
	}
	return string(out)
}

// TestProcessLimit: a fork bomb would take the host's processes, or the guest with it.
func TestProcessLimit(t *testing.T) {
	p, _ := newProvider(t)
	for _, c := range []struct{ limit, tries, least, most int }{
		{limit: 60, tries: 2000, least: 20, most: 60},
		{limit: 400, tries: 200, least: 200, most: 200}, // control
	} {
		b := create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{Pids: c.limit}})
		got, err := strconv.Atoi(b.hostile(t, "fork", strconv.Itoa(c.tries))["forked"])
		if err != nil || got < c.least || got > c.most {
			t.Errorf("limit %d: %d of %d processes started (%v)", c.limit, got, c.tries, err)
		}
		if ids, err := p.List(t.Context()); err != nil || len(ids) == 0 {
			t.Errorf("%v, %v", ids, err)
		}
		if again, err := p.Open(t.Context(), b.ID()); err != nil {
			t.Errorf("limit %d: the guest does not answer: %v", c.limit, err)
		} else {
			again.Close()
		}
		if err := p.Destroy(t.Context(), b.ID()); err != nil {
			t.Error(err)
		}
	}
}

// TestMemoryLimit: one sandbox could take the host's memory, or its guest would die for what a tool did.
func TestMemoryLimit(t *testing.T) {
	p, _ := newProvider(t)
	for _, c := range []struct {
		limit int64
		fits  bool
	}{{128 << 20, false}, {1 << 30, true}} {
		b := create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{MemoryBytes: c.limit}})
		out, code := b.run(t, "/workspace/hostile", "memory", "300")
		if fits := code == 0 && strings.Contains(out, "touched 300"); fits != c.fits {
			t.Errorf("limit %d: 300 MiB gave exit status %d: %s", c.limit, code, out)
		}
		if out := b.sh(t, "echo alive"); out != "alive\n" {
			t.Errorf("limit %d: the guest does not answer: %q", c.limit, out)
		}
	}
}

// TestTemporaryFiles: a sort or a build of more than half of the memory limit would fail in /tmp, with a disk
// that is nearly empty.
func TestTemporaryFiles(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{MemoryBytes: 128 << 20}})
	if out, code := b.run(t, "sh", "-c",
		"umask 77; head -c 96000000 /dev/zero > /tmp/x && wc -c < /tmp/x && rm /tmp/x"); code != 0 ||
		out != "96000000\n" {
		t.Errorf("96 MB in /tmp with 128 MiB of memory: exit status %d: %s", code, out)
	}
	if out, code := b.run(t, "sh", "-c", "head -c 96000000 /dev/zero > /dev/shm/x"); code == 0 ||
		!strings.Contains(out, "No space left") {
		t.Errorf("control: 96 MB in memory: exit status %d: %s", code, out)
	}
	if out := b.sh(t, "rm -f /dev/shm/x; stat -c '%a %U' /tmp; cp /bin/true /tmp/run && /tmp/run && echo runs"); out != "1777 root\nruns\n" && isRoot() {
		t.Errorf("/tmp is %q", out)
	}
}

// TestCgroupsAreClosed: a process inside could raise its own limits or use a cgroup's release agent.
func TestCgroupsAreClosed(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	const sizes = "0\ncgroup.controllers\ncpu\ncpu.max\nmemory\nmemory.max\n" // files of ours that say how large it is
	if out := b.sh(t, "grep -c -- '- cgroup' /proc/self/mountinfo; ls -A /sys/fs/cgroup"); out != sizes {
		t.Errorf("cgroup file systems inside: %q", out)
	}
	if out, code := b.run(t, "sh", "-c", "echo max >/sys/fs/cgroup/memory.max"); code == 0 {
		t.Errorf("the limit can be written: %s", out)
	}
	for line := range strings.Lines(b.sh(t, "cat /proc/self/cgroup")) {
		if !strings.HasSuffix(line, ":/\n") {
			t.Errorf("the place in the host's groups shows: %q", line)
		}
	}
	if !isRoot() {
		return
	}
	if got := p.Capabilities().Limits; len(got) == 0 {
		t.Errorf("control: as root no limit holds")
	}
}

// TestLeastMemory: with too little, the kernel ends whatever is in the sandbox's group before there is a guest
// to say so.
func TestLeastMemory(t *testing.T) {
	p, _ := newProvider(t)
	spec := sandbox.Spec{ID: newID(), Generation: "g", Limits: outboard.SandboxLimits{MemoryBytes: 64 << 10}}
	if _, err := p.Create(t.Context(), spec); outboard.KindOf(err) != outboard.Invalid ||
		!strings.Contains(err.Error(), "memory_bytes must be 8388608 to") {
		t.Errorf("64 KiB: %v", err)
	}
	if !slices.Contains(p.Capabilities().Limits, "memory") {
		t.Skip("no memory limits here")
	}
	b := create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{MemoryBytes: 8 << 20}})
	if out := b.sh(t, "echo lives"); out != "lives\n" {
		t.Errorf("with 8 MiB a command says %q", out)
	}
}

package native

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest"
)

// TestMemoryCount: the limit on memory would be named where it did nothing, or not where it ended a program, on
// hosts with the other version of control groups than this one.
func TestMemoryCount(t *testing.T) {
	const unified = "low 0\nhigh 0\nmax 31\noom 3\noom_kill 2\noom_group_kill 0\n"
	for what, c := range map[string]struct {
		version int
		files   map[string]string
		want    guest.MemoryCount
		known   bool
	}{
		"version 2": {2, map[string]string{"memory.events": unified,
			"memory.max": "134217728\n"}, guest.MemoryCount{Ended: 2, Refused: 3, Limit: 134217728}, true},
		"version 2, without a limit": {2, map[string]string{"memory.events": unified, "memory.max": "max\n"},
			guest.MemoryCount{}, false},
		"version 2, nothing ended": {2, map[string]string{"memory.events": "oom 3\noom_kill 0\n"},
			guest.MemoryCount{Refused: 3}, true},
		"version 1, nothing ended": {1, map[string]string{"memory.oom_control": "oom_kill 0\n"},
			guest.MemoryCount{Refused: -1}, true},
		"version 2, without its count": {2, map[string]string{"memory.events": "low 0\noom 3\n",
			"memory.max": "134217728\n"}, guest.MemoryCount{}, false},
		"version 2, without the controller": {2, nil, guest.MemoryCount{}, false},
		"version 1": {1, map[string]string{"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
			"memory.max_usage_in_bytes": "134217000\n",
			"memory.limit_in_bytes":     "134217728\n"}, guest.MemoryCount{Ended: 2, Refused: -1, Peak: 134217000, Limit: 134217728}, true},
		"version 1, of an old kernel": {1, map[string]string{"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n",
			"memory.max_usage_in_bytes": "134217000\n",
			"memory.limit_in_bytes":     "134217728\n"}, guest.MemoryCount{}, false},
	} {
		other, dir := t.TempDir(), t.TempDir() // the first is that of another controller
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		g := group{version: c.version, dirs: []string{dir}}
		if c.version == 1 {
			g.dirs = []string{other, dir}
		}
		if got, known := g.memory(); known != c.known || known && got != c.want {
			t.Errorf("%s: %+v, %v; want %+v, %v", what, got, known, c.want, c.known)
		}
	}
}

// TestDirectoryOfController: the count would be asked of another controller, or of none where a host has its own
// names for where they are.
func TestDirectoryOfController(t *testing.T) {
	g := group{version: 1, dirs: []string{"/sys/fs/cgroup/freezer/outboard/x", "/sys/fs/cgroup/memory/outboard/x"}}
	if got := g.of("memory"); !slices.Equal(got, g.dirs[1:]) {
		t.Errorf("%q", got)
	}
	if got := g.of("pids"); !slices.Equal(got, g.dirs) {
		t.Errorf("%q", got)
	}
}

// TestMemoryGroupOfTheDead: what is meant for the group of a container that has just ended would be done to the host's.
func TestMemoryGroupOfTheDead(t *testing.T) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := pathIn(string(groups), "memory"); !ok {
		t.Skip("not on this host: control groups of version 2 keep the place of the dead")
	}
	child := exec.Command("true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	fd, err := unix.PidfdOpen(child.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	pr := process{fd: fd}
	defer pr.close()
	if err := pr.wait(t.Context()); err != nil { // until it has ended, and nobody has waited for it
		t.Fatal(err)
	}
	if g, err := memoryGroup(child.Process.Pid); err == nil {
		t.Errorf("its group is %v", g.dirs)
	}
}

// TestMemoryGroupOfProcess: the count of containers would be that of another group, or of none.
func TestMemoryGroupOfProcess(t *testing.T) {
	const groups = "9:name=systemd:/\n5:cpu,memory:/one/of:two\n0::/unified\n"
	for controller, want := range map[string]string{"memory": "/one/of:two", "": "/unified", "pids": ""} {
		if got, ok := pathIn(groups, controller); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", controller, got, ok)
		}
	}
}

package native

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard/internal/guest"
)

// memory counts what the group's limit on memory has done: only that where it has ended no program, since it is
// asked around each call, and a file of a control group is dear to open. Without a group, or with one that is
// gone, nobody knows.
func (g group) memory() (guest.MemoryCount, bool) {
	for _, dir := range g.of("memory") {
		if g.version == 2 {
			return memoryUnified(dir)
		}
		if n, known := memoryOne(dir); known { // one of the directories is of that controller
			return n, true
		}
	}
	return guest.MemoryCount{}, false
}

// MemoryGroup returns the directory of the control group that counts the memory of a process, for who has its
// groups made by another program. It is found while the process lives, and "" where there is none of its own.
func MemoryGroup(p Process) string {
	g, err := memoryGroup(p.Pid)
	if err != nil || len(g.dirs) == 0 {
		return ""
	}
	return g.dirs[0]
}

// MemoryIn is memory of such a group, which may have outlived its processes, and nil for "": nobody knows, which
// is all that there is to say.
func MemoryIn(dir string) func() (guest.MemoryCount, bool) {
	if dir == "" {
		return nil
	}
	g := group{version: 1, dirs: []string{dir}}
	if _, err := os.Lstat(filepath.Join(dir, "memory.oom_control")); err != nil {
		g.version = 2
	}
	return g.memory
}

// memoryGroup finds the group of a process that counts its memory.
func memoryGroup(pid int) (group, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return group{}, fmt.Errorf("looking for the control groups: %w", err)
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return group{}, fmt.Errorf("looking for the control groups of process %d: %w", pid, err)
	}
	mounts := cgroupMounts(string(mountinfo))
	controller, version := "memory", 1
	if _, ok := mounts[controller]; !ok {
		controller, version = "", 2
	}
	path, ok := pathIn(string(groups), controller)
	switch top := mounts[controller]; {
	case ok && path == "/" && version == 1: // where the kernel puts what has ended, until somebody waits for it
		return group{}, fmt.Errorf("process %d has ended, or has no control group of its own", pid)
	case ok && path != "/" && top != "":
		return group{version: version, dirs: []string{filepath.Join(top, path)}}, nil
	}
	return group{version: version}, nil
}

// pathIn returns the path of a process's group below the mount of a controller of version 1, or of version 2,
// which is "".
func pathIn(groups, controller string) (string, bool) {
	for line := range strings.Lines(groups) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		for c := range strings.SplitSeq(controllers, ",") {
			if c == controller {
				return path, true
			}
		}
	}
	return "", false
}

// memoryUnified reads a group of version 2.
func memoryUnified(dir string) (n guest.MemoryCount, known bool) {
	events, err := readRaw(filepath.Join(dir, "memory.events"))
	if err != nil {
		return n, false
	}
	var ok bool
	if n.Ended, ok = counted(events, "oom_kill"); !ok {
		return n, false
	}
	if n.Refused, _ = counted(events, "oom"); n.Ended == 0 {
		return n, true
	}
	n.Limit, known = number(dir, "memory.max")
	return n, known
}

// memoryOne reads a group of version 1. Kernels before 4.13 do not count what they end. How often the limit
// failed a program (memory.failcnt) is no longer counted by those of today.
func memoryOne(dir string) (n guest.MemoryCount, known bool) {
	control, err := readRaw(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return n, false
	}
	var ok bool
	if n.Ended, ok = counted(control, "oom_kill"); !ok {
		return n, false
	}
	if n.Refused = -1; n.Ended == 0 {
		return n, true
	}
	if n.Peak, ok = number(dir, "memory.max_usage_in_bytes"); !ok {
		return n, false
	}
	n.Limit, known = number(dir, "memory.limit_in_bytes")
	return n, known
}

// counted returns what a file of names and numbers says of a name.
func counted(file []byte, name string) (int64, bool) {
	for line := range strings.Lines(string(file)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// number reads a file that holds one. "max", no limit, is none.
func number(dir, file string) (int64, bool) {
	b, err := readRaw(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

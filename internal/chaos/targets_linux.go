package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// machines returns the first process of every living sandbox below dir, as the native provider's state files
// name them. A pid whose start time differs belongs to somebody else by now and is left alone.
func machines(dir string) ([]int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "state.json"))
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	var pids []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // removed meanwhile
		}
		var s struct {
			Pid   int    `json:"pid"`
			Start uint64 `json:"start"`
		}
		if json.Unmarshal(b, &s) == nil && s.Pid > 1 {
			if _, start, ok := procStat(s.Pid); ok && start == s.Start {
				pids = append(pids, s.Pid)
			}
		}
	}
	return pids, nil
}

// descendants returns every process below pid, deepest last.
func descendants(pid int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if p, err := strconv.Atoi(e.Name()); err == nil {
			if parent, _, ok := procStat(p); ok {
				children[parent] = append(children[parent], p)
			}
		}
	}
	var out []int
	for queue := children[pid]; len(queue) > 0; queue = queue[1:] {
		out = append(out, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return out
}

// procStat returns a process's parent and its start time in clock ticks since boot (fields 4 and 22 of proc(5) stat).
func procStat(pid int) (parent int, start uint64, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	_, rest, found := strings.Cut(string(b), ") ")
	for found && strings.Contains(rest, ") ") { // the name may hold anything
		_, rest, _ = strings.Cut(rest, ") ")
	}
	f := strings.Fields(rest)
	if len(f) < 20 {
		return 0, 0, false
	}
	parent, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	return parent, start, err1 == nil && err2 == nil
}

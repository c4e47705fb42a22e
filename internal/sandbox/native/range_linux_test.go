package native

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Broken if a thread that acted for a sandbox goes on with another identity than the server's, or with fewer
// capabilities: whoever comes to be run by it makes files that are not the server's, or fails.
func TestAsRange(t *testing.T) {
	NeedRoot(t)
	const uid = 1
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	identities := func() map[string]int {
		t.Helper()
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, task := range tasks {
			data, err := os.ReadFile(filepath.Join("/proc/self/task", task.Name(), "status"))
			if os.IsNotExist(err) {
				continue // it ended
			}
			if err != nil {
				t.Fatal(err)
			}
			var who []string
			for line := range strings.Lines(string(data)) {
				if name, _, _ := strings.Cut(line, ":"); name == "Uid" || name == "Gid" || name == "CapEff" ||
					name == "CapPrm" {
					who = append(who, strings.Join(strings.Fields(line), " "))
				}
			}
			seen[strings.Join(who, ", ")]++
		}
		return seen
	}
	before := identities()
	if len(before) != 1 {
		t.Fatalf("the control: threads are %v", before)
	}
	for range 8 {
		file := filepath.Join(dir, "made")
		if err := asRange(uid, func() error { return os.WriteFile(file, nil, 0o600) }); err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		if err := syscall.Stat(file, &st); err != nil || st.Uid != uid || st.Gid != uid {
			t.Errorf("it made a file of %d:%d, %v", st.Uid, st.Gid, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		now := identities()
		for who := range now {
			if before[who] == 0 {
				t.Errorf("afterwards a thread is %s", who)
			}
		}
	}
}

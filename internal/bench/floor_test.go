//go:build linux

package bench

import "testing"

// Floors that do not run would make every ratio meaningless.
func TestFloors(t *testing.T) {
	dir := t.TempDir()
	for name, probe := range map[string]func(string, int) (int, error){
		"fdatasync": func(d string, n int) (int, error) { s, err := SyncFloor(d, n); return len(s), err },
		"spawn":     func(d string, n int) (int, error) { s, err := SpawnFloor(d, n); return len(s), err },
	} {
		if n, err := probe(dir, 5); err != nil || n != 5 {
			t.Errorf("%s floor: %d samples, %v", name, n, err)
		}
	}
}

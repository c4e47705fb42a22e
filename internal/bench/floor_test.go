//go:build linux

package bench

import "testing"

// A floor without a C compiler must still be a program that runs.
func TestExitProgram(t *testing.T) {
	t.Setenv("PATH", "")
	if s, kind, err := SpawnFloor(t.TempDir(), 3); err != nil || len(s) != 3 || kind[0] != 'o' {
		t.Errorf("%d samples of %q, %v", len(s), kind, err)
	}
}

// Floors that do not run would make every ratio meaningless.
func TestFloors(t *testing.T) {
	dir := t.TempDir()
	for name, probe := range map[string]func(string, int) (int, error){
		"fdatasync": func(d string, n int) (int, error) { s, err := SyncFloor(d, n); return len(s), err },
		"spawn":     func(d string, n int) (int, error) { s, _, err := SpawnFloor(d, n); return len(s), err },
	} {
		if n, err := probe(dir, 5); err != nil || n != 5 {
			t.Errorf("%s floor: %d samples, %v", name, n, err)
		}
	}
}

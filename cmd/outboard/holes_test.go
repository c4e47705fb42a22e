package main

import (
	"slices"
	"testing"
)

// Fails if doctor calls a version with published holes good, or one without them bad.
func TestHolesOf(t *testing.T) {
	for _, c := range []struct {
		program, version string
		holes            int
		fix              string
	}{
		{"runc", "1.1.11", 4, "1.4.0"},
		{"runc", "1.1.5+ds1", 4, "1.4.0"},
		{"runc", "1.1.12", 3, "1.4.0"},
		{"runc", "1.2.7", 3, "1.4.0"},
		{"runc", "1.4.0-rc.1", 3, "1.4.0"},
		{"runc", "1.2.8", 0, ""},
		{"runc", "1.3.3", 0, ""},
		{"runc", "1.4.0", 0, ""},
		{"runc", "1.5.1", 0, ""},
		{"crun", "1.8.1", 1, "1.20"},
		{"crun", "1.20", 0, ""},
		{"crun", "1.24.2", 0, ""},
		{"runsc", "release-20240212.0", 1, "20250401"},
		{"runsc", "v0.0.0-20260905035102-160fafc42237", 0, ""},
		{"runsc", "VERSION_MISSING", 0, ""},
		{"docker", "20.10.24+dfsg1", 1, "27.1.1"},
		{"docker", "26.1.5", 0, ""},
		{"docker", "28.2.2", 0, ""},
		{"kernel", "6.1.75", 1, "6.7.3"},
		{"kernel", "6.2.0-39-generic", 1, "6.7.3"},
		{"kernel", "6.1.76", 0, ""},
		{"kernel", "6.18.44-fc-v669", 0, ""},
		{"unheard-of", "0.1", 0, ""},
	} {
		if ids, fix := holesOf(c.program, c.version); len(ids) != c.holes || fix != c.fix {
			t.Errorf("%s %s: %v, fixed in %q; want %d, %q", c.program, c.version, ids, fix, c.holes, c.fix)
		}
	}
	for program, holes := range knownHoles {
		for _, h := range holes {
			if !slices.IsSortedFunc(h.fixed, func(a, b string) int {
				x, _ := versionOf(a)
				y, _ := versionOf(b)
				return slices.Compare(x, y)
			}) {
				t.Errorf("%s %s: its fixed versions are not sorted", program, h.id)
			}
		}
	}
}

package main

import (
	"slices"
	"testing"

	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, outboard doctor says that a limit holds, or that sandboxes freeze, where it is not so, or keeps
// it to itself where it is.
func TestDoctorSaysWhatHolds(t *testing.T) {
	for _, c := range []struct {
		can          sandbox.Capabilities
		holds, lacks []string
	}{
		{sandbox.Capabilities{Limits: []string{"pids"}, Whole: []string{"memory"}, Freeze: true, SeparateID: true,
			Layers: true, Builds: true},
			[]string{"pids limit", "memory limit of the whole", "freezes", "tools have a uid of their own"},
			[]string{"a cpu limit", "a disk limit", "very deep directories"}},
		{sandbox.Capabilities{DeepTrees: true, Layers: true, Builds: true}, nil,
			[]string{"a memory limit", "a pids limit", "a cpu limit", "a disk limit", "freezing"}},
	} {
		if h, l := holds(c.can), lacks(c.can); !slices.Equal(h, c.holds) || !slices.Equal(l, c.lacks) {
			t.Errorf("%+v: holds %q, lacks %q", c.can, h, l)
		}
	}
}

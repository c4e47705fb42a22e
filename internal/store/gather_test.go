package store

import "testing"

// TestGroupWaitsForTheLastOneToo: a group takes those who waited while the last one was under way, and besides
// them the members of the last one that append again. Counting the former as the latter leaves the rest behind,
// and groups stay as small as they once were.
func TestGroupWaitsForTheLastOneToo(t *testing.T) {
	for _, tt := range []struct {
		name                         string
		waiting, last, back, atATime int
		several                      bool
		group, yields                int
	}{
		{"all come back", 12, 20, 20, 2, true, 32, 10},
		{"none comes back", 12, 20, 0, 2, true, 12, 1},
		{"few come back", 12, 20, 4, 2, true, 16, 3},
		{"nobody waited", 1, 20, 20, 2, true, 21, 10},
		{"a single one", 1, 1, 1, 1, true, 1, 0},
		{"more than a group", maxGroup - 10, 200, 200, 100, true, maxGroup, 1},
		{"a lone writer", 12, 20, 20, 2, false, 20, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			queue := make(chan *pending, queueSize)
			for range tt.waiting - 1 {
				queue <- new(pending)
			}
			back, yields := tt.back, 0
			group := gather(queue, new(pending), tt.last, tt.several, func() {
				yields++
				for range min(back, tt.atATime) {
					back--
					queue <- new(pending)
				}
			})
			if len(group) != tt.group || yields != tt.yields {
				t.Errorf("a group of %d after yielding %d times, want %d after %d", len(group), yields, tt.group,
					tt.yields)
			}
		})
	}
}

package guest

import "testing"

// Broken if the limit on memory is blamed where the whole host ran out of it, or where nothing is known.
func TestMemorySince(t *testing.T) {
	before := MemoryCount{Ended: 1, Refused: 5, Limit: 100}
	for what, tt := range map[string]struct {
		now                       MemoryCount
		knownBefore, known, named bool
	}{
		"the limit ended a program":       {MemoryCount{2, 6, 0, 100}, true, true, true},
		"the host's want ended one":       {MemoryCount{2, 5, 0, 100}, true, true, false},
		"the limit was met and all lived": {MemoryCount{1, 9, 0, 100}, true, true, false},
		"nothing happened":                {before, true, true, false},
		"the group is gone":               {MemoryCount{2, 6, 0, 100}, true, false, false},
		"no count, and the limit met":     {MemoryCount{2, -1, 64 << 20, 64 << 20}, true, true, true},
		"no count, and far from it":       {MemoryCount{2, -1, 32 << 20, 64 << 20}, true, true, false},
		"it was not known before":         {MemoryCount{2, 6, 0, 100}, false, true, false},
	} {
		c := &Client{Memory: func() (MemoryCount, bool) { return tt.now, tt.known }}
		if got := c.since(before, tt.knownBefore); tt.named && got != tt.now.Limit || !tt.named && got != 0 {
			t.Errorf("%s: %d", what, got)
		}
	}
	if got := new(Client).since(before, true); got != 0 {
		t.Errorf("without a count: %d", got)
	}
}

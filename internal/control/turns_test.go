package control

import (
	"context"
	"testing"
)

// Fails if one organization has every turn, or if a turn is lost by who gave up waiting.
func TestTurns(t *testing.T) {
	turns := newTurns(2)
	leave, err := turns.enter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if _, err := turns.enter(over, "a"); err == nil {
			t.Fatal("one organization has both turns")
		}
	}
	other, err := turns.enter(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	leave()
	other()
	if leave, err = turns.enter(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	leave()
	if len(turns.of) != 0 || len(turns.all) != 0 {
		t.Errorf("left are %v and %d turns", turns.of, len(turns.all))
	}
}

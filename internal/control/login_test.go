package control

import (
	"testing"

	"github.com/outboard-dev/outboard"
)

// If this fails, anybody can make the server ask the identity provider without a bound.
func TestLoginPlaces(t *testing.T) {
	c := New(Config{})
	var all []func()
	for range maxExchanges {
		done, err := c.exchanging()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, done)
	}
	if _, err := c.exchanging(); outboard.KindOf(err) != outboard.Exhausted || err == nil {
		t.Fatalf("one too many: %v", err)
	}
	all[0]()
	if done, err := c.exchanging(); err != nil {
		t.Errorf("a place is free again: %v", err)
	} else {
		done()
	}
}

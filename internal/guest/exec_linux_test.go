package guest

import (
	"slices"
	"testing"
)

// If this fails, a program that is not a shell sees another value of a variable than the one it was given last, or loses one.
func TestLastOfEach(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{nil, []string{}},
		{[]string{"A=1", "B=2"}, []string{"A=1", "B=2"}}, // control: nothing twice
		{[]string{"A=1", "B=2", "A=3"}, []string{"B=2", "A=3"}},
		{[]string{"A=1", "A=2", "A="}, []string{"A="}},
		{[]string{"A=1", "AB=2", "a=3"}, []string{"A=1", "AB=2", "a=3"}},
		{[]string{"A=x=y", "A=z=w"}, []string{"A=z=w"}},
		{[]string{"A", "A=1"}, []string{"A=1"}},
	} {
		if got := lastOfEach(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

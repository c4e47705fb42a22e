//go:build linux

package fleet

import (
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// If this fails, a box that is to begin anew with its files goes on with the processes that were frozen, or it
// loses the files or what it is given to begin with; or its old machine stays.
func TestBoxBeginsWithoutItsMemory(t *testing.T) {
	r := newRig(t)
	r.provider = &freezer{Provider: r.provider}
	f := r.fleet()
	b := r.box(t, f)
	say(t, f, b.ID, false, "echo kept > ~/file")
	end := func(*outboard.Box) time.Time { return time.Now().Add(time.Minute) }
	for _, c := range []struct {
		what            string
		pauses, forgets bool // forgets: it is resumed without its memory
		same            bool // machine
	}{
		{"with its memory", true, false, true},
		{"running", false, true, true},
		{"without its memory", true, true, false},
	} {
		before, err := r.store.Box(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		if c.pauses {
			if _, err := f.PauseBox(t.Context(), tester, b.ID, false); err != nil {
				t.Fatal(err)
			}
		}
		after, resumed, err := f.ResumeBox(t.Context(), tester, b.ID, c.forgets, end)
		if err != nil || resumed != c.pauses || after.State != outboard.BoxRunning || after.Machine == "" {
			t.Fatalf("%s: %+v, %v, %v", c.what, after, resumed, err)
		}
		if (after.Machine == before.Machine) != c.same {
			t.Errorf("%s: its machine was %s and is %s", c.what, before.Machine, after.Machine)
		}
		if got := say(t, f, b.ID, false, "cat ~/file; echo $FROM"); got != "kept\nthe box\n" {
			t.Errorf("%s: it says %q", c.what, got)
		}
		if ids, err := r.provider.List(t.Context()); err != nil || len(ids) != 1 {
			t.Errorf("%s: there is %v, %v", c.what, ids, err)
		}
	}
}

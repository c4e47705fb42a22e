//go:build linux

package runner

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Broken if the sessions of one organization keep those of another from running, its own are not run once it has room
// again, or an organization that is alone has a part of the slots only.
func TestOrganizationsShareSlots(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, sc store.Config) {
		r := newRigOn(t, llm.Config{}, sc)
		gate := filepath.Join(t.TempDir(), "gate")
		hold := "- bash: until [ -e " + gate + " ]; do sleep .02; done"
		in := func(org outboard.OrgID, lines ...string) outboard.SessionID {
			r.org = org
			return r.steps(lines...)
		}
		running := func(id outboard.SessionID) {
			r.until(id, "a call that runs", func(s *outboard.State) bool {
				return slices.ContainsFunc(s.Calls,
					func(c *outboard.Call) bool { return c.Started != nil && c.Finished == nil })
			})
		}
		held := func(ids []outboard.SessionID) (n int) {
			for _, id := range ids {
				h, err := r.store.Session(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				if h.Worker != "" {
					n++
				}
			}
			return n
		}
		var many []outboard.SessionID
		if err := r.store.AddOrg(t.Context(), outboard.Organization{ID: "org_b", Name: "b",
			CreatedAt: r.now()}); err != nil {
			t.Fatal(err)
		}
		first := r.start(func(c *Config) { c.Slots = 4 })
		for range 6 {
			many = append(many, in("", hold))
		}
		r.rests(in("org_b", "- say: done"), "end_turn")
		if n := held(many); n != 1 {
			t.Errorf("%d sessions of an organization hold slots, its share is 1", n)
		}
		if _, err := r.store.ArchiveOrg(t.Context(), "org_b", r.now()); err != nil {
			t.Fatal(err)
		}
		for range 4 { // alone it has all: the positive control
			running(many[0])
			many = many[1:]
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, id := range many {
			r.rests(id, "end_turn")
		}
		first.Stop()
	})
}

// Broken if one that waits is passed over again and again where there is a single slot.
func TestOrganizationsTakeTurns(t *testing.T) {
	o := newOrgs(outboard.OrgShare(1, 0))
	if o.fair(false) != nil {
		t.Error("an organization that is alone is asked about")
	}
	rooms := o.fair(true)
	var order []outboard.OrgID
	for range 6 {
		next := rooms([]outboard.OrgID{"a", "b", "c"})[0].Org
		order = append(order, next)
		o.take(next)
		if got := rooms([]outboard.OrgID{next}); len(got) != 0 {
			t.Fatalf("%s has its share, and room for %v", next, got)
		}
		if o.reserve(next) {
			t.Fatalf("%s took more than its share", next)
		}
		if !o.give(next) {
			t.Errorf("a slot of %s's whole share came back, and nobody is woken", next)
		}
	}
	if want := []outboard.OrgID{"a", "b", "c", "a", "b", "c"}; !slices.Equal(order, want) {
		t.Errorf("served %v, want %v", order, want)
	}
}

package store_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// A list of what a long log hardly has must not read the log: what a client filters by, an operator pays for.
func TestRareEventsHaveAnIndex(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		for range 3 { // other sessions, so that one is not the whole table
			fill(t, s, newSession(t, s).ID, 1000)
		}
		id := newSession(t, s).ID
		fill(t, s, id, 1500)
		lost := mustAppend(t, s, id, outboard.NewEvent("", &outboard.SandboxLost{Reason: "x"}))[0]
		failed := mustAppend(t, s, id, outboard.NewEvent("", &outboard.ContextCompacted{Summary: "x"}))[0]
		fill(t, s, id, 1500)
		if _, err := s.Exec(t.Context(), "ANALYZE"); err != nil {
			t.Fatal(err)
		}

		types := func(ts ...outboard.EventType) []outboard.EventType { return ts }
		for name, c := range map[string]struct {
			types []outboard.EventType
			index string
			want  []int64
		}{
			"one": {types(outboard.TypeSandboxLost), "events_rare", []int64{lost.Seq}},
			"two": {types(outboard.TypeContextCompacted, outboard.TypeSandboxLost), "events_rare",
				[]int64{lost.Seq, failed.Seq}},
			"none":     {types(outboard.TypeTurnFailed), "events_rare", nil},
			"inputs":   {types(outboard.TypeInputInterrupt), "events_inputs", nil},
			"first":    {types(outboard.TypeSessionCreated), "events_rare", []int64{1}},
			"of both":  {types(outboard.TypeInputInterrupt, outboard.TypeSandboxLost), "", []int64{lost.Seq}},
			"frequent": {types(outboard.TypeTurnEnded), "", nil},
		} {
			for _, desc := range []bool{false, true} {
				q := store.EventQuery{Types: c.types, Desc: desc}
				plan, err := s.PlanOf(t.Context(), id, q)
				if err != nil {
					t.Fatal(err)
				}
				if c.index != "" && (!strings.Contains(plan, c.index) ||
					strings.Contains(strings.ToLower(plan), "sort")) ||
					c.index == "" && (strings.Contains(plan, "events_rare") ||
						strings.Contains(plan, "events_inputs")) {
					t.Errorf("%s, desc %v: want index %q:\n%s", name, desc, c.index, plan)
				}
				got, err := s.Events(t.Context(), id, q)
				var seqs []int64
				for _, e := range got {
					seqs = append(seqs, e.Seq)
				}
				if desc {
					slices.Reverse(seqs)
				}
				if err != nil || !slices.Equal(seqs, c.want) {
					t.Errorf("%s, desc %v: %v, %v, want %v", name, desc, seqs, err, c.want)
				}
			}
		}
	})
}

// fill appends ordinary events, none of which the indexes of a few types may hold.
func fill(t *testing.T, s *store.Store, id outboard.SessionID, n int) {
	t.Helper()
	for n > 0 {
		batch := make([]outboard.Event, min(n, outboard.MaxAppend))
		for i := range batch {
			batch[i] = said("x")
		}
		mustAppend(t, s, id, batch...)
		n -= len(batch)
	}
}

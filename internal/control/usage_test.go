package control_test

import (
	"math/rand/v2"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// sums are what UsageAt is asked for.
type sums struct {
	usage  outboard.Usage
	active int64
	phase  bool // running
}

func sumsOf(h outboard.Header) sums {
	return sums{h.Usage, int64(h.Active), h.Phase == outboard.PhaseRunning}
}

// sumsAt are the sums after each event of a log, by its position.
func sumsAt(t *testing.T, st *store.Store, id outboard.SessionID) []sums {
	t.Helper()
	var h outboard.Header
	out := []sums{{}}
	for e, err := range st.Read(t.Context(), id, 0) {
		if err == nil {
			err = outboard.Project(&h, &e)
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, sumsOf(h))
	}
	return out
}

// If this fails, a list of a session's events says that a turn came to something else than it did, depending on
// what was asked before.
func TestUsageAtAnyPositionInAnyOrder(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	long(t, c, st, s, 400)
	add := func(ps ...outboard.Payload) {
		t.Helper()
		var events []outboard.Event
		for _, p := range ps {
			events = append(events, outboard.NewEvent("", p))
		}
		if _, err := st.Append(t.Context(), s.ID, 0, store.Any, events...); err != nil {
			t.Fatal(err)
		}
	}
	add(&outboard.CallJudged{Usage: outboard.Usage{Output: 3}}, &outboard.TurnRetrying{Turn: 401},
		&outboard.TurnResumed{Turn: 401},
		&outboard.ModelFailed{Usage: outboard.Usage{Input: 7}}, &outboard.TurnEnded{Turn: 401,
			Stop: outboard.StopReason{Type: "requires_action"}},
		&outboard.TurnResumed{Turn: 401}, &outboard.ContextCompacted{Usage: outboard.Usage{Output: 9}},
		&outboard.TurnEnded{Turn: 401, Stop: outboard.StopReason{Type: "end_turn"}})
	made, _, err := c.Fork(t.Context(), admin, s.ID, control.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f := control.Session{Header: made[0].Header}
	long(t, c, st, f, 50)
	for _, id := range []outboard.SessionID{s.ID, f.ID} {
		want := sumsAt(t, st, id)
		head := int64(len(want) - 1)
		check := func(seq int64) {
			t.Helper()
			h, err := c.UsageAt(t.Context(), id, seq)
			if got := sumsOf(h); err != nil || got != want[seq] {
				t.Fatalf("at %d of %d: %+v, want %+v (%v)", seq, head, got, want[seq], err)
			}
		}
		for seq := head; seq > head-300; seq-- {
			check(seq)
		}
		for range 200 {
			check(1 + rand.Int64N(head))
		}
	}
}

// If this fails, each entry of a list of a long session's events, newest first, costs a pass over the log.
func TestUsageBackwardsIsOnePass(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	h := long(t, c, st, s, 3000)
	ends, err := st.Events(t.Context(), s.ID, store.EventQuery{Types: []outboard.EventType{outboard.TypeTurnEnded},
		Desc: true, Limit: 3000})
	if err != nil || len(ends) != 3000 {
		t.Fatalf("%d turns, %v", len(ends), err)
	}
	rows := func(ends []outboard.Event) int64 {
		t.Helper()
		began := st.EventsRead()
		for i := range ends {
			if _, err := c.UsageAt(t.Context(), s.ID, ends[i].Seq); err != nil {
				t.Fatal(err)
			}
		}
		return st.EventsRead() - began
	}
	if n := rows(ends[:25]); n > 25*10 {
		t.Errorf("the newest 25 turns of %d events took %d rows", h.Head, n)
	}
	if n := rows(ends[25:]); n > 2*h.Head {
		t.Errorf("all turns of %d events took %d rows, newest first", h.Head, n)
	}
	if n := rows(ends[1500:1501]); n < 1000 { // positive control: far from what is known
		t.Errorf("a turn in the middle took %d rows: this counts something else", n)
	}
}

package store_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// The store must behave like the few lines of machine below, whatever the order of appends, claims, releases,
// expiries and deletions, and from whichever of two processes they come.
func TestAgainstModel(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		stores := []*store.Store{storetest.Open(t, cfg), storetest.Open(t, cfg)}
		rapid.Check(t, func(rt *rapid.T) {
			m := &machine{clock: c, stores: stores, tb: t, leases: map[outboard.WorkerID]time.Time{},
				sessions: map[outboard.SessionID]*modelled{}}
			rt.Repeat(rapid.StateMachineActions(m))
			for _, s := range m.sessions {
				m.compare(rt, s)
			}
			for id := range m.sessions { // leave nothing for the next run to claim
				if err := stores[0].DeleteSession(t.Context(), id); err != nil {
					rt.Fatal(err)
				}
			}
		})
	})
}

// machine is the model: headers that are advanced by outboard.Project alone, and leases that end by the clock.
type machine struct {
	*clock
	tb       testing.TB
	stores   []*store.Store
	leases   map[outboard.WorkerID]time.Time
	sessions map[outboard.SessionID]*modelled
	order    []outboard.SessionID
	steps    int
}

type modelled struct {
	outboard.Header
	waiting []outboard.Event
	stale   int64 // an epoch that was lost, or 0
}

func (m *machine) store(t *rapid.T) *store.Store { return rapid.SampledFrom(m.stores).Draw(t, "store") }

func (m *machine) pick(t *rapid.T) *modelled {
	if len(m.order) == 0 {
		t.Skip("no session")
	}
	return m.sessions[rapid.SampledFrom(m.order).Draw(t, "session")]
}

// Create makes a session.
func (m *machine) Create(t *rapid.T) {
	h := blank()
	h.CreatedAt = m.at
	got, err := m.store(t).CreateSession(m.tb.Context(), h, outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{}))
	if err != nil {
		t.Fatal(err)
	}
	m.sessions[h.ID] = &modelled{Header: got}
	m.order = append(m.order, h.ID)
}

// Append appends events of a random kind, with a right, stale or no epoch, at a right, wrong or any head.
func (m *machine) Append(t *rapid.T) {
	s := m.pick(t)
	c := store.Commit{Session: s.ID, Expect: rapid.SampledFrom([]int64{store.Any, s.Head, s.Head - 1}).
		Draw(t, "expect"),
		Epoch:   rapid.SampledFrom([]int64{0, s.Epoch, s.stale}).Draw(t, "epoch"),
		Release: rapid.Bool().Draw(t, "release")}
	for range rapid.IntRange(0, 3).Draw(t, "events") {
		c.Events = append(c.Events, m.event(t, s))
	}
	got, err := m.store(t).Commit(m.tb.Context(), c)
	if want := m.refusal(s, &c); want != nil || err != nil {
		if !errors.Is(err, want) {
			t.Fatalf("commit: got %v, want %v", err, want)
		}
		return
	}
	if len(got) != len(c.Events) {
		t.Fatalf("%d events came back of %d", len(got), len(c.Events))
	}
	for i, e := range got {
		if e.Seq != s.Head+1 || e.ID != c.Events[i].ID || e.Time.Sub(s.LastAt) < outboard.EventSpacing ||
			e.Time.Before(m.at) {
			t.Fatalf("event %+v came after %d at %v", e, s.Head, s.LastAt)
		}
		if err := outboard.Project(&s.Header, &e); err != nil {
			t.Fatal(err)
		}
		if e.Type.IsInput() {
			s.waiting = append(s.waiting, e)
		}
		s.waiting = slices.DeleteFunc(s.waiting, func(in outboard.Event) bool {
			return e.Type == outboard.TypeInputProcessed && in.ID == e.Ref
		})
	}
	if c.Release && c.Epoch != 0 {
		s.Worker = ""
	}
}

// refusal is the error a commit should get.
func (m *machine) refusal(s *modelled, c *store.Commit) error {
	var done []outboard.EventID
	switch {
	case c.Epoch != 0 && c.Epoch != s.Epoch:
		return store.ErrFenced
	case s.Phase == outboard.PhaseTerminated && len(c.Events) > 0:
		return store.ErrTerminated
	case c.Expect != store.Any && c.Expect != s.Head:
		return store.ErrMoved
	}
	phase := s.Phase
	for _, e := range c.Events {
		if phase == outboard.PhaseTerminated {
			break
		}
		if e.Type == outboard.TypeInputProcessed {
			if slices.Contains(done, e.Ref) {
				return store.ErrDuplicate
			}
			done = append(done, e.Ref)
		}
	}
	return nil
}

func (m *machine) event(t *rapid.T, s *modelled) outboard.Event {
	kinds := []string{"message", "message", "said", "interrupt", "start", "end", "park", "retry"}
	if len(s.waiting) > 0 {
		kinds = append(kinds, "process", "process", "process")
	}
	if rapid.IntRange(0, 30).Draw(t, "archive") == 30 {
		return outboard.NewEvent("", &outboard.SessionArchived{})
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "message":
		return message("x")
	case "interrupt":
		return outboard.NewEvent("", &outboard.InputInterrupt{})
	case "start":
		return started(1)
	case "end":
		return ended(1, "end_turn")
	case "park":
		return ended(1, "requires_action")
	case "retry":
		return retrying(m.at.Add(time.Duration(rapid.IntRange(-5, 20).Draw(t, "delay")) * time.Second))
	case "process":
		return processed(rapid.SampledFrom(s.waiting).Draw(t, "input"))
	}
	return said("x")
}

// Claim takes some sessions: as many as there are to take, up to the limit, and none that is not to be taken.
func (m *machine) Claim(t *rapid.T) {
	w := m.worker(t)
	if w == "" {
		return
	}
	limit := rapid.IntRange(1, 3).Draw(t, "limit")
	could := 0
	for _, s := range m.sessions {
		if m.claimable(s) {
			could++
		}
	}
	got, err := m.store(t).Claim(m.tb.Context(), w, limit)
	if could > 0 && !m.leases[w].After(m.at) {
		if !errors.Is(err, store.ErrFenced) {
			t.Fatalf("a claim of a dead worker: %v, %v", got, err)
		}
		return
	}
	if err != nil && !errors.Is(err, store.ErrFenced) {
		t.Fatal(err)
	}
	if len(got) != min(could, limit) {
		t.Fatalf("claimed %d of %d, limit %d", len(got), could, limit)
	}
	for _, h := range got {
		s := m.sessions[h.ID]
		if s == nil || !m.claimable(s) {
			t.Fatalf("claimed %+v", h)
		}
		s.stale, s.Epoch, s.Worker = s.Epoch, s.Epoch+1, w
		if !reflect.DeepEqual(h, s.Header) {
			t.Fatalf("claimed\n %+v, want\n %+v", h, s.Header)
		}
	}
	m.reaped(err)
}

// reaped notes what a claim did besides: it freed the sessions of dead workers.
func (m *machine) reaped(err error) {
	for w, until := range m.leases {
		if err == nil && !until.After(m.at) {
			m.end(w)
		}
	}
}

func (m *machine) end(w outboard.WorkerID) {
	delete(m.leases, w)
	for _, s := range m.sessions {
		if s.Worker == w {
			s.Worker = ""
		}
	}
}

func (m *machine) claimable(s *modelled) bool {
	return s.Runnable(m.at) && (s.Worker == "" || !m.leases[s.Worker].After(m.at))
}

func (m *machine) worker(t *rapid.T) outboard.WorkerID {
	var ws []outboard.WorkerID
	for w := range m.leases {
		ws = append(ws, w)
	}
	if len(ws) == 0 || len(ws) < 3 && rapid.Bool().Draw(t, "new worker") {
		w := outboard.NewID[outboard.WorkerID](outboard.PrefixWorker)
		if err := m.store(t).Register(m.tb.Context(), w, "host"); err != nil {
			t.Fatal(err)
		}
		m.leases[w] = m.at.Add(outboard.LeaseTTL)
		return w
	}
	slices.Sort(ws)
	return rapid.SampledFrom(ws).Draw(t, "worker")
}

// Renew renews a lease, or learns that it is over.
func (m *machine) Renew(t *rapid.T) {
	w := m.worker(t)
	err := m.store(t).Renew(m.tb.Context(), w)
	if m.leases[w].After(m.at) {
		if err != nil {
			t.Fatal(err)
		}
		m.leases[w] = m.at.Add(outboard.LeaseTTL)
	} else if !errors.Is(err, store.ErrFenced) {
		t.Fatalf("a renewal too late: %v", err)
	}
}

// Release gives up one session.
func (m *machine) Release(t *rapid.T) {
	s := m.pick(t)
	epoch := rapid.SampledFrom([]int64{s.Epoch, s.stale}).Draw(t, "epoch")
	err := m.store(t).Release(m.tb.Context(), s.ID, epoch)
	if epoch != s.Epoch {
		if !errors.Is(err, store.ErrFenced) {
			t.Fatalf("a release too late: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Worker = ""
}

// Deregister ends a worker.
func (m *machine) Deregister(t *rapid.T) {
	w := m.worker(t)
	if err := m.store(t).Deregister(m.tb.Context(), w); err != nil {
		t.Fatal(err)
	}
	m.end(w)
}

// Delete removes a session.
func (m *machine) Delete(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "really") != 5 {
		return
	}
	s := m.pick(t)
	if err := m.store(t).DeleteSession(m.tb.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	delete(m.sessions, s.ID)
	m.order = slices.DeleteFunc(m.order, func(id outboard.SessionID) bool { return id == s.ID })
}

// Pass lets time pass, sometimes more than a lease.
func (m *machine) Pass(t *rapid.T) {
	m.advance(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
}

// Check compares one session with the model after every step, in turn; all are compared at the end.
func (m *machine) Check(t *rapid.T) {
	m.steps++
	if len(m.order) > 0 {
		m.compare(t, m.sessions[m.order[m.steps%len(m.order)]])
	}
}

func (m *machine) compare(t *rapid.T, want *modelled) {
	st := m.stores[m.steps%2]
	got, err := st.Session(m.tb.Context(), want.ID)
	if err != nil || !reflect.DeepEqual(got, want.Header) {
		t.Fatalf("session is\n %+v, %v, want\n %+v", got, err, want.Header)
	}
	ws, err := st.Waiting(m.tb.Context(), want.ID)
	if err != nil || len(ws) != len(want.waiting) {
		t.Fatalf("%d inputs wait, %v, want %d", len(ws), err, len(want.waiting))
	}
	for i := range ws {
		if ws[i].ID != want.waiting[i].ID {
			t.Fatalf("input %d is %s, want %s", i, ws[i].ID, want.waiting[i].ID)
		}
	}
}

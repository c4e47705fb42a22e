package store_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Of many workers in two processes that claim at the same time each session must go to exactly one.
func TestClaimRace(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		stores := []*store.Store{storetest.Open(t, cfg), storetest.Open(t, cfg)}
		const sessions = 60
		for range sessions {
			mustAppend(t, stores[0], newSession(t, stores[0]).ID, message("go"))
		}
		var mu sync.Mutex
		owner := map[outboard.SessionID]outboard.WorkerID{}
		var wg sync.WaitGroup
		for i := range 8 {
			s := stores[i%2]
			w := newWorker(t, s)
			wg.Go(func() {
				for {
					mu.Lock()
					rest := sessions - len(owner)
					mu.Unlock()
					if rest == 0 {
						return
					}
					hs, err := s.Claim(t.Context(), w, 3)
					if err != nil {
						t.Errorf("claim: %v", err)
						return
					}
					mu.Lock()
					for _, h := range hs {
						if owner[h.ID] != "" || h.Worker != w || h.Epoch != 1 {
							t.Errorf("%s got %+v, which %s holds", w, h, owner[h.ID])
						}
						owner[h.ID] = w
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for id, w := range owner {
			if h := mustSession(t, stores[0], id); h.Worker != w || h.Epoch != 1 {
				t.Errorf("%s is held by %s at epoch %d, not by %s", id, h.Worker, h.Epoch, w)
			}
		}
	})
}

// A silent worker must lose its sessions after LeaseTTL and not before, and a renewing one never.
func TestLeaseExpires(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		s := storetest.Open(t, cfg)
		var ids []outboard.SessionID
		for range 2 {
			ids = append(ids, newSession(t, s).ID)
			mustAppend(t, s, ids[len(ids)-1], message("go"))
		}
		silent, lively, heir := newWorker(t, s), newWorker(t, s), newWorker(t, s)
		for _, w := range []outboard.WorkerID{silent, lively} {
			if hs, err := s.Claim(t.Context(), w, 1); err != nil || len(hs) != 1 {
				t.Fatalf("claimed %v, %v", hs, err)
			}
		}
		c.advance(outboard.LeaseTTL - time.Second)
		for _, w := range []outboard.WorkerID{lively, heir} {
			if err := s.Renew(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
		if hs, err := s.Claim(t.Context(), heir, 9); err != nil || len(hs) != 0 {
			t.Fatalf("claimed %v before the lease ended, %v", hs, err)
		}
		c.advance(2 * time.Second)
		hs, err := s.Claim(t.Context(), heir, 9)
		if err != nil || len(hs) != 1 || hs[0].ID != ids[0] || hs[0].Epoch != 2 {
			t.Fatalf("claimed %+v, %v", hs, err)
		}
		mustBe(t, s.Renew(t.Context(), silent), store.ErrFenced)
		_, err = s.Claim(t.Context(), silent, 1)
		if mustAppend(t, s, newSession(t, s).ID, message("more")); err != nil {
			mustBe(t, err, store.ErrFenced)
		}
		_, err = s.Claim(t.Context(), silent, 1)
		mustBe(t, err, store.ErrFenced)
		if err := s.Renew(t.Context(), lively); err != nil {
			t.Fatalf("the lively worker: %v", err)
		}
		known, err := s.Workers(t.Context())
		if err != nil || len(known) != 2 || slices.ContainsFunc(known,
			func(w store.Worker) bool { return w.ID == silent || w.Host != "host" }) {
			t.Fatalf("workers: %v, %v", known, err)
		}
	})
}

// Only sessions that have something to do may be claimed, and all of those: timers when they are due, parked
// ones when they are answered, and all of a worker's when it says goodbye.
func TestRunnable(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		s := storetest.Open(t, cfg)
		w := newWorker(t, s)
		id := newSession(t, s).ID
		claim := func(want bool) {
			t.Helper()
			if err := s.Renew(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			hs, err := s.Claim(t.Context(), w, 9)
			if err != nil || (len(hs) == 1) != want {
				t.Fatalf("claimed %v, %v", hs, err)
			}
		}
		step := func(evs ...outboard.Event) {
			t.Helper()
			h := mustSession(t, s, id)
			if _, err := s.Commit(t.Context(), store.Commit{Session: id, Epoch: h.Epoch, Expect: h.Head, Events: evs,
				Release: true}); err != nil {
				t.Fatal(err)
			}
		}
		claim(false)
		in := message("go")
		mustAppend(t, s, id, in)
		claim(true)
		claim(false)
		step(started(1), processed(in), retrying(c.at.Add(10*time.Second)))
		mustAppend(t, s, id, message("later"))
		claim(false)
		c.advance(10 * time.Second)
		claim(true)
		step(ended(1, "requires_action"))
		claim(false)
		mustAppend(t, s, id, outboard.NewEvent("", &outboard.InputConfirmation{Call: "x"}))
		claim(true)
		if err := s.Release(t.Context(), id, mustSession(t, s, id).Epoch); err != nil {
			t.Fatal(err)
		}
		claim(true)
		if err := s.Deregister(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		w = newWorker(t, s)
		claim(true)
		step(outboard.NewEvent("", &outboard.SessionArchived{}))
		claim(false)
	})
}

// Who waits longest must be served first, else a busy session starves the rest.
func TestClaimIsFair(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		s := storetest.Open(t, cfg)
		w := newWorker(t, s)
		var want, got []outboard.SessionID
		for range 5 {
			id := newSession(t, s).ID
			want = append(want, id)
			c.advance(time.Millisecond)
			mustAppend(t, s, id, message("go"))
		}
		c.advance(time.Millisecond)
		mustAppend(t, s, want[0], message("more")) // does not lose its place
		for range want {
			hs, err := s.Claim(t.Context(), w, 1)
			if err != nil || len(hs) != 1 {
				t.Fatalf("claimed %v, %v", hs, err)
			}
			got = append(got, hs[0].ID)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("claimed in the order %v, want %v", got, want)
		}
	})
}

// A claimer must wake at once for a commit of its own process and, on Postgres, of another; and when a timer is due.
func TestWaitRunnable(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		w := newWorker(t, s)
		ctx := within(t)
		claimed := make(chan outboard.SessionID)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(ctx)
		wg.Go(func() {
			for ctx.Err() == nil {
				hs, err := s.Claim(ctx, w, 1)
				for _, h := range hs {
					claimed <- h.ID
				}
				if err == nil && len(hs) == 0 {
					err = s.WaitRunnable(ctx)
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("waiting: %v", err)
				}
			}
		})
		for _, by := range []*store.Store{s, other, s} {
			id := newSession(t, by).ID
			start := time.Now()
			mustAppend(t, by, id, message("go"))
			if got := <-claimed; got != id {
				t.Fatalf("claimed %s, want %s", got, id)
			}
			t.Logf("claimed after %v", time.Since(start))
		}
		cancel()
		wg.Wait()
	})
}

// A timer must fire when it is due, not at the next poll: a retry with a delay of milliseconds would take a second.
func TestTimerIsExact(t *testing.T) {
	cfg := storetest.SQLite(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, cfg)
		w := newWorker(t, s)
		id := newSession(t, s).ID
		at := time.Now().Add(300 * time.Millisecond)
		mustAppend(t, s, id, started(1), retrying(at))
		for {
			hs, err := s.Claim(t.Context(), w, 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(hs) == 1 {
				break
			}
			if err := s.WaitRunnable(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if late := time.Since(at); late < 0 || late > 50*time.Millisecond {
			t.Fatalf("claimed %v after the timer", late)
		}
	})
}

// Work that appears between a claim that found none and the wait for some must end that wait at once, not at the
// next poll.
func TestWorkBeforeWait(t *testing.T) {
	cfg := storetest.SQLite(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, cfg)
		mustAppend(t, s, newSession(t, s).ID, message("go"))
		start := time.Now()
		if err := s.WaitRunnable(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited >= outboard.PollFallback {
			t.Errorf("waited %v for work that was there", waited)
		}
		if err := s.WaitRunnable(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited < outboard.PollFallback {
			t.Errorf("the control, a wait for nothing, took %v", waited)
		}
	})
}

// waiting is a session of an organization that has something to do.
func waiting(t *testing.T, s *store.Store, org outboard.OrgID) outboard.SessionID {
	t.Helper()
	h := blank()
	h.Org = org
	h, err := s.CreateSession(t.Context(), h, outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{}))
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, s, h.ID, message("x"))
	return h.ID
}

// Broken if the sessions of one organization that wait keep those of another from being claimed, or a claim takes more
// of one than there is room for.
func TestClaimFair(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorker(t, s)
		for range 40 {
			waiting(t, s, "org_a")
		}
		late := waiting(t, s, "org_b")
		waiting(t, s, "org_c")
		if hs, err := s.Claim(t.Context(), w, 1); err != nil || len(hs) != 1 || hs[0].Org != "org_a" {
			t.Fatalf("positive control: the oldest is not the first organization's: %v, %v", hs, err)
		}
		var asked []outboard.OrgID
		rooms := func(orgs []outboard.OrgID) []store.Room {
			asked = slices.Clone(orgs)
			return []store.Room{{Org: "org_b", Sessions: 5}, {Org: "org_a", Sessions: 3}}
		}
		hs, err := s.ClaimFair(t.Context(), w, 9, rooms)
		if err != nil || len(hs) != 4 || hs[0].ID != late || hs[0].Worker != w || hs[0].Epoch != 1 ||
			hs[3].Org != "org_a" {
			t.Errorf("claimed %+v, %v", hs, err)
		}
		if slices.Sort(asked); !slices.Equal(asked, []outboard.OrgID{"org_a", "org_b", "org_c"}) {
			t.Errorf("asked about %v", asked)
		}
		if hs, err := s.ClaimFair(t.Context(), w, 2, rooms); err != nil || len(hs) != 2 || hs[1].Org != "org_a" {
			t.Errorf("claimed %+v, %v, limit 2", hs, err)
		}
		if plan, err := s.PlanOfReadyOrgs(t.Context()); err != nil || strings.Contains(plan, "USE TEMP B-TREE") ||
			strings.Contains(plan, "SCAN sessions") && !strings.Contains(plan, "sessions_ready_org") {
			t.Errorf("the claim looks at every session that waits: %v\n%s", err, plan)
		}
		none := func([]outboard.OrgID) []store.Room { return nil }
		before := s.Commits()
		if hs, err := s.ClaimFair(t.Context(), w, 9, none); err != nil || len(hs) != 0 || s.Commits() != before {
			t.Errorf("without room: %v, %v, %d commits", hs, err, s.Commits()-before)
		}
	})
}

package store_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If this fails, model calls at the same time reserve more of a budget than there is, or a reservation is lost
// or counted twice.
func TestBudgetRace(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		b, err := s.PutBudget(t.Context(), outboard.Budget{Scope: outboard.BudgetOwner, Target: "key_1",
			Limit: outboard.Spend{Cost: 1000, Steps: 64}})
		if err != nil {
			t.Fatal(err)
		}
		const callers, each = 64, 100
		ids := make([]outboard.SessionID, callers)
		for i := range ids {
			ids[i] = newSession(t, s).ID
		}
		got := make([]store.Reservation, callers)
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				over, err := s.BudgetsOver(t.Context(), ids[i], "agent_1", outboard.Owner{Key: "key_1"})
				if err == nil && len(over) != 1 {
					err = fmt.Errorf("%d budgets", len(over))
				}
				if err == nil {
					want := outboard.Spend{Cost: each, Steps: 1}
					got[i], err = s.Reserve(t.Context(), ids[i], 0, over, outboard.Spend{}, want, want)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		var winners []outboard.SessionID
		for i, r := range got {
			if len(r.Over) > 0 {
				t.Errorf("nothing is spent, and %d is told that it is used up", i)
			}
			if !r.Wait {
				winners = append(winners, ids[i])
			}
		}
		b, err = s.Budget(t.Context(), b.ID)
		if err != nil || len(winners) != 10 || b.Held.Cost != 1000 || b.Held.Steps != 10 {
			t.Fatalf("%d reserved, held %+v, %v", len(winners), b.Held, err)
		}
		for i, id := range winners { // settled with the outcome; the last one is never heard of
			var err error
			if i == len(winners)-1 {
				err = s.SettleUnknown(t.Context(), id)
			} else {
				_, err = s.Commit(t.Context(), store.Commit{Session: id, Expect: store.Any,
					Events: []outboard.Event{said("x")},
					Charge: &store.Charge{Budgets: []outboard.BudgetID{b.ID}, Spend: outboard.Spend{Cost: 50, Steps: 1},
						Settle: true}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		b, err = s.Budget(t.Context(), b.ID)
		if want := outboard.Cost(9*50 + each); err != nil || b.Spent.Cost != want || b.Held != (outboard.Spend{}) ||
			b.Spent.Steps != 10 {
			t.Errorf("settled: %+v, held %+v, %v; want %d", b.Spent, b.Held, err, want)
		}
	})
}

// If this fails, a fork spends what its parent may not, or another agent's budget stops a session.
func TestBudgetsOver(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		parent := newSession(t, s)
		fork, other := blank(), newSession(t, s)
		e := outboard.NewEvent(fork.Thread, &outboard.SessionForked{Parent: parent.ID, Seq: 1})
		if _, err := s.Fork(t.Context(), parent.ID, 1,
			[]store.Fork{{Header: fork, Events: []outboard.Event{e}}}); err != nil {
			t.Fatal(err)
		}
		for _, b := range []outboard.Budget{{Scope: outboard.BudgetSession, Target: string(parent.ID)},
			{Scope: outboard.BudgetAgent, Target: "agent_1"},
			{Scope: outboard.BudgetOwner, Target: "key_1"}, {Scope: outboard.BudgetOwner, Target: "user_1"}} {
			b.Limit.Tokens = 10
			if _, err := s.PutBudget(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			id    outboard.SessionID
			agent outboard.AgentID
			owner outboard.Owner
			want  int
		}{{parent.ID, "", outboard.Owner{}, 1}, {fork.ID, "", outboard.Owner{}, 1}, {other.ID, "", outboard.Owner{},
			0}, {other.ID, "agent_1", outboard.Owner{Key: "key_2"}, 1},
			{fork.ID, "agent_1", outboard.Owner{Key: "key_1"}, 3}, {other.ID, "",
				outboard.Owner{Key: "key_2", User: "user_1"}, 1},
			{other.ID, "", outboard.Owner{Key: "key_1", User: "user_1"}, 2}} {
			if list, err := s.BudgetsOver(t.Context(), c.id, c.agent, c.owner); err != nil || len(list) != c.want {
				t.Errorf("%+v: %d budgets, %v", c, len(list), err)
			}
		}
		over, _ := s.BudgetsOver(t.Context(), fork.ID, "", outboard.Owner{})
		want := outboard.Spend{Tokens: 8}
		if r, err := s.Reserve(t.Context(), fork.ID, 0, over, outboard.Spend{}, want, want); err != nil || r.Wait ||
			len(r.Over) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if r, err := s.Reserve(t.Context(), fork.ID, 0, over, outboard.Spend{}, want, want); err != nil || r.Wait {
			t.Errorf("a second try of the same call: %+v, %v", r, err)
		}
		if r, err := s.Reserve(t.Context(), parent.ID, 0, over, outboard.Spend{}, want, want); err != nil || !r.Wait {
			t.Errorf("beside the fork's: %+v, %v", r, err)
		}
		if err := s.DeleteBudget(t.Context(), over[0].ID); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Reserve(t.Context(), parent.ID, 0, over, outboard.Spend{}, want, want); err != nil || r.Wait ||
			len(r.Over) > 0 {
			t.Errorf("with the budget gone: %+v, %v", r, err)
		}
	})
}

// If this fails, a process that has seen no budget lets model calls be made that a budget set since would have refused.
func TestFirstBudgetIsSeen(t *testing.T) {
	cfg := store.Config{Path: filepath.Join(t.TempDir(), "first.db")}
	here, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
	id := newSession(t, here).ID
	over := func(s *store.Store) int {
		t.Helper()
		list, err := s.BudgetsOver(t.Context(), id, "agent_1", outboard.Owner{Key: "key_1"})
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n, m := over(here), over(other); n+m != 0 {
		t.Fatalf("control: %d and %d budgets before any was set", n, m)
	}
	b, err := here.PutBudget(t.Context(), outboard.Budget{Scope: outboard.BudgetOwner, Target: "key_1",
		Limit: outboard.Spend{Steps: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if n := over(here); n != 1 {
		t.Errorf("the process that set it sees %d", n)
	}
	for end := time.Now().Add(10 * time.Second); over(other) != 1; {
		if time.Now().After(end) {
			t.Fatal("another process never sees it")
		}
	}
	if err := here.DeleteBudget(t.Context(), b.ID); err != nil || over(here) != 0 {
		t.Errorf("removed, there are %d, %v", over(here), err)
	}
}

// reserving is a session with a budget over it, held by a worker at epoch.
func reserving(t *testing.T, s *store.Store) (id outboard.SessionID, over []outboard.Budget, epoch int64) {
	t.Helper()
	id = newSession(t, s).ID
	mustAppend(t, s, id, message("go"))
	b, err := s.PutBudget(t.Context(), outboard.Budget{Scope: outboard.BudgetSession, Target: string(id),
		Limit: outboard.Spend{Tokens: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	return id, []outboard.Budget{b}, claimed(t, s, id, newWorker(t, s))
}

// claimed makes a worker hold a session, and returns its epoch.
func claimed(t *testing.T, s *store.Store, id outboard.SessionID, w outboard.WorkerID) int64 {
	t.Helper()
	hs, err := s.Claim(t.Context(), w, 1)
	if err != nil || len(hs) != 1 || hs[0].ID != id {
		t.Fatalf("claimed %v, %v", hs, err)
	}
	return hs[0].Epoch
}

func held(t *testing.T, s *store.Store, over []outboard.Budget) int64 {
	t.Helper()
	b, err := s.Budget(t.Context(), over[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	return b.Held.Tokens
}

// If this fails, a runner that lost its session's lease replaces its successor's reservation, or leaves one
// where nobody will ever settle it.
func TestReserveIsFenced(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		id, over, first := reserving(t, s)
		reserve := func(epoch, tokens int64) error {
			want := outboard.Spend{Tokens: tokens}
			r, err := s.Reserve(t.Context(), id, epoch, over, outboard.Spend{}, want, want)
			if err == nil && (r.Wait || r.Held.Tokens != tokens) {
				t.Errorf("%d tokens at epoch %d: %+v", tokens, epoch, r)
			}
			return err
		}
		if err := reserve(first, 10); err != nil || held(t, s, over) != 10 {
			t.Fatalf("control: %d held, %v", held(t, s, over), err)
		}
		if err := s.Release(t.Context(), id, first); err != nil {
			t.Fatal(err)
		}
		second := claimed(t, s, id, newWorker(t, s))
		if err := reserve(second, 20); err != nil {
			t.Fatal(err)
		}
		mustBe(t, reserve(first, 30), store.ErrFenced)
		if n := held(t, s, over); n != 20 {
			t.Errorf("%d tokens are held, not those of who holds the lease", n)
		}
		mustAppend(t, s, id, outboard.NewEvent("", &outboard.SessionArchived{}))
		if err := s.SettleUnknown(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		mustBe(t, reserve(second, 40), store.ErrTerminated)
		if err := s.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		mustKind(t, reserve(second, 50), outboard.NotFound)
		if n := held(t, s, over); n != 0 {
			t.Errorf("%d tokens are held of a session that has ended", n)
		}
	})
}

// takenOver ends the lease of a session, by a worker that reserves for itself or by the end of the session, and
// returns what is to be held then. The test goes on where something fails: others are at work.
func takenOver(t *testing.T, s *store.Store, w outboard.WorkerID, id outboard.SessionID, over []outboard.Budget,
	claim bool) (want int64) {
	if claim {
		want = 7
		var hs []outboard.Header
		var err error
		for err == nil && len(hs) == 0 { // a claim leaves out what is just locked
			hs, err = s.Claim(t.Context(), w, 1)
		}
		if err == nil {
			spend := outboard.Spend{Tokens: want}
			_, err = s.Reserve(t.Context(), id, hs[0].Epoch, over, outboard.Spend{}, spend, spend)
		}
		if err != nil {
			t.Error(err)
		}
		return want
	}
	_, err := s.Append(t.Context(), id, 0, store.Any, outboard.NewEvent("", &outboard.SessionArchived{}))
	if err == nil {
		err = s.SettleUnknown(t.Context(), id)
	}
	if err != nil {
		t.Error(err)
	}
	return 0
}

// If this fails, there is a moment between the look at the lease and the reservation in which another process
// takes the session, or ends it.
func TestReserveAgainstATakeover(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		old, heir := storetest.Open(t, cfg), storetest.Open(t, cfg)
		w := newWorker(t, heir)
		for i := range 20 {
			id, over, epoch := reserving(t, old)
			if err := old.Release(t.Context(), id, epoch); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			var all sync.WaitGroup
			for n := range 4 {
				all.Go(func() {
					for {
						want := outboard.Spend{Tokens: int64(100 + n)}
						_, err := old.Reserve(t.Context(), id, epoch, over, outboard.Spend{}, want, want)
						if err != nil && !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrTerminated) {
							t.Error(err)
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				})
			}
			want := takenOver(t, heir, w, id, over, i%2 == 0)
			close(stop)
			all.Wait()
			if n := held(t, heir, over); n != want {
				t.Fatalf("round %d: %d tokens are held, want %d", i, n, want)
			}
		}
	})
}

package store_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If this fails, model calls at the same time reserve more of a budget than there is, or a reservation is lost or counted twice.
func TestBudgetRace(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		b, err := s.PutBudget(t.Context(), outboard.Budget{Scope: outboard.BudgetOwner, Target: "key_1", Limit: outboard.Spend{Cost: 1000, Steps: 64}})
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
					got[i], err = s.Reserve(t.Context(), ids[i], over, outboard.Spend{}, want, want)
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
				_, err = s.Commit(t.Context(), store.Commit{Session: id, Expect: store.Any, Events: []outboard.Event{said("x")},
					Charge: &store.Charge{Budgets: []outboard.BudgetID{b.ID}, Spend: outboard.Spend{Cost: 50, Steps: 1}, Settle: true}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		b, err = s.Budget(t.Context(), b.ID)
		if want := outboard.Cost(9*50 + each); err != nil || b.Spent.Cost != want || b.Held != (outboard.Spend{}) || b.Spent.Steps != 10 {
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
		if _, err := s.Fork(t.Context(), parent.ID, 1, []store.Fork{{Header: fork, Events: []outboard.Event{e}}}); err != nil {
			t.Fatal(err)
		}
		for _, b := range []outboard.Budget{{Scope: outboard.BudgetSession, Target: string(parent.ID)}, {Scope: outboard.BudgetAgent, Target: "agent_1"},
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
		}{{parent.ID, "", outboard.Owner{}, 1}, {fork.ID, "", outboard.Owner{}, 1}, {other.ID, "", outboard.Owner{}, 0}, {other.ID, "agent_1", outboard.Owner{Key: "key_2"}, 1},
			{fork.ID, "agent_1", outboard.Owner{Key: "key_1"}, 3}, {other.ID, "", outboard.Owner{Key: "key_2", User: "user_1"}, 1},
			{other.ID, "", outboard.Owner{Key: "key_1", User: "user_1"}, 2}} {
			if list, err := s.BudgetsOver(t.Context(), c.id, c.agent, c.owner); err != nil || len(list) != c.want {
				t.Errorf("%+v: %d budgets, %v", c, len(list), err)
			}
		}
		over, _ := s.BudgetsOver(t.Context(), fork.ID, "", outboard.Owner{})
		want := outboard.Spend{Tokens: 8}
		if r, err := s.Reserve(t.Context(), fork.ID, over, outboard.Spend{}, want, want); err != nil || r.Wait || len(r.Over) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if r, err := s.Reserve(t.Context(), fork.ID, over, outboard.Spend{}, want, want); err != nil || r.Wait {
			t.Errorf("a second try of the same call: %+v, %v", r, err)
		}
		if r, err := s.Reserve(t.Context(), parent.ID, over, outboard.Spend{}, want, want); err != nil || !r.Wait {
			t.Errorf("beside the fork's: %+v, %v", r, err)
		}
		if err := s.DeleteBudget(t.Context(), over[0].ID); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Reserve(t.Context(), parent.ID, over, outboard.Spend{}, want, want); err != nil || r.Wait || len(r.Over) > 0 {
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
	b, err := here.PutBudget(t.Context(), outboard.Budget{Scope: outboard.BudgetOwner, Target: "key_1", Limit: outboard.Spend{Steps: 1}})
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

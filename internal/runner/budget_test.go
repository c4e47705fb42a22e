//go:build linux

package runner

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// dear is a model whose output costs a tenth of a cent per token.
var dear = llm.Config{Prices: map[string]llm.Price{"script/steps": {Input: 1, Output: 1000_000_000}}}

// spender is a session with a money budget, and what it says costs about ten cents a step.
func (r *rig) spender(budget outboard.Cost, steps int) outboard.SessionID {
	r.t.Helper()
	id := r.sessionWith(outboard.SessionConfig{Agent: outboard.Agent{ID: "agent_1", Version: 1,
		Model: outboard.ModelConfig{ID: "script/steps"}, Tools: allTools},
		Env: outboard.EnvConfig{Kind: "cloud"}, Budget: budget})
	var lines []string
	for range steps {
		lines = append(lines, "- bash: 'true # "+strings.Repeat("x", 400)+"'")
	}
	r.say(id, append(lines, "- say: done")...)
	return id
}

func (r *rig) budget(id outboard.SessionID) outboard.Budget {
	r.t.Helper()
	b, err := r.store.Budget(r.t.Context(), outboard.BudgetOf(outboard.BudgetSession, string(id)))
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// raise sets a session's budget as control does.
func (r *rig) raise(id outboard.SessionID, limit outboard.Spend) {
	r.t.Helper()
	e := outboard.NewEvent("", &outboard.SessionUpdated{Budget: &limit.Cost, Funded: true})
	_, err := r.store.Commit(r.t.Context(), store.Commit{Session: id, Expect: store.Any, Events: []outboard.Event{e},
		Budget: &outboard.Budget{Scope: outboard.BudgetSession, Target: string(id), Limit: limit}})
	if err != nil {
		r.t.Fatal(err)
	}
}

// If this fails, a session spends more than its budget, stops while there is money, cannot go on when it is
// raised, or what it spent is not what its log says.
func TestMoneyBudgetHolds(t *testing.T) {
	r := newRig(t, dear)
	r.start(nil)
	id := r.spender(outboard.Dollar, 12)
	s := r.rests(id, outboard.StopBudget)
	b := r.budget(id)
	if b.Spent.Cost == 0 || b.Spent.Cost > outboard.Dollar || b.Spent.Cost < outboard.Dollar/2 ||
		b.Spent.Cost != s.Usage.Cost || b.Spent.Tokens != s.Usage.Tokens() {
		t.Errorf("spent %v of $1, and the log says %v", b.Spent, s.Usage)
	}
	if b.Held != (outboard.Spend{}) || b.Spent.Steps != int64(s.ModelCalls) || b.Spent.Running <= 0 ||
		b.Spent.Sandbox <= 0 {
		t.Errorf("at rest: %+v after %d model calls", b, s.ModelCalls)
	}
	calls := s.ModelCalls
	r.raise(id, outboard.Spend{Cost: 10 * outboard.Dollar})
	s = r.rests(id, "end_turn")
	if s.Turn != 1 || s.ModelCalls != 13 || calls >= 13 {
		t.Errorf("raised: turn %d made %d model calls, %d of them before", s.Turn, s.ModelCalls, calls)
	}
	if b = r.budget(id); b.Spent.Cost != s.Usage.Cost || b.Held != (outboard.Spend{}) {
		t.Errorf("in the end: %+v, and the log says %v", b, s.Usage)
	}
}

// If this fails, a session whose budget is raised by less than a model call takes asks for it without end, and
// holds a processor and its place among the runners for that.
func TestRaisedByTooLittle(t *testing.T) {
	r := newRig(t, dear)
	r.start(nil)
	id := r.spender(outboard.Dollar, 12)
	s := r.rests(id, outboard.StopBudget)
	for range 2 {
		r.raise(id, outboard.Spend{Cost: r.budget(id).Spent.Cost + 1})
		head, calls := s.Head, s.ModelCalls
		s = r.until(id, "rest again",
			func(s *outboard.State) bool { return s.Head > head+1 && s.Broke() && s.WakeAt.IsZero() })
		if s.ModelCalls != calls || s.Head != head+3 { // updated, resumed, ended
			t.Errorf("%d events and %d model calls after the raise", s.Head-head, s.ModelCalls-calls)
		}
	}
	r.raise(id, outboard.Spend{Cost: 10 * outboard.Dollar})
	r.rests(id, "end_turn")
}

// If this fails, one of the limits that are not money does not stop a session.
func TestOtherLimitsHold(t *testing.T) {
	for name, limit := range map[string]outboard.Spend{"tokens": {Tokens: 12_000}, "steps": {Steps: 3},
		"running": {Running: 1500 * time.Millisecond},
		"sandbox": {Sandbox: time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, llm.Config{}) // no price: only money needs one
			id := r.session("script/steps", allTools)
			r.raise(id, limit)
			r.start(nil)
			line := "- bash: 'true # " + strings.Repeat("x", 400) + "'"
			if limit.Running+limit.Sandbox > 0 {
				line = "- bash: sleep 1000" // is cut off
			}
			lines := slices.Repeat([]string{line}, 12)
			r.say(id, append(lines, "- say: done")...)
			s := r.rests(id, outboard.StopBudget)
			if s.ModelCalls > 11 {
				t.Errorf("stopped after %d model calls", s.ModelCalls)
			}
			if limit.Steps > 0 && s.ModelCalls != 3 {
				t.Errorf("3 steps were %d model calls", s.ModelCalls)
			}
			b := r.budget(id)
			if b.Short(outboard.Spend{Running: minTime, Sandbox: minTime}, false) == "" && limit.Tokens == 0 {
				t.Errorf("stopped with %+v of %+v spent", b.Spent, b.Limit)
			}
			if b.Limit.Tokens > 0 && b.Spent.Tokens > b.Limit.Tokens {
				t.Errorf("%d tokens of %d", b.Spent.Tokens, b.Limit.Tokens)
			}
			r.raise(id, outboard.Spend{Tokens: 1 << 40})
			r.until(id, "the same turn goes on", func(*outboard.State) bool {
				return slices.Contains(r.types(id), string(outboard.TypeTurnResumed))
			})
		})
	}
}

// If this fails, a process that dies between reserving and settling leaves money reserved for ever, or has it
// charged twice.
func TestReservationOfADeadProcess(t *testing.T) {
	r := newRig(t, dear)
	first := r.start(func(c *Config) { c.Grace = time.Millisecond })
	id := r.sessionWith(outboard.SessionConfig{Agent: outboard.Agent{ID: "agent_1", Version: 1,
		Model: outboard.ModelConfig{ID: "script/steps"}, Tools: allTools},
		Env: outboard.EnvConfig{Kind: "cloud"}, Budget: 10 * outboard.Dollar})
	r.say(id, "- sleep: 6s", "- say: done")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	first.Stop()
	if b := r.budget(id); b.Held.Cost <= 0 || b.Held.Steps != 1 || b.Spent.Cost != 0 {
		t.Fatalf("while nobody knows: %+v", b)
	}
	r.start(nil)
	s := r.rests(id, "end_turn")
	if b := r.budget(id); b.Held != (outboard.Spend{}) || b.Spent.Cost != s.Usage.Cost ||
		b.Spent.Steps != int64(s.ModelCalls) {
		t.Errorf("settled: %+v, and the log says %+v", b, s.Usage)
	}
}

// If this fails, what a dead process reserved is given back although the call may have been billed.
func TestReservationNobodySettles(t *testing.T) {
	r := newRig(t, dear)
	first := r.start(func(c *Config) { c.Grace = time.Millisecond })
	id := r.sessionWith(outboard.SessionConfig{Agent: outboard.Agent{ID: "agent_1", Version: 1,
		Model: outboard.ModelConfig{ID: "script/steps"}, Tools: allTools},
		Env: outboard.EnvConfig{Kind: "cloud"}, Budget: 10 * outboard.Dollar})
	r.say(id, "- sleep: 1h")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	first.Stop()
	held := r.budget(id).Held
	r.send(id, &outboard.InputInterrupt{})
	r.start(nil)
	r.rests(id, "end_turn")
	if b := r.budget(id); b.Held != (outboard.Spend{}) || b.Spent.Cost != held.Cost || held.Cost == 0 {
		t.Errorf("reserved %+v, settled as %+v", held, b)
	}
}

// If this fails, sessions spend while nobody can tell what was spent.
func TestLedgerUnreachable(t *testing.T) {
	cfg := storetest.SQLite(t)
	r := newRigOn(t, dear, cfg)
	id := r.spender(10*outboard.Dollar, 0)
	db, err := sql.Open("sqlite", cfg.Path+"?_pragma=busy_timeout(60000)") // the runner writes, too
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rename := func(from, to string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf("ALTER TABLE %s RENAME TO %s", from, to)); err != nil {
			t.Fatal(err)
		}
	}
	rename("budget_holds", "gone")
	tried := make(chan struct{}, 64)
	r.start(func(c *Config) {
		c.fault = func(point string) error {
			if point == "release" {
				select {
				case tried <- struct{}{}:
				default:
				}
			}
			return nil
		}
	})
	for range 2 {
		select {
		case <-tried:
		case <-time.After(patience):
			t.Fatal("the turn was not given up")
		}
	}
	if got := r.types(id); slices.Contains(got, string(outboard.TypeModelStarted)) {
		t.Errorf("a model call was made: %v", got)
	}
	rename("gone", "budget_holds")
	if s := r.rests(id, "end_turn"); s.Usage.Cost == 0 {
		t.Error("with the ledger back nothing is counted")
	}
}

// If this fails, judgements of one response spend more than the budget has, or one is made that nobody can
// count; what no budget pays for must ask a person.
func TestJudgementsArePaidFor(t *testing.T) {
	const verdict = `- do: [{call: {name: verdict, input: {verdict: allow, reason: fine}}}]`
	for name, c := range map[string]struct {
		price *llm.Price
		limit outboard.Spend
		asked int // of the ten calls at least
	}{
		"money":    {&llm.Price{Input: 1000_000_000, Output: 1}, outboard.Spend{Cost: 2 * outboard.Dollar}, 5},
		"tokens":   {nil, outboard.Spend{Tokens: 7000}, 2},
		"no price": {nil, outboard.Spend{Cost: 1000 * outboard.Dollar}, 10},
		"steps":    {nil, outboard.Spend{Steps: 1}, 0},
		"enough":   {&llm.Price{Input: 1000_000_000, Output: 1}, outboard.Spend{Cost: 100 * outboard.Dollar}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := llm.Config{Scripts: llm.Scripts{Inline: map[string]string{"judge": verdict}},
				Prices: map[string]llm.Price{"script/steps": {Input: 1, Output: 1}}}
			if c.price != nil {
				cfg.Prices["script/judge"] = *c.price
			}
			r := newRig(t, cfg)
			sets := slices.Clone(allTools)
			sets[0].Default.Policy = outboard.AutoPolicy
			id := r.session("script/steps", sets)
			r.raise(id, c.limit)
			r.start(func(cfg *Config) { cfg.Judge = "script/judge" })
			r.say(id, append([]string{"- parallel:"},
				slices.Repeat([]string{"    - bash: 'true # " + strings.Repeat("x", 400) + "'"}, 10)...)...)
			asked, judged := 0, outboard.Usage{}
			r.until(id, "all calls are decided", func(s *outboard.State) bool { return s.ModelCalls > 0 })
			for _, e := range r.events(id) {
				switch p, err := e.Decode(); p := p.(type) {
				case *outboard.CallRequested:
					if err == nil && p.Decision == outboard.Ask {
						asked++
					}
				case *outboard.CallJudged:
					judged = judged.Add(p.Usage)
				}
			}
			if asked < c.asked || c.asked == 0 && asked > 0 || c.asked < 10 && judged.Tokens() == 0 || c.asked == 10 &&
				judged.Tokens() > 0 {
				t.Errorf("%d calls ask, want at least %d; the judge used %+v", asked, c.asked, judged)
			}
			if b := r.budget(id); b.Limit.Cost > 0 && b.Spent.Cost > b.Limit.Cost || b.Limit.Tokens > 0 &&
				b.Spent.Tokens > b.Limit.Tokens {
				t.Errorf("spent %+v of %+v", b.Spent, b.Limit)
			}
		})
	}
}

// If this fails, a money budget over an owner counts a session at the speed fast, which has no list price, as if
// it cost what others do.
func TestFastHasNoPrice(t *testing.T) {
	r := newRig(t, dear)
	r.start(nil)
	owner := outboard.Owner{Key: "apikey_1"}
	if _, err := r.store.PutBudget(t.Context(), outboard.Budget{Scope: outboard.BudgetOwner, Target: string(owner.Key),
		Limit: outboard.Spend{Cost: 1000 * outboard.Dollar}}); err != nil {
		t.Fatal(err)
	}
	for speed, stop := range map[string]string{"fast": outboard.StopBudget, "standard": "end_turn"} {
		id := r.sessionWith(outboard.SessionConfig{Agent: outboard.Agent{ID: "agent_1", Version: 1, Tools: allTools,
			Model: outboard.ModelConfig{ID: "script/steps",
				Speed: speed}}, Env: outboard.EnvConfig{Kind: "cloud"}, Owner: owner})
		r.say(id, "- say: hi")
		s := r.until(id, "the turn ends",
			func(s *outboard.State) bool { return s.Phase == outboard.PhaseIdle && s.Stop != nil })
		if s.Stop.Type != stop || (s.ModelCalls == 0) != (stop == outboard.StopBudget) {
			t.Errorf("speed %s: %s after %d model calls", speed, s.Stop.Type, s.ModelCalls)
		}
	}
}

// If this fails, the running time of a turn that another process began is free when it is interrupted: what it
// waited for the model is lost.
func TestRunningTimeAfterARestart(t *testing.T) {
	models, asked := silent(t)
	r := newRig(t, models)
	id := r.session("p/m", allTools)
	r.raise(id, outboard.Spend{Running: time.Hour})
	first := r.start(func(cfg *Config) { cfg.Grace = time.Millisecond })
	r.say(id, "hello")
	<-asked
	first.Stop()
	r.start(nil)
	<-asked
	before := r.budget(id).Spent.Running
	const waited = 3 * time.Second
	r.advance(waited)
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	if got := r.budget(id).Spent.Running - before; got < waited || got > waited+patience {
		t.Errorf("%s of running time were charged, want at least %s", got, waited)
	}
}

package runner

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
)

const (
	// minOutput is the shortest response, in tokens, that a model call is made for: less is no answer.
	minOutput = 256
	// minTime is the shortest time that a step is begun for: what is cut off within it was for nothing.
	minTime = 100 * time.Millisecond
	// budgetPause is the wait before a budget that others have reserved is asked again: their calls take seconds.
	budgetPause = 200 * time.Millisecond
)

// account is what a turn knows about the budgets over its session.
type account struct {
	over    []outboard.Budget // as of the last look
	looked  bool
	held    outboard.Spend // reserved for the model call that is due or under way, by this turn
	called  bool           // this turn made the reservation
	unknown bool           // what was reserved was used for nobody knows what
	clocked time.Time      // up to when running time is charged; zero = up to the last event
	until   time.Time      // when the running time is used up; zero = never
	sandbox time.Duration  // time that calls may still take in a sandbox, where limited
	limited bool
}

// Budget implements harness.Turn.
func (t *turn) Budget(ctx context.Context, need func() harness.Need) (harness.Budget, error) {
	for {
		budget, wait, err := t.budgetOnce(ctx, need)
		if err != nil || !wait {
			return budget, err
		}
		if !sleep(ctx, budgetPause) {
			return harness.Budget{}, context.Cause(ctx)
		}
	}
}

// budgetOnce asks once. wait: others have reserved what is left.
func (t *turn) budgetOnce(ctx context.Context, ask func() harness.Need) (budget harness.Budget, wait bool, err error) {
	if err := t.alive(ctx); err != nil { // right before the model call
		return budget, false, err
	}
	if err := t.lookAtBudgets(ctx); err != nil || len(t.acct.over) == 0 {
		return budget, false, err
	}
	need := ask()
	var price *llm.Price
	if m, err := t.Model(); err == nil { // without one no call is made
		price = llm.PriceAt(m, t.durable.Config.Agent.Model.Speed)
	}
	want := outboard.Spend{Tokens: need.Input + need.Output, Steps: 1}
	least := outboard.Spend{Tokens: need.Input + min(minOutput, need.Output), Steps: 1, Running: minTime,
		Sandbox: minTime}
	if price != nil {
		want.Cost = price.Of(outboard.Usage{Output: need.Output}) + (&llm.Price{Input: price.Most()}).
			Of(outboard.Usage{Input: need.Input})
		least.Cost = price.Of(outboard.Usage{Input: need.Input, Output: min(minOutput, need.Output)})
	}
	r, broke, err := t.reserve(ctx, price, t.owed(t.staged, t.now()), want, least)
	if err != nil || broke != "" {
		return harness.Budget{Broke: broke}, false, err
	}
	if r.Wait {
		return budget, true, nil
	}
	t.acct.held, t.acct.called = r.Held, true
	t.acct.limit(r.Left, t.now())
	return harness.Budget{MaxOutput: affordable(need, want, r.Held, price), Until: t.acct.until}, false, nil
}

// reserve sets apart what a model call may use up, of every budget over the session, beside what is owed. broke
// is what no budget pays for.
func (t *turn) reserve(ctx context.Context, price *llm.Price, owed, want,
	least outboard.Spend) (r store.Reservation, broke string, err error) {
	for _, b := range t.acct.over {
		if b.Limit.Cost > 0 && price == nil {
			t.log.Warn("a money budget is over a session whose model has no price: no model call is made", "budget",
				b.ID)
			return r, "money: the model has no price", nil
		}
	}
	if r, err = t.cfg.Store.Reserve(ctx, t.id, t.epoch, t.acct.over, owed, want, least); err != nil ||
		len(r.Over) == 0 {
		return r, "", err
	}
	broke = r.Over[0].Short(least, false)
	t.log.Info("a budget is used up", "budget", r.Over[0].ID, "what", broke)
	return r, broke, nil
}

// budgetJudge reserves what one judgement may come to, beside what the response that it is about came to, and
// waits while others have reserved what is left. The error says why no budget pays for it.
func (t *turn) budgetJudge(ctx context.Context, m llm.Model, req *llm.Request, used outboard.Usage) error {
	if err := t.alive(ctx); err != nil { // as before every model call
		return err
	}
	if err := t.lookAtBudgets(ctx); err != nil || len(t.acct.over) == 0 {
		return err
	}
	input, price := llm.PromptTokens(req), llm.PriceAt(m, req.Speed)
	// the step is the response's, which is not counted yet
	want := outboard.Spend{Tokens: input + req.MaxOutput, Steps: 1}
	if price != nil {
		want.Cost = price.Of(outboard.Usage{Output: req.MaxOutput}) + (&llm.Price{Input: price.Most()}).
			Of(outboard.Usage{Input: input})
	}
	for {
		owed := t.owed(t.staged, t.now()).Add(outboard.Spend{Cost: used.Cost, Tokens: used.Tokens()})
		switch r, broke, err := t.reserve(ctx, price, owed, want, want); {
		case err != nil:
			return err
		case broke != "":
			return outboard.Errorf(outboard.Exhausted, "no budget pays for it: %s", broke)
		case !r.Wait:
			return nil
		}
		if !sleep(ctx, budgetPause) {
			return context.Cause(ctx)
		}
	}
}

// limit notes how much time is left.
func (a *account) limit(left outboard.Spend, now time.Time) {
	none := (&outboard.Budget{}).Left()
	a.until, a.limited = time.Time{}, left.Sandbox != none.Sandbox
	if left.Running != none.Running {
		a.until = now.Add(left.Running)
	}
	a.sandbox = left.Sandbox
}

// affordable is how many output tokens a reservation pays for; 0 when it pays for all.
func affordable(need harness.Need, want, held outboard.Spend, price *llm.Price) int64 {
	out := need.Output
	if held.Tokens < want.Tokens {
		out = min(out, held.Tokens-need.Input)
	}
	if price != nil && held.Cost < want.Cost && price.Output > 0 {
		input := (&llm.Price{Input: price.Most()}).Of(outboard.Usage{Input: need.Input})
		out = min(out, int64(max(0, held.Cost-input))*1000/int64(price.Output))
	}
	if out == need.Output {
		return 0
	}
	return max(out, min(minOutput, need.Output))
}

// lookAtBudgets reads which budgets are over the session.
func (t *turn) lookAtBudgets(ctx context.Context) (err error) {
	cfg := &t.durable.Config
	t.acct.over, err = t.cfg.Store.BudgetsOver(ctx, t.id, cfg.Agent.ID, cfg.Owner)
	t.acct.looked = t.acct.looked || err == nil
	return err
}

// left is what the budgets over the session leave, nil when they cannot be read. A model call that is under way
// is not in it: nobody knows yet what it comes to, and what is decided while it answers is decided again before
// it is sent.
func (t *turn) left(ctx context.Context) *outboard.Spend {
	if !t.acct.looked || len(t.acct.over) > 0 {
		if err := t.lookAtBudgets(ctx); err != nil {
			t.log.Error("what is left of the budgets cannot be read", "session", t.id, "err", err)
			return nil
		}
	}
	if len(t.acct.over) == 0 {
		return new(outboard.LeftOf(nil, outboard.Spend{}))
	}
	return new(outboard.LeftOf(t.acct.over, t.owed(t.staged, t.now())))
}

// owed is what events use up, with the running time up to now, that is not charged yet.
func (t *turn) owed(events []outboard.Event, now time.Time) outboard.Spend {
	var s outboard.Spend
	for i := range events {
		e := &events[i]
		switch e.Type {
		case outboard.TypeModelFinished, outboard.TypeModelFailed, outboard.TypeCallJudged, outboard.TypeContextCompacted, outboard.TypeCallFinished,
			outboard.TypeTurnRetrying, outboard.TypeTurnFailed:
		default:
			continue
		}
		p, err := e.Decode()
		if err != nil {
			continue // NewEvent's always decode
		}
		switch p := p.(type) {
		case *outboard.ModelFinished:
			s = s.Add(outboard.Spend{Cost: p.Usage.Cost, Tokens: p.Usage.Tokens(), Steps: 1})
		case *outboard.ModelFailed:
			s = s.Add(outboard.Spend{Cost: p.Usage.Cost, Tokens: p.Usage.Tokens()})
		case *outboard.CallJudged:
			s = s.Add(outboard.Spend{Cost: p.Usage.Cost, Tokens: p.Usage.Tokens()})
		case *outboard.ContextCompacted:
			s = s.Add(outboard.Spend{Cost: p.Usage.Cost, Tokens: p.Usage.Tokens(), Steps: 1})
		case *outboard.TurnRetrying:
			s = s.Add(outboard.Spend{Cost: p.Usage.Cost, Tokens: p.Usage.Tokens()})
		case *outboard.TurnFailed:
			s = s.Add(outboard.Spend{Cost: p.Usage.Cost, Tokens: p.Usage.Tokens()})
		case *outboard.CallFinished:
			s.Sandbox += time.Duration(p.DurationUs) * time.Microsecond
		}
	}
	if from := t.clockedFrom(); !from.IsZero() && now.After(from) {
		s.Running = now.Sub(from)
	}
	return s
}

// clockedFrom is from when running time is not charged yet; zero while no turn runs.
func (t *turn) clockedFrom() time.Time {
	if t.durable.Phase != outboard.PhaseRunning {
		return time.Time{}
	}
	if t.acct.clocked.IsZero() {
		return t.durable.LastAt
	}
	return t.acct.clocked
}

// charge is what a commit settles, nil where no budget is over the session.
func (t *turn) charge(ctx context.Context, events []outboard.Event, now time.Time) (*store.Charge, error) {
	if !t.acct.looked {
		if err := t.lookAtBudgets(ctx); err != nil {
			return nil, err
		}
	}
	if len(t.acct.over) == 0 {
		return nil, nil
	}
	c := &store.Charge{Spend: t.owed(events, now)}
	for _, b := range t.acct.over {
		c.Budgets = append(c.Budgets, b.ID)
	}
	for i := range events {
		switch e := &events[i]; e.Type {
		case outboard.TypeModelStarted:
			c.Hold = t.acct.held
		case outboard.TypeModelFailed:
			p, err := e.Decode()
			if f, ok := p.(*outboard.ModelFailed); err == nil && ok && f.Usage.Tokens() == 0 &&
				(!t.acct.called || t.acct.unknown) {
				c.Unknown = true // a process that died made the call, or it ended in a way that tells nothing
			}
			c.Settle, c.Hold = true, outboard.Spend{}
		case outboard.TypeModelFinished, outboard.TypeContextCompacted, outboard.TypeTurnEnded, outboard.TypeTurnRetrying:
			c.Settle, c.Hold = true, outboard.Spend{}
		}
	}
	return c, nil
}

// charged notes that a commit with these charges is durable.
func (t *turn) charged(c *store.Charge, now time.Time) {
	if c == nil {
		t.acct.clocked = time.Time{} // a budget that is set later counts from then
		return
	}
	t.acct.sandbox -= c.Spend.Sandbox
	t.acct.clocked = time.Time{}
	if t.durable.Phase == outboard.PhaseRunning {
		t.acct.clocked = now
	}
	if c.Settle && c.Hold.IsZero() {
		t.acct.called = false
	}
}

// paid says why no budget pays for a call's time, or nil.
func (t *turn) paid(j *job) error {
	switch {
	case !t.acct.until.IsZero() && !t.now().Before(t.acct.until):
		return outboard.Errorf(outboard.Exhausted, "the running time of the budget is used up")
	case t.acct.limited && t.acct.sandbox <= 0 && !j.local():
		return outboard.Errorf(outboard.Exhausted, "the sandbox time of the budget is used up")
	}
	return nil
}

// cutAt is when a call that begins now is killed because no budget pays for more; zero = never.
func (a *account) cutAt(now time.Time, j *job) time.Time {
	at := a.until
	if end := now.Add(a.sandbox); a.limited && !j.local() && (at.IsZero() || end.Before(at)) {
		at = end
	}
	return at
}

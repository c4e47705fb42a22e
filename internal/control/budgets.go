package control

import (
	"context"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
)

// Limits of a budget, far above what anybody spends and far below where sums overflow.
const (
	maxBudgetCost  = 10_000_000 * outboard.Dollar
	maxBudgetCount = 1 << 50
	maxBudgetTime  = 100 * 365 * 24 * time.Hour
	// brokePage is how many sessions that wait for a budget are looked at in one read.
	brokePage = 500
)

// budgetable refuses money budgets for what has no list price.
func (c *Control) budgetable(a *outboard.Agent) error {
	if c.models == nil {
		return llm.Unpriced(a.Model.ID)
	}
	m, err := c.models.Resolve(a.Model.ID)
	if err != nil {
		return err
	}
	if m.Info().Price == nil {
		return llm.Unpriced(m.Info().ID)
	}
	if llm.PriceAt(m, a.Model.Speed) == nil {
		return invalid("model %s at speed fast has no list price, so money cannot be budgeted for it",
			quote(a.Model.ID)).
			WithCode("model_not_budgetable").WithHint("use the speed standard")
	}
	return nil
}

// patchBudget lays the budget of a patch over the session. The wire lets one be raised or removed, and never added.
func (c *Control) patchBudget(ctx context.Context, s *Session, p SessionPatch,
	change *outboard.SessionUpdated) (*outboard.Budget, error) {
	if p.Budget == nil || *p.Budget == s.Config.Budget {
		return nil, nil
	}
	if s.Config.Budget == 0 {
		return nil, invalid("session %s was started without a budget, and one cannot be added", s.ID).
			WithCode("budget_create_only").
			WithHint("outboard budget set session %s --money ... bounds what it spends from now on", s.ID)
	}
	b, err := c.store.Budget(ctx, outboard.BudgetOf(outboard.BudgetSession, string(s.ID)))
	if err != nil {
		return nil, wrapLookup("budget of session", string(s.ID), err)
	}
	if *p.Budget > 0 && *p.Budget <= b.Spent.Cost {
		return nil, invalid("the budget must be more than what was spent, which is %v", b.Spent.Cost).
			WithCode("budget_not_raised")
	}
	b.Limit.Cost, s.Config.Budget, change.Budget = *p.Budget, *p.Budget, p.Budget
	return &b, nil
}

// checkBroke refuses what a session that waits for a budget does not take.
func checkBroke(h *outboard.Header, ps []outboard.Payload) error {
	for i, p := range ps {
		switch p.EventType() {
		case outboard.TypeInputConfirmation, outboard.TypeInputToolResult, outboard.TypeInputInterrupt:
		default:
			return invalid("events[%d]: a budget over session %s is used up, and it takes no messages", i, h.ID).
				WithCode("budget_reached").
				WithHint("raise the budget: outboard budget ls --session %s says which", h.ID)
		}
	}
	return nil
}

// settleLost charges what an ended session had reserved for a model call that nobody will hear of again.
func (c *Control) settleLost(ctx context.Context, id outboard.SessionID) {
	if err := c.store.SettleUnknown(ctx, id); err != nil {
		c.log.Warn("what an ended session had reserved of budgets stays reserved", "session", id, "err", err)
	}
}

// SetBudget sets the limits of a scope, all of them; what was spent stays. Sessions that waited for it go on if
// they can now.
func (c *Control) SetBudget(ctx context.Context, by outboard.Caller, b outboard.Budget) (outboard.Budget, error) {
	if err := c.checkBudget(ctx, by, &b); err != nil {
		return b, err
	}
	if err := c.record(ctx, by, "budget.set", string(outboard.BudgetOf(b.Scope, b.Target)), b.Limit); err != nil {
		return b, err
	}
	if b.Scope == outboard.BudgetSession {
		return c.setSessionBudget(ctx, by, b)
	}
	out, err := c.store.PutBudget(ctx, b)
	if err != nil {
		return b, outboard.Errorf(outboard.KindOf(err), "storing the budget: %w", err)
	}
	return out, c.budgetBroke(ctx)
}

func (c *Control) checkBudget(ctx context.Context, by outboard.Caller, b *outboard.Budget) error {
	if err := approver(by); err != nil {
		return err
	}
	b.Org = by.In()
	l := b.Limit
	if l.IsZero() {
		return invalid("a budget needs at least one limit")
	}
	if l.Cost < 0 || l.Cost > maxBudgetCost || l.Tokens < 0 || l.Tokens > maxBudgetCount || l.Steps < 0 ||
		l.Steps > maxBudgetCount ||
		l.Running < 0 || l.Running > maxBudgetTime || l.Sandbox < 0 || l.Sandbox > maxBudgetTime {
		return invalid("a limit of a budget is negative, or beyond any use")
	}
	switch b.Scope {
	case outboard.BudgetSession:
		s, err := c.Session(ctx, by, outboard.SessionID(b.Target))
		if err != nil || l.Cost == 0 {
			return err
		}
		return c.budgetable(&s.Config.Agent)
	case outboard.BudgetAgent:
		a, err := c.Agent(ctx, by, outboard.AgentID(b.Target), 0)
		if err != nil || l.Cost == 0 {
			return err
		}
		return c.budgetable(&a)
	case outboard.BudgetOwner:
		return c.checkOwner(ctx, by, b)
	}
	return invalid("a budget is over a session, an agent or an owner, not over %s", quote(string(b.Scope)))
}

// checkOwner makes a budget that names a person's key one over the person: each sign-in is another key, and
// would begin anew. One that is over the key alone, from before that, stays so.
func (c *Control) checkOwner(ctx context.Context, by outboard.Caller, b *outboard.Budget) error {
	if outboard.ValidID(outboard.PrefixUser, b.Target) {
		u, err := c.store.User(ctx, outboard.UserID(b.Target))
		return ownedBy(by, u.Org, "owner", b.Target, err)
	}
	k, err := c.store.Key(ctx, outboard.KeyID(b.Target))
	if err := ownedBy(by, k.Org, "owner", b.Target, err); err != nil {
		return err
	}
	id, err := c.ownBudget(ctx, outboard.BudgetOf(b.Scope, b.Target))
	if err != nil {
		return err
	}
	_, b.Target, _ = strings.Cut(string(id), ":")
	return nil
}

// ownBudget is the id of the budget that is meant by one over a key: the same, or that over the key's person
// where the key has none.
func (c *Control) ownBudget(ctx context.Context, id outboard.BudgetID) (outboard.BudgetID, error) {
	scope, target, _ := strings.Cut(string(id), ":")
	if scope != string(outboard.BudgetOwner) || !outboard.ValidID(outboard.PrefixKey, target) {
		return id, nil
	}
	_, err := c.store.Budget(ctx, id)
	if err == nil || outboard.KindOf(err) != outboard.NotFound {
		return id, wrapLookup("budget", string(id), err)
	}
	k, err := c.store.Key(ctx, outboard.KeyID(target))
	if err != nil || k.User == "" {
		return id, nil // the caller finds that there is none
	}
	return outboard.BudgetOf(outboard.BudgetOwner, string(k.User)), nil
}

// setSessionBudget sets the limits of a session, and tells its log.
func (c *Control) setSessionBudget(ctx context.Context, by outboard.Caller,
	b outboard.Budget) (outboard.Budget, error) {
	_, err := c.edit(ctx, by, outboard.SessionID(b.Target), func(s *Session) (store.Commit, error) {
		change := &outboard.SessionUpdated{Funded: true}
		if s.Config.Budget != b.Limit.Cost {
			change.Budget = &b.Limit.Cost
		}
		s.Config.Budget = b.Limit.Cost
		return store.Commit{Events: []outboard.Event{outboard.NewEvent(s.Thread, change)}, Config: &s.Config,
			Budget: &b}, nil
	})
	if err != nil {
		return b, err
	}
	if err := c.budgetBroke(ctx); err != nil { // its forks
		return b, err
	}
	if b.Limit.IsZero() {
		return b, nil
	}
	out, err := c.store.Budget(ctx, outboard.BudgetOf(b.Scope, b.Target))
	return out, wrapLookup("budget", b.Target, err)
}

// Budgets returns a page of the organization's budgets, by id.
func (c *Control) Budgets(ctx context.Context, by outboard.Caller, p Page) ([]outboard.Budget, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	p.Org = by.In()
	list, err := c.store.Budgets(ctx, p)
	return list, wrapLookup("budgets", "", err)
}

// BudgetsOver returns the budgets that a session spends of.
func (c *Control) BudgetsOver(ctx context.Context, by outboard.Caller,
	id outboard.SessionID) ([]outboard.Budget, error) {
	s, err := c.Session(ctx, by, id)
	if err != nil {
		return nil, err
	}
	list, err := c.store.BudgetsOver(ctx, id, s.AgentID, s.Config.Owner)
	return list, wrapLookup("budgets of session", string(id), err)
}

// RemoveBudget removes one, with the record of what was spent.
func (c *Control) RemoveBudget(ctx context.Context, by outboard.Caller, id outboard.BudgetID) error {
	if err := approver(by); err != nil {
		return err
	}
	named, err := c.ownBudget(ctx, id)
	if err != nil {
		return err
	}
	b, err := c.store.Budget(ctx, named)
	if err := ownedBy(by, b.Org, "budget", string(id), err); err != nil {
		return err
	}
	id = named
	if err := c.record(ctx, by, "budget.remove", string(id), b.Limit); err != nil {
		return err
	}
	if b.Scope == outboard.BudgetSession {
		h, err := c.header(ctx, by, outboard.SessionID(b.Target))
		if err == nil && h.Phase != outboard.PhaseTerminated {
			b.Limit = outboard.Spend{}
			_, err = c.setSessionBudget(ctx, by, b)
			return err
		}
	}
	if err := c.store.DeleteBudget(ctx, id); err != nil {
		return wrapLookup("budget", string(id), err)
	}
	return c.budgetBroke(ctx)
}

// fundBroke lets the sessions go on that waited for a budget and could make a model call now. Each finds out for
// itself.
func (c *Control) budgetBroke(ctx context.Context) error {
	var after outboard.SessionID
	for {
		page, err := c.store.Broke(ctx, after, brokePage)
		if err != nil {
			return wrapLookup("sessions", "", err)
		}
		for _, id := range page {
			after = id
			h, err := c.store.Session(ctx, id)
			if err != nil || !h.Broke() {
				continue // gone, or on its way
			}
			cfg, err := c.store.SessionConfig(ctx, id)
			if err != nil {
				return wrapLookup("session", string(id), err)
			}
			over, err := c.store.BudgetsOver(ctx, id, h.AgentID, cfg.Owner)
			if err != nil {
				return wrapLookup("budgets of session", string(id), err)
			}
			if short(over) {
				continue
			}
			e := outboard.NewEvent(h.Thread, &outboard.SessionUpdated{Funded: true})
			if _, err := c.store.Append(ctx, id, 0, store.Any, e); err != nil {
				return commitErr(id, err)
			}
		}
		if len(page) < brokePage {
			return nil
		}
	}
}

func short(over []outboard.Budget) bool {
	for i := range over {
		if over[i].Short(outboard.Spend{}, false) != "" {
			return true
		}
	}
	return false
}

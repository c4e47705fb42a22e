package store

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// Charge is what a commit uses up of the budgets over its session.
type Charge struct {
	Budgets []outboard.BudgetID
	Spend   outboard.Spend
	// Settle ends the session's reservation. Unknown charges it in full first: nobody knows what it was used
	// for. Hold is what stays reserved, for a model call that begins in the same commit.
	Settle  bool
	Unknown bool
	Hold    outboard.Spend
}

const budgetCols = `b.id, b.scope, b.target, b.org, b.limits, b.cost, b.tokens, b.steps, b.running, b.sandbox, b.created_at, b.updated_at`

// heldCols add what sessions other than one hold.
const heldCols = budgetCols + `,
	(SELECT COALESCE(SUM(h.cost), 0) FROM budget_holds AS h WHERE h.budget = b.id AND h.session <> ?),
	(SELECT COALESCE(SUM(h.tokens), 0) FROM budget_holds AS h WHERE h.budget = b.id AND h.session <> ?),
	(SELECT COALESCE(SUM(h.steps), 0) FROM budget_holds AS h WHERE h.budget = b.id AND h.session <> ?)`

func scanBudget(sc scanner) (outboard.Budget, error) {
	var b outboard.Budget
	var limits string
	var running, box, created, updated int64
	err := sc.Scan(&b.ID, &b.Scope, &b.Target, &b.Org, &limits, &b.Spent.Cost, &b.Spent.Tokens, &b.Spent.Steps,
		&running, &box, &created, &updated,
		&b.Held.Cost, &b.Held.Tokens, &b.Held.Steps)
	if err != nil {
		return b, err
	}
	b.Spent.Running, b.Spent.Sandbox = time.Duration(running)*time.Microsecond, time.Duration(box)*time.Microsecond
	b.CreatedAt, b.UpdatedAt = timeOf(created), timeOf(updated)
	return b, fromJSON(limits, &b.Limit)
}

// A budget that is set again keeps what was spent.
const putBudgetSQL = `INSERT INTO budgets (id, scope, target, org, limits, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET limits = excluded.limits, updated_at = excluded.updated_at`

func putBudgetArgs(b *outboard.Budget, now int64) []any {
	return []any{string(outboard.BudgetOf(b.Scope, b.Target)), string(b.Scope), b.Target, orgText(b.Org),
		mustJSON(b.Limit), now, now}
}

const deleteBudgetSQL = `DELETE FROM budgets WHERE id = ?`

const deleteHoldsSQL = `DELETE FROM budget_holds WHERE budget = ?`

const budgetSQL = `SELECT ` + heldCols + ` FROM budgets AS b WHERE b.id = ?`

// PutBudget sets the limits of a scope; what was spent stays. It returns the budget as it is then.
func (s *Store) PutBudget(ctx context.Context, b outboard.Budget) (outboard.Budget, error) {
	now := micros(s.now())
	err := s.update(ctx, "storing a budget", func(t tx) error {
		_, err := t.exec(ctx, putBudgetSQL, putBudgetArgs(&b, now)...)
		return err
	})
	if err != nil {
		return b, err
	}
	return s.Budget(ctx, outboard.BudgetOf(b.Scope, b.Target))
}

// Budget returns one.
func (s *Store) Budget(ctx context.Context, id outboard.BudgetID) (outboard.Budget, error) {
	return one(ctx, s, "budget", id, scanBudget, budgetSQL, "", "", "", string(id))
}

const budgetsSQL = `SELECT ` + heldCols + ` FROM budgets AS b WHERE b.id > ? AND b.org = ? ORDER BY b.id LIMIT ?`

// Budgets returns a page of the budgets of an organization, by id.
func (s *Store) Budgets(ctx context.Context, p Page) ([]outboard.Budget, error) {
	return collect(ctx, s, "listing budgets", scanBudget, budgetsSQL, "", "", "", p.Cursor, orgText(p.Org),
		limitOr(p.Limit, defaultPage))
}

// DeleteBudget removes one.
func (s *Store) DeleteBudget(ctx context.Context, id outboard.BudgetID) error {
	return s.update(ctx, "removing a budget", func(t tx) error {
		if _, err := t.exec(ctx, deleteHoldsSQL, string(id)); err != nil {
			return err
		}
		n, err := t.exec(ctx, deleteBudgetSQL, string(id))
		if err == nil && n == 0 {
			return notFound("budget", id)
		}
		return err
	})
}

// upSQL lists a session and all it was forked from.
const upSQL = `WITH RECURSIVE up(id, parent) AS (SELECT id, parent FROM sessions WHERE id = ?
	UNION ALL SELECT s.id, s.parent FROM sessions AS s JOIN up ON s.id = up.parent) `

const budgetsOverSQL = upSQL + `SELECT ` + heldCols + ` FROM budgets AS b
	WHERE b.id IN (?, ?, ?) OR b.id IN (SELECT 'session:' || id FROM up) ORDER BY b.id`

func overArgs(id outboard.SessionID, agent outboard.AgentID, owner outboard.Owner) []any {
	return []any{string(id), string(id), string(id), string(id),
		string(outboard.BudgetOf(outboard.BudgetAgent, string(agent))),
		string(outboard.BudgetOf(outboard.BudgetOwner,
			string(owner.Key))), string(outboard.BudgetOf(outboard.BudgetOwner, string(owner.User)))}
}

// BudgetsOver returns the budgets a session spends of. Held is what others have reserved of them. Where there
// are none at all, a first one that another process sets shows up to unbudgetedFor later.
func (s *Store) BudgetsOver(ctx context.Context, id outboard.SessionID, agent outboard.AgentID,
	owner outboard.Owner) ([]outboard.Budget, error) {
	none, err := s.unbudgeted.check(func() (bool, error) {
		found, err := collect(ctx, s, "reading budgets", func(sc scanner) (n int, err error) { return n, sc.Scan(&n) },
			anyBudgetSQL)
		return len(found) == 0, err
	})
	if err != nil || none {
		return nil, err
	}
	return collect(ctx, s, "reading budgets", scanBudget, budgetsOverSQL, overArgs(id, agent, owner)...)
}

const anyBudgetSQL = `SELECT 1 FROM budgets LIMIT 1`

// unbudgetedFor is how long a process that saw no budget at all goes by that, where others may set one.
const unbudgetedFor = 50 * time.Millisecond

// unbudgeted remembers that there is no budget, which spares most servers a question before every model call.
type unbudgeted struct {
	mu    sync.Mutex
	until time.Time
	sets  int // by this process
}

// check reports whether there is no budget, by what is remembered or by look.
func (u *unbudgeted) check(look func() (bool, error)) (bool, error) {
	u.mu.Lock()
	sets, known := u.sets, time.Now().Before(u.until)
	u.mu.Unlock()
	if known {
		return true, nil
	}
	seen := time.Now()
	none, err := look()
	if err != nil || !none {
		return false, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sets == sets { // else the look may be older than a budget
		u.until = seen.Add(unbudgetedFor)
	}
	return u.sets == sets, nil
}

// set says that this process may have stored a budget.
func (u *unbudgeted) set() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.until, u.sets = time.Time{}, u.sets+1
}

// Reservation is the outcome of a Reserve.
type Reservation struct {
	Held outboard.Spend    // what is reserved: at most what was wanted
	Left outboard.Spend    // the least that any of the budgets has left, without what is reserved here
	Over []outboard.Budget // those that do not have the least that is needed, not counting others' reservations
	Wait bool              // none is Over, but others have reserved too much: ask again when they have settled
}

const lockBudgetSQL = `UPDATE budgets SET updated_at = updated_at WHERE id = ?`

const putHoldSQL = `INSERT INTO budget_holds (budget, session, cost, tokens, steps) VALUES (?, ?, ?, ?, ?)
	ON CONFLICT (budget, session) DO UPDATE SET cost = excluded.cost, tokens = excluded.tokens, steps = excluded.steps`

const leaseSQL = `SELECT epoch, phase FROM sessions WHERE id = ? AND deleted_at = 0`

// lockLease holds a session as it is until t ends, and refuses what its log would: the lease is another's, or
// the session has ended. The row of a session is locked before those of budgets, as by commits.
func (s *Store) lockLease(ctx context.Context, t tx, id outboard.SessionID, epoch int64) error {
	var now int64
	var phase outboard.Phase
	err := t.queryRow(ctx, leaseSQL+s.d.locking(false), string(id)).Scan(&now, &phase)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return notFound("session", id)
	case err != nil:
		return err
	case now != epoch:
		return ErrFenced
	case phase == outboard.PhaseTerminated:
		return ErrTerminated
	}
	return nil
}

// Reserve sets apart what a session's next model call may use up: of all budgets over it as much as is left, up
// to want and not less than least, or nothing. owed is what the session has used up that is not committed yet,
// and stays reserved beside it. A session has one reservation; a new one replaces it. Two calls cannot reserve
// the same money, in whatever process they are. epoch is the lease's: ErrFenced where it was taken over, whose
// holder's reservation stays; ErrTerminated and NotFound where the session has ended, and nobody would settle
// one.
func (s *Store) Reserve(ctx context.Context, id outboard.SessionID, epoch int64, over []outboard.Budget, owed, want,
	least outboard.Spend) (Reservation, error) {
	var r Reservation
	err := s.update(ctx, "reserving", func(t tx) error {
		r = Reservation{Held: want, Left: (&outboard.Budget{}).Left()}
		if err := s.lockLease(ctx, t, id, epoch); err != nil {
			return err
		}
		for i := range over { // in the order of ids, as everywhere
			if _, err := t.exec(ctx, lockBudgetSQL, string(over[i].ID)); err != nil {
				return err
			}
		}
		var there []outboard.Budget
		for i := range over {
			list, err := collectTx(ctx, t, scanBudget, budgetSQL, string(id), string(id), string(id),
				string(over[i].ID))
			if err != nil {
				return err
			}
			there = append(there, list...) // none where it was removed meanwhile
		}
		for _, b := range there {
			b.Spent = b.Spent.Add(owed)
			r.take(b, least)
		}
		if len(r.Over) > 0 || r.Wait {
			return nil
		}
		for _, b := range there {
			if _, err := t.exec(ctx, putHoldSQL, string(b.ID), string(id), int64(r.Held.Cost+owed.Cost),
				r.Held.Tokens+owed.Tokens, r.Held.Steps+owed.Steps); err != nil {
				return err
			}
		}
		return nil
	})
	return r, err
}

// take narrows the reservation to what a budget has left.
func (r *Reservation) take(b outboard.Budget, least outboard.Spend) {
	if b.Short(least, false) != "" {
		r.Over = append(r.Over, b)
		return
	}
	r.Wait = r.Wait || b.Short(least, true) != ""
	left := b.Left()
	r.Held.Cost, r.Held.Tokens, r.Held.Steps = min(r.Held.Cost, left.Cost), min(r.Held.Tokens,
		left.Tokens), min(r.Held.Steps, left.Steps)
	l := &r.Left
	l.Cost, l.Tokens, l.Steps = min(l.Cost, left.Cost), min(l.Tokens, left.Tokens), min(l.Steps, left.Steps)
	l.Running, l.Sandbox = min(l.Running, left.Running), min(l.Sandbox, left.Sandbox)
}

const unknownSQL = `UPDATE budgets SET cost = cost + (SELECT COALESCE(SUM(h.cost), 0) FROM budget_holds AS h WHERE h.budget = budgets.id AND h.session = ?),
	tokens = tokens + (SELECT COALESCE(SUM(h.tokens), 0) FROM budget_holds AS h WHERE h.budget = budgets.id AND h.session = ?),
	steps = steps + (SELECT COALESCE(SUM(h.steps), 0) FROM budget_holds AS h WHERE h.budget = budgets.id AND h.session = ?)
	WHERE id IN (SELECT budget FROM budget_holds WHERE session = ?)`

const spendSQL = `UPDATE budgets SET cost = cost + ?, tokens = tokens + ?, steps = steps + ?, running = running + ?, sandbox = sandbox + ?, updated_at = ? WHERE id = ?`

const settleSQL = `DELETE FROM budget_holds WHERE session = ?`

const keepHoldSQL = `UPDATE budget_holds SET cost = ?, tokens = ?, steps = ? WHERE session = ?`

// charges are the statements of a commit about budgets.
func (c *Commit) charges(now int64) []statement {
	var out []statement
	if b := c.Budget; b != nil && b.Limit.IsZero() {
		id := string(outboard.BudgetOf(b.Scope, b.Target))
		out = append(out, statement{deleteHoldsSQL, []any{id}}, statement{deleteBudgetSQL, []any{id}})
	} else if b != nil {
		out = append(out, statement{putBudgetSQL, putBudgetArgs(b, now)})
	}
	ch := c.Charge
	if ch == nil {
		return out
	}
	id, sp := string(c.Session), ch.Spend
	if ch.Unknown {
		out = append(out, statement{unknownSQL, []any{id, id, id, id}})
	}
	if !sp.IsZero() {
		for _, b := range ch.Budgets {
			out = append(out, statement{spendSQL, []any{int64(sp.Cost), sp.Tokens, sp.Steps, sp.Running.Microseconds(),
				sp.Sandbox.Microseconds(), now, string(b)}})
		}
	}
	switch {
	case ch.Settle && ch.Hold.IsZero():
		out = append(out, statement{settleSQL, []any{id}})
	case ch.Settle:
		out = append(out, statement{keepHoldSQL, []any{int64(ch.Hold.Cost), ch.Hold.Tokens, ch.Hold.Steps, id}})
	}
	return out
}

// SettleUnknown charges what a session has reserved, in full: it will never be known what the model call came to.
func (s *Store) SettleUnknown(ctx context.Context, id outboard.SessionID) error {
	return s.update(ctx, "settling a reservation", func(t tx) error {
		if _, err := t.exec(ctx, unknownSQL, string(id), string(id), string(id), string(id)); err != nil {
			return err
		}
		_, err := t.exec(ctx, settleSQL, string(id))
		return err
	})
}

const brokeSQL = `SELECT id FROM sessions WHERE deleted_at = 0 AND phase = 'idle' AND stop LIKE '%"budget_reached"%' AND id > ? ORDER BY id LIMIT ?`

// Broke returns a page of the ids of sessions that wait for a budget, by id.
func (s *Store) Broke(ctx context.Context, after outboard.SessionID, limit int) ([]outboard.SessionID, error) {
	return collect(ctx, s, "listing sessions that wait for a budget", scanText[outboard.SessionID], brokeSQL,
		string(after), limit)
}

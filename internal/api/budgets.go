package api

import (
	"encoding/json"
	"regexp"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// moneyOut is an amount of the wire, in whole cents.
type moneyOut struct {
	Amount   string `json:"amount"`
	Currency string `json:"currency"`
}

func showMoney(c outboard.Cost) moneyOut { return moneyOut{strconv.FormatInt(c.Cents(), 10), "USD"} }

// listCost is what a usage came to at list price; nil where no price is known.
func listCost(c outboard.Cost) *moneyOut {
	if c == 0 {
		return nil
	}
	return new(showMoney(c))
}

// limitOut is a session's budget on the wire.
type limitOut struct {
	Type string   `json:"type"`
	Max  moneyOut `json:"max_list_cost"`
}

func showLimit(c outboard.Cost) *limitOut {
	if c == 0 {
		return nil
	}
	return &limitOut{"limit", showMoney(c)}
}

// cents are a budget's amount on the wire.
var cents = regexp.MustCompile(`^[1-9][0-9]{0,11}$`)

// decodeBudget reads a session's budget.
func decodeBudget(raw json.RawMessage) (outboard.Cost, error) {
	kind, err := unionType("budget", raw)
	if err != nil {
		return 0, err
	}
	if kind != "limit" {
		return 0, bad("budget.type: must be limit, not %q", clip(kind))
	}
	var in struct {
		Type string          `json:"type"`
		Max  json.RawMessage `json:"max_list_cost" need:"yes"`
	}
	if err := object("budget", raw, &in); err != nil {
		return 0, err
	}
	var max struct {
		Amount   string `json:"amount" need:"yes"`
		Currency string `json:"currency" need:"yes"`
	}
	if err := object("budget.max_list_cost", in.Max, &max); err != nil {
		return 0, err
	}
	if max.Currency != "USD" {
		return 0, bad("budget.max_list_cost.currency: must be USD, not %q", clip(max.Currency))
	}
	if !cents.MatchString(max.Amount) {
		return 0, bad("budget.max_list_cost.amount: must be whole cents above 0 as a string, such as \"2500\", not %q",
			clip(max.Amount))
	}
	n, err := strconv.ParseInt(max.Amount, 10, 64)
	if err != nil || n > 1e9 {
		return 0, bad("budget.max_list_cost.amount: %s cents is beyond any use", max.Amount)
	}
	return outboard.Cost(n) * outboard.Cent, nil
}

// spendOut is a spend, or limits; null is no limit.
type spendOut struct {
	Money   *string  `json:"list_cost_usd"` // dollars, with as many digits as it needs
	Tokens  *int64   `json:"tokens"`
	Steps   *int64   `json:"steps"`
	Running *float64 `json:"running_seconds"`
	Sandbox *float64 `json:"sandbox_seconds"`
}

type budgetOut struct {
	Type      string   `json:"type"`
	ID        string   `json:"id"`
	Scope     string   `json:"scope"`
	Target    string   `json:"target_id"`
	Limit     spendOut `json:"limit"`
	Spent     spendOut `json:"spent"`
	Reserved  spendOut `json:"reserved"`
	UsedUp    *string  `json:"used_up"`
	CreatedAt string   `json:"created_at"`
	UpdatedAt string   `json:"updated_at"`
}

// showSpend shows all fields, or without zero only those that are set.
func showSpend(s outboard.Spend, zero bool) spendOut {
	var out spendOut
	if zero || s.Cost > 0 {
		out.Money = new(s.Cost.String()[1:])
	}
	if zero || s.Tokens > 0 {
		out.Tokens = &s.Tokens
	}
	if zero || s.Steps > 0 {
		out.Steps = &s.Steps
	}
	if zero || s.Running > 0 {
		out.Running = new(s.Running.Seconds())
	}
	if zero || s.Sandbox > 0 {
		out.Sandbox = new(s.Sandbox.Seconds())
	}
	return out
}

func showBudget(b outboard.Budget) budgetOut {
	return budgetOut{"budget", string(b.ID), string(b.Scope), b.Target, showSpend(b.Limit, false),
		showSpend(b.Spent, true),
		showSpend(b.Held, true), textOrNull(b.Short(outboard.Spend{}, false)), stamp(b.CreatedAt), stamp(b.UpdatedAt)}
}

func (s *server) listBudgets(r *request) (any, error) {
	if id := r.query.Get("session_id"); id != "" {
		list, err := s.ctl.BudgetsOver(r.Context(), r.by, outboard.SessionID(id))
		if err != nil {
			return nil, err
		}
		out := listOut[budgetOut]{Data: []budgetOut{}}
		for _, b := range list {
			out.Data = append(out.Data, showBudget(b))
		}
		return out, nil
	}
	limit, err := r.limit(otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	c, err := parseCursor(r.query.Get("page"), "budgets", "")
	if err != nil {
		return nil, err
	}
	q := rows{list: "budgets", page: control.Page{Cursor: c.After, Limit: limit + 1}}
	list, err := s.ctl.Budgets(r.Context(), r.by, q.page)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(b outboard.Budget) (string, time.Time) { return string(b.ID), b.CreatedAt },
		showBudget), nil
}

func (s *server) setBudget(r *request) (any, error) {
	var in struct {
		Scope  string          `json:"scope" need:"yes"`
		Target string          `json:"target_id" need:"yes"`
		Limit  json.RawMessage `json:"limit" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	limit, err := decodeSpend(in.Limit)
	if err != nil {
		return nil, err
	}
	b, err := s.ctl.SetBudget(r.Context(), r.by, outboard.Budget{Scope: outboard.BudgetScope(in.Scope),
		Target: in.Target, Limit: limit})
	if err != nil {
		return nil, err
	}
	return showBudget(b), nil
}

// dollars are an amount of our own resources.
var dollars = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)

func decodeSpend(raw json.RawMessage) (s outboard.Spend, err error) {
	var in struct {
		Money   string  `json:"list_cost_usd"`
		Tokens  int64   `json:"tokens"`
		Steps   int64   `json:"steps"`
		Running float64 `json:"running_seconds"`
		Sandbox float64 `json:"sandbox_seconds"`
	}
	if err := object("limit", raw, &in); err != nil {
		return s, err
	}
	if in.Money != "" {
		if s.Cost, err = parseDollars(in.Money); err != nil {
			return s, err
		}
	}
	const most = 1e10 // seconds; a duration holds less
	if in.Running < 0 || in.Sandbox < 0 || in.Running >= most/2 || in.Sandbox >= most/2 {
		return s, bad("limit: seconds must be from 0 to %d", int64(most/2))
	}
	s.Tokens, s.Steps = in.Tokens, in.Steps
	s.Running, s.Sandbox = time.Duration(in.Running*1e6)*time.Microsecond, time.Duration(in.Sandbox*1e6)*time.Microsecond
	return s, nil
}

func parseDollars(text string) (outboard.Cost, error) {
	if !dollars.MatchString(text) {
		return 0, bad("limit.list_cost_usd: must be dollars such as \"2.50\", not %q", clip(text))
	}
	return outboard.ParseCost(text)
}

func (s *server) removeBudget(r *request) (any, error) {
	id := outboard.BudgetID(r.PathValue("budget"))
	if err := s.ctl.RemoveBudget(r.Context(), r.by, id); err != nil {
		return nil, err
	}
	return deletedOut{string(id), "budget_deleted"}, nil
}

package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
)

// Spend is what was used up, or may be; nil is no limit.
type Spend struct {
	Money   *string  `json:"list_cost_usd,omitempty"` // dollars
	Tokens  *int64   `json:"tokens,omitempty"`
	Steps   *int64   `json:"steps,omitempty"`
	Running *float64 `json:"running_seconds,omitempty"`
	Sandbox *float64 `json:"sandbox_seconds,omitempty"`
}

// Budget bounds what the sessions of a scope use up together.
type Budget struct {
	ID       string  `json:"id"`
	Scope    string  `json:"scope"`
	Target   string  `json:"target_id"`
	Limit    Spend   `json:"limit"`
	Spent    Spend   `json:"spent"`
	Reserved Spend   `json:"reserved"`
	UsedUp   *string `json:"used_up"`
}

// NewBudget is a budget to set.
type NewBudget struct {
	Scope  string `json:"scope"`
	Target string `json:"target_id"`
	Limit  Spend  `json:"limit"`
}

// Budgets lists all budgets, or those that a session spends of.
func (c *Client) Budgets(ctx context.Context, session string) iter.Seq2[Budget, error] {
	q := url.Values{"limit": {"100"}}
	if session != "" {
		q = url.Values{"session_id": {session}}
	}
	return pages[Budget](ctx, c, "/v1/budgets", q)
}

// SetBudget sets all limits of a scope; what was spent stays.
func (c *Client) SetBudget(ctx context.Context, n NewBudget) (b Budget, err error) {
	return b, c.call(ctx, http.MethodPost, "/v1/budgets", nil, n, &b)
}

// RemoveBudget removes one.
func (c *Client) RemoveBudget(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/budgets/"+url.PathEscape(id), nil, nil, nil)
}

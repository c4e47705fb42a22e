package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Kill is a use of the kill switch.
type Kill struct {
	ID     string    `json:"id"`
	Scope  string    `json:"scope"`
	Target *string   `json:"target_id"`
	Level  string    `json:"level"`
	Reason *string   `json:"reason"`
	By     *string   `json:"by"`
	At     time.Time `json:"created_at"`
}

// NewKill is one to throw. ID names one that is in force as a file.
type NewKill struct {
	ID     string `json:"id,omitempty"`
	Scope  string `json:"scope"`
	Target string `json:"target_id,omitempty"`
	Level  string `json:"level,omitempty"`
	Reason string `json:"reason,omitempty"`
	Ahead  bool   `json:"ahead,omitempty"` // of a host: it may be one that no server has named so far
}

// InFlight is what was going on when a kill came, and its outcome.
type InFlight struct {
	SessionID string `json:"session_id"`
	EventID   string `json:"event_id"`
	What      string `json:"what"`
	Outcome   string `json:"outcome"`
}

// KillReport says what a kill did.
type KillReport struct {
	Kill     Kill       `json:"kill"`
	InFlight []InFlight `json:"in_flight"`
	Partial  bool       `json:"in_flight_partial"` // there was more
	Machines int        `json:"machines_left"`
	Flows    int        `json:"flows_left"`
	Took     float64    `json:"took_seconds"`
}

// Kill throws the switch.
func (c *Client) Kill(ctx context.Context, n NewKill) (r KillReport, err error) {
	return r, c.call(ctx, http.MethodPost, "/v1/kills", nil, n, &r)
}

// Kills lists the kills in force.
func (c *Client) Kills(ctx context.Context) iter.Seq2[Kill, error] {
	return pages[Kill](ctx, c, "/v1/kills", url.Values{})
}

// LiftKill ends one.
func (c *Client) LiftKill(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/kills/"+url.PathEscape(id), nil, nil, nil)
}

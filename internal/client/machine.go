package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Machine is a sandbox of a session or a box, as the server sees it.
type Machine struct {
	ID          string    `json:"id"`
	Session     string    `json:"session_id"`
	Environment string    `json:"environment_id"`
	Owner       string    `json:"owner"`
	State       string    `json:"state"`
	Why         string    `json:"why"`
	Provider    string    `json:"provider"`
	Host        string    `json:"host"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// Machines lists the sandboxes that are not destroyed, oldest first.
func (c *Client) Machines(ctx context.Context) iter.Seq2[Machine, error] {
	return pages[Machine](ctx, c, "/v1/outboard/machines", url.Values{})
}

// StopMachine ends the processes of a session's sandbox and keeps its files.
func (c *Client) StopMachine(ctx context.Context, id string) (m Machine, err error) {
	return m, c.call(ctx, http.MethodPost, "/v1/outboard/machines/"+url.PathEscape(id)+"/stop", nil, nil, &m)
}

// KillMachine removes a session's sandbox with everything that is not saved.
func (c *Client) KillMachine(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/outboard/machines/"+url.PathEscape(id), nil, nil, nil)
}

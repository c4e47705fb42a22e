package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Sandbox is one of a session or a box, as the server sees it.
type Sandbox struct {
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

// Sandboxes lists the sandboxes that are not destroyed, oldest first.
func (c *Client) Sandboxes(ctx context.Context) iter.Seq2[Sandbox, error] {
	return pages[Sandbox](ctx, c, "/v1/outboard/sandboxes", url.Values{})
}

// StopSandbox ends the processes of a session's sandbox and keeps its files.
func (c *Client) StopSandbox(ctx context.Context, id string) (m Sandbox, err error) {
	return m, c.call(ctx, http.MethodPost, "/v1/outboard/sandboxes/"+url.PathEscape(id)+"/stop", nil, nil, &m)
}

// KillSandbox removes a session's sandbox with everything that is not saved.
func (c *Client) KillSandbox(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/outboard/sandboxes/"+url.PathEscape(id), nil, nil, nil)
}

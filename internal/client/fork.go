package client

import (
	"context"
	"net/http"
	"net/url"
)

// NewFork says what forks of a session begin with.
type NewFork struct {
	Seq    int64  `json:"seq,omitempty"` // 0 = now
	Count  int    `json:"count,omitempty"`
	Title  string `json:"title,omitempty"` // "" = the parent's
	Prompt string `json:"prompt,omitempty"`
}

// Fork starts sessions from where another one stood, and returns the position that was taken.
func (c *Client) Fork(ctx context.Context, id string, n NewFork) (forks []Session, seq int64, err error) {
	var out struct {
		Data []Session `json:"data"`
		Seq  int64     `json:"seq"`
	}
	err = c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/fork", nil, n, &out)
	return out.Data, out.Seq, err
}

// Rewinding says where a session goes back to, and with what.
type Rewinding struct {
	Seq          int64 `json:"seq"`
	Conversation bool  `json:"conversation"`
	Machine      bool  `json:"machine"`
}

// Rewind takes a session back, and returns the position that was taken.
func (c *Client) Rewind(ctx context.Context, id string, r Rewinding) (seq int64, err error) {
	var out struct {
		Seq int64 `json:"seq"`
	}
	err = c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/rewind", nil, r, &out)
	return out.Seq, err
}

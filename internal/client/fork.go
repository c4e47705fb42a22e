package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
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
	Seq          int64  `json:"seq,omitempty"`
	Checkpoint   string `json:"checkpoint_id,omitempty"` // instead of Seq, for the machine alone
	Conversation bool   `json:"conversation"`
	Machine      bool   `json:"machine"`
}

// Rewind takes a session back, and returns the position that was taken.
func (c *Client) Rewind(ctx context.Context, id string, r Rewinding) (seq int64, err error) {
	var out struct {
		Seq int64 `json:"seq"`
	}
	err = c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/rewind", nil, r, &out)
	return out.Seq, err
}

// Checkpoint is a saved state of a session's workspace.
type Checkpoint struct {
	ID        string    `json:"id"`
	SessionID string    `json:"session_id"`
	Seq       int64     `json:"seq"`
	CallID    string    `json:"call_id"`
	Size      int64     `json:"size_bytes"`
	Durable   bool      `json:"durable"`
	Lost      string    `json:"lost"` // why it cannot be restored, or not on every host: thinned, host_lost, too_large
	Current   bool      `json:"current"`
	CreatedAt time.Time `json:"created_at"`
}

// CheckpointUse is what a session's checkpoints take, and how many stay.
type CheckpointUse struct {
	StoredBytes int64 `json:"stored_bytes"` // of all together, before compression
	Retention   struct {
		Newest int   `json:"newest"`    // all of these, and of older ones fewer; 0 = all
		Bytes  int64 `json:"max_bytes"` // 0 = no bound
	} `json:"retention"`
}

// CheckpointUse lists a session's checkpoints, oldest first, and says what they take.
func (c *Client) CheckpointUse(ctx context.Context, id string) ([]Checkpoint, CheckpointUse, error) {
	var out struct {
		page[Checkpoint]
		CheckpointUse
	}
	path := "/v1/sessions/" + url.PathEscape(id) + "/outboard/checkpoints"
	err := c.call(ctx, http.MethodGet, path, url.Values{"stored": {"true"}}, nil, &out)
	return out.Data, out.CheckpointUse, err
}

// Checkpoints lists a session's checkpoints, oldest first.
func (c *Client) Checkpoints(ctx context.Context, id string) ([]Checkpoint, error) {
	var p page[Checkpoint]
	err := c.call(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(id)+"/outboard/checkpoints", nil, nil, &p)
	return p.Data, err
}

// Comparison is what changed between two checkpoints.
type Comparison struct {
	From string       `json:"from"` // "" = the empty workspace
	To   string       `json:"to"`
	Data []PathChange `json:"data"`
	More int          `json:"more"` // changes that were left out
}

// PathChange is a path that differs.
type PathChange struct {
	Path   string     `json:"path"`
	Change string     `json:"change"` // added, removed, changed
	Before *PathState `json:"before"`
	After  *PathState `json:"after"`
	Patch  string     `json:"patch"`
}

// PathState is what is at a path.
type PathState struct {
	Type string `json:"type"`
	Mode int64  `json:"mode"`
	Size int64  `json:"size_bytes"`
	Link string `json:"link"`
}

// CompareCheckpoints tells what changed between two states, each a checkpoint's id or a position.
func (c *Client) CompareCheckpoints(ctx context.Context, id, from, to string, patch bool) (cmp Comparison, err error) {
	q := url.Values{"from": {from}, "to": {to}}
	if patch {
		q.Set("patch", "true")
	}
	return cmp, c.call(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(id)+"/outboard/checkpoints/diff", q, nil,
		&cmp)
}

// Exported is a session as one file; whoever has it closes it.
type Exported struct {
	io.ReadCloser        // a file that was not sent whole ends in an error
	Seq           int64  // position of its last event
	SignedBy      string // the server's public key, "" = it is not signed
	// the policies and budgets that bound it here and do not go along, such as "policy session:ID, budget
	// session:ID"
	LeftBehind string
}

// Export returns a session up to a position, 0 = now.
func (c *Client) Export(ctx context.Context, id string, seq int64) (Exported, error) {
	q := url.Values{}
	if seq > 0 {
		q.Set("seq", strconv.FormatInt(seq, 10))
	}
	resp, err := c.send(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(id)+"/outboard/export", q, nil)
	if err != nil {
		return Exported{}, err
	}
	at, err := strconv.ParseInt(resp.Header.Get("Outboard-Seq"), 10, 64)
	if err != nil {
		return Exported{}, errors.Join(outboard.Errorf(outboard.Unavailable,
			"reading an export: the server does not say up to where it goes"), resp.Body.Close())
	}
	return Exported{resp.Body, at, resp.Header.Get("Outboard-Signed-By"), resp.Header.Get("Outboard-Left-Behind")}, nil
}

// Importing says what an imported session is given in place of what its file has ("" = nothing), and whose files
// are taken.
type Importing struct {
	Title, Environment, Model string
	Trust                     []string // public keys, besides those that the server trusts
	Unsigned                  bool     // take a file that nobody whom the server trusts has signed
}

// Import makes a session from a file that Export gave, and returns the public key that signed it, "" = none that
// is trusted. The file is streamed, and not sent again.
func (c *Client) Import(ctx context.Context, r io.Reader, in Importing) (s Session, signedBy string, err error) {
	q := url.Values{"trust": in.Trust}
	if in.Unsigned {
		q.Set("unsigned", "true")
	}
	for name, v := range map[string]string{"title": in.Title, "environment_id": in.Environment, "model": in.Model} {
		if v != "" {
			q.Set(name, v)
		}
	}
	resp, err := c.once(ctx, http.MethodPost, "/v1/outboard/import", q, io.NopCloser(r), "application/zstd")
	if err != nil {
		return s, "", err
	}
	return s, resp.Header.Get("Outboard-Signed-By"), decode(resp, &s)
}

package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/outboard-dev/outboard"
)

// Approval is a call that waits, or waited, for a person.
type Approval struct {
	ID        string    `json:"id"`
	SessionID string    `json:"session_id"`
	EventID   string    `json:"event_id"`
	Action    string    `json:"action"`
	Resource  string    `json:"resource"`
	Request   string    `json:"request"`
	Digest    string    `json:"digest"`
	Why       string    `json:"why"`
	Rules     []string  `json:"rules"`
	Approver  string    `json:"approver"`
	Needs     int       `json:"needs"` // how many people must allow it
	Votes     []Voted   `json:"votes"` // who has, where that is several
	State     string    `json:"state"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
	// Answer is what somebody said; of a closed one, who closed it and why, where that is known.
	Answer *Answered `json:"answer"`
	// Network is the host that it is about, where it is no call's.
	Network *outboard.NetTarget `json:"network,omitempty"`
}

// Voted is an allow of one of several people.
type Voted struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Answered is an answer that was given.
type Answered struct {
	Result  string    `json:"result"` // allow or deny
	By      string    `json:"by"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// Approvals lists approvals, newest first: those that can be answered, or all; of one session, or "" for all.
func (c *Client) Approvals(ctx context.Context, session string, all bool) iter.Seq2[Approval, error] {
	q := url.Values{"limit": {"100"}}
	if session != "" {
		q.Set("session_id", session)
	}
	if all {
		q.Set("state", "all")
	}
	return pages[Approval](ctx, c, "/v1/approvals", q)
}

// Approval returns one.
func (c *Client) Approval(ctx context.Context, id string) (a Approval, err error) {
	return a, c.call(ctx, http.MethodGet, "/v1/approvals/"+url.PathEscape(id), nil, nil, &a)
}

// ApprovalAnswer is a decision. Digest is of the request that was shown.
type ApprovalAnswer struct {
	Result  string `json:"result"`
	Message string `json:"message,omitempty"`
	Digest  string `json:"digest,omitempty"`
	Scope   string `json:"scope,omitempty"`
}

// AnswerApproval answers one, and returns it with the grant that the answer made, if any.
func (c *Client) AnswerApproval(ctx context.Context, id string, ans ApprovalAnswer) (Approval, *Grant, error) {
	var out struct {
		Approval Approval `json:"approval"`
		Grant    *Grant   `json:"grant"`
	}
	err := c.call(ctx, http.MethodPost, "/v1/approvals/"+url.PathEscape(id), nil, ans, &out)
	return out.Approval, out.Grant, err
}

// Grant lets calls pass that would ask.
type Grant struct {
	ID           string     `json:"id"`
	Human        *string    `json:"human_id"`
	Agent        *string    `json:"agent_id"`
	Session      *string    `json:"session_id"`
	Actions      []string   `json:"actions"`
	Resources    []string   `json:"resources"`
	ExpiresAt    time.Time  `json:"expires_at"`
	MaxUses      *int       `json:"max_uses"`
	Uses         int        `json:"uses"`
	ApprovedName string     `json:"approved_name"`
	Why          string     `json:"why"`
	RevokedAt    *time.Time `json:"revoked_at"`
}

// NewGrant is a grant to add.
type NewGrant struct {
	Human     string     `json:"human_id,omitempty"`
	Agent     string     `json:"agent_id,omitempty"`
	Session   string     `json:"session_id,omitempty"`
	Actions   []string   `json:"actions"`
	Resources []string   `json:"resources"`
	NotBefore *time.Time `json:"not_before,omitempty"`
	ExpiresAt time.Time  `json:"expires_at"`
	MaxUses   int        `json:"max_uses,omitempty"`
	Why       string     `json:"why"`
}

// Grants lists grants, newest first; all shows the revoked ones too.
func (c *Client) Grants(ctx context.Context, all bool) iter.Seq2[Grant, error] {
	q := url.Values{"limit": {"100"}}
	if all {
		q.Set("include_archived", "true")
	}
	return pages[Grant](ctx, c, "/v1/grants", q)
}

// AddGrant adds a grant.
func (c *Client) AddGrant(ctx context.Context, n NewGrant) (g Grant, err error) {
	return g, c.call(ctx, http.MethodPost, "/v1/grants", nil, n, &g)
}

// RevokeGrant ends a grant.
func (c *Client) RevokeGrant(ctx context.Context, id string) (g Grant, err error) {
	return g, c.call(ctx, http.MethodDelete, "/v1/grants/"+url.PathEscape(id), nil, nil, &g)
}

// Policy is one version of a policy document.
type Policy struct {
	ID        string    `json:"id"`
	Level     string    `json:"level"`
	Target    *string   `json:"target_id"`
	Version   int       `json:"version"`
	Text      string    `json:"text"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
}

// Policies lists the policies in force.
func (c *Client) Policies(ctx context.Context) iter.Seq2[Policy, error] {
	return pages[Policy](ctx, c, "/v1/policies", url.Values{"limit": {"100"}})
}

// SavePolicy puts a policy in force.
func (c *Client) SavePolicy(ctx context.Context, level, target, text string) (p Policy, err error) {
	return p, c.call(ctx, http.MethodPost, "/v1/policies", nil, map[string]string{"level": level, "target_id": target,
		"text": text}, &p)
}

// Verdict is what policies say about a call.
type Verdict struct {
	Decision string   `json:"decision"`
	Rules    []string `json:"rules"`
	Reason   *string  `json:"reason"`
	Alarm    *string  `json:"alarm"`
}

// TestPolicy asks what would happen to a call, from a body of the wire.
func (c *Client) TestPolicy(ctx context.Context, body any) (v Verdict, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/policies/test", nil, body, &v)
}

// Reason explains a decision. Raw is the whole answer.
type Reason struct {
	SessionID  string  `json:"session_id"`
	EventID    string  `json:"event_id"`
	Tool       string  `json:"tool"`
	Decision   string  `json:"decision"`
	Permission *string `json:"permission"`
	Reason     *string `json:"reason"`
	Grant      *string `json:"grant_id"`
	Outcome    *string `json:"outcome"`
	Rules      []struct {
		ID      string  `json:"id"`
		Text    *string `json:"text"`     // as it was then
		InForce bool    `json:"in_force"` // it still says so
	} `json:"rules"`
	Judged *struct {
		Model   string  `json:"model"`
		Verdict *string `json:"verdict"`
		Reason  *string `json:"reason"`
	} `json:"judged"`
	Approval *Approval       `json:"approval"`
	Raw      json.RawMessage `json:"-"`
}

// Why explains the decision about a call of a session.
func (c *Client) Why(ctx context.Context, session, event string) (r Reason, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(session)+"/outboard/why/"+url.PathEscape(event),
		nil, nil, &r.Raw)
	if err != nil {
		return r, err
	}
	return r, jsonInto(r.Raw, &r)
}

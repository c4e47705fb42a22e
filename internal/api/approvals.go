package api

import (
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type approvalOut struct {
	Type      string              `json:"type"`
	ID        string              `json:"id"`
	Session   string              `json:"session_id"`
	Call      string              `json:"event_id"` // the agent.tool_use
	Action    string              `json:"action"`
	Resource  string              `json:"resource"`
	Request   string              `json:"request"` // the whole of it, in the form a person can be shown
	Digest    string              `json:"digest"`
	Why       string              `json:"why"`
	Rules     []string            `json:"rules"`
	Approver  string              `json:"approver"`
	Needs     int                 `json:"needs"` // how many people must allow it
	Votes     []voteOut           `json:"votes"` // of those who have, where that is several
	State     string              `json:"state"`
	CreatedAt string              `json:"created_at"`
	ExpiresAt string              `json:"expires_at"`
	Answer    *answerOut          `json:"answer"`
	Network   *outboard.NetTarget `json:"network,omitempty"` // of a host; then there is no event
}

type voteOut struct {
	By string `json:"by"`
	At string `json:"at"`
}

func showVotes(votes []outboard.Vote) []voteOut {
	out := make([]voteOut, 0, len(votes))
	for _, v := range votes {
		out = append(out, voteOut{v.Name, stamp(v.At)})
	}
	return out
}

type answerOut struct {
	Result  string  `json:"result"`
	By      string  `json:"by"`
	Message *string `json:"message"`
	At      string  `json:"at"`
}

func showApproval(a outboard.Approval) approvalOut {
	out := approvalOut{"approval", string(a.ID), string(a.Session), string(a.Call), a.Action, a.Resource, a.Request,
		a.Digest, a.Why,
		some(a.Rules), string(a.Approver), max(a.Needs,
			1), showVotes(a.Votes), string(a.State), stamp(a.CreatedAt), stamp(a.ExpiresAt), nil, a.Net}
	if a.Answer != nil {
		out.Answer = &answerOut{string(outboard.Deny), a.Answer.Name, textOrNull(a.Answer.Message), stamp(a.Answer.At)}
		if a.Answer.Allow {
			out.Answer.Result = string(outboard.Allow)
		}
	}
	return out
}

func (s *server) listApprovals(r *request) (any, error) {
	state, err := r.oneOf("state", "pending", "all")
	if err != nil {
		return nil, err
	}
	limit, err := r.limit(otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	session := r.query.Get("session_id")
	name := "approvals " + state + " of " + clip(session)
	c, err := parseCursor(r.query.Get("page"), name, "")
	if err != nil {
		return nil, err
	}
	f := control.ApprovalFilter{Session: outboard.SessionID(session), Cursor: c.After, Limit: limit + 1}
	list, err := s.ctl.Approvals(r.Context(), r.by, f, state == "pending")
	if err != nil {
		return nil, err
	}
	q := rows{list: name, page: control.Page{Limit: f.Limit}}
	return pageOf(q, list, func(a outboard.Approval) (string, time.Time) { return string(a.ID), a.CreatedAt },
		showApproval), nil
}

func (s *server) getApproval(r *request) (any, error) {
	a, err := s.ctl.Approval(r.Context(), r.by, outboard.ApprovalID(r.PathValue("approval")))
	if err != nil {
		return nil, err
	}
	return showApproval(a), nil
}

func (s *server) answerApproval(r *request) (any, error) {
	var in struct {
		Result  string `json:"result" need:"yes"`
		Message string `json:"message"`
		Digest  string `json:"digest"`
		Scope   string `json:"scope"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if in.Result != string(outboard.Allow) && in.Result != string(outboard.Deny) {
		return nil, bad("result: must be allow or deny, not %q", clip(in.Result))
	}
	done, err := s.ctl.AnswerApproval(r.Context(), r.by, outboard.ApprovalID(r.PathValue("approval")),
		control.ApprovalAnswer{Allow: in.Result == string(outboard.Allow), Message: in.Message, Digest: in.Digest,
			Scope: in.Scope})
	if err != nil {
		return nil, err
	}
	out := map[string]any{"type": "approval_answered", "approval": showApproval(done.Approval), "grant": nil}
	if done.Grant != nil {
		out["grant"] = showGrant(*done.Grant)
	}
	if done.Host != nil {
		out["network_grant"] = done.Host
	}
	return out, nil
}

type grantOut struct {
	Type         string   `json:"type"`
	ID           string   `json:"id"`
	Human        *string  `json:"human_id"`
	Agent        *string  `json:"agent_id"`
	Session      *string  `json:"session_id"`
	Actions      []string `json:"actions"`
	Resources    []string `json:"resources"`
	NotBefore    string   `json:"not_before"`
	ExpiresAt    string   `json:"expires_at"`
	MaxUses      *int     `json:"max_uses"`
	Uses         int      `json:"uses"`
	ApprovedBy   string   `json:"approved_by"`
	ApprovedName string   `json:"approved_name"`
	Why          string   `json:"why"`
	CreatedAt    string   `json:"created_at"`
	RevokedAt    *string  `json:"revoked_at"`
}

func showGrant(g outboard.Grant) grantOut {
	out := grantOut{"grant", string(g.ID), textOrNull(g.Human), textOrNull(string(g.Agent)),
		textOrNull(string(g.Session)), some(g.Actions),
		some(g.Resources), stamp(g.NotBefore), stamp(g.ExpiresAt), nil, g.Uses, string(g.ApprovedBy), g.ApprovedName, g.Why,
		stamp(g.CreatedAt), stampOrNull(g.RevokedAt)}
	if g.MaxUses > 0 {
		out.MaxUses = &g.MaxUses
	}
	return out
}

func (s *server) listGrants(r *request) (any, error) {
	q, err := r.rows("grants", otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.Grants(r.Context(), r.by, q.page)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(g outboard.Grant) (string, time.Time) { return string(g.ID), g.CreatedAt },
		showGrant), nil
}

func (s *server) addGrant(r *request) (any, error) {
	var in struct {
		Human     string     `json:"human_id"`
		Agent     string     `json:"agent_id"`
		Session   string     `json:"session_id"`
		Actions   []string   `json:"actions" need:"yes"`
		Resources []string   `json:"resources" need:"yes"`
		NotBefore *time.Time `json:"not_before"`
		ExpiresAt time.Time  `json:"expires_at" need:"yes"`
		MaxUses   int        `json:"max_uses"`
		Why       string     `json:"why" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	g := outboard.Grant{Human: in.Human, Agent: outboard.AgentID(in.Agent), Session: outboard.SessionID(in.Session),
		Actions: in.Actions, Resources: in.Resources, ExpiresAt: in.ExpiresAt.UTC().
				Truncate(time.Microsecond), MaxUses: in.MaxUses, Why: in.Why}
	if in.NotBefore != nil {
		g.NotBefore = in.NotBefore.UTC().Truncate(time.Microsecond)
	}
	g, err := s.ctl.AddGrant(r.Context(), r.by, g)
	if err != nil {
		return nil, err
	}
	return showGrant(g), nil
}

func (s *server) getGrant(r *request) (any, error) {
	g, err := s.ctl.Grant(r.Context(), r.by, outboard.GrantID(r.PathValue("grant")))
	if err != nil {
		return nil, err
	}
	return showGrant(g), nil
}

func (s *server) revokeGrant(r *request) (any, error) {
	g, err := s.ctl.RevokeGrant(r.Context(), r.by, outboard.GrantID(r.PathValue("grant")))
	if err != nil {
		return nil, err
	}
	return showGrant(g), nil
}

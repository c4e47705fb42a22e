package api

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type policyOut struct {
	Type      string  `json:"type"`
	ID        string  `json:"id"`
	Level     string  `json:"level"`
	Target    *string `json:"target_id"`
	Version   int     `json:"version"`
	Text      string  `json:"text"`
	CreatedAt string  `json:"created_at"`
	CreatedBy string  `json:"created_by"`
}

func showPolicyDoc(p outboard.Policy) policyOut {
	return policyOut{"policy", string(p.ID), string(p.Level), textOrNull(p.Target), p.Version, p.Text,
		stamp(p.CreatedAt), p.CreatedBy}
}

func (s *server) listPolicies(r *request) (any, error) {
	limit, err := r.limit(otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	c, err := parseCursor(r.query.Get("page"), "policies", "")
	if err != nil {
		return nil, err
	}
	q := rows{list: "policies", page: control.Page{Limit: limit + 1, Cursor: c.After}}
	list, err := s.ctl.Policies(r.Context(), r.by, q.page)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(p outboard.Policy) (string, time.Time) { return string(p.ID), p.CreatedAt },
		showPolicyDoc), nil
}

func (s *server) savePolicy(r *request) (any, error) {
	var in struct {
		Level   string `json:"level" need:"yes"`
		Target  string `json:"target_id"`
		Text    string `json:"text" need:"yes"`
		Version *int   `json:"version"` // that it replaces
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	expect := -1
	if in.Version != nil {
		expect = *in.Version
	}
	p, err := s.ctl.SavePolicy(r.Context(), r.by, outboard.Policy{Level: outboard.PolicyLevel(in.Level),
		Target: in.Target, Text: in.Text}, expect)
	if err != nil {
		return nil, err
	}
	return showPolicyDoc(p), nil
}

func (s *server) getPolicy(r *request) (any, error) {
	version := 0
	if v := r.query.Get("version"); v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 1 {
			return nil, bad("version: must be an integer from 1, not %q", clip(v))
		}
		version = int(n)
	}
	p, err := s.ctl.Policy(r.Context(), r.by, outboard.PolicyID(r.PathValue("policy")), version)
	if err != nil {
		return nil, err
	}
	return showPolicyDoc(p), nil
}

func (s *server) listPolicyVersions(r *request) (any, error) {
	list, err := s.ctl.PolicyVersions(r.Context(), r.by, outboard.PolicyID(r.PathValue("policy")))
	if err != nil {
		return nil, err
	}
	out := listOut[policyOut]{Data: []policyOut{}}
	for _, p := range list {
		out.Data = append(out.Data, showPolicyDoc(p))
	}
	return out, nil
}

func (s *server) testPolicy(r *request) (any, error) {
	var in struct {
		Agent      string          `json:"agent_id"`
		Session    string          `json:"session_id"`
		Tool       string          `json:"tool" need:"yes"`
		Kind       string          `json:"kind"`
		Input      json.RawMessage `json:"input" need:"yes"`
		Permission string          `json:"permission"`
		Private    bool            `json:"private"`
		Untrusted  bool            `json:"untrusted"`
		Text       *string         `json:"text"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	v, err := s.ctl.TestPolicy(r.Context(), r.by, control.PolicyTest{Agent: outboard.AgentID(in.Agent),
		Session: outboard.SessionID(in.Session),
		Tool:    in.Tool, Kind: in.Kind, Input: in.Input, Permission: outboard.Permission(in.Permission), Text: in.Text,
		Taint: outboard.Taint{Private: in.Private, Untrusted: in.Untrusted}})
	if err != nil {
		return nil, err
	}
	return map[string]any{"type": "policy_verdict", "decision": v.Decision, "rules": some(v.Rules),
		"reason": textOrNull(v.Reason),
		"alarm":  textOrNull(v.Alarm)}, nil
}

func (s *server) why(r *request) (any, error) {
	id, call := outboard.SessionID(r.PathValue("session")), outboard.CallID(r.PathValue("event"))
	w, err := s.ctl.Why(r.Context(), r.by, id, call)
	if err != nil {
		return nil, err
	}
	ruleTexts := []map[string]any{}
	for _, t := range w.Rules {
		ruleTexts = append(ruleTexts, map[string]any{"id": t.ID, "text": textOrNull(t.Text), "in_force": t.InForce})
	}
	out := map[string]any{"type": "policy_reason", "session_id": id, "event_id": call, "tool": w.Call.Name,
		"kind":     w.Call.Kind,
		"decision": w.Call.Decision, "permission": textOrNull(string(w.Call.Policy)), "reason": textOrNull(w.Call.Reason), "rules": ruleTexts,
		"grant_id": textOrNull(string(w.Call.Grant)), "judged": nil, "approval": nil, "outcome": nil}
	if j := w.Judged; j != nil {
		out["judged"] = map[string]any{"model": j.Model, "verdict": textOrNull(string(j.Verdict)),
			"reason": textOrNull(j.Reason)}
	}
	if w.Approval != nil {
		out["approval"] = showApproval(*w.Approval)
	}
	if w.Finished != nil {
		out["outcome"] = w.Finished.Outcome
	}
	return out, nil
}

package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
)

// onceTime is how long an allow for one request waits for it: the session has to come back to it.
const onceTime = 24 * time.Hour

// The scopes of an answer that is about a host; see AllowNetwork. A host that rules of the policies ask about
// takes AllowAgent instead of AllowRule: a grant for all sessions of the agent.
const AllowAgent = "agent"

// answerNet answers the approval of a host. No call waits for it: what is allowed is stored with the answer, and
// the next request finds it.
func (c *Control) answerNet(ctx context.Context, by outboard.Caller, a outboard.Approval,
	ans ApprovalAnswer) (AnsweredApproval, error) {
	out := AnsweredApproval{Approval: a}
	h, cfg, err := c.mayAnswerNet(ctx, by, &a, &ans)
	if err != nil {
		return out, err
	}
	var votes []outboard.Vote
	if a.Needs > 1 && ans.Allow {
		enough := false
		if votes, enough, err = c.vote(ctx, by, &a, cfg.Owner); err != nil {
			return out, err
		}
		if !enough {
			out.Approval, err = c.Approval(ctx, by, a.ID)
			return out, err
		}
	}
	now := c.clock()
	answer := outboard.Answer{Allow: ans.Allow, Key: by.Key, Name: by.Name, Message: ans.Message, At: now}
	if ans.Allow && a.Net.Policy {
		g := outboard.Grant{ID: outboard.NewID[outboard.GrantID](outboard.PrefixGrant), Session: a.Session,
			Actions:   []string{a.Action},
			Resources: []string{a.Resource}, NotBefore: now, ExpiresAt: now.Add(scopeTime), ApprovedBy: by.Key, ApprovedName: by.Name,
			Why: "approval " + string(a.ID), CreatedAt: now, Votes: votes, Org: h.Org}
		switch ans.Scope {
		case AllowOnce:
			g.MaxUses, g.ExpiresAt = 1, now.Add(onceTime)
		case AllowAgent:
			g.Session, g.Agent, g.Human = "", h.AgentID, cfg.Owner.Human()
		}
		out.Grant = &g
	} else if ans.Allow {
		out.Host = &outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant),
			Session: a.Session, Host: a.Net.Host, Port: a.Net.Port,
			Uses: -1, By: string(by.Key), CreatedAt: now}
		if ans.Scope == AllowOnce {
			out.Host.Uses = 1
		}
	}
	what := outboard.Deny
	if ans.Allow {
		what = outboard.Allow
	}
	err = c.record(ctx, by, "approval."+string(what), string(a.Session)+" "+a.Resource,
		map[string]string{"approval": string(a.ID), "digest": a.Digest, "scope": ans.Scope})
	if err != nil {
		return out, err
	}
	if err := c.store.AnswerNet(ctx, a, answer, now, out.Host, out.Grant); err != nil {
		return out, err
	}
	if ans.Scope == AllowRule {
		if err := c.allowRule(ctx, by, cfg.Environment, outboard.NetRule{Host: a.Net.Host,
			Port: a.Net.Port}); err != nil {
			return out, outboard.Errorf(outboard.KindOf(err),
				"the session may reach %s, but its environment did not get the rule: %w", a.Net.Host, err)
		}
	}
	out.Approval, err = c.Approval(ctx, by, a.ID)
	return out, err
}

// mayAnswerNet checks an answer: the request that was shown, in time, by somebody who may, for a session that
// goes on. It sets the scope of an allow that has none.
func (c *Control) mayAnswerNet(ctx context.Context, by outboard.Caller, a *outboard.Approval,
	ans *ApprovalAnswer) (h outboard.Header, cfg outboard.SessionConfig, err error) {
	last := AllowRule
	if a.Net.Policy {
		last = AllowAgent
	}
	if ans.Allow && ans.Scope == "" {
		ans.Scope = AllowOnce
	}
	switch {
	case ans.Allow && !slices.Contains([]string{AllowOnce, AllowSession, last}, ans.Scope):
		return h, cfg, invalid("scope must be once, session or %s for this approval, not %s", last, quote(ans.Scope))
	case ans.Allow && ans.Message != "":
		return h, cfg, invalid("message is only for result deny")
	case ans.Digest != "" && ans.Digest != a.Digest:
		return h, cfg, outboard.Errorf(outboard.Conflict, "the answer is about another request than approval %s", a.ID).
			WithHint("look at it again")
	case a.State != outboard.ApprovalPending:
		return h, cfg, outboard.Errorf(outboard.Conflict, "approval %s is %s and takes no answer", a.ID, a.State).
			WithHint("outboard net allow %s %s lets the host in without one", a.Session, a.Net.Host)
	}
	if err := oneUse(*a, *ans); err != nil {
		return h, cfg, err
	}
	if err := length("message", ans.Message, 0, maxDenyMessage); err != nil {
		return h, cfg, err
	}
	if ans.Scope == AllowRule {
		if err := requireDeveloper(by, scopeEnvironments); err != nil {
			return h, cfg, err
		}
	}
	if h, err = c.header(ctx, by, a.Session); err != nil {
		return h, cfg, err
	}
	if h.Phase == outboard.PhaseTerminated {
		return h, cfg, archived(h.ID)
	}
	if err := c.actsFor(ctx, &h); err != nil {
		return h, cfg, err
	}
	if err := c.aliveSession(ctx, h.ID); err != nil {
		return h, cfg, err
	}
	if cfg, err = c.store.SessionConfig(ctx, h.ID); err != nil {
		return h, cfg, wrapLookup("session", string(h.ID), err)
	}
	if !a.Approver.May(by, cfg.Owner) {
		return h, cfg, mayNot(a.Approver, outboard.Errorf(outboard.Denied, "%s may not answer approval %s",
			quote(by.Name), a.ID))
	}
	return h, cfg, nil
}

// mayNot adds whom a refused answer would have to come from.
func mayNot(a outboard.Approver, e *outboard.Error) error {
	switch a {
	case outboard.ApproverOther:
		return e.WithHint("its policy wants somebody else than the owner of the session, and than who made their key")
	case outboard.ApproverAdmin:
		return e.WithHint("its policy wants an administrator")
	case outboard.ApproverOtherAdmin:
		return e.WithHint("its policy wants an administrator who is somebody else than the owner of the session, " +
			"and than who made their key")
	}
	return e
}

// grantable refuses to make a grant of a request that a grant would read as more than what was shown: as a
// pattern, or by its tool's name as any call of it.
func grantable(a *outboard.Approval) error {
	if strings.HasSuffix(a.Resource, "*") {
		return invalid("the request ends in a star, which in a grant stands for any text: it can be allowed once only")
	}
	if a.Action == policy.ActionCustom || a.Action == policy.ActionMCP || a.Resource == a.Action {
		return invalid("a grant for %s lets every call of it pass, whatever its arguments: this one can be allowed "+
			"once only", quote(a.Resource)).
			WithHint("if that is meant: outboard grant add --session %s --action %s --resource %s --why ...", a.Session,
				a.Action, a.Resource)
	}
	return nil
}

package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
)

// ApprovalFilter selects approvals; see store.ApprovalFilter.
type ApprovalFilter = store.ApprovalFilter

// Approvals returns one page, newest first.
func (c *Control) Approvals(ctx context.Context, by outboard.Caller, f ApprovalFilter,
	pending bool) ([]outboard.Approval, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	if pending {
		f.Pending = c.now()
	}
	f.Org = by.In()
	list, err := c.store.Approvals(ctx, f)
	for i := range list {
		list[i].State = list[i].StateAt(c.now())
	}
	return list, wrapLookup("approvals", "", err)
}

// Approval returns one.
func (c *Control) Approval(ctx context.Context, by outboard.Caller, id outboard.ApprovalID) (outboard.Approval, error) {
	if err := requireReader(by); err != nil {
		return outboard.Approval{}, err
	}
	a, err := c.store.Approval(ctx, id)
	if err := ownedBy(by, a.Org, "approval", string(id), err); err != nil {
		return outboard.Approval{}, err
	}
	a.State = a.StateAt(c.now())
	return a, nil
}

// ApprovalAnswer is a person's decision.
type ApprovalAnswer struct {
	Allow   bool
	Message string // on a deny, for the model
	Digest  string // of the request that the person was shown; "" = whatever the row says
	// Scope is what an allow is good for: "" or "once", "session", or "agent", which makes a grant. Of a host on
	// no list, see answerNet: "rule" instead of "agent".
	Scope string
}

// AnsweredApproval is an approval with what its answer made.
type AnsweredApproval struct {
	Approval outboard.Approval
	Grant    *outboard.Grant
	Host     *outboard.NetGrant
}

// scopeTime is how long a grant lasts that an answer makes.
const scopeTime = 30 * 24 * time.Hour

// AnswerApproval answers through the session's inbox, as user.tool_confirmation does: there is one way in, one
// check and one record. An allow with a scope also makes a grant for the same action on the same resource.
func (c *Control) AnswerApproval(ctx context.Context, by outboard.Caller, id outboard.ApprovalID,
	ans ApprovalAnswer) (AnsweredApproval, error) {
	if err := approver(by); err != nil {
		return AnsweredApproval{}, err
	}
	if !slices.Contains([]string{"", AllowOnce, AllowSession, AllowAgent, AllowRule}, ans.Scope) || !ans.Allow &&
		ans.Scope != "" {
		return AnsweredApproval{}, invalid("scope must be once, session, agent or rule, and only for an allow")
	}
	a, err := c.Approval(ctx, by, id)
	out := AnsweredApproval{Approval: a}
	if err != nil {
		return out, err
	}
	if a.Net != nil {
		return c.answerNet(ctx, by, a, ans)
	}
	if ans.Scope == AllowRule {
		return out, invalid("scope rule is for hosts; a call takes once, session or agent")
	}
	if err := oneUse(a, ans); err != nil {
		return out, err
	}
	cfg, err := c.store.SessionConfig(ctx, a.Session)
	if err != nil {
		return out, wrapLookup("session", string(a.Session), err)
	}
	lasting, err := c.lasting(ctx, by, &a, cfg.Owner, ans.Scope)
	if err != nil {
		return out, err
	}
	// said of what they know, not of an event
	if a.State == outboard.ApprovalPending && !a.Approver.May(by, cfg.Owner) {
		return out, mayNot(a.Approver, outboard.Errorf(outboard.Denied, "%s may not answer approval %s", quote(by.Name),
			a.ID))
	}
	in := &outboard.InputConfirmation{Call: a.Call, Allow: ans.Allow, Message: ans.Message, Digest: ans.Digest}
	if _, err := c.Send(ctx, by, a.Session, []outboard.Payload{in}); err != nil {
		if e, ok := errors.AsType[*outboard.Error](err); ok && e.Code == outboard.CodeAnswered {
			e.Kind = outboard.Conflict // which the wire's route does not say; this one is Outboard's own
		}
		return out, err
	}
	if lasting != nil {
		g, err := c.AddGrant(ctx, by, *lasting)
		if err != nil {
			return out, err
		}
		out.Grant = &g
	}
	out.Approval, err = c.Approval(ctx, by, id)
	return out, err
}

// lasting is the grant that an allow of a call makes, nil where its scope makes none. What cannot be granted is
// refused here, before the answer is given.
func (c *Control) lasting(ctx context.Context, by outboard.Caller, a *outboard.Approval, owner outboard.Owner,
	scope string) (*outboard.Grant, error) {
	if scope != AllowSession && scope != AllowAgent {
		return nil, nil
	}
	if err := grantable(a); err != nil {
		return nil, err
	}
	now := c.clock()
	g := outboard.Grant{Session: a.Session, Actions: []string{a.Action}, Resources: []string{a.Resource},
		ExpiresAt: now.Add(scopeTime),
		Why:       "approval " + string(a.ID)}
	if scope == AllowAgent {
		h, err := c.header(ctx, by, a.Session)
		if err != nil {
			return nil, err
		}
		g.Session, g.Agent, g.Human = "", h.AgentID, owner.Human()
	}
	checked := g
	return &g, c.checkGrant(ctx, by, &checked, now)
}

// oneUse refuses a lasting answer to what several people must allow: each of them is asked about one request.
func oneUse(a outboard.Approval, ans ApprovalAnswer) error {
	if a.Needs > 1 && ans.Allow && ans.Scope != "" && ans.Scope != AllowOnce {
		return invalid("approval %s needs %d people, who allow one request: scope must be once, not %s", a.ID, a.Needs,
			quote(ans.Scope))
	}
	return nil
}

// vote counts a caller's allow of an approval that needs several people, and reports whether there are enough of
// them now. Votes of people who may not answer any more do not count. It may be done again: a person votes once.
func (c *Control) vote(ctx context.Context, by outboard.Caller, a *outboard.Approval,
	owner outboard.Owner) (votes []outboard.Vote, enough bool, err error) {
	if err := c.record(ctx, by, "approval.vote", string(a.ID), map[string]any{"digest": a.Digest, "session": a.Session,
		"needs": a.Needs}); err != nil {
		return nil, false, err
	}
	if votes, err = c.store.AddVote(ctx, a.ID, a.Digest, outboard.Vote{Key: by.Key, Name: by.Name,
		At: c.clock()}); err != nil {
		return nil, false, err
	}
	n, err := policy.Count(ctx, c.store, votes, a.Approver, owner)
	return votes, n >= a.Needs, err
}

// voteForCall is vote for the answer at place i of a request, which must be its only one. Without enough votes
// nothing is queued.
func (c *Control) voteForCall(ctx context.Context, by outboard.Caller, h *outboard.Header, plan *sendPlan, i int,
	p *outboard.InputConfirmation) (enough bool, err error) {
	if len(plan.events) != 1 {
		return false, invalid("events[%d]: tool use %s needs several people: send its confirmation by itself", i,
			p.Call)
	}
	a, err := c.store.Approval(ctx, outboard.ApprovalOf(h.ID, p.Call))
	if err != nil {
		return false, wrapLookup("approval", string(outboard.ApprovalOf(h.ID, p.Call)), err)
	}
	cfg, err := c.store.SessionConfig(ctx, h.ID)
	if err != nil {
		return false, wrapLookup("session", string(h.ID), err)
	}
	votes, enough, err := c.vote(ctx, by, &a, cfg.Owner)
	if err != nil || !enough {
		plan.events, plan.old = nil, nil
		return false, err
	}
	p.Votes = votes
	plan.events[i].Data = outboard.NewEvent(h.Thread, p).Data
	return true, nil
}

// checkApprover holds an answer to the approval it answers: the same request, in time, by somebody who may.
func (c *Control) checkApprover(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	call *outboard.CallRequested, p *outboard.InputConfirmation, i int) error {
	if call.Digest != "" && p.Digest != "" && p.Digest != call.Digest {
		return outboard.Errorf(outboard.Conflict, "events[%d]: the answer is about another request than tool use %s "+
			"makes", i, p.Call).
			WithHint("look at it again")
	}
	if !call.ExpiresAt.IsZero() && !c.now().Before(call.ExpiresAt) {
		return outboard.Errorf(outboard.Conflict, "events[%d]: the time to answer tool use %s was over at %s", i,
			p.Call,
			call.ExpiresAt.Format(time.RFC3339))
	}
	cfg, err := c.store.SessionConfig(ctx, id)
	if err != nil {
		return wrapLookup("session", string(id), err)
	}
	if !call.Approver.May(by, cfg.Owner) {
		return mayNot(call.Approver, outboard.Errorf(outboard.Denied, "events[%d]: %s may not answer tool use %s", i,
			quote(by.Name), p.Call))
	}
	return nil
}

// AddGrant stores a grant. Its ID, ApprovedBy, CreatedAt and Uses are set here.
func (c *Control) AddGrant(ctx context.Context, by outboard.Caller, g outboard.Grant) (outboard.Grant, error) {
	if err := approver(by); err != nil {
		return g, err
	}
	now := c.clock()
	g.ID, g.ApprovedBy, g.ApprovedName, g.CreatedAt, g.Org, g.Uses = outboard.NewID[outboard.GrantID](outboard.PrefixGrant), by.Key, by.Name, now, by.In(), 0
	if err := c.checkGrant(ctx, by, &g, now); err != nil {
		return g, err
	}
	if err := c.record(ctx, by, "grant.add", string(g.ID), g); err != nil {
		return g, err
	}
	if err := c.store.PutGrant(ctx, g); err != nil {
		return g, outboard.Errorf(outboard.KindOf(err), "storing the grant: %w", err)
	}
	return g, nil
}

// Limits of one grant.
const (
	maxGrantItems = 50   // actions, and resources
	maxGrantText  = 4096 // of one resource, which may be a whole command
)

func (c *Control) checkGrant(ctx context.Context, by outboard.Caller, g *outboard.Grant, now time.Time) error {
	if n := len(g.Actions); n == 0 || n > maxGrantItems {
		return invalid("actions must have 1 to %d entries, not %d", maxGrantItems, n)
	}
	for _, a := range g.Actions {
		if a != "*" && !slices.Contains(policy.Actions(), a) {
			return invalid("there is no action %s", quote(a)).WithHint("outboard policy schema lists them")
		}
	}
	if n := len(g.Resources); n == 0 || n > maxGrantItems {
		return invalid("resources must have 1 to %d entries, not %d", maxGrantItems, n)
	}
	for _, r := range g.Resources {
		if err := length("a resource", r, 1, maxGrantText); err != nil {
			return err
		}
	}
	if err := length("why", g.Why, 1, maxTitle); err != nil {
		return err
	}
	if g.MaxUses < 0 {
		return invalid("max_uses must not be negative")
	}
	if g.NotBefore.IsZero() {
		g.NotBefore = now
	}
	if !g.ExpiresAt.After(now) || !g.ExpiresAt.After(g.NotBefore) || g.ExpiresAt.Sub(now) > maxGrant {
		return invalid("expires_at must be after now and not_before, and at most %v away", maxGrant)
	}
	if g.Session != "" {
		if _, err := c.header(ctx, by, g.Session); err != nil {
			return err
		}
	}
	if g.Agent != "" {
		if _, err := c.Agent(ctx, by, g.Agent, 0); err != nil {
			return err
		}
	}
	return c.checkHuman(ctx, by, g)
}

// checkHuman makes a grant that names a person's key one for the person: each sign-in is another key, and they
// would be asked again. One that was made for the key alone, before that, stays so.
func (c *Control) checkHuman(ctx context.Context, by outboard.Caller, g *outboard.Grant) error {
	if g.Human == "" {
		return nil
	}
	if !outboard.ValidID(outboard.PrefixUser, g.Human) {
		k, err := c.store.Key(ctx, outboard.KeyID(g.Human))
		if err := ownedBy(by, k.Org, "human", g.Human, err); err != nil || k.User == "" {
			return err
		}
		g.Human = string(k.User)
	}
	u, err := c.store.User(ctx, outboard.UserID(g.Human))
	if err := ownedBy(by, u.Org, "human", g.Human, err); err != nil {
		return err
	}
	if !u.RemovedAt.IsZero() {
		return invalid("%s was removed, and no session acts for them", u.Email)
	}
	return nil
}

// Grants returns a page of grants, newest first; p.IncludeArchived shows the revoked ones.
func (c *Control) Grants(ctx context.Context, by outboard.Caller, p Page) ([]outboard.Grant, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	p.Org = by.In()
	list, err := c.store.Grants(ctx, p)
	return list, wrapLookup("grants", "", err)
}

// Grant returns one.
func (c *Control) Grant(ctx context.Context, by outboard.Caller, id outboard.GrantID) (outboard.Grant, error) {
	if err := requireReader(by); err != nil {
		return outboard.Grant{}, err
	}
	g, err := c.store.Grant(ctx, id)
	if err := ownedBy(by, g.Org, "grant", string(id), err); err != nil {
		return outboard.Grant{}, err
	}
	return g, nil
}

// RevokeGrant ends a grant: no call that has not been sent passes by it any more.
func (c *Control) RevokeGrant(ctx context.Context, by outboard.Caller, id outboard.GrantID) (outboard.Grant, error) {
	if err := approver(by); err != nil {
		return outboard.Grant{}, err
	}
	if _, err := c.Grant(ctx, by, id); err != nil {
		return outboard.Grant{}, err
	}
	if err := c.record(ctx, by, "grant.revoke", string(id), nil); err != nil {
		return outboard.Grant{}, err
	}
	g, err := c.store.RevokeGrant(ctx, id, c.clock())
	return g, wrapLookup("grant", string(id), err)
}

// closeApprovals ends what an archived or deleted session waited for. A row that stays open because of an error
// lets nothing run: the session takes no answers any more.
func (c *Control) closeApprovals(ctx context.Context, id outboard.SessionID, why *outboard.Answer) {
	if err := c.store.CloseApprovals(ctx, id, why); err != nil {
		c.log.Warn("approvals of an ended session stay listed until they expire", "session", id, "err", err)
	}
}

package control

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
)

// record writes what a caller is about to change to the audit, which must be durable first.
func (c *Control) record(ctx context.Context, by outboard.Caller, action, resource string, detail any) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return outboard.Errorf(outboard.Internal, "encoding an audit record: %w", err)
	}
	if len(b) > outboard.MaxEventData {
		b, _ = json.Marshal(map[string]int{"bytes": len(b)}) // the row itself keeps the rest
	}
	err = c.store.Audit(ctx, outboard.AuditRecord{At: c.clock(), Org: string(by.In()), Actor: string(by.Key),
		Action:   action,
		Resource: resource, Decision: outboard.Allowed, Rule: "role " + by.Role, Detail: b})
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "writing the audit: %w", err)
	}
	return nil
}

// SavePolicy checks a policy and puts it in force as the next version. A mistake in it changes nothing: the
// version before stays in force. expect is the version it replaces, -1 for any.
func (c *Control) SavePolicy(ctx context.Context, by outboard.Caller, p outboard.Policy,
	expect int) (outboard.Policy, error) {
	if err := requireAdmin(by, scopePolicies); err != nil {
		return p, err
	}
	if err := c.checkTarget(ctx, by, p.Level, p.Target); err != nil {
		return p, err
	}
	if _, err := policy.Compile(p.Level, p.Text); err != nil {
		return p, err
	}
	p.CreatedAt, p.CreatedBy, p.Org = c.clock(), by.Name, by.In()
	if err := c.record(ctx, by, "policy.save", strings.TrimSpace(string(p.Level)+" "+p.Target),
		map[string]string{"text": p.Text}); err != nil {
		return p, err
	}
	defer c.policy.Refresh()
	return c.store.SavePolicy(ctx, p, expect)
}

// checkTarget refuses a policy for something that is not there.
func (c *Control) checkTarget(ctx context.Context, by outboard.Caller, level outboard.PolicyLevel,
	target string) error {
	switch level {
	case outboard.LevelOrganization:
		if target != "" {
			return invalid("a policy of level organization has no target")
		}
		return nil
	case outboard.LevelAgent:
		_, err := c.Agent(ctx, by, outboard.AgentID(target), 0)
		return err
	case outboard.LevelSession:
		_, err := c.header(ctx, by, outboard.SessionID(target))
		// one that was deleted, whose policy holds for its forks
		if err != nil && outboard.KindOf(err) == outboard.NotFound {
			if _, missing := c.Policy(ctx, by, outboard.PolicyRow(level, target), 0); missing == nil {
				return nil
			}
		}
		return err
	}
	return invalid("level must be organization, agent or session, not %s", quote(string(level))).
		WithHint("the operator's policy is in the server's configuration")
}

// Policy returns a version of a policy, 0 = the one in force.
func (c *Control) Policy(ctx context.Context, by outboard.Caller, id outboard.PolicyID,
	version int) (outboard.Policy, error) {
	if err := requireReader(by); err != nil {
		return outboard.Policy{}, err
	}
	p, err := c.store.Policy(ctx, id, version)
	if err := ownedBy(by, p.Org, "policy", string(id), err); err != nil {
		return outboard.Policy{}, err
	}
	return p, nil
}

// Policies returns a page of the policies in force.
func (c *Control) Policies(ctx context.Context, by outboard.Caller, p Page) ([]outboard.Policy, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	p.Org = by.In()
	list, err := c.store.Policies(ctx, p)
	return list, wrapLookup("policies", "", err)
}

// PolicyVersions returns the newest versions of a policy, newest first.
func (c *Control) PolicyVersions(ctx context.Context, by outboard.Caller,
	id outboard.PolicyID) ([]outboard.Policy, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	if _, err := c.Policy(ctx, by, id, 0); err != nil {
		return nil, err
	}
	list, err := c.store.PolicyVersions(ctx, id, maxVersions)
	if err == nil && len(list) == 0 {
		return nil, notFound("policy", string(id))
	}
	return list, wrapLookup("policy", string(id), err)
}

// maxVersions bounds the versions of a policy that are listed.
const maxVersions = 100

// PolicyTest asks what would happen to one call.
type PolicyTest struct {
	Agent      outboard.AgentID
	Session    outboard.SessionID
	Tool       string
	Kind       string // builtin, custom or mcp; "" = builtin
	Input      outboard.Raw
	Permission outboard.Permission // "" = always_allow
	Taint      outboard.Taint
	Text       *string // one more layer, of the session's level
}

// complete sets what a test leaves out, and refuses a call that no policy is asked about. tools are the agent's,
// where there is one.
func (t *PolicyTest) complete(tools []outboard.Toolset) error {
	if t.Permission == "" {
		t.Permission = outboard.AlwaysAllow
	}
	if t.Kind == "" {
		t.Kind = "builtin"
		if slices.ContainsFunc(tools, func(s outboard.Toolset) bool { return s.Kind == "custom" && s.Name == t.Tool }) {
			t.Kind = "custom"
		}
	}
	if t.Kind == "builtin" && !slices.Contains(policy.Actions(), t.Tool) {
		return invalid("there is no built-in tool %s", quote(t.Tool)).
			WithHint("for a custom tool, name the agent or session that has it")
	}
	if !slices.Contains([]string{"builtin", "custom", "mcp"}, t.Kind) {
		return invalid("kind must be builtin, custom or mcp, not %s", quote(t.Kind))
	}
	if err := json.Unmarshal(t.Input, &map[string]any{}); err != nil || string(t.Input) == "null" {
		return invalid("input must be a JSON object, as a call's is")
	}
	return nil
}

// TestPolicy decides about a call that nobody makes. Nothing is recorded, and no grant is looked at.
func (c *Control) TestPolicy(ctx context.Context, by outboard.Caller, t PolicyTest) (policy.Verdict, error) {
	if err := requireReader(by); err != nil {
		return policy.Verdict{}, err
	}
	r := &policy.Request{Session: t.Session, Agent: t.Agent, Owner: by.Owner(), Role: by.Role}
	var over []outboard.Budget
	var tools []outboard.Toolset
	if t.Session != "" {
		s, err := c.Session(ctx, by, t.Session)
		if err != nil {
			return policy.Verdict{}, err
		}
		r.Agent, r.Environment, r.Owner = s.AgentID, s.EnvironmentID, s.Config.Owner
		r.Context.Networking, tools = s.Config.Env.Networking.Mode, s.Config.Agent.Tools
		if over, err = c.store.BudgetsOver(ctx, t.Session, s.AgentID, s.Config.Owner); err != nil {
			return policy.Verdict{}, wrapLookup("session", string(t.Session), err)
		}
	} else if t.Agent != "" {
		a, err := c.Agent(ctx, by, t.Agent, 0)
		if err != nil {
			return policy.Verdict{}, err
		}
		tools = a.Tools
	}
	if err := t.complete(tools); err != nil {
		return policy.Verdict{}, err
	}
	r.ForCall(&outboard.CallRequested{Name: t.Tool, Kind: t.Kind, Policy: t.Permission}, t.Input)
	r.Context.Now, r.Context.Taint, r.Context.Left = c.now(), t.Taint, new(outboard.LeftOf(over, outboard.Spend{}))
	c.policy.Refresh()
	set := c.policy.Set(ctx, by.In(), r.Agent, r.Session)
	if t.Text != nil {
		l, err := policy.Compile(outboard.LevelSession, *t.Text)
		if err != nil {
			return policy.Verdict{}, err
		}
		set = set.With(l)
	}
	return set.Decide(r), nil
}

// Reason explains the decision about one call.
type Reason struct {
	Call     outboard.CallRequested
	Judged   *outboard.CallJudged
	Approval *outboard.Approval
	Rules    []RuleText // the rules that decided
	Finished *outboard.CallFinished
}

// RuleText is one policy of a document as it was when it decided; those of the platform and the operator are
// known as they are today only. Text is "" where no document has it: the rule is gone, or is what a level says
// that permits nothing.
type RuleText struct {
	ID, Text string
	InForce  bool // it still says so
}

// Why explains why a call was allowed, asked about or denied.
func (c *Control) Why(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	call outboard.CallID) (Reason, error) {
	var out Reason
	h, err := c.header(ctx, by, id)
	if err != nil {
		return out, err
	}
	if call, err = c.callOf(ctx, id, call); err != nil {
		return out, err
	}
	req, err := c.call(ctx, id, call)
	if err != nil {
		return out, err
	}
	out.Call = *req
	about, err := c.store.EventsAbout(ctx, id, call)
	if err != nil {
		return out, wrapLookup("tool use", string(call), err)
	}
	for i := range about {
		p, err := about[i].Decode()
		if err != nil {
			return out, err
		}
		switch p := p.(type) {
		case *outboard.CallJudged:
			out.Judged = p
		case *outboard.CallFinished:
			out.Finished = p
		}
	}
	if a, err := c.store.Approval(ctx, outboard.ApprovalOf(id, call)); err == nil {
		a.State = a.StateAt(c.now())
		out.Approval = &a
	}
	ev, err := c.store.Event(ctx, id, call)
	if err != nil {
		return out, wrapLookup("tool use", string(call), err)
	}
	then, err := c.store.PoliciesAt(ctx, by.In(), h.AgentID, id, ev.Time)
	if err != nil {
		return out, wrapLookup("policies", "", err)
	}
	now, err := c.store.PoliciesFor(ctx, by.In(), h.AgentID, id)
	if err != nil {
		return out, wrapLookup("policies", "", err)
	}
	was, is, builtin := readable(then), readable(now), c.policy.Set(ctx, by.In(), h.AgentID, id)
	for _, r := range req.Rules {
		out.Rules = append(out.Rules, ruleText(r, was, is, builtin))
	}
	return out, nil
}

// readable stacks those of policies that can still be read.
func readable(docs []outboard.Policy) *policy.Set {
	var layers []*policy.Layer
	for _, d := range docs {
		if l, err := policy.Compile(d.Level, d.Text); err == nil {
			layers = append(layers, l)
		}
	}
	return policy.NewSet(layers...)
}

// ruleText looks a rule up in the stored policies of then and now, or among what no row has.
func ruleText(id string, then, now, builtin *policy.Set) RuleText {
	switch level, _, _ := strings.Cut(id, "/"); outboard.PolicyLevel(level) {
	case outboard.LevelPlatform, outboard.LevelOperator:
		then, now = builtin, builtin
	}
	r := RuleText{ID: id, Text: then.Text(id)}
	r.InForce = r.Text == now.Text(id) && (r.Text != "" || policy.Unwritten(id))
	return r
}

// maxGrant bounds how long a grant may last: a right that outlives a year belongs into a policy.
const maxGrant = 366 * 24 * time.Hour

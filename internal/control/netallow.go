package control

import (
	"context"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/store"
)

// answeredBy are the approvals of hosts of a session that an allow answers: those that ask for no more than it
// lets in, and that its maker may answer alone.
func (c *Control) answeredBy(ctx context.Context, by outboard.Caller, g *outboard.NetGrant,
	owner outboard.Owner) ([]outboard.Approval, error) {
	waiting, err := c.store.Approvals(ctx, store.ApprovalFilter{Session: g.Session, Pending: g.CreatedAt,
		Limit: maxWaiting})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(waiting, func(a outboard.Approval) bool {
		return a.Net == nil || a.Net.Policy || a.Needs > 1 || !letsIn(g, a.Net) || !a.Approver.May(by, owner)
	}), nil
}

// maxWaiting is beyond what one session may have waiting: hosts and calls.
const maxWaiting = 1000

// letsIn reports whether a grant covers all that is asked about.
func letsIn(g *outboard.NetGrant, t *outboard.NetTarget) bool {
	rules := []netrule.Rule{netrule.OfGrant(*g)}
	if t.Port != 0 {
		return netrule.MayConnect(rules, t.Host, t.Port)
	}
	return netrule.MayConnect(rules, t.Host, 80) && netrule.MayConnect(rules, t.Host, 443)
}

// putNetGrant stores a grant and answers what waited for it.
func (c *Control) putNetGrant(ctx context.Context, by outboard.Caller, g outboard.NetGrant, scope string,
	owner outboard.Owner) error {
	answered, err := c.answeredBy(ctx, by, &g, owner)
	if err != nil {
		return err
	}
	var ids []outboard.ApprovalID
	for _, a := range answered {
		ids = append(ids, a.ID)
		err := c.record(ctx, by, "approval.allow", string(a.Session)+" "+a.Resource,
			map[string]string{"approval": string(a.ID), "digest": a.Digest, "scope": scope})
		if err != nil {
			return err
		}
	}
	return c.store.AllowNet(ctx, g, outboard.Answer{Allow: true, Key: by.Key, Name: by.Name, At: g.CreatedAt}, ids)
}

// TakenBack is what DisallowNetwork ended.
type TakenBack struct {
	Grants int  // of the session
	Rule   bool // the environment had one
}

// DisallowNetwork ends what AllowNetwork, or an answer, let a session reach: the grants of exactly this host and
// port, and with rule the rule of its environment. The next request is asked about like the first one.
func (c *Control) DisallowNetwork(ctx context.Context, by outboard.Caller, id outboard.SessionID, host string, port int,
	rule bool) (out TakenBack, err error) {
	if err := approver(by); err != nil {
		return out, err
	}
	s, err := c.Session(ctx, by, id)
	if err != nil {
		return out, err
	}
	if host == "" {
		return out, invalid("host is missing")
	}
	detail := map[string]any{"session_id": id, "host": host, "port": port, "rule": rule}
	if err := c.record(ctx, by, "network.disallow", string(id)+" "+host, detail); err != nil {
		return out, err
	}
	if out.Grants, err = c.store.EndNetGrants(ctx, id, host, port); err != nil {
		return out, err
	}
	if rule {
		if out.Rule, err = c.disallowRule(ctx, by, s.EnvironmentID, outboard.NetRule{Host: host,
			Port: port}); err != nil {
			return out, err
		}
	}
	if out.Grants == 0 && !out.Rule {
		return out, outboard.Errorf(outboard.NotFound, "nobody has let session %s reach %s at that port", id,
			quote(host)).
			WithHint("outboard net show %s says what it may reach; what its environment allows is taken back there", id)
	}
	return out, nil
}

// disallowRule removes the rule that allowRule adds, and reports whether it was there.
func (c *Control) disallowRule(ctx context.Context, by outboard.Caller, id outboard.EnvironmentID,
	rule outboard.NetRule) (had bool, err error) {
	_, err = c.UpdateEnvironment(ctx, by, id, EnvironmentPatch{Config: func(cfg *outboard.EnvConfig) {
		n := &cfg.Networking
		kept := slices.DeleteFunc(slices.Clone(n.Rules), func(r outboard.NetRule) bool { return allows(&r, &rule) })
		had, n.Rules = len(kept) < len(n.Rules), kept
	}})
	return had && err == nil, err
}

// allows reports whether a rule is the one that allowRule makes.
func allows(r, made *outboard.NetRule) bool {
	return !r.Deny && r.Host == made.Host && r.Port == made.Port && len(r.Methods) == 0 && r.Path == ""
}

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
)

// maxNetRules bounds rules of one environment: each is looked at for every request.
const maxNetRules = 1000

// NetworkRule is one line of what a session may reach.
type NetworkRule = netrule.Rule

// Network is everything that a session, or one of an environment, may reach.
type Network struct {
	Mode   string
	Rules  []NetworkRule
	Grants []outboard.NetGrant // of a session
	Budget outboard.NetBudget
	Used   outboard.NetBudget // of a session's
	Ask    outboard.NetAsk
	Denied []string // networks that are not dialled, of a box
	Except []string // but those in these

	Proxy   string              // that the requests of a box go through
	Headers map[string][]string // names of headers that are set, by host; of a box
}

// AuditRecord is a row of the audit.
type AuditRecord = outboard.AuditRecord

// SessionNetwork returns what a session may reach: nothing else is reachable.
func (c *Control) SessionNetwork(ctx context.Context, by outboard.Caller, id outboard.SessionID) (Network, error) {
	s, err := c.Session(ctx, by, id)
	if err != nil {
		return Network{}, err
	}
	n := s.Config.Env.Networking
	grants, err := c.store.NetGrants(ctx, id)
	used, err2 := c.store.NetUsage(ctx, string(id))
	return Network{Mode: n.Mode, Rules: netrule.Effective(n, s.Config.Agent.MCPServers), Grants: grants,
			Budget: n.Budget, Used: used, Ask: n.Ask},
		wrapLookup("session", string(id), errors.Join(err, err2))
}

// EnvironmentNetwork returns what every session of an environment may reach; the servers of an agent come on top
// where the environment says so.
func (c *Control) EnvironmentNetwork(ctx context.Context, by outboard.Caller,
	id outboard.EnvironmentID) (Network, error) {
	e, err := c.Environment(ctx, by, id)
	if err != nil {
		return Network{}, err
	}
	n := e.Config.Networking
	return Network{Mode: n.Mode, Rules: netrule.Effective(n, nil), Budget: n.Budget, Ask: n.Ask}, nil
}

// NetworkLog returns the requests that a session has made, newest first, and what decided each.
func (c *Control) NetworkLog(ctx context.Context, by outboard.Caller, id outboard.SessionID, before int64,
	limit int) ([]AuditRecord, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return nil, err
	}
	list, err := c.store.AuditRecords(ctx, store.AuditQuery{Actor: string(id), Action: "http.request", Before: before,
		Newest: true, Limit: limit})
	return list, wrapLookup("session", string(id), err)
}

// The scopes of AllowNetwork.
const (
	AllowOnce    = "once"    // one request
	AllowSession = "session" // this session
	AllowRule    = "rule"    // this session, and the environment's next ones
)

// AllowNetwork lets a session reach the host of a rule, at its port (0 means 80 and 443) and by WebSocket where
// the rule says so, and answers the approvals that wait for that. What else a rule can say is not looked at.
func (c *Control) AllowNetwork(ctx context.Context, by outboard.Caller, id outboard.SessionID, want outboard.NetRule,
	scope string) (outboard.NetGrant, error) {
	if err := approver(by); err != nil {
		return outboard.NetGrant{}, err
	}
	s, err := c.Session(ctx, by, id)
	if err != nil {
		return outboard.NetGrant{}, err
	}
	host, rule := want.Host, outboard.NetRule{Host: want.Host, Port: want.Port, WebSocket: want.WebSocket}
	if err := netrule.Check(rule); err != nil {
		return outboard.NetGrant{}, invalid("%w", err)
	}
	if err := c.reachable(ctx, host); err != nil {
		return outboard.NetGrant{}, err
	}
	if m := s.Config.Env.Networking.Mode; m == "none" || m == "" {
		return outboard.NetGrant{}, outboard.Errorf(outboard.Conflict,
			"session %s has no network at all: its environment says type none", id)
	}
	// Whoever may not answer for the session does not let a host in unasked either.
	if a := s.Config.Env.Networking.Ask.Approver; a != outboard.ApproverNone && !a.May(by, s.Config.Owner) {
		return outboard.NetGrant{}, mayNot(a, outboard.Errorf(outboard.Denied, "%s may not let session %s reach a host",
			quote(by.Name), id))
	}
	g := outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant), Session: id, Host: host,
		Port: rule.Port, Uses: -1, WebSocket: rule.WebSocket,
		By: string(by.Key), CreatedAt: c.clock()}
	switch scope {
	case AllowOnce:
		g.Uses = 1
	case AllowSession:
	case AllowRule:
		if err := c.allowRule(ctx, by, s.EnvironmentID, rule); err != nil {
			return g, err
		}
	default:
		return g, invalid("scope must be once, session or rule, not %s", quote(scope))
	}
	detail, err := json.Marshal(g)
	if err != nil {
		return g, fmt.Errorf("encoding a grant: %w", err)
	}
	err = c.store.Audit(ctx, AuditRecord{At: g.CreatedAt, Org: string(by.In()), Actor: string(by.Key),
		Action: "network.allow", Resource: string(id) + " " + host, Decision: outboard.Allowed,
		Rule: scope, Detail: detail})
	if err == nil {
		err = c.putNetGrant(ctx, by, g, scope, s.Config.Owner)
	}
	if err != nil {
		return g, outboard.Errorf(outboard.KindOf(err), "granting %s to session %s: %w", host, id, err)
	}
	return g, nil
}

// reachable refuses an address that no allow makes reachable. Where a name leads is known when it is used.
func (c *Control) reachable(ctx context.Context, host string) error {
	if _, err := netip.ParseAddr(host); err != nil || c.reach == nil {
		return nil
	}
	if err := c.reach(ctx, host); err != nil {
		return invalid("%w, and an allow would not change that", err).
			WithHint("the operator opens networks with egress.private_networks")
	}
	return nil
}

// allowRule adds a rule to an environment, unless it has it. A rule for WebSockets takes the place of the one without.
func (c *Control) allowRule(ctx context.Context, by outboard.Caller, id outboard.EnvironmentID,
	rule outboard.NetRule) error {
	_, err := c.UpdateEnvironment(ctx, by, id, EnvironmentPatch{Config: func(cfg *outboard.EnvConfig) {
		n := &cfg.Networking
		for i, r := range n.Rules {
			if allows(&r, &rule) {
				n.Rules = slices.Clone(n.Rules)
				n.Rules[i].WebSocket = r.WebSocket || rule.WebSocket
				return
			}
		}
		n.Rules = append(n.Rules[:len(n.Rules):len(n.Rules)], rule)
	}})
	return err
}

func checkNetworking(n *outboard.Networking) error {
	if len(n.Rules) > maxNetRules {
		return invalid("config.outboard.networking.rules must have at most %d entries, not %d", maxNetRules,
			len(n.Rules))
	}
	for i, r := range n.Rules {
		if err := netrule.Check(r); err != nil {
			return invalid("config.outboard.networking.rules[%d]: %w", i, err)
		}
	}
	if b := n.Budget; b.Requests < 0 || b.Bytes < 0 || b.Hosts < 0 {
		return invalid("config.outboard.networking.budget must not be negative")
	}
	if a := n.Ask; a.Approver != "" && a.Approver != outboard.ApproverNone &&
		!slices.Contains(outboard.Approvers, a.Approver) {
		return invalid("config.outboard.networking.ask.approver must be any, other, admin, other_admin or none, not %s",
			quote(string(a.Approver)))
	}
	if s := n.Ask.TimeoutSec; s < 0 || s > int64(policy.MaxTimeout/time.Second) {
		return invalid("config.outboard.networking.ask.timeout_seconds must be from 0 to %d",
			int64(policy.MaxTimeout/time.Second))
	}
	return nil
}

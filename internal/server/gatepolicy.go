package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault"
)

// gatePolicy lets the policies judge what leaves through the gateway. A request does not wait for a person, so an ask
// that no grant covers is a refusal; the person is asked about the ones that follow. It is safe for concurrent use.
type gatePolicy struct {
	engine *policy.Engine
	store  *store.Store
	vault  *vault.Keeper // nil = no session has credentials

	mu    sync.Mutex
	known map[outboard.SessionID]tainted
	lefts map[outboard.SessionID]left
}

// NewGatePolicy returns what decides about the requests at a gateway. Without a keeper no session has credentials.
func NewGatePolicy(engine *policy.Engine, st *store.Store, keeper *vault.Keeper) egress.Policy {
	return &gatePolicy{engine: engine, store: st, vault: keeper}
}

// left is what the budgets over a session left at a time.
type left struct {
	at    time.Time
	spend outboard.Spend
}

// leftFor is how long that is believed: a page of a hundred pictures is a hundred requests.
const leftFor = time.Second

// tainted is what a session's log says up to an event.
type tainted struct {
	head  int64 // of the log when it was read
	upto  int64 // of the log: the outcomes up to here are in it
	taint outboard.Taint
}

// maxTainted bounds the sessions whose taint is remembered; a forgotten one's log is read again.
const maxTainted = 4096

// Decide implements egress.Policy. What a session has been in touch with is believed to be what is remembered,
// and a request that is allowed by that is recorded only if the log has not grown since; nobody is refused by
// it.
func (g *gatePolicy) Decide(ctx context.Context, r egress.Request) (egress.Verdict, error) {
	t, ok := g.remembered(r.Subject.Session)
	if !ok {
		return g.decideAnew(ctx, r)
	}
	v, err := g.decideBy(ctx, r, t.taint)
	if err != nil || v.Allow {
		return g.marked(v, r.Subject.Session, t), err
	}
	now, err := g.taint(ctx, r.Subject.Session)
	if err != nil || now.taint == t.taint {
		return v, err
	}
	v, err = g.decideBy(ctx, r, now.taint)
	return g.marked(v, r.Subject.Session, now), err
}

// decideAnew decides by the log as it is now.
func (g *gatePolicy) decideAnew(ctx context.Context, r egress.Request) (egress.Verdict, error) {
	t, err := g.taint(ctx, r.Subject.Session)
	if err != nil {
		return egress.Verdict{}, err
	}
	v, err := g.decideBy(ctx, r, t.taint)
	return g.marked(v, r.Subject.Session, t), err
}

// marked binds a verdict to the log by which it was reached. Where that has grown by what changes nothing, the
// verdict stands: it has spent of limits and grants already.
func (g *gatePolicy) marked(v egress.Verdict, id outboard.SessionID, t tainted) egress.Verdict {
	if id == "" || !v.Allow {
		return v
	}
	v.While = store.Mark{Session: id, Head: t.head}
	v.Again = func(ctx context.Context, r egress.Request) (egress.Verdict, error) {
		now, err := g.taint(ctx, id)
		if err != nil {
			return egress.Verdict{}, err
		}
		if now.taint == t.taint {
			return g.marked(v, id, now), nil
		}
		return g.decideAnew(ctx, r)
	}
	return v
}

// remembered returns what is known of a session's log, unless this process has seen it grow since.
func (g *gatePolicy) remembered(id outboard.SessionID) (t tainted, ok bool) {
	if id == "" {
		return t, false
	}
	g.mu.Lock()
	t, ok = g.known[id]
	g.mu.Unlock()
	if head, seen := g.store.HeadSeen(id); seen && head > t.head {
		return t, false
	}
	return t, ok
}

// decideBy decides about a request of a session with a taint.
func (g *gatePolicy) decideBy(ctx context.Context, r egress.Request, taint outboard.Taint) (egress.Verdict, error) {
	q := g.question(ctx, r, taint)
	v, grant := g.engine.Decide(ctx, q)
	if v.Away != nil {
		return egress.Verdict{}, v.Away
	}
	out := egress.Verdict{Allow: v.Decision == outboard.Allow, Reason: v.Reason}
	if len(v.Rules) > 0 {
		out.Rule = v.Rules[0]
	}
	if v.Decision == outboard.Ask {
		out.Hint = "outboard grant add --session " + string(r.Subject.Session) + " --action " + policy.ActionHTTP +
			" --resource '" + r.Host +
			"/*' --for 1h --why ..."
		if v.Needs > 1 { // one person's grant would not do
			out.Hint = fmt.Sprintf("outboard approval ls   (%d people must allow it)", v.Needs)
		}
		out.Ask = &egress.Question{Why: v.Reason, Rules: v.Rules, Policy: true, Approver: v.Approver, Needs: v.Needs,
			Timeout: v.Timeout}
	}
	if !out.Allow {
		return out, nil
	}
	// Each request spends by itself: there is no second attempt at one.
	err := g.engine.Admit(ctx, q, string(outboard.NewID[outboard.EventID](outboard.PrefixEvent)), grant)
	if outboard.KindOf(err) == outboard.Exhausted || outboard.KindOf(err) == outboard.Denied {
		return egress.Verdict{Rule: "limit", Reason: err.Error()}, nil
	}
	out.Still = func(ctx context.Context) error { return g.still(ctx, r, grant) }
	return out, err
}

// question is a request as the policies see it.
func (g *gatePolicy) question(ctx context.Context, r egress.Request, taint outboard.Taint) *policy.Request {
	cfg := &r.Subject.Config
	trusted := false
	if taint.Private && taint.Untrusted { // else nobody looks
		trusted = g.trusts(ctx, r)
	}
	return &policy.Request{Session: r.Subject.Session, Owner: cfg.Owner, Agent: cfg.Agent.ID,
		Environment: cfg.Environment,
		Action:      policy.ActionHTTP, Resource: r.Host, Context: policy.Context{
			URL: r.Scheme + "://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port)) +
				r.Path, Scheme: r.Scheme, Host: r.Host, Port: r.Port,
			Method: r.Method, Path: r.Path, Networking: cfg.Env.Networking.Mode, Taint: taint, Trusted: trusted,
			Left: g.left(ctx, r.Subject.Session, cfg)}}
}

// trusts reports whether private data may go where a request goes: a rule of the environment says so, or the
// session has a credential for it, whose account it goes to. What else a server could take the request for must
// be as good.
func (g *gatePolicy) trusts(ctx context.Context, r egress.Request) bool {
	cfg := &r.Subject.Config
	rules := netrule.Effective(cfg.Env.Networking, cfg.Agent.MCPServers)
	trusted := func(r egress.Request) bool {
		return netrule.Trusts(rules, netrule.Target{Method: r.Method, Host: r.Host, Port: r.Port, Path: r.Path,
			Odd: r.Odd})
	}
	if trusted(r) && !slices.ContainsFunc(r.Also, func(other egress.Request) bool { return !trusted(other) }) {
		return true
	}
	return g.vault != nil && g.vault.Holds(ctx, vaultRequest(r))
}

// still says why a request that was allowed, by a grant or none, may not go on. A session that was clean when a
// stream began can carry out by it what it has read since. A grant that is used up was spent on this very
// request. While something cannot be read, the request goes on.
func (g *gatePolicy) still(ctx context.Context, r egress.Request, by outboard.GrantID) error {
	t, err := g.taint(ctx, r.Subject.Session)
	if err != nil {
		return nil
	}
	v, _ := g.engine.Decide(ctx, g.question(ctx, r, t.taint))
	if v.Away != nil || v.Decision == outboard.Allow {
		return nil
	}
	if v.Decision == outboard.Ask && by != "" {
		if row, err := g.store.Grant(ctx, by); err != nil && outboard.KindOf(err) != outboard.NotFound || err == nil &&
			row.RevokedAt.IsZero() {
			return nil
		}
	}
	return outboard.Errorf(outboard.Denied, "it may not go on: %s", v.Reason)
}

// left is what the budgets over a session leave, nil when they cannot be read: then rules about it deny.
func (g *gatePolicy) left(ctx context.Context, id outboard.SessionID, cfg *outboard.SessionConfig) *outboard.Spend {
	g.mu.Lock()
	l, ok := g.lefts[id]
	g.mu.Unlock()
	now := time.Now()
	if age := now.Sub(l.at); ok && age >= 0 && age < leftFor {
		return &l.spend
	}
	over, err := g.store.BudgetsOver(ctx, id, cfg.Agent.ID, cfg.Owner)
	if err != nil {
		return nil
	}
	l = left{now, outboard.LeftOf(over, outboard.Spend{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lefts == nil || len(g.lefts) >= maxTainted {
		g.lefts = map[outboard.SessionID]left{}
	}
	g.lefts[id] = l
	return &l.spend
}

// taint is what a session has been in touch with, as of the outcomes in its log. Only those that are new are read.
func (g *gatePolicy) taint(ctx context.Context, id outboard.SessionID) (tainted, error) {
	if id == "" {
		return tainted{}, nil
	}
	head, err := g.store.Head(ctx, id)
	if err != nil {
		return tainted{}, err
	}
	g.mu.Lock()
	t := g.known[id]
	g.mu.Unlock()
	if t.head == head {
		return t, nil
	}
	if t.upto == 0 { // what came before the newest summary need not be read
		start, err := g.store.FoldStart(ctx, id)
		if err != nil {
			return tainted{}, err
		}
		t.taint, t.upto = start.Taint, start.Head
	}
	t.head = head // what is appended from here on is read below or has another head
	for {
		page, err := g.store.Events(ctx, id, store.EventQuery{After: t.upto,
			Types: []outboard.EventType{outboard.TypeCallFinished, outboard.TypeSessionForked}})
		if err != nil {
			return tainted{}, err
		}
		for i := range page {
			p, err := page[i].Decode()
			if err != nil {
				return tainted{}, err
			}
			switch p := p.(type) {
			case *outboard.CallFinished:
				t.taint = t.taint.Or(p.Taint)
			case *outboard.SessionForked:
				t.taint = t.taint.Or(p.Taint)
			}
			t.upto = page[i].Seq
		}
		if len(page) == 0 {
			break
		}
	}
	t.upto = max(t.upto, head)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known == nil || len(g.known) >= maxTainted {
		g.known = map[outboard.SessionID]tainted{}
	}
	g.known[id] = t
	return t, nil
}

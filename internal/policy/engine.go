package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// freshFor is how long the revision of the stored policies is believed: how late a saved policy may reach a
	// running session.
	freshFor = time.Second
	// maxStacks bounds the compiled stacks that are kept, each a few kilobytes beside layers that are shared.
	maxStacks = 1024
	// DefaultTimeout is how long an approval waits where no rule says otherwise: somebody who was away for a
	// week has lost the thread.
	DefaultTimeout = 7 * 24 * time.Hour
	// maxLimits bounds the rate limits that one request is held against.
	maxLimits = 100
)

// Source is the store, as the engine sees it. Its methods are called from any goroutine.
type Source interface {
	// PolicyRevision changes with every save of a policy.
	PolicyRevision(ctx context.Context) (int64, error)
	// PoliciesFor returns the versions in force for a session: of its organization, its agent and itself. org is
	// whose the request is where there is neither a session nor an agent.
	PoliciesFor(ctx context.Context, org outboard.OrgID, agent outboard.AgentID,
		session outboard.SessionID) ([]outboard.Policy, error)
	// GrantsFor returns the grants that may cover a request, those that end first before others.
	GrantsFor(ctx context.Context, q outboard.GrantQuery) ([]outboard.Grant, error)
	// Holder returns whom a session acts for, as they are now.
	Holder(ctx context.Context, o outboard.Owner) (outboard.User, error)
	// Giver returns who gave a grant, as they are now. NotFound, Denied: nobody who still has a say.
	Giver(ctx context.Context, key outboard.KeyID) (outboard.Caller, error)
	// UseGrant spends one use for key, which spends none when it has one already. Denied: the grant is over or spent.
	UseGrant(ctx context.Context, id outboard.GrantID, key string, now time.Time) error
	// TakeRate counts one more event under key in the window that began at start. It reports false, and counts
	// nothing, when there were most already.
	TakeRate(ctx context.Context, key string, start time.Time, most int) (bool, error)
}

// Config makes an Engine. The zero value has the platform's rules and nothing else.
type Config struct {
	Source   Source           // nil = no stored policies, grants or counters
	Operator string           // Cedar text
	Taint    string           // of the trifecta rule: TaintAsk, TaintDeny or TaintOff; "" = TaintAsk
	Limits   []Limit          // rate limits
	Timeout  time.Duration    // of an approval whose rule names none; 0 = DefaultTimeout
	Logger   *slog.Logger     // nil = discard
	Now      func() time.Time // nil = time.Now
}

// Limit is a rate limit: at most Max actions in each window of length Every.
type Limit struct {
	Action string        `yaml:"action"`         // an action, "*" = each one by itself
	Host   string        `yaml:"host,omitempty"` // only requests to it; "" = any
	Per    string        `yaml:"per"`            // session, owner, agent, host or all: what is counted together
	Max    int           `yaml:"max"`
	Every  time.Duration `yaml:"every"`
}

func (l *Limit) check() error {
	if _, ok := theSchema().resource[l.Action]; !ok && l.Action != "*" {
		return fmt.Errorf("there is no action %q", clip(l.Action))
	}
	switch l.Per {
	case "session", "owner", "agent", "host", "all":
	default:
		return fmt.Errorf("per must be session, owner, agent, host or all, not %q", clip(l.Per))
	}
	if l.Max < 1 || l.Every < time.Second || l.Every > MaxTimeout {
		return fmt.Errorf("max must be at least 1, and every from 1s to %v", MaxTimeout)
	}
	return nil
}

// covers reports whether the limit counts a request.
func (l *Limit) covers(r *Request) bool {
	return (l.Action == "*" || l.Action == r.Action) && (l.Host == "" || Host(l.Host) == r.Context.Host) &&
		(l.Per != "host" || r.Context.Host != "")
}

// key names the counter of a request. A person is one owner, whatever their keys: each sign-in is another one.
func (l *Limit) key(r *Request) string {
	subject := map[string]string{"session": string(r.Session), "owner": r.Owner.Human(), "agent": string(r.Agent),
		"host": r.Context.Host}[l.Per]
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d\x00%d\x00%s", r.Action, Host(l.Host), l.Per, l.Max,
		l.Every, subject))
	return hex.EncodeToString(sum[:16])
}

// Engine decides for sessions: it puts their layers together, looks for grants, and counts. It is safe for
// concurrent use.
type Engine struct {
	cfg  Config
	base []*Layer // platform, operator
	bare *Set     // of base alone, where nothing else is stored

	mu       sync.Mutex
	revision int64
	seen     time.Time // when revision was read
	layers   map[string]*Layer
	stacks   map[string]*Set
}

// New returns an engine. A mistake in the operator's rules is Invalid: a server with half of its rules does not start.
func New(cfg Config) (*Engine, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Timeout < time.Second || cfg.Timeout > MaxTimeout {
		return nil, outboard.Errorf(outboard.Invalid, "configuring policy: the approval timeout must be from 1s to %v",
			MaxTimeout)
	}
	if len(cfg.Limits) > maxLimits {
		return nil, outboard.Errorf(outboard.Invalid, "configuring policy: at most %d limits, not %d", maxLimits,
			len(cfg.Limits))
	}
	for i := range cfg.Limits {
		if err := cfg.Limits[i].check(); err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "configuring policy: limit %d: %w", i+1, err)
		}
	}
	platform, err := Platform(cfg.Taint)
	if err != nil {
		return nil, err
	}
	operator, err := Compile(outboard.LevelOperator, cfg.Operator)
	if err != nil {
		return nil, err
	}
	base := []*Layer{platform, operator}
	return &Engine{cfg: cfg, base: base, bare: NewSet(base...), layers: map[string]*Layer{},
		stacks: map[string]*Set{}}, nil
}

// Set returns the stack of a session, at most a second older than the stored policies; without one, of an agent,
// else of an organization. Where they cannot be read or do not compile, the stack denies everything.
func (e *Engine) Set(ctx context.Context, org outboard.OrgID, agent outboard.AgentID, session outboard.SessionID) *Set {
	key := string(org) + "\x00" + string(agent) + "\x00" + string(session)
	s, err := e.cached(ctx, key)
	if s != nil && err == nil {
		return s
	}
	if err == nil {
		s, err = e.stack(ctx, key, org, agent, session)
	}
	if err != nil {
		return Broken(fmt.Errorf("the policies of session %s: %w", session, err))
	}
	return s
}

// Refresh has the next Set look for what was saved, however lately it did: for who has just saved something, or
// asks what would be.
func (e *Engine) Refresh() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = time.Time{}
}

// cached returns a stack that is of the current revision, or nil.
func (e *Engine) cached(ctx context.Context, key string) (*Set, error) {
	if e.cfg.Source == nil {
		return e.bare, nil
	}
	e.mu.Lock()
	s, old := e.stacks[key], e.cfg.Now().Sub(e.seen)
	e.mu.Unlock()
	if old >= 0 && old < freshFor {
		return s, nil
	}
	asked := e.cfg.Now()
	rev, err := e.cfg.Source.PolicyRevision(ctx)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if rev != e.revision {
		e.revision = rev
		clear(e.stacks)
		clear(e.layers)
	}
	e.seen = asked
	return e.stacks[key], nil
}

// stack reads and compiles a session's layers.
func (e *Engine) stack(ctx context.Context, key string, org outboard.OrgID, agent outboard.AgentID,
	session outboard.SessionID) (*Set, error) {
	e.mu.Lock()
	rev := e.revision
	e.mu.Unlock()
	docs, err := e.cfg.Source.PoliciesFor(ctx, org, agent, session)
	if err != nil {
		return nil, err
	}
	layers := append([]*Layer(nil), e.base...)
	for _, d := range docs {
		l, err := e.layer(&d)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	s := NewSet(layers...)
	e.mu.Lock()
	defer e.mu.Unlock()
	if rev == e.revision {
		if len(e.stacks) >= maxStacks {
			clear(e.stacks)
		}
		e.stacks[key] = s
	}
	return s, nil
}

func (e *Engine) layer(d *outboard.Policy) (*Layer, error) {
	key := fmt.Sprintf("%s@%d", d.ID, d.Version)
	e.mu.Lock()
	l := e.layers[key]
	e.mu.Unlock()
	if l != nil {
		return l, nil
	}
	l, err := Compile(d.Level, d.Text)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.layers) >= maxStacks {
		clear(e.layers)
	}
	e.layers[key] = l
	return l, nil
}

// Decide decides about a request of a session. An ask that a grant covers is an allow with the grant's id; Admit
// spends it. An alarm is logged here. The verdict's Timeout is set.
func (e *Engine) Decide(ctx context.Context, r *Request) (Verdict, outboard.GrantID) {
	if r.Context.Now.IsZero() {
		r.Context.Now = e.cfg.Now()
	}
	if v := e.holder(ctx, r); v != nil {
		return *v, ""
	}
	set := e.Set(ctx, r.Owner.Org, r.Agent, r.Session)
	v := set.recall(r)
	var grant outboard.GrantID
	if v.Decision == outboard.Ask && e.cfg.Source != nil {
		g, err := e.grant(ctx, r, v.Approver, v.Needs)
		if err != nil {
			e.cfg.Logger.Error("grants cannot be read; asking", "session", r.Session, "err", err)
		} else if g != "" {
			r.Context.Granted = true
			v, grant = set.recall(r), g // a policy may look at it
		}
	}
	if v.Timeout == 0 {
		v.Timeout = e.cfg.Timeout
	}
	if v.Alarm != "" {
		e.cfg.Logger.Error("a policy could not be evaluated; the request is denied", "session", r.Session, "action",
			r.Action, "alarm", v.Alarm)
	}
	return v, grant
}

// holder looks at whom the session acts for: it sets their role, and denies what is done for somebody who was
// removed, or whom nobody can tell about.
func (e *Engine) holder(ctx context.Context, r *Request) *Verdict {
	if e.cfg.Source == nil || r.Owner.Key == "" && r.Owner.User == "" {
		return nil
	}
	u, err := e.cfg.Source.Holder(ctx, r.Owner)
	switch {
	case err != nil:
		e.cfg.Logger.Error("whom a session acts for cannot be read; the request is denied", "session", r.Session,
			"action", r.Action, "err", err)
		v := &Verdict{Decision: outboard.Deny, Rules: []string{rulePerson},
			Reason: "whom the session acts for cannot be read", Timeout: e.cfg.Timeout}
		if outboard.KindOf(err) == outboard.Unavailable {
			v.Away = outboard.Errorf(outboard.Unavailable, "reading whom session %s acts for: %w", r.Session, err)
		}
		return v
	case !u.RemovedAt.IsZero():
		return &Verdict{Decision: outboard.Deny, Rules: []string{rulePerson},
			Reason: "whom this session acts for was removed from the organization, or that has ended", Timeout: e.cfg.Timeout}
	}
	r.Role = u.Role
	return nil
}

// grant looks for a grant that covers a request which asks. Where the rules say who may answer, it must have
// been given by such a person: a grant is an answer in advance, and nobody gives themselves one. Where they want
// several people, all of them must have given it.
func (e *Engine) grant(ctx context.Context, r *Request, who outboard.Approver, needs int) (outboard.GrantID, error) {
	q := outboard.GrantQuery{Person: r.Owner.User, Key: r.Owner.Key, Agent: r.Agent, Session: r.Session,
		Action: r.Action, Resource: r.Target(), Now: r.Context.Now}
	grants, err := e.cfg.Source.GrantsFor(ctx, q)
	if err != nil {
		return "", err
	}
	for i := range grants {
		if !grants[i].Covers(q) {
			continue
		}
		if needs < 2 && (who == "" || who == outboard.ApproverAny) {
			return grants[i].ID, nil
		}
		givers := []outboard.Vote{{Key: grants[i].ApprovedBy}}
		if needs > 1 {
			givers = append(givers, grants[i].Votes...)
		}
		n, err := Count(ctx, e.cfg.Source, givers, who, r.Owner)
		if err != nil {
			return "", err
		}
		if n >= max(needs, 1) {
			return grants[i].ID, nil
		}
	}
	return "", nil
}

// Givers tells who holds a key, as they are now. NotFound and Denied: nobody who has a say any more.
type Givers interface {
	Giver(ctx context.Context, id outboard.KeyID) (outboard.Caller, error)
}

// Count returns how many different people stand behind votes and may still answer a session's approval. Who was
// removed or demoted, or whose key was revoked, is none of them.
func Count(ctx context.Context, from Givers, votes []outboard.Vote, who outboard.Approver,
	owner outboard.Owner) (int, error) {
	var valid []outboard.Caller
	for _, v := range votes {
		by, err := from.Giver(ctx, v.Key)
		if k := outboard.KindOf(err); err != nil && k != outboard.NotFound && k != outboard.Denied {
			return 0, err
		}
		if err == nil && who.May(by, owner) {
			valid = append(valid, by)
		}
	}
	return outboard.Humans(valid), nil
}

// Admit is the last look before an allowed request is sent: it spends the grant it needs and counts it against
// the rate limits. key names the request, so that a repetition after a crash spends the grant once. Exhausted: a
// limit is reached; Denied: the grant is gone. Whatever cannot be counted is refused.
func (e *Engine) Admit(ctx context.Context, r *Request, key string, grant outboard.GrantID) error {
	if e.cfg.Source == nil {
		return nil
	}
	now := e.cfg.Now()
	for i := range e.cfg.Limits {
		l := &e.cfg.Limits[i]
		if !l.covers(r) {
			continue
		}
		start := now.Truncate(l.Every)
		ok, err := e.cfg.Source.TakeRate(ctx, l.key(r), start, l.Max)
		if err != nil {
			return outboard.Errorf(outboard.KindOf(err), "counting a request: %w", err)
		}
		if !ok {
			return outboard.Errorf(outboard.Exhausted, "rate limit reached: %d %s per %s in %v; the next window "+
				"begins in %v", l.Max,
				r.Action, l.Per, l.Every, start.Add(l.Every).Sub(now).Round(time.Second))
		}
	}
	if grant == "" {
		return nil
	}
	return e.cfg.Source.UseGrant(ctx, grant, key, now)
}

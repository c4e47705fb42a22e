// Package control owns the verbs of the product: what a caller can ask for, in outboard's own
// types, whatever the wire. A verb checks the caller, validates, and makes one store call. The few
// that touch more than the store (files, sandboxes) undo what they did when a later step fails.
//
// Invariants:
//   - Every verb takes a Caller that Authenticate returned; the zero Caller is refused.
//   - An id that does not exist and an id of another organization give the same NotFound, with the
//     same text.
//   - Nothing is appended to a log that a reader of events could not be shown: content over a limit
//     is moved to blob first.
//   - It holds no state but bounded caches. Work that it does by itself, from Start to Stop, is in
//     rows (withdraw.go).
//
// It never runs anything and never talks to a model.
//
// Start reading at Control and Send, then at the file of the resource.
package control

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault"
)

// Config makes a Control.
type Config struct {
	Store  *store.Store
	Blob   blob.Store
	Spool  *blob.Spool      // for imports; nil = the system's temporary directory
	Fleet  *fleet.Fleet     // nil where this process holds no sandboxes
	Models *llm.Registry    // resolves model ids when a session is created
	Policy *policy.Engine   // nil = the platform's own rules and nothing else
	Live   *live.Hub        // nil = no live deltas
	Vault  *vault.Keeper    // nil = no vaults
	Kill   KillSwitch       // nil = there is none, and kills are refused
	Audit  *audit.Witness   // nil = the audit is not signed, and exports are not
	Logger *slog.Logger     // nil = discard
	Now    func() time.Time // nil = the store's
	// Directories of this machine that every organization's environments may begin with; others only who runs
	// the server may name.
	Directories []string
	// Isolation reports whether this server can make sandboxes of an environment's isolation; its error says
	// what is missing. nil = not asked.
	Isolation func(env outboard.EnvConfig) error
	Login     LoginConfig // the zero value lets nobody sign in
	Trusted   []string    // public keys of servers whose exports are imported; see audit.CheckKey
	// Reachable reports whether this server lets sandboxes reach an IP address at all; its error says why not.
	// nil = not asked.
	Reachable func(ctx context.Context, address string) error
	// Boxes is the most that a box may reach; see egress.Config.
	Boxes  outboard.Networking
	Bounds Bounds
	// BoxProxies are the proxies that boxes may go through besides; see egress.Config.
	BoxProxies []string
}

// Control is safe for concurrent use.
type Control struct {
	store   *store.Store
	blob    blob.Store
	spool   *blob.Spool
	imports *turns
	fleet   *fleet.Fleet
	models  *llm.Registry
	policy  *policy.Engine
	live    *live.Hub
	vault   *vault.Keeper
	kill    KillSwitch
	witness *audit.Witness
	log     *slog.Logger
	now     func() time.Time
	dirs    []string
	able    func(outboard.EnvConfig) error
	login   LoginConfig
	trusted []string
	reach   func(context.Context, string) error
	boxNet  outboard.Networking

	boxProxies []string

	ssh       atomic.Pointer[SSHDoor] // nil = no SSH
	throws    throws
	held      memory        // of workspaces that are read
	exchanges chan struct{} // capacity maxExchanges: sign-ins that ask the identity provider

	withdrawals *withdrawals
	recording   sync.WaitGroup // kills that the database takes its time with

	refusals refusals
	bounds   Bounds
	streams  streams
	storing  storing

	mu       sync.Mutex
	revoked  counter
	accounts map[outboard.SessionID]outboard.Header // see UsageAt; bounded by maxAccounts
}

// Page selects rows of a list; see store.Page.
type Page = store.Page

// SessionFilter selects sessions; see store.SessionFilter. Phases are statuses as Status reports them.
type SessionFilter = store.SessionFilter

// EventQuery selects events of a session's log; see store.EventQuery.
type EventQuery = store.EventQuery

// Delta is a piece of a message that is still being produced; see package live.
type Delta = live.Delta

// CallOutput is the kind of a delta that is the newest line of a tool call's output.
const CallOutput = live.CallOutput

// Model describes a configured model.
type Model = llm.Info

// New returns a Control. Store and Blob are required.
func New(cfg Config) *Control {
	c := &Control{store: cfg.Store, blob: cfg.Blob, spool: cfg.Spool, imports: newTurns(maxImports), fleet: cfg.Fleet,
		models: cfg.Models, policy: cfg.Policy, live: cfg.Live, vault: cfg.Vault, kill: cfg.Kill, witness: cfg.Audit, dirs: cfg.Directories,
		log: cfg.Logger, now: cfg.Now, able: cfg.Isolation, login: cfg.Login, trusted: cfg.Trusted, reach: cfg.Reachable, boxNet: cfg.Boxes, boxProxies: cfg.BoxProxies, bounds: cfg.Bounds, exchanges: make(chan struct{}, maxExchanges),
		accounts: map[outboard.SessionID]outboard.Header{}, withdrawals: newWithdrawals()}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.now == nil {
		c.now = cfg.Store.Now
	}
	if c.policy == nil {
		engine, err := policy.New(policy.Config{Logger: c.log, Now: c.now})
		if err != nil {
			panic("control: the built-in policies: " + err.Error()) // they are a constant
		}
		c.policy = engine
	}
	return c
}

// Models returns the configured models.
func (c *Control) Models(_ context.Context, by outboard.Caller) ([]Model, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	if c.models == nil {
		return nil, nil
	}
	return c.models.Models(), nil
}

// Model returns the model that an id names wherever one may be given: an alias, provider/name, or a bare name.
func (c *Control) Model(_ context.Context, by outboard.Caller, id string) (Model, error) {
	if err := requireReader(by); err != nil {
		return Model{}, err
	}
	if c.models == nil {
		return Model{}, notFound("model", id)
	}
	if m, err := c.models.Resolve(id); err == nil {
		return m.Info(), nil
	}
	for _, m := range c.models.Models() { // one that is configured and cannot be used, for want of a key
		if m.ID == id && m.Alias == "" {
			return m, nil
		}
	}
	return Model{}, notFound("model", id)
}

// Ready reports whether the store answers.
func (c *Control) Ready(ctx context.Context) error {
	_, err := c.store.OperatorKeys(ctx)
	return err
}

// clock returns the current time as the store keeps it: UTC, in microseconds.
// Now is the time by which everything that expires is judged; see store.Store.Now.
func (c *Control) Now() time.Time { return c.now() }

func (c *Control) clock() time.Time { return c.now().UTC().Truncate(time.Microsecond) }

// shownID is how much of a caller's id an error repeats.
const shownID = 100

// notFound is the one answer for an id that is absent, foreign or malformed.
func notFound(what, id string) error {
	if len(id) > shownID {
		id = id[:shownID] + "..."
	}
	return outboard.Errorf(outboard.NotFound, "there is no %s %q", what, id)
}

// wrapLookup maps a store's answer for one id: NotFound becomes notFound, other errors say what was being read.
func wrapLookup(what, id string, err error) error {
	switch {
	case err == nil:
		return nil
	case outboard.KindOf(err) == outboard.NotFound:
		return notFound(what, id)
	case outboard.KindOf(err) == outboard.Conflict:
		return err // it was read, and says what it is
	}
	return outboard.Errorf(outboard.KindOf(err), "reading %s %s: %w", what, id, err)
}

// ownedBy is wrapLookup for a row that belongs to an organization: what is another's is missing, with the same text.
func ownedBy(by outboard.Caller, org outboard.OrgID, what, id string, err error) error {
	if err == nil && org != by.In() {
		return notFound(what, id)
	}
	return wrapLookup(what, id, err)
}

// Bounds on what one page of large rows takes: an agent or an environment may have 4 MiB.
const (
	pageBytes = 32 << 20
	pageStep  = 8 // rows that are read before it is known how large they are
)

// gather reads a page of large rows a few at a time, and ends it early once it is large. more then says that rows may
// follow.
func gather[T any](read func(Page) ([]T, error), p Page, size func(*T) int64, id func(*T) string) (out []T, more bool,
	err error) {
	var sum int64
	step := int64(pageStep)
	for limit := p.Limit; len(out) < limit; p.Cursor = id(&out[len(out)-1]) {
		p.Limit = min(int(step), limit-len(out))
		rows, err := read(p)
		if err != nil {
			return nil, false, err
		}
		out = append(out, rows...)
		for i := range rows {
			sum += size(&rows[i])
		}
		if len(rows) < p.Limit {
			return out, false, nil
		}
		if sum >= pageBytes {
			return out, true, nil
		}
		step = max(1, (pageBytes-sum)/(sum/int64(len(out))+1<<10))
	}
	return out, false, nil
}

// tieRows is how many rows of one microsecond a page may have to step over when its cursor's row is gone.
const tieRows = 16

// listAfter reads a page of a list whose rows can be deleted while a client walks it. When the row of the cursor
// is gone, the page begins after the time it had: at is that time, and key tells a row's time and id.
func listAfter[T any](list func(Page) ([]T, error), p Page, at time.Time, key func(T) (time.Time, string)) ([]T,
	error) {
	rows, err := list(p)
	if err == nil || p.Cursor == "" || at.IsZero() || outboard.KindOf(err) != outboard.Invalid {
		return rows, err
	}
	gone, limit := p.Cursor, p.Limit
	p.Cursor, p.Limit = "", p.Limit+tieRows
	if p.To.IsZero() || p.To.After(at) {
		p.To = at
	}
	if rows, err = list(p); err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(v T) bool {
		t, id := key(v)
		return t.Equal(at) && id >= gone
	})
	return rows[:min(len(rows), limit)], nil
}

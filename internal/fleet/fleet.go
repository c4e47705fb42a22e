// Package fleet owns live sandboxes: it acquires one for a session or a box, checkpoints it, and
// reaps what no row owns. It is the only writer of the table of sandboxes.
//
// Three places tell the truth about a sandbox. The row says that it may exist. The log of its
// session says which one the session uses. A lock file says that a live process uses it now.
//
// Invariants:
//   - A row exists before the sandbox, and is marked destroyed only after it is gone.
//   - A sandbox is garbage when it has no row or a destroyed one, when its session is archived or
//     deleted, or when the log names another and no process holds the lock.
//   - Each step of Acquire leaves a state that the reaper can tell apart, so a process can be
//     killed anywhere.
//
// It never decides what a session is allowed to do.
//
// Start reading at Fleet.Acquire, then at reap.go.
package fleet

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// Config makes a Fleet.
type Config struct {
	Store    *store.Store
	Blob     blob.Store
	Provider sandbox.Provider // nil: every Acquire fails with Unavailable and a hint to run outboard doctor
	Host     string           // name of this machine in sandbox rows
	Logger   *slog.Logger     // nil = discard

	// Dir holds a lock file per sandbox in use, so that processes of one host that share a provider see each
	// other's use. With "" a sandbox another process may be making is left alone for MakeTimeout, and Release
	// freezes without asking others.
	Dir string
	// Environment returns the variables that a session's credentials put into its sandbox: placeholders, never
	// secrets. It is asked when a sandbox is made; its error keeps that from happening. nil = none.
	Environment func(ctx context.Context, session outboard.SessionID) (map[string]string, error)
	// Images keeps what sandboxes are made from. nil: the host's programs and directories only.
	Images *image.Store
	// Login opens a credential of an organization for pulling an image from a registry. It is asked with each
	// pull. nil = there are none.
	Login func(ctx context.Context, org outboard.OrgID, credential, registry string) (user string,
		password outboard.Secret, err error)
	// BoxGone is told of each box that was removed, to forget what is kept for it elsewhere. nil = there is nothing.
	BoxGone func(ctx context.Context, b outboard.Box)
	// Mirrors are registries that package managers use instead of the public ones while an environment's
	// packages are installed: a URL by the manager's name (go, npm, pip).
	Mirrors map[string]string
	// Network is where the connections of sandboxes go. nil: sandboxes have loopback only.
	Network Network
	// BoxesOffline makes boxes without any way to Network.
	BoxesOffline bool
	// Lifecycle holds where an environment does not say otherwise; its zero value stops nothing. MaxPerOwner
	// bounds the sandboxes of one owner that are alive, boxes included; 0 = no bound.
	Lifecycle   outboard.Lifecycle
	MaxPerOwner int
	// Retention says how many old states sessions keep; its zero value keeps all.
	Retention Retention
	// OrgShare is how many hundredths of MaxBoxes and MaxRunningBoxes one organization may have; 0 =
	// outboard.DefaultOrgPercent.
	OrgShare int
	// Bound is what of a network a build of a template may have; nil = none of it.
	Bound func(want outboard.Networking) outboard.Networking
	// RestEvery is how often sandboxes are looked for that nobody owns, or that are to be stopped or dropped; 0
	// = ReapEvery.
	RestEvery time.Duration
	// Now is the clock of rows. nil = the store's.
	Now func() time.Time
}

// Fleet is safe for concurrent use.
type Fleet struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	slots  map[outboard.SessionID]*slot                // sessions in use or being changed
	inUse  map[outboard.SandboxID]int                  // machines this process makes or uses
	owners map[outboard.SandboxID]outboard.KillSubject // of machines this process has used and that are not destroyed
	seen   harvests                                    // what Harvest has read, for a bounded number of boxes

	boxes map[outboard.BoxID]*liveBox // boxes this process has looked after

	maxCheckpoint int64 // MaxCheckpoint, but in tests
	keepLocal     int64 // keepLocal, but in tests

	reaper   reaper
	keeper   keeper
	thinning thinning // of the goroutine that tidies
	builds   *builds
	unmaking unmaking
}

// unmaking is the removal of machines that could not be made.
type unmaking struct {
	ctx  context.Context // over when Stop was called
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// New returns a fleet; Start runs the reaper once before it returns, then on a timer until Stop.
func New(cfg Config) *Fleet {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = cfg.Store.Now
	}
	if cfg.RestEvery <= 0 {
		cfg.RestEvery = ReapEvery
	}
	f := &Fleet{
		cfg:           cfg,
		log:           cfg.Logger,
		slots:         map[outboard.SessionID]*slot{},
		inUse:         map[outboard.SandboxID]int{},
		owners:        map[outboard.SandboxID]outboard.KillSubject{},
		boxes:         map[outboard.BoxID]*liveBox{},
		builds:        newBuilds(),
		thinning:      thinning{seen: map[outboard.SessionID]outboard.CheckpointID{}},
		maxCheckpoint: MaxCheckpoint,
		keepLocal:     keepLocal,
		keeper: keeper{expected: map[outboard.CheckpointID]time.Time{}, strange: map[outboard.CheckpointID]time.Time{},
			committed: map[outboard.CheckpointID]bool{},
			weights:   map[outboard.CheckpointID]int64{}, wake: make(chan struct{}, 1)},
	}
	f.unmaking.ctx, f.unmaking.stop = context.WithCancel(context.Background())
	return f
}

// Lease is a session's sandbox, connected. Release it when the turn ends. Every call on it has a deadline.
type Lease struct {
	sandbox.Sandbox
	Ready outboard.SandboxReady // to append when New
	New   bool                  // made (or restored) by this Acquire
	Lost  *outboard.SandboxLost // set when the session had another one, which is gone

	session  outboard.SessionID
	use      *use
	released bool // guarded by the session's slot
}

// Usable reports whether nothing has shown yet that the sandbox, or the connection to it, is gone. It asks
// nobody. A box that is not usable is released, and Acquire says what became of the sandbox.
func (b *Lease) Usable() bool { return b.use.machine.usable() }

// Request says for whom.
type Request struct {
	Session    outboard.SessionID
	Config     outboard.SessionConfig
	Current    *outboard.SandboxReady // from the folded state
	Checkpoint outboard.CheckpointID  // newest, from the folded state
	// of the lease; with it, Acquire fails with store.ErrFenced rather than destroy another's machine. 0 =
	// unchecked
	Epoch int64
}

// use is one connection to a machine, shared by the boxes of one session in this process.
type use struct {
	machine *machine
	held    *held
	users   int // guarded by the session's slot
}

// slot serialises what is done about the sandbox of one session. Its semaphore may be held across provider calls.
type slot struct {
	sem  chan struct{} // capacity 1; full while somebody is inside
	refs int           // of those inside or waiting; guarded by Fleet.mu
	cur  *use          // nil when no box is out
}

// enter waits for the session's slot.
func (f *Fleet) enter(ctx context.Context, id outboard.SessionID) (*slot, error) {
	f.mu.Lock()
	s := f.slots[id]
	if s == nil {
		s = &slot{sem: make(chan struct{}, 1)}
		f.slots[id] = s
	}
	s.refs++
	f.mu.Unlock()
	select {
	case s.sem <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		f.drop(id, s)
		return nil, outboard.Errorf(outboard.Canceled, "waiting for the sandbox of session %s: %w", id,
			context.Cause(ctx))
	}
}

// leave gives up the slot, and forgets it when nothing is left to remember: an idle session takes no memory.
func (f *Fleet) leave(id outboard.SessionID, s *slot) {
	<-s.sem
	f.drop(id, s)
}

func (f *Fleet) drop(id outboard.SessionID, s *slot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.refs--
	if s.refs == 0 && s.cur == nil {
		delete(f.slots, id)
	}
}

// Acquire connects to the session's sandbox, or makes one: restored from the newest checkpoint, with the session's file
// resources mounted. A sandbox of another host, or one that does not answer, counts as lost.
func (f *Fleet) Acquire(ctx context.Context, r Request) (*Lease, error) {
	if f.cfg.Provider == nil {
		return nil, f.noProvider()
	}
	if r.Config.Env.Kind == "self_hosted" {
		return nil, outboard.Errorf(outboard.Unimplemented, "environment %s is self-hosted, and workers are not built",
			r.Config.Environment)
	}
	s, err := f.enter(ctx, r.Session)
	if err != nil {
		return nil, err
	}
	defer f.leave(r.Session, s)
	b := &Lease{session: r.Session}
	if r.Current != nil {
		if err := f.attach(ctx, s, r, b); err != nil {
			return nil, err
		}
	}
	if b.Lost != nil {
		r.Checkpoint = b.Lost.Restore
	}
	if b.use == nil {
		if err := f.make(ctx, r, b); err != nil {
			return nil, err
		}
		s.cur = b.use
	}
	b.use.users++
	b.Sandbox = b.use.machine
	f.own(b.use.machine.ID(), r.Config.Subject(r.Session))
	return b, nil
}

func (f *Fleet) noProvider() error {
	return outboard.Errorf(outboard.Unavailable, "no sandbox provider works on this host").WithHint("outboard doctor")
}

// made reports whether this server's provider made the sandbox of a row.
func (f *Fleet) made(row outboard.Sandbox) bool {
	if p, ok := f.cfg.Provider.(sandbox.Several); ok {
		return p.Has(row.Provider)
	}
	return row.Provider == f.cfg.Provider.Name()
}

// maker names the provider that makes the sandboxes of an environment.
func (f *Fleet) maker(env outboard.EnvConfig) string {
	if p, ok := f.cfg.Provider.(sandbox.Several); ok {
		return p.Maker(env.Isolation)
	}
	return f.cfg.Provider.Name()
}

// Release ends the use of a box after a turn: the connection closes with its last user, and the machine freezes
// where it can, unless a call still runs in it or another process uses it. Releasing twice is releasing once.
func (f *Fleet) Release(ctx context.Context, b *Lease) error {
	ctx = context.WithoutCancel(ctx) // a turn that was cut short is released too; each step has its own deadline
	s, err := f.enter(ctx, b.session)
	if err != nil {
		return err
	}
	defer f.leave(b.session, s)
	if b.released {
		return nil
	}
	b.released = true
	u := b.use
	u.users--
	if u.users > 0 {
		return nil
	}
	if s.cur == u {
		s.cur = nil
	}
	defer f.letGo(u.held)
	err = f.freeze(ctx, u)
	if sandbox.Gone(err) {
		err = nil // the next Acquire says so
	}
	if cerr := u.machine.Close(); err == nil {
		err = cerr
	}
	return err
}

func (f *Fleet) freeze(ctx context.Context, u *use) error {
	if !f.cfg.Provider.Capabilities().Freeze || u.machine.busy() || !u.held.alone() {
		return nil
	}
	return u.machine.Freeze(ctx)
}

// Destroy removes every sandbox of a session on this host. Calls that run in them fail as gone.
func (f *Fleet) Destroy(ctx context.Context, session outboard.SessionID) error {
	s, err := f.enter(ctx, session)
	if err != nil {
		return err
	}
	defer f.leave(session, s)
	rows, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, session)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if f.cfg.Provider == nil {
			return f.noProvider()
		}
		if err := f.destroy(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

// destroy removes a machine, then says so in its row.
func (f *Fleet) destroy(ctx context.Context, row outboard.Sandbox) error {
	if row.State != stateDestroyed {
		if err := f.record(ctx, &row, f.orgOf(ctx, row), "sandbox.destroy"); err != nil {
			// ending one must work when nothing else does
			f.log.Error("the end of a sandbox was not recorded", "sandbox", row.ID, "err", err)
		}
	}
	if err := f.destroyMachine(ctx, row.ID); err != nil {
		return err
	}
	if row.State == stateDestroyed {
		return nil
	}
	return f.put(ctx, &row, stateDestroyed)
}

// States of a row.
const (
	stateCreating  = "creating"
	stateLive      = "live"
	stateStopping  = "stopping"
	stateStopped   = "stopped" // no machine, but its layers are kept
	stateDestroyed = "destroyed"
)

// put writes a row in a new state.
func (f *Fleet) put(ctx context.Context, row *outboard.Sandbox, state string) error {
	row.State, row.UpdatedAt = state, f.now()
	return f.cfg.Store.PutSandbox(ctx, *row)
}

// orgOf is the organization of a machine's session, "" where it has none, or none any more: then the end of what
// had it is on record.
func (f *Fleet) orgOf(ctx context.Context, row outboard.Sandbox) outboard.OrgID {
	if row.Session == "" {
		return ""
	}
	h, err := f.cfg.Store.Session(ctx, row.Session)
	if err != nil {
		return "" // the record is worth more than this
	}
	return h.Org
}

// record writes to the audit what is about to happen to a machine.
func (f *Fleet) record(ctx context.Context, row *outboard.Sandbox, org outboard.OrgID, action string) error {
	return f.cfg.Store.Audit(ctx, outboard.AuditRecord{At: f.now(), Org: string(org),
		Actor: cmp.Or(string(row.Session), string(row.ID)), Action: action,
		Resource: string(row.ID), Decision: outboard.Allowed, Rule: row.Provider + " on " + row.Host})
}

func (f *Fleet) now() time.Time { return f.cfg.Now().UTC().Truncate(time.Microsecond) }

// Package store keeps everything that must outlive a process: session logs, headers, leases, timers, agents, environments,
// files, sandboxes, checkpoints and keys. There is one Store over two dialects, SQLite (one file, the embedded default) and
// PostgreSQL (what several machines share), with the same SQL but for placeholders, the claim query and the wake-up.
//
// Invariants:
//   - Events are insert-only (a trigger refuses UPDATE and DELETE) and per session gap-free from 1.
//   - Append returns only after the commit is durable (SQLite: WAL with synchronous=FULL; Postgres: synchronous_commit on).
//     Concurrent appends share a commit: one writer goroutine per process drains a bounded queue.
//   - A header is always outboard.Project of its log: it is advanced in the transaction that inserts the events.
//   - An append with a stale epoch, or with an expectation the head has passed, changes nothing.
//   - At most one call.finished and one answer exists per call, at most one input.processed per input (unique index).
//   - No transaction is held across a timer, a channel or a network call to anything but the database.
package store

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/outboard-dev/outboard"
)

// Any as Commit.Expect skips the optimistic check; as Commit.Epoch (0) it skips the fence.
const Any = -1

// Errors a caller branches on. All are *outboard.Error of kind Conflict or NotFound.
var (
	// ErrFenced: the epoch is not the session's; somebody else has claimed it. The caller must stop at once.
	ErrFenced = outboard.Errorf(outboard.Conflict, "the lease was taken over")
	// ErrMoved: the head is past the expected seq; read on and decide again.
	ErrMoved = outboard.Errorf(outboard.Conflict, "the log has moved on")
	// ErrTerminated: the session is archived and accepts no more events.
	ErrTerminated = outboard.Errorf(outboard.Conflict, "the session is terminated")
	// ErrDuplicate: the call already has an outcome or answer, or the input was already processed.
	ErrDuplicate = outboard.Errorf(outboard.Conflict, "already recorded")
)

// Config opens a store.
type Config struct {
	Path   string           // SQLite file; used when URL is empty
	URL    string           // postgres://...
	Logger *slog.Logger     // nil = discard
	Now    func() time.Time // nil = time.Now
}

// Store is safe for concurrent use.
type Store struct{}

// Open connects, migrates up and starts the writer. Close stops it; appends after that fail with Unavailable.
func Open(ctx context.Context, cfg Config) (*Store, error) { panic("later") }

// Close waits for queued appends, then disconnects. It may be called twice.
func (s *Store) Close() error { panic("later") }

// Commit is one atomic change of one session.
type Commit struct {
	Session    outboard.SessionID
	Epoch      int64 // the lease's epoch; 0 for appends that need no lease (inputs, updates, archive)
	Expect     int64 // the head it was decided on; Any to append wherever the head is
	Events     []outboard.Event
	Release    bool                    // give up the lease in the same transaction
	Checkpoint *outboard.Checkpoint    // row to insert; its Seq is set to the new head
	Files      []outboard.File         // rows to insert
	Config     *outboard.SessionConfig // replaces the stored config (after session.updated)
}

// Append is the plain form of Commit. It returns the events as stored, with Seq and Time.
func (s *Store) Append(ctx context.Context, id outboard.SessionID, epoch, expectSeq int64, events ...outboard.Event) ([]outboard.Event, error) {
	return s.Commit(ctx, Commit{Session: id, Epoch: epoch, Expect: expectSeq, Events: events})
}

// Commit applies c, or nothing. Errors: ErrFenced, ErrMoved, ErrTerminated, ErrDuplicate, NotFound, Unavailable. A commit whose
// ctx ends while it is queued may still become durable; callers that care read the log.
func (s *Store) Commit(ctx context.Context, c Commit) ([]outboard.Event, error) { panic("later") }

// Read yields the session's events with seq > after, in order, up to the head at the time of the call; it pages and never
// holds the whole log.
func (s *Store) Read(ctx context.Context, id outboard.SessionID, after int64) iter.Seq2[outboard.Event, error] {
	panic("later")
}

// Follow yields the session's events with seq > after, past and future, without gaps or duplicates, until ctx ends (then the
// sequence just stops) or the session is deleted (NotFound). It is woken by commits of this process at once and by those of
// other processes within PollFallback (Postgres: a coalesced doorbell, sent after the commit).
func (s *Store) Follow(ctx context.Context, id outboard.SessionID, after int64) iter.Seq2[outboard.Event, error] {
	panic("later")
}

// EventQuery selects events of one session by position. Zero values select everything in ascending order.
type EventQuery struct {
	After, Before int64 // exclusive bounds on seq; 0 = none
	Since, Until  time.Time
	Types         []outboard.EventType
	Desc          bool
	Limit         int // 0 = 1000
}

// Events returns one page of events.
func (s *Store) Events(ctx context.Context, id outboard.SessionID, q EventQuery) ([]outboard.Event, error) {
	panic("later")
}

// Event returns one event by id. NotFound if the session has none such.
func (s *Store) Event(ctx context.Context, id outboard.SessionID, ev outboard.EventID) (outboard.Event, error) {
	panic("later")
}

// EventsAbout returns the events whose Ref is ref, in order.
func (s *Store) EventsAbout(ctx context.Context, id outboard.SessionID, ref outboard.EventID) ([]outboard.Event, error) {
	panic("later")
}

// Waiting returns the inputs that no input.processed names yet, in order.
func (s *Store) Waiting(ctx context.Context, id outboard.SessionID) ([]outboard.Event, error) {
	panic("later")
}

// Register makes worker known, with a lease of LeaseTTL; call it once per process before Claim.
func (s *Store) Register(ctx context.Context, w outboard.WorkerID, host string) error { panic("later") }

// Renew extends the worker's lease, one statement for all its sessions. ErrFenced: it had expired and its sessions may be
// gone; the process must stop its turns and Register again under a new id.
func (s *Store) Renew(ctx context.Context, w outboard.WorkerID) error { panic("later") }

// Deregister gives up all leases of the worker at once.
func (s *Store) Deregister(ctx context.Context, w outboard.WorkerID) error { panic("later") }

// Claim takes up to max runnable sessions that no live worker holds: it raises their epoch and makes w their owner. The headers
// returned carry the new epoch.
func (s *Store) Claim(ctx context.Context, w outboard.WorkerID, max int) ([]outboard.Header, error) {
	panic("later")
}

// Release gives up one lease, if epoch still holds it.
func (s *Store) Release(ctx context.Context, id outboard.SessionID, epoch int64) error {
	panic("later")
}

// WaitRunnable returns when something may have become runnable: a commit made a session runnable, a timer is due, or
// PollFallback passed. It may return for nothing.
func (s *Store) WaitRunnable(ctx context.Context) error { panic("later") }

// Watch returns a channel that gets a value (never blocking, capacity 1) after commits of any process to the session; stop
// releases it.
func (s *Store) Watch(id outboard.SessionID) (ch <-chan struct{}, stop func()) { panic("later") }

// CreateSession inserts header and config and appends the first events, all in one transaction.
func (s *Store) CreateSession(ctx context.Context, h outboard.Header, cfg outboard.SessionConfig, events ...outboard.Event) (outboard.Header, error) {
	panic("later")
}

// Session returns a header. NotFound also for deleted sessions.
func (s *Store) Session(ctx context.Context, id outboard.SessionID) (outboard.Header, error) {
	panic("later")
}

// SessionConfig returns the session's current config.
func (s *Store) SessionConfig(ctx context.Context, id outboard.SessionID) (outboard.SessionConfig, error) {
	panic("later")
}

// SessionFilter selects sessions, newest first (created_at, id) unless Asc. Cursor is the id of the last one of the page before.
type SessionFilter struct {
	Phases          []outboard.Phase
	Agent           outboard.AgentID
	AgentVersion    int
	IncludeArchived bool
	From, Until     time.Time // created_at: From inclusive, Until exclusive
	Asc             bool
	Cursor          outboard.SessionID
	Limit           int
}

// Sessions returns one page.
func (s *Store) Sessions(ctx context.Context, f SessionFilter) ([]outboard.Header, error) {
	panic("later")
}

// DeleteSession hides the session and everything of it for good. Its log rows stay in the database, unreachable, because
// events are insert-only.
func (s *Store) DeleteSession(ctx context.Context, id outboard.SessionID) error { panic("later") }

// PutAgent inserts one version of an agent. Conflict if that version exists.
func (s *Store) PutAgent(ctx context.Context, a outboard.Agent) error { panic("later") }

// Agent returns a version of an agent; version 0 is the latest.
func (s *Store) Agent(ctx context.Context, id outboard.AgentID, version int) (outboard.Agent, error) {
	panic("later")
}

// Page selects rows newest first. Cursor is the id (for versions: the decimal version) of the last row of the page before.
type Page struct {
	Cursor          string
	Limit           int
	IncludeArchived bool
	From, To        time.Time // created_at, both inclusive; zero = open
}

// Agents returns one page of latest versions.
func (s *Store) Agents(ctx context.Context, p Page) ([]outboard.Agent, error) { panic("later") }

// AgentVersions returns one page of an agent's versions, newest first.
func (s *Store) AgentVersions(ctx context.Context, id outboard.AgentID, p Page) ([]outboard.Agent, error) {
	panic("later")
}

// ArchiveAgent marks all versions archived at t and returns the latest. Archiving twice keeps the first time.
func (s *Store) ArchiveAgent(ctx context.Context, id outboard.AgentID, t time.Time) (outboard.Agent, error) {
	panic("later")
}

// PutEnvironment inserts or replaces an environment.
func (s *Store) PutEnvironment(ctx context.Context, e outboard.Environment) error { panic("later") }

// Environment returns one.
func (s *Store) Environment(ctx context.Context, id outboard.EnvironmentID) (outboard.Environment, error) {
	panic("later")
}

// Environments returns one page.
func (s *Store) Environments(ctx context.Context, p Page) ([]outboard.Environment, error) {
	panic("later")
}

// DeleteEnvironment removes one. Sessions keep their copy of its config.
func (s *Store) DeleteEnvironment(ctx context.Context, id outboard.EnvironmentID) error {
	panic("later")
}

// PutFile inserts a file row.
func (s *Store) PutFile(ctx context.Context, f outboard.File) error { panic("later") }

// File returns one.
func (s *Store) File(ctx context.Context, id outboard.FileID) (outboard.File, error) { panic("later") }

// Files returns one page; session "" selects uploads and session files alike.
func (s *Store) Files(ctx context.Context, session outboard.SessionID, ids []outboard.FileID, p Page) ([]outboard.File, error) {
	panic("later")
}

// DeleteFile removes the row; the blob stays until collected.
func (s *Store) DeleteFile(ctx context.Context, id outboard.FileID) error { panic("later") }

// PutKey inserts a key.
func (s *Store) PutKey(ctx context.Context, k outboard.Key) error { panic("later") }

// KeyByHash returns the live key with this hash. NotFound also for a revoked one.
func (s *Store) KeyByHash(ctx context.Context, hash string) (outboard.Key, error) { panic("later") }

// Keys returns all keys.
func (s *Store) Keys(ctx context.Context) ([]outboard.Key, error) { panic("later") }

// PutSandbox inserts or replaces a sandbox row.
func (s *Store) PutSandbox(ctx context.Context, b outboard.Sandbox) error { panic("later") }

// Sandbox returns one row.
func (s *Store) Sandbox(ctx context.Context, id outboard.SandboxID) (outboard.Sandbox, error) {
	panic("later")
}

// Sandboxes returns the rows of a host that are not destroyed; host "" means all hosts, session "" all sessions.
func (s *Store) Sandboxes(ctx context.Context, host string, session outboard.SessionID) ([]outboard.Sandbox, error) {
	panic("later")
}

// Checkpoint returns one row.
func (s *Store) Checkpoint(ctx context.Context, id outboard.CheckpointID) (outboard.Checkpoint, error) {
	panic("later")
}

// Checkpoints returns a session's checkpoints, oldest first.
func (s *Store) Checkpoints(ctx context.Context, session outboard.SessionID) ([]outboard.Checkpoint, error) {
	panic("later")
}

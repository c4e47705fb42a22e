// Package store owns everything that must outlive a process: session logs, headers, leases, timers,
// agents, environments, files, sandboxes, checkpoints and keys. There is one Store over two
// dialects, SQLite (one file, the embedded default) and PostgreSQL (what several servers share).
// They use the same SQL except for placeholders, the claim query and the wake-up.
//
// Invariants:
//   - Events are insert-only (a trigger refuses UPDATE and DELETE) and per session gap-free from 1.
//     Those of a deleted session are removed as a whole (Purge), when no fork reads them.
//   - Append returns only after the commit is durable (SQLite: WAL with synchronous=FULL; Postgres:
//     synchronous_commit on). Concurrent appends share a commit: a writer goroutine drains a
//     bounded queue. PostgreSQL has two, each with its own sessions. With SQLite, an append that
//     finds nobody committing commits itself, and whatever is queued by then.
//   - A header is always outboard.Project of its log: it is advanced in the transaction that
//     inserts the events.
//   - An append with a stale epoch, or with an expectation that the head has passed, changes
//     nothing.
//   - At most one call.finished and one answer exist per call, at most one input.processed per
//     input (unique index).
//   - The cost of a model call is reserved of every budget over its session before the call, and
//     settled in the commit of its outcome.
//   - No transaction is held across a timer, a channel or a network call to anything but the
//     database.
//
// It never decides who can do what.
//
// Start reading at Store.Append and Store.Claim, then at the file of the resource.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard"
)

// Any as Commit.Expect skips the optimistic check; as Commit.Epoch (0) it skips the fence.
const Any = -1

// Errors a caller branches on. All are *outboard.Error of kind Conflict.
var (
	// ErrFenced: the epoch is not the session's; somebody else has claimed it. The caller must stop at once.
	ErrFenced = outboard.Errorf(outboard.Conflict, "the lease was taken over")
	// ErrMoved: the head is past the expected seq, or not that of a Mark; read on and decide again.
	ErrMoved = outboard.Errorf(outboard.Conflict, "the log has moved on")
	// ErrTerminated: the session is archived and accepts no more events.
	ErrTerminated = outboard.Errorf(outboard.Conflict, "the session is terminated")
	// ErrDuplicate: the call already has an outcome or answer, the input was already processed, or the row exists.
	ErrDuplicate = outboard.Errorf(outboard.Conflict, "already recorded")
	// ErrRotated: it is sealed under a key that the vault does not have any more; seal it anew.
	ErrRotated = outboard.Errorf(outboard.Conflict, "the keys of the vault were rotated meanwhile")
)

// errClosed is what every method returns after Close.
var errClosed = outboard.Errorf(outboard.Unavailable, "the store is closed")

// Config opens a store.
type Config struct {
	Path   string           // SQLite file; used when URL is empty
	URL    string           // postgres://...
	Logger *slog.Logger     // nil = discard
	Now    func() time.Time // the host's clock; nil = time.Now
	// Reserve is how many bytes beside a SQLite file are kept for removals on a full disk; 0 = none.
	Reserve int64
	// TrustClock takes the host's clock for right even where the database has seen a later time: what had
	// expired by then may be valid again.
	TrustClock bool
}

// Store is safe for concurrent use.
type Store struct {
	d           dialect
	read, write *sql.DB // SQLite: readers and the one writer; Postgres: the same pool
	log         *slog.Logger
	now         func() time.Time // see Now
	hostNow     func() time.Time
	hub         hub
	reserve     *reserve // nil = none
	cache       cache
	unbudgeted  unbudgeted
	tenancy     tenancy // see Shared

	claimsMu     sync.Mutex // held by the writer for a whole group, and so by an InlineClaim's stop
	inlineClaims []*InlineClaim

	queues   []*queue     // one for each writer
	seed     maphash.Seed // of the choice between them
	charging sync.Mutex   // held by a writer for a group that charges budgets
	audits   auditQueue
	tail     auditTail // of whoever writes a group of audits
	sealed   atomic.Pointer[error]
	closing  <-chan struct{} // closed by Close: no new appends, and the loops end
	cancel   func()          // closes it
	stopped  chan struct{}   // closed when the writers have drained their queues
	appends  sync.WaitGroup  // the writers
	loops    sync.WaitGroup  // poller and the dialect's own
	once     sync.Once
	closed   error
	commits  atomic.Int64
	events   atomic.Int64 // see EventsRead
	reads    atomic.Int64 // see Reads
}

// Commits is how many appends and claims this process has made durable. Several appends may have shared one
// transaction.
func (s *Store) Commits() int64 { return s.commits.Load() }

// EventsRead is how many rows of logs this process has read.
func (s *Store) EventsRead() int64 { return s.events.Load() }

// Open connects, migrates up and starts the writers. Close stops them; appends after that fail with Unavailable.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	latest, err := latestSchema()
	if err != nil {
		return nil, fmt.Errorf("listing migrations: %w", err)
	}
	return openAt(ctx, cfg, latest, latest)
}

// openAt is Open with a schema of a given age. With one that is not the latest, which only tests of upgrades ask
// for, there are no statements to prepare: they may need columns that are not there.
func openAt(ctx context.Context, cfg Config, schema, latest int) (*Store, error) {
	run, cancel := context.WithCancel(context.Background()) // of the loops; ctx is only for opening
	c := &clock{read: cfg.Now}
	if c.read == nil {
		c.read = time.Now
	}
	s := &Store{log: cfg.Logger, now: c.now, hostNow: c.read, seed: maphash.MakeSeed(), closing: run.Done(),
		cancel: cancel, stopped: make(chan struct{}), audits: auditQueue{enough: make(chan struct{}, 1)}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.hub.init()
	if cfg.URL == "" {
		s.reserve = newReserve(cfg.Path, cfg.Reserve, s.log)
	}
	ctx = Removing(ctx) // a full disk may be what it is started for
	if err := s.connect(ctx, cfg); err != nil {
		cancel()
		return nil, err
	}
	err := s.migrate(ctx, schema)
	if err == nil && schema == latest {
		err = s.fail("preparing statements", s.d.prepare(ctx))
		if err == nil && !cfg.TrustClock {
			err = s.seen(ctx, c)
		}
	}
	if err != nil {
		cancel()
		return nil, errors.Join(err, s.d.close())
	}
	for range s.d.writers() {
		q := &queue{waiting: make(chan *pending, queueSize), size: 1}
		s.queues = append(s.queues, q)
		s.appends.Go(func() { s.writer(q) })
	}
	if s.reserve != nil {
		_ = s.reserve.make() // keep says why not
		s.loops.Go(func() { s.reserve.keep(s.closing) })
	}
	s.loops.Go(func() { s.poll(run) })
	if schema == latest {
		s.loops.Go(func() { s.tidying(run) })
	}
	s.d.start(run, s)
	return s, nil
}

// connect opens the database.
func (s *Store) connect(ctx context.Context, cfg Config) error {
	if cfg.URL != "" {
		d, err := openPostgres(ctx, cfg.URL)
		if err != nil {
			return err
		}
		s.d, s.read, s.write = d, d.db, d.db
		return nil
	}
	if cfg.Path == "" {
		return outboard.Errorf(outboard.Invalid, "no database: neither a file nor a URL was given")
	}
	d, err := openSQLite(ctx, cfg.Path)
	if s.reserve.drops(ctx, err) {
		d, err = openSQLite(ctx, cfg.Path)
	}
	if err != nil {
		return err
	}
	s.d, s.read, s.write = d, d.read, d.write
	return nil
}

// Close waits for queued appends, then disconnects. It may be called twice.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.cancel()
		s.audits.close()
		s.appends.Wait()
		close(s.stopped)
		s.loops.Wait()
		s.closed = s.fail("closing the store", s.d.close())
	})
	return s.closed
}

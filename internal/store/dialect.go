package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// dialect is what differs between the two databases. Its methods are called from any goroutine.
type dialect interface {
	// name is "sqlite" or "postgres": the folder of its migrations.
	name() string
	// where names the database in messages to the user, without a password.
	where() string
	// rebind turns ? placeholders into the dialect's own.
	rebind(query string) string
	// locking returns the clause that locks the rows a query picked for an update, or those of them nobody else
	// has locked.
	locking(skip bool) string
	// begin opens a write transaction.
	begin(ctx context.Context) (*sql.Tx, error)
	// lockSchema makes other processes wait until tx has migrated.
	lockSchema(ctx context.Context, tx *sql.Tx) error
	// prepare makes what commit needs; the schema is up to date.
	prepare(ctx context.Context) error
	// preparedRead and preparedWrite return a statement that prepare has made for a query, on the connections
	// that read or write, or nil. Each is over in microseconds, so it is run under a context that does not end:
	// a driver starts a goroutine per statement to watch one that can.
	preparedRead(query string) *sql.Stmt
	preparedWrite(query string) *sql.Stmt
	// explain classifies an error of the database; nil when it is none. Its message names the database, its
	// public one does not.
	explain(err error) *outboard.Error
	// again reports whether the transaction lost against another one and may simply be run once more.
	again(err error) bool
	// unique reports whether a unique index refused a row.
	unique(err error) bool
	// claimsInline reports whether commit makes use of an InlineClaim.
	claimsInline() bool
	// writers is how many groups are committed at the same time.
	writers() int
	// commit runs a group as one transaction: it adds to known the headers that lack, plans, and writes. It
	// returns known. The headers it was given need not be the database's: then it changes nothing and returns
	// errStale. k may be nil.
	commit(ctx context.Context, group []*pending, known map[outboard.SessionID]*row, k *taking,
		now time.Time) (map[outboard.SessionID]*row, error)
	// moment is how a transaction that only reads begins, to see all as of one moment; textColumns the query for
	// every table's columns of text and bytes.
	moment() *sql.TxOptions
	textColumns() string
	// lockPolicies makes others wait with their policies until tx ends.
	lockPolicies(ctx context.Context, tx *sql.Tx) error
	// lockAudit makes other processes wait with their audit records until tx ends.
	lockAudit(ctx context.Context, tx *sql.Tx) error
	// insertAudit writes audit rows.
	insertAudit(ctx context.Context, t tx, rows []auditRow) error
	// quickAudit appends rows to a log that still ends with end, while the sessions of marks have these heads,
	// in one statement. false says that nothing was written: something is otherwise, or the dialect has no such
	// statement.
	quickAudit(ctx context.Context, end auditTail, marks map[outboard.SessionID]int64, rows []auditRow) (bool, error)
	// start begins to listen for commits of other processes; run's end stops that; close disconnects.
	start(run context.Context, s *Store)
	// ring tells other processes that sessions have changed.
	ring(rows map[outboard.SessionID]*row)
	// changed reports whether another process may have committed since the last call.
	changed(ctx context.Context) (bool, error)
	close() error
}

// statement is one SQL text with its arguments.
type statement struct {
	query string
	args  []any
}

// dollars turns ? placeholders into $1, $2... No query of ours has a question mark elsewhere.
func dollars(query string) string {
	var b strings.Builder
	b.Grow(len(query) + 16)
	n := 0
	for {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		n++
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = after
	}
}

// marks is n placeholders for an IN list.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// fail wraps an error of the database with what the caller was doing, and gives it a kind.
func (s *Store) fail(doing string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*outboard.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return outboard.Errorf(outboard.Canceled, "%s: %w", doing, err)
	}
	select {
	case <-s.stopped: // the drivers each have their own words for that
		return errClosed
	default:
	}
	if e := s.d.explain(err); e != nil {
		kind := e.Kind
		if kind == outboard.Invalid { // it was a database when it was opened: the request is not what is wrong
			kind = outboard.Unavailable
		}
		return &outboard.Error{Kind: kind, Code: e.Code, Message: doing + ": " + e.Message, Hint: e.Hint,
			Public: doing + ": " + e.Public, Err: err}
	}
	return outboard.Errorf(outboard.Internal, "%s: %w", doing, err)
}

// notFound is the answer for a row that is absent or hidden.
func notFound(what string, id any) error {
	return outboard.Errorf(outboard.NotFound, "no %s %v", what, id)
}

// Reads counts the queries that this process has made outside of transactions, and the rows of their lists. A
// request that nobody has authenticated yet costs a few, however much there is.
func (s *Store) Reads() int64 { return s.reads.Load() }

func (s *Store) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	s.reads.Add(1)
	if st := s.d.preparedRead(query); st != nil && ctx.Err() == nil {
		return st.QueryRowContext(context.WithoutCancel(ctx), args...)
	}
	return s.read.QueryRowContext(ctx, s.d.rebind(query), args...)
}

func (s *Store) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	s.reads.Add(1)
	if st := s.d.preparedRead(query); st != nil && ctx.Err() == nil {
		return st.QueryContext(context.WithoutCancel(ctx), args...)
	}
	return s.read.QueryContext(ctx, s.d.rebind(query), args...)
}

// collect runs a query and scans each of its rows.
func collect[T any](ctx context.Context, s *Store, doing string,
	scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := s.query(ctx, query, args...)
	if err != nil {
		return nil, s.fail(doing, err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, s.fail(doing, err)
		}
		out = append(out, v)
	}
	s.reads.Add(int64(len(out)))
	return out, s.fail(doing, rows.Err())
}

// one runs a query for a single row. No row is NotFound.
func one[T any](ctx context.Context, s *Store, what string, id any,
	scan func(scanner) (T, error), query string, args ...any) (T, error) {
	v, err := scan(s.queryRow(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return v, notFound(what, id)
	}
	return v, s.fail("reading "+what, err)
}

// tx is a write transaction with the placeholders of its dialect.
type tx struct {
	*sql.Tx
	s *Store
}

// exec runs a statement and returns how many rows it changed.
func (t tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := t.ExecContext(ctx, t.s.d.rebind(query), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (t tx) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	if st := t.s.d.preparedWrite(query); st != nil && ctx.Err() == nil {
		ctx = context.WithoutCancel(ctx)
		return t.StmtContext(ctx, st).QueryRowContext(ctx, args...)
	}
	return t.QueryRowContext(ctx, t.s.d.rebind(query), args...)
}

func (t tx) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if st := t.s.d.preparedWrite(query); st != nil && ctx.Err() == nil {
		ctx = context.WithoutCancel(ctx)
		return t.StmtContext(ctx, st).QueryContext(ctx, args...)
	}
	return t.QueryContext(ctx, t.s.d.rebind(query), args...)
}

// collectTx is collect inside a write transaction. Errors come back as the database's own.
func collectTx[T any](ctx context.Context, t tx,
	scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := t.query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// maxRetries bounds how often a transaction that lost against another is run again. Each loss means another one won.
const maxRetries = 8

// update runs fn in a write transaction and commits it. fn may run more than once.
func (s *Store) update(ctx context.Context, doing string, fn func(tx) error) error {
	if err := s.reserve.refuses(ctx); err != nil {
		return err
	}
	err := s.tryUpdate(ctx, doing, fn)
	if s.reserve.drops(ctx, err) {
		err = s.tryUpdate(ctx, doing, fn)
	}
	return err
}

// tryUpdate is update for what was admitted already: it never uses the reserve.
func (s *Store) tryUpdate(ctx context.Context, doing string, fn func(tx) error) error {
	var err error
	for range maxRetries {
		if err = s.updateOnce(ctx, fn); err == nil || !s.d.again(err) {
			break
		}
	}
	s.unbudgeted.set() // whatever fn stored
	return s.fail(doing, err)
}

func (s *Store) updateOnce(ctx context.Context, fn func(tx) error) error {
	t, err := s.d.begin(ctx)
	if err != nil {
		return err
	}
	defer t.Rollback() // after a commit it does nothing
	if err := fn(tx{t, s}); err != nil {
		return err
	}
	if err := t.Commit(); err != nil {
		return &commitError{err}
	}
	return nil
}

// commitError is the error of a COMMIT. Unless the database itself refused it, nobody knows whether the change was
// made. The driver can call such an error safe to retry, because the broken connection is closed when it is asked.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboard-dev/outboard"
)

// Limits of the PostgreSQL dialect.
const (
	// pgConns bounds the connections of one process unless the URL says pool_max_conns. A server has about 100.
	pgConns = 12
	// pgWriters is how many groups are under way at once.
	pgWriters = 2
	// connectWait bounds one attempt to connect.
	connectWait = 10 * time.Second
)

// postgresDialect is one PostgreSQL database, shared by any number of processes. It never decides from a replica.
type postgresDialect struct {
	pool   *pgxpool.Pool
	db     *sql.DB // the same connections
	at     string
	notify notify

	mu       sync.Mutex
	snapshot string // at the last call of changed
}

// openPostgres connects to url.
func openPostgres(ctx context.Context, url string) (*postgresDialect, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "the database URL is not valid: %v", err).
			WithHint("it looks like postgres://user:password@host:5432/database")
	}
	if !strings.Contains(url, "pool_max_conns") {
		cfg.MaxConns = pgConns
	}
	cfg.ConnConfig.ConnectTimeout = connectWait
	cfg.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	cfg.AfterConnect = settings
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "the database URL is not valid: %v", err)
	}
	d := &postgresDialect{pool: pool, db: stdlib.OpenDBFromPool(pool), notify: newNotify()}
	d.at = fmt.Sprintf("%s on %s", cfg.ConnConfig.Database, cfg.ConnConfig.Host)
	if err := pool.Ping(ctx); err != nil {
		d.close()
		e := d.explain(err)
		if e == nil {
			e = outboard.Errorf(outboard.Unavailable, "database %s cannot be reached: %s", d.at, sentence(err))
		}
		return nil, e.WithHint("check that PostgreSQL runs there, and the user and password of the URL")
	}
	return d, nil
}

// CodeAway is the code of an error whose reason is that the database's server is not there, is starting or
// stopping, or has cut the connection.
const CodeAway = "database_away"

// Away reports whether an error has CodeAway: what failed may work when it is tried again.
func Away(err error) bool { return outboard.HasCode(err, CodeAway) }

// sentence is an error of the driver on one line.
func sentence(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// Settings of a connection. A commit waits for the disk even where the server's default is not to; stricter
// defaults stay. All our queries go by an index and touch few rows, whatever the tables' statistics say while
// they are young, so a statement is planned once, as a walk along indexes, and never compiled.
const settingsSQL = `SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
	set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false),
	CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END`

func settings(ctx context.Context, c *pgx.Conn) error {
	encodeArrays(c.TypeMap())
	_, err := c.Exec(ctx, settingsSQL)
	return err
}

func (d *postgresDialect) name() string               { return "postgres" }
func (d *postgresDialect) claimsInline() bool         { return false }
func (d *postgresDialect) writers() int               { return pgWriters }
func (d *postgresDialect) where() string              { return d.at }
func (d *postgresDialect) rebind(query string) string { return dollars(query) }

// begin implements dialect.
func (d *postgresDialect) begin(ctx context.Context) (*sql.Tx, error) { return d.db.BeginTx(ctx, nil) }

// locking implements dialect.
func (d *postgresDialect) locking(skip bool) string {
	if skip {
		return ` FOR UPDATE SKIP LOCKED`
	}
	return ` FOR UPDATE`
}

// prepare implements dialect. The driver prepares statements where it first uses them.
func (d *postgresDialect) prepare(context.Context) error { return nil }

// its connections remember statements themselves
func (d *postgresDialect) preparedRead(string) *sql.Stmt  { return nil }
func (d *postgresDialect) preparedWrite(string) *sql.Stmt { return nil }

// schemaLock is an arbitrary number of ours.
const schemaLock = 0x6f7574626f617264

// lockSchema implements dialect.
func (d *postgresDialect) lockSchema(ctx context.Context, t *sql.Tx) error {
	_, err := t.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(schemaLock))
	return err
}

// lockPolicies implements dialect. PostgreSQL gives numbers out before the commit: without it the highest may be
// there before a lower one is.
func (d *postgresDialect) lockPolicies(ctx context.Context, t *sql.Tx) error {
	_, err := t.ExecContext(ctx, `LOCK TABLE policies IN EXCLUSIVE MODE`)
	return err
}

// auditLock is an arbitrary number of ours; the schema tells databases apart that share a server's.
const auditLock = 0x61756474

// lockAudit implements dialect.
func (d *postgresDialect) lockAudit(ctx context.Context, t *sql.Tx) error {
	_, err := t.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1, hashtext(current_schema()))`, int32(auditLock))
	return err
}

// Codes of PostgreSQL that mean something to us.
const (
	pgUnique        = "23505"
	pgSerialization = "40001"
	pgDeadlock      = "40P01"
	pgReadOnly      = "25006"
	pgDiskFull      = "53100"
)

// explain implements dialect.
func (d *postgresDialect) explain(err error) *outboard.Error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case e.Code == pgDiskFull:
			return outboard.Errorf(outboard.Unavailable, "the disk of database %s is full", d.at).
				WithHint("free space, then try again").
				WithPublic("the disk of the database is full")
		case e.Code == pgReadOnly:
			return outboard.Errorf(outboard.Unavailable, "database %s is read-only", d.at).
				WithHint("point the URL at the primary").
				WithPublic("the database is read-only")
		case e.Code == pgDeadlock || e.Code == pgSerialization:
			return outboard.Errorf(outboard.Unavailable, "database %s is too busy: %s", d.at, e.Message).
				WithPublic("the database is too busy")
		case e.Code[:2] == "57" || e.Code[:2] == "08": // it starts, or was ended by an operator; no connection
			return outboard.Errorf(outboard.Unavailable, "database %s refuses: %s", d.at, e.Message).
				WithPublic("the database is away").WithCode(CodeAway)
		// out of resources, its system failed, no access
		case e.Code[:2] == "53" || e.Code[:2] == "58" || e.Code[:2] == "28":
			return outboard.Errorf(outboard.Unavailable, "database %s refuses: %s", d.at, e.Message).
				WithPublic("the database is away")
		}
		return nil
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return outboard.Errorf(outboard.Unavailable, "database %s cannot be reached: %s", d.at, sentence(err)).
			WithPublic("the database is away").
			WithCode(CodeAway)
	}
	_, committing := errors.AsType[*commitError](err)
	if _, ok := errors.AsType[net.Error](err); ok || committing || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, pgconn.ErrConnClosed) {
		return outboard.Errorf(outboard.Unavailable, "the connection to database %s broke: %v", d.at, err).
			WithPublic("the database is away").
			WithCode(CodeAway)
	}
	return nil
}

// again implements dialect.
func (d *postgresDialect) again(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == pgDeadlock || e.Code == pgSerialization
	}
	_, committing := errors.AsType[*commitError](err)
	return !committing && pgconn.SafeToRetry(err)
}

// unique implements dialect.
func (d *postgresDialect) unique(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == pgUnique
}

// changed implements dialect: as long as the snapshot is the same, nothing has been committed by anybody.
func (d *postgresDialect) changed(ctx context.Context) (bool, error) {
	var snapshot string
	if err := d.pool.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&snapshot); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	moved := snapshot != d.snapshot
	d.snapshot = snapshot
	return moved, nil
}

// close implements dialect.
func (d *postgresDialect) close() error {
	err := d.db.Close()
	d.pool.Close()
	return err
}

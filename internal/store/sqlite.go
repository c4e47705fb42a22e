package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboard-dev/outboard"
)

// Limits of the SQLite dialect.
const (
	// lockWait bounds the wait for another process's transaction on the same file. Ours last milliseconds; one
	// that holds the file for longer than this is stuck or is a person with a database browser.
	lockWait = 10 * time.Second
	// lockPause is the longest pause between two tries for that lock, so that a process is never starved by a busy one.
	lockPause = 4 * time.Millisecond
	// readConns bounds concurrent readers of the file. They never wait for the writer, so few are enough.
	readConns = 4
	// pageSize is that of a new file. A commit writes whole pages, one for each thing it touches. A step of a
	// turn touches six, so that small ones spare it half of what it writes: a turn takes a twentieth less time
	// than with 8 KiB. A crowd's commits, of which each fills its pages, would have a fifth more appends a
	// second with those.
	pageSize = 4 << 10
	// walPages is how large the write-ahead log grows before it is copied back: 32 MiB. The file is then
	// overwritten from its start, which spares the file system the growing of a file at each commit.
	walPages = (32 << 20) / pageSize
	// cacheKiB is the page cache of the writer: the tails of some hundred busy sessions.
	cacheKiB = 16 << 10
)

// sqliteDialect is one SQLite file: one writing connection, a few reading ones.
type sqliteDialect struct {
	path        string
	vfs         string // of SQLite, "" = its own
	read, write *sql.DB

	raw                 *rawConn // what commits use of the writing connection; nil before the first
	hotReads, hotWrites map[string]*sql.Stmt
	// without and with marks, by the length of the group; nil = none has come yet
	quickAudits [2][quickRows]*sql.Stmt

	mu      sync.Mutex
	version int64 // PRAGMA data_version of the writing connection at the last call of changed
}

// openSQLite opens or creates the file.
func openSQLite(ctx context.Context, path string) (*sqliteDialect, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "opening database %s: %w", path, err)
	}
	f, err := os.OpenFile(abs, os.O_RDWR|os.O_CREATE, 0o600) // for the system's own words on why it cannot be
	if outboard.DiskFull(err) {
		return nil, outboard.FullDisk("opening database", err)
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "opening database: %w", err).
			WithHint("choose a data directory this user can write to")
	}
	info, err := f.Stat()
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "opening database: %w", err)
	}
	d := &sqliteDialect{path: abs}
	if d.vfs, err = vfs(); err != nil {
		return nil, outboard.Errorf(outboard.Internal, "opening database %s: %w", abs, err)
	}
	if info.Size() == 0 {
		if err := d.format(ctx); err != nil {
			return nil, err
		}
	}
	if d.write, err = openPool(d.dsn("immediate", 0, "journal_mode(WAL)", "synchronous(FULL)",
		fmt.Sprintf("wal_autocheckpoint(%d)", walPages), fmt.Sprintf("cache_size(-%d)", cacheKiB)), 1); err != nil {
		return nil, err
	}
	if d.read, err = openPool(d.dsn("deferred", lockWait, "query_only(1)"), readConns); err != nil {
		return nil, errors.Join(err, d.write.Close())
	}
	if err := d.ping(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// format gives a new file its page size, which must happen before the write-ahead log is switched on. Should two
// processes do it at the same time, either is as good.
func (d *sqliteDialect) format(ctx context.Context) (err error) {
	db, err := openPool(d.dsn("immediate", lockWait, fmt.Sprintf("page_size(%d)", pageSize)), 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, createSchemaSQL); err != nil {
		return d.opening(err)
	}
	return nil
}

// opening is an error of opening the file.
func (d *sqliteDialect) opening(err error) error {
	if e := d.explain(err); e != nil {
		return e
	}
	return outboard.Errorf(outboard.Unavailable, "opening database %s: %w", d.path, err)
}

// ping makes the writing connection, within lockWait of another process.
func (d *sqliteDialect) ping(ctx context.Context) error {
	err := retryLocked(ctx, d, func() error { return d.write.PingContext(ctx) })
	if err == nil {
		return nil
	}
	d.close() // the error that matters is the first
	return d.opening(err)
}

// dsn is the driver's name for the file with settings every connection shares. recursive_triggers makes the insert-only
// trigger see the DELETE inside an INSERT OR REPLACE.
func (d *sqliteDialect) dsn(lock string, busy time.Duration, pragmas ...string) string {
	q := url.Values{"_txlock": {lock}, "_pragma": append([]string{
		fmt.Sprintf("busy_timeout(%d)",
			busy.Milliseconds()), "foreign_keys(1)", "recursive_triggers(1)", "temp_store(MEMORY)",
	}, pragmas...)}
	if d.vfs != "" {
		q.Set("vfs", d.vfs)
	}
	return (&url.URL{Scheme: "file", OmitHost: true, Path: d.path, RawQuery: q.Encode()}).String()
}

func openPool(dsn string, conns int) (*sql.DB, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "opening database: %w", err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func (d *sqliteDialect) name() string                                { return "sqlite" }
func (d *sqliteDialect) moment() *sql.TxOptions                      { return nil }
func (d *sqliteDialect) claimsInline() bool                          { return true }
func (d *sqliteDialect) writers() int                                { return 1 }
func (d *sqliteDialect) where() string                               { return d.path }
func (d *sqliteDialect) rebind(query string) string                  { return query }
func (d *sqliteDialect) locking(bool) string                         { return "" }
func (d *sqliteDialect) lockSchema(context.Context, *sql.Tx) error   { return nil } // the transaction is immediate
func (d *sqliteDialect) lockAudit(context.Context, *sql.Tx) error    { return nil } // likewise
func (d *sqliteDialect) lockPolicies(context.Context, *sql.Tx) error { return nil }

// one writer at a time loses to nobody
func (d *sqliteDialect) again(error) bool                 { return false }
func (d *sqliteDialect) ring(map[outboard.SessionID]*row) {} // others look at data_version
func (d *sqliteDialect) start(context.Context, *Store)    {}

// explain implements dialect.
func (d *sqliteDialect) explain(err error) *outboard.Error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return nil
	}
	return d.explainCode(e.Code(), err)
}

// explainCode is explain by SQLite's extended code.
func (d *sqliteDialect) explainCode(code int, err error) *outboard.Error {
	if d.full(code) {
		code = sqlite3.SQLITE_FULL
	}
	switch code & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return outboard.Errorf(outboard.Unavailable, "database %s is locked by another process", d.path).
			WithHint("end the program that holds it open, then try again").
			WithPublic("the database is locked by another process")
	case sqlite3.SQLITE_FULL:
		return outboard.Errorf(outboard.Unavailable, "the disk that holds %s is full", d.path).
			WithCode(outboard.CodeDiskFull).
			WithHint(outboard.HintFullDisk).WithPublic("the disk that holds the database is full")
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		return outboard.Errorf(outboard.Unavailable, "database %s cannot be written: %v", d.path, err).
			WithHint("check the owner and the permissions of the file and its directory").
			WithPublic("the database cannot be written")
	case sqlite3.SQLITE_IOERR:
		return outboard.Errorf(outboard.Unavailable, "the disk that holds %s fails: %v", d.path, err).
			WithPublic("the disk that holds the database fails")
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return outboard.Errorf(outboard.Invalid, "%s is not an Outboard database, or it is damaged: %v", d.path, err).
			WithPublic("the database is damaged")
	}
	return nil
}

// full reports whether an extended code comes of a full disk. SQLite has a code for what it could not write;
// where it could not open a file, grow the index of its log, or sync, the code does not say why, and the disk is
// asked.
func (d *sqliteDialect) full(code int) bool {
	switch {
	case code == sqlite3.SQLITE_IOERR_SHMSIZE: // the index could not grow
		return true
	case code&0xff == sqlite3.SQLITE_IOERR, code&0xff == sqlite3.SQLITE_CANTOPEN:
		return noDiskSpace(filepath.Dir(d.path))
	}
	return code&0xff == sqlite3.SQLITE_FULL
}

// unique implements dialect.
func (d *sqliteDialect) unique(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// busy reports whether another connection holds the lock.
func (d *sqliteDialect) busy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == sqlite3.SQLITE_BUSY
}

// begin implements dialect, waiting up to lockWait for a transaction of another process to end.
func (d *sqliteDialect) begin(ctx context.Context) (*sql.Tx, error) {
	var t *sql.Tx
	err := retryLocked(ctx, d, func() (err error) {
		t, err = d.write.BeginTx(ctx, nil)
		return err
	})
	return t, err
}

// retryLocked runs try until it does not fail with a lock of another process, for at most lockWait. SQLite's own
// busy handler backs off to 100 ms a try, which starves a process beside a busy one.
func retryLocked(ctx context.Context, d *sqliteDialect, try func() error) error {
	deadline := time.Now().Add(lockWait)
	for {
		err := try()
		if err == nil || !d.busy(err) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(rand.N(lockPause)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// changed implements dialect: data_version moves when any connection but this one has committed, and no other
// connection of this process writes.
func (d *sqliteDialect) changed(ctx context.Context) (bool, error) {
	var v int64
	if err := d.write.QueryRowContext(ctx, "PRAGMA data_version").Scan(&v); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	moved := v != d.version
	d.version = v
	return moved, nil
}

// close implements dialect.
func (d *sqliteDialect) close() error {
	errs := []error{d.closeHot()}
	if d.raw != nil {
		errs = append(errs, d.onWriter(context.Background(), (*rawConn).close))
	}
	for _, db := range []*sql.DB{d.read, d.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

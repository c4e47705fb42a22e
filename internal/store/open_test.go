package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// raw opens the same database beside the store.
func raw(t *testing.T, cfg store.Config) *sql.DB {
	t.Helper()
	driver, dsn := "pgx", cfg.URL
	if cfg.URL == "" {
		driver, dsn = "sqlite", "file:"+cfg.Path+"?_txlock=immediate"
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// History that can be edited proves nothing: the database itself must refuse to change or remove an event.
func TestEventsAreInsertOnly(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		id := newSession(t, s).ID
		db := raw(t, cfg)
		for _, q := range []string{
			`UPDATE events SET type = 'x'`, `DELETE FROM events`, `UPDATE events SET data = data WHERE seq = 1`,
		} {
			if _, err := db.ExecContext(t.Context(), q); err == nil || !strings.Contains(err.Error(), "insert-only") {
				t.Errorf("%s: %v", q, err)
			}
		}
		if cfg.URL != "" {
			if _, err := db.ExecContext(t.Context(), `TRUNCATE events`); err == nil ||
				!strings.Contains(err.Error(), "insert-only") {
				t.Errorf("truncate: %v", err)
			}
		}
		if _, err := db.ExecContext(t.Context(), `UPDATE sessions SET title = 'x'`); err != nil {
			t.Errorf("the control, an update of a header: %v", err)
		}
		if n := len(readAll(t, s, id)); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
}

// A store opened again, by the same or by a second process, must find everything and change nothing.
func TestReopen(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		h := newSession(t, s)
		mustAppend(t, s, h.ID, message("go"))
		want := mustSession(t, s, h.ID)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("closing twice: %v", err)
		}
		for range 2 {
			if got := mustSession(t, storetest.Open(t, cfg), h.ID); got.Head != want.Head || got.Inbox != 1 {
				t.Fatalf("got %+v, want %+v", got, want)
			}
		}
	})
}

// A newer program's database must be refused, not misread.
func TestNewerSchema(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := raw(t, cfg).
			ExecContext(t.Context(), `INSERT INTO schema_version (version) VALUES (999)`); err != nil {
			t.Fatal(err)
		}
		_, err := store.Open(t.Context(), cfg)
		mustKind(t, err, outboard.Invalid, "schema 999", "only up to")
	})
}

// Whoever gives a wrong path or address must read what is wrong with which, in one sentence.
func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	notDB := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(notDB, []byte(strings.Repeat("these are my notes\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg   store.Config
		kind  outboard.Kind
		words string
	}{
		{store.Config{}, outboard.Invalid, "no database"},
		{store.Config{Path: filepath.Join(dir, "missing", "x.db")}, outboard.Unavailable,
			filepath.Join(dir, "missing")},
		{store.Config{Path: filepath.Join(notDB, "x.db")}, outboard.Unavailable, notDB},
		{store.Config{Path: dir}, outboard.Unavailable, dir},
		{store.Config{Path: notDB}, outboard.Invalid, notDB},
		{store.Config{URL: "postgres://x:secret@[bad"}, outboard.Invalid, "URL"},
		{store.Config{URL: "postgres://me:secret@127.0.0.1:1/db"}, outboard.Unavailable, "127.0.0.1"},
	} {
		s, err := store.Open(t.Context(), c.cfg)
		if err == nil {
			s.Close()
		}
		mustKind(t, err, c.kind, c.words)
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q is more than a sentence", err)
		}
	}
	if text, err := os.ReadFile(notDB); err != nil || !strings.HasPrefix(string(text), "these are my notes") {
		t.Errorf("opening a foreign file changed it: %.40q, %v", text, err)
	}
}

// Fails if an error of the database, which clients without a key get as well, tells them where it is or who
// opens it; or if the log does not.
func TestErrorsTellClientsNoPlaces(t *testing.T) {
	_, away := pgconn.Connect(t.Context(), "postgres://me:secret@127.0.0.1:1/db")
	for _, err := range []error{
		store.ExplainSQLite(sqlite3.SQLITE_BUSY, errors.New("x.db: busy")), store.ExplainSQLite(sqlite3.SQLITE_FULL,
			errors.New("x.db: full")),
		store.ExplainSQLite(sqlite3.SQLITE_CANTOPEN, errors.New("x.db: no")), store.ExplainSQLite(sqlite3.SQLITE_IOERR,
			errors.New("x.db: no")),
		store.ExplainSQLite(sqlite3.SQLITE_CORRUPT, errors.New("x.db: no")),
		store.ExplainPostgres("x.db on 127.0.0.1", away), store.ExplainPostgres("x.db", io.ErrUnexpectedEOF),
		store.ExplainPostgres("x.db", &pgconn.PgError{Code: "53100"}), store.ExplainPostgres("x.db",
			&pgconn.PgError{Code: "25006"}),
		store.ExplainPostgres("x.db", &pgconn.PgError{Code: "40001"}),
		store.ExplainPostgres("x.db", &pgconn.PgError{Code: "28P01",
			Message: `password authentication failed for user "me"`}),
	} {
		told := outboard.PublicOf(fmt.Errorf("reading: %w", err))
		if strings.Contains(told, "x.db") || strings.Contains(told, "127.0") || strings.Contains(told, `"me"`) ||
			!strings.Contains(told, "the database") {
			t.Errorf("clients are told %q", told)
		}
		if !strings.Contains(err.Error(), "x.db") {
			t.Errorf("the log is told %q", err)
		}
	}
}

// Fails if a full disk is not known above the store as one, or is found where there is room.
func TestFullDiskIsNamed(t *testing.T) {
	for code, full := range map[int]bool{sqlite3.SQLITE_FULL: true, sqlite3.SQLITE_IOERR_SHMSIZE: true,
		sqlite3.SQLITE_IOERR_WRITE: false, sqlite3.SQLITE_IOERR_FSYNC: false, sqlite3.SQLITE_CANTOPEN: false} {
		err := fmt.Errorf("stopping: %w", store.ExplainSQLite(code, errors.New("x.db: no")))
		if outboard.DiskFull(err) != full || (outboard.HintOf(err) == outboard.HintFullDisk) != full {
			t.Errorf("code %d: %v, with the hint %q", code, err, outboard.HintOf(err))
		}
	}
}

// A database that somebody else keeps locked must be reported as that, after a bounded wait, and must be usable
// afterwards.
func TestLockedDatabase(t *testing.T) {
	cfg := storetest.SQLite(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, cfg)
		id := newSession(t, s).ID
		lock, err := raw(t, cfg).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Append(t.Context(), id, 0, store.Any, said("x"))
		mustKind(t, err, outboard.Unavailable, "locked by another process", cfg.Path)
		mustKind(t, s.PutEnvironment(t.Context(), outboard.Environment{ID: "env_1"}), outboard.Unavailable, "locked")
		if err := lock.Rollback(); err != nil {
			t.Fatal(err)
		}
		if got := mustAppend(t, s, id, said("x")); got[0].Seq != 2 {
			t.Fatalf("the append after it is at %d, want 2", got[0].Seq)
		}
	})
}

// A caller that gives up must get its answer at once, whatever the database does.
func TestCanceledAppend(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		id := newSession(t, s).ID
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.Append(ctx, id, 0, store.Any, said("x"))
		mustKind(t, err, outboard.Canceled)
		mustAppend(t, s, id, said("y"))
	})
}

// Several processes may start on a new database at the same moment; each must find it whole, and none may fail.
func TestOpenTogether(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		var wg sync.WaitGroup
		stores := make([]*store.Store, 6)
		for i := range stores {
			wg.Go(func() {
				s, err := store.Open(t.Context(), cfg)
				if err != nil {
					t.Errorf("opening: %v", err)
				}
				stores[i] = s
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		id := newSession(t, stores[0]).ID
		for i, s := range stores {
			if got := mustAppend(t, s, id, said("x")); got[0].Seq != int64(i)+2 {
				t.Errorf("append %d is at %d", i, got[0].Seq)
			}
			if err := s.Close(); err != nil {
				t.Errorf("closing: %v", err)
			}
		}
	})
}

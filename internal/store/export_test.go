package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/outboard-dev/outboard"
)

// OpenAt opens a store whose schema is as old as the program that wrote it.
func OpenAt(ctx context.Context, cfg Config, schema int) (*Store, error) {
	latest, err := latestSchema()
	if err != nil {
		return nil, err
	}
	return openAt(ctx, cfg, schema, latest)
}

// LatestSchema is the newest schema.
var LatestSchema = latestSchema

// Migrations are the embedded files.
var Migrations fs.FS = migrations

// Exec runs a statement on the writing connection.
func (s *Store) Exec(ctx context.Context, query string) (sql.Result, error) {
	return s.write.ExecContext(ctx, query)
}

// PlanOf is how the database would run a query of a session's events.
func (s *Store) PlanOf(ctx context.Context, id outboard.SessionID, q EventQuery) (string, error) {
	l, err := s.lookup(ctx, id)
	if err != nil {
		return "", err
	}
	query, args := q.of(l.own(), 1000)
	return s.explain(ctx, query, args...)
}

// PlanOfOpenBuilds is how the database would look for the open builds of a host.
func (s *Store) PlanOfOpenBuilds(ctx context.Context) (string, error) {
	return s.explain(ctx, openBuildsSQL, "h")
}

// PlanOfReadyOrgs is how the database would look for organizations that have work.
func (s *Store) PlanOfReadyOrgs(ctx context.Context) (string, error) {
	return s.explain(ctx, readyOrgsSQL, 1)
}

func (s *Store) explain(ctx context.Context, query string, args ...any) (string, error) {
	explain := "EXPLAIN "
	if s.d.name() == "sqlite" {
		explain = "EXPLAIN QUERY PLAN "
	}
	rows, err := s.read.QueryContext(ctx, s.d.rebind(explain+query), args...)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	cols, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var plan strings.Builder
	for rows.Next() {
		row := make([]any, len(cols))
		for i := range row {
			row[i] = new(any)
		}
		if err := rows.Scan(row...); err != nil {
			return "", err
		}
		fmt.Fprintln(&plan, *row[len(row)-1].(*any))
	}
	return plan.String(), rows.Err()
}

// SealedTables are the names of sealedTables.
func SealedTables() (names []string) {
	for _, t := range sealedTables {
		names = append(names, t.name)
	}
	return names
}

// Column is one of the schema.
type Column struct {
	Table, Name string
	Bytes       bool
}

// Columns are those of all tables.
func (s *Store) Columns(ctx context.Context) ([]Column, error) {
	query := `SELECT m.name, c.name, c.type FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'`
	if s.d.name() != "sqlite" {
		query = `SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = current_schema()`
	}
	return collect(ctx, s, "reading the schema", func(sc scanner) (c Column, err error) {
		var kind string
		err = sc.Scan(&c.Table, &c.Name, &kind)
		c.Bytes = strings.EqualFold(kind, "BLOB") || kind == "bytea" || kind == "" &&
			!strings.HasPrefix(c.Table, "sqlite_")
		return c, err
	}, query)
}

// GroupSQL are the statements that write a group, by their number of parameters.
var GroupSQL = map[int]string{15: writeHeadSQL, 33: writeAllSQL}

// ExplainSQLite is what is said of an error with SQLite's extended code.
func ExplainSQLite(code int, err error) error {
	return (&sqliteDialect{path: "x.db"}).explainCode(code, err)
}

// ExplainPostgres is what is said of an error of PostgreSQL's driver, with a database that is called at.
func ExplainPostgres(at string, err error) error {
	return (&postgresDialect{at: at}).explain(err)
}

// InsertTwice runs the statement of a commit that inserts two events, of which the second is the first again, in
// a transaction of its own. It returns how it failed, and by how many rows the transaction has more then.
func (s *Store) InsertTwice(ctx context.Context, e outboard.Event) (failed error, more int, err error) {
	t, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, t.Rollback()) }()
	count := func() (n int) {
		err = errors.Join(err, t.QueryRowContext(ctx, `SELECT count(*) FROM events`).Scan(&n))
		return n
	}
	before := count()
	_, failed = t.ExecContext(ctx, insertsSQL[len(insertRows)-2], append(eventArgs(1<<20, &e),
		eventArgs(1<<20, &e)...)...)
	return failed, count() - before, err
}

// CommitUntold commits c as its sender's own, up to where others are told of it. It reports whether another
// could commit by then.
func (s *Store) CommitUntold(c Commit) (free bool, err error) {
	q := s.queues[0]
	q.committing.Lock()
	p := &pending{commit: c, done: make(chan struct{}), own: true}
	done := s.commitNext(q, p)
	if free = q.committing.TryLock(); free {
		q.committing.Unlock()
	}
	s.tell(done)
	return free, p.err
}

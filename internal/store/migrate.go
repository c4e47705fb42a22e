package store

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/outboard-dev/outboard"
)

// migrations holds one folder per dialect with files 0001.sql, 0002.sql... A released file is never edited.
//
//go:embed migrations
var migrations embed.FS

const createSchemaSQL = `CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)`

const schemaVersionSQL = `SELECT COALESCE(MAX(version), 0) FROM schema_version`

const insertVersionSQL = `INSERT INTO schema_version (version) VALUES (?)`

// afterMigration is what SQL alone cannot do, in the transaction of the migration.
var afterMigration = map[int]func(context.Context, tx) error{8: takeInAudit}

// latestSchema is the newest schema this program knows. A test holds the two dialects to the same number.
func latestSchema() (int, error) {
	names, err := fs.Glob(migrations, "migrations/sqlite/*.sql")
	return len(names), err
}

// migrate applies the migrations up to last, all in one transaction. Several processes may start at the same
// time: they take turns. It refuses a schema newer than last.
func (s *Store) migrate(ctx context.Context, last int) error {
	return s.update(ctx, "migrating "+s.d.where(), func(t tx) error {
		if err := s.d.lockSchema(ctx, t.Tx); err != nil {
			return err
		}
		if _, err := t.exec(ctx, createSchemaSQL); err != nil {
			return err
		}
		var have int
		if err := t.queryRow(ctx, schemaVersionSQL).Scan(&have); err != nil {
			return err
		}
		if have > last {
			return outboard.Errorf(outboard.Invalid, "database %s has schema %d, but this program knows only up to %d",
				s.d.where(), have, last).
				WithHint("use the newer outboard that wrote it")
		}
		for v := have + 1; v <= last; v++ {
			text, err := migrations.ReadFile(fmt.Sprintf("migrations/%s/%04d.sql", s.d.name(), v))
			if err != nil {
				return fmt.Errorf("reading migration %d: %w", v, err)
			}
			if _, err := t.ExecContext(ctx, string(text)); err != nil {
				return fmt.Errorf("applying migration %d: %w", v, err)
			}
			if after := afterMigration[v]; after != nil {
				if err := after(ctx, t); err != nil {
					return fmt.Errorf("finishing migration %d: %w", v, err)
				}
			}
			if _, err := t.exec(ctx, insertVersionSQL, v); err != nil {
				return err
			}
		}
		return nil
	})
}

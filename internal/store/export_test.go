package store

import (
	"context"
	"database/sql"
	"io/fs"
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

package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
)

const (
	insertIdentitySQL = `INSERT INTO identity (one, id) VALUES (1, ?) ON CONFLICT (one) DO NOTHING`
	identitySQL       = `SELECT id FROM identity WHERE one = 1`
)

// Identity returns the name of this database: random text, made at the first call and never changed. Two
// databases never have the same one, except a copy and its original.
func (s *Store) Identity(ctx context.Context) (id string, err error) {
	err = s.queryRow(ctx, identitySQL).Scan(&id)
	if err == nil || !errors.Is(err, sql.ErrNoRows) { // a start on a full disk writes nothing
		return id, s.fail("reading the name of the database", err)
	}
	err = s.update(ctx, "making the name of the database", func(t tx) error {
		if _, err := t.exec(ctx, insertIdentitySQL, "db_"+rand.Text()); err != nil {
			return err
		}
		return t.queryRow(ctx, identitySQL).Scan(&id)
	})
	return id, err
}

const pendingSQL = `SELECT EXISTS (SELECT 1 FROM sessions WHERE ready_at > 0 AND deleted_at = 0)
	OR EXISTS (SELECT 1 FROM boxes WHERE state = 'running' AND host = ?)
	OR EXISTS (SELECT 1 FROM template_builds WHERE state IN ('building', 'waiting') AND host = ?)`

// Pending reports whether a host has something to do now or at a time that is set: a session that runs or will
// run, a box that runs, a build. Sessions that wait for a person or a client do not count.
func (s *Store) Pending(ctx context.Context, host string) (some bool, err error) {
	err = s.queryRow(ctx, pendingSQL, host, host).Scan(&some)
	return some, s.fail("looking for work", err)
}

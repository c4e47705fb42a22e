package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

const grantCols = `id, session, host, port, uses, granted_by, created_at`

const insertGrantSQL = `INSERT INTO net_grants (` + grantCols + `) VALUES (?, ?, ?, ?, ?, ?, ?)`

// PutNetGrant inserts a grant.
func (s *Store) PutNetGrant(ctx context.Context, g outboard.NetGrant) error {
	return s.update(ctx, "storing a network grant", func(t tx) error { return putNetGrant(ctx, t, &g) })
}

func putNetGrant(ctx context.Context, t tx, g *outboard.NetGrant) error {
	_, err := t.exec(ctx, insertGrantSQL, string(g.ID), string(g.Session), g.Host, g.Port, g.Uses, g.By, micros(g.CreatedAt))
	return err
}

const grantsSQL = `SELECT ` + grantCols + ` FROM net_grants WHERE session = ? AND uses <> 0 ORDER BY created_at, id`

// NetGrants returns the grants of a session that are not used up, oldest first.
func (s *Store) NetGrants(ctx context.Context, session outboard.SessionID) ([]outboard.NetGrant, error) {
	return collect(ctx, s, "listing network grants", scanGrant, grantsSQL, string(session))
}

func scanGrant(sc scanner) (outboard.NetGrant, error) {
	var g outboard.NetGrant
	var created int64
	err := sc.Scan(&g.ID, &g.Session, &g.Host, &g.Port, &g.Uses, &g.By, &created)
	g.CreatedAt = timeOf(created)
	return g, err
}

const useGrantSQL = `UPDATE net_grants SET uses = uses - 1 WHERE id = ? AND uses > 0`

// UseNetGrant takes one use of a counted grant, and reports whether there was one: two requests cannot share the last.
func (s *Store) UseNetGrant(ctx context.Context, id outboard.NetGrantID) (bool, error) {
	var n int64
	err := s.update(ctx, "using a network grant", func(t tx) (err error) {
		n, err = t.exec(ctx, useGrantSQL, string(id))
		return err
	})
	return n == 1, err
}

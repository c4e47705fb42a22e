package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

const rightCols = `id, human, agent, session, actions, resources, not_before, expires_at, max_uses, uses, approved_by, approved_name,
	why, created_at, revoked_at, votes, org`

func scanRight(sc scanner) (outboard.Grant, error) {
	var g outboard.Grant
	var actions, resources, votes string
	var from, until, created, revoked int64
	err := sc.Scan(&g.ID, &g.Human, &g.Agent, &g.Session, &actions, &resources, &from, &until, &g.MaxUses, &g.Uses,
		&g.ApprovedBy,
		&g.ApprovedName, &g.Why, &created, &revoked, &votes, &g.Org)
	if err != nil {
		return g, err
	}
	g.NotBefore, g.ExpiresAt, g.CreatedAt, g.RevokedAt = timeOf(from), timeOf(until), timeOf(created), timeOf(revoked)
	if err := fromJSON(actions, &g.Actions); err != nil {
		return g, err
	}
	if err := fromJSON(votes, &g.Votes); err != nil {
		return g, err
	}
	return g, fromJSON(resources, &g.Resources)
}

const insertRightSQL = `INSERT INTO grants (` + rightCols +
	`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const lockPersonSQL = `UPDATE users SET name = name WHERE id = ? AND removed_at = 0`

// PutGrant inserts a grant. ErrDuplicate if its id exists; Conflict if it is for a person who is none, or was
// removed: who removes somebody would not see this one, and it would be there when they are let in again.
func (s *Store) PutGrant(ctx context.Context, g outboard.Grant) error {
	return s.update(ctx, "storing a grant", func(t tx) error { return putGrant(ctx, t, &g) })
}

func putGrant(ctx context.Context, t tx, g *outboard.Grant) error {
	if outboard.ValidID(outboard.PrefixUser, g.Human) {
		n, err := t.exec(ctx, lockPersonSQL, g.Human)
		if err != nil {
			return err
		}
		if n == 0 {
			return outboard.Errorf(outboard.Conflict, "the person %s was removed", g.Human)
		}
	}
	_, err := t.exec(ctx, insertRightSQL, string(g.ID), g.Human, string(g.Agent), string(g.Session),
		jsonText(g.Actions),
		jsonText(g.Resources), micros(g.NotBefore), micros(g.ExpiresAt), g.MaxUses, g.Uses, string(g.ApprovedBy), g.ApprovedName,
		g.Why, micros(g.CreatedAt), micros(g.RevokedAt), jsonText(g.Votes), orgText(g.Org))
	if t.s.d.unique(err) {
		return ErrDuplicate
	}
	return err
}

const rightSQL = `SELECT ` + rightCols + ` FROM grants WHERE id = ?`

// Grant returns one.
func (s *Store) Grant(ctx context.Context, id outboard.GrantID) (outboard.Grant, error) {
	return one(ctx, s, "grant", id, scanRight, rightSQL, string(id))
}

// Grants returns a page of grants, newest first.
func (s *Store) Grants(ctx context.Context, p Page) ([]outboard.Grant, error) {
	w := where{conds: []string{`1 = 1`}}
	w.in(p.Org)
	if !p.IncludeArchived {
		w.add(`revoked_at = 0`)
	}
	if err := s.cursor(ctx, &w, "grants", p.Cursor, false); err != nil {
		return nil, err
	}
	query := `SELECT ` + rightCols + ` FROM grants` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing grants", scanRight, query, append(w.args, limitOr(p.Limit, defaultPage))...)
}

// maxRights bounds the grants that are looked at for one request. What is beyond them asks, which is safe.
const maxRights = 200

const rightsForSQL = `SELECT ` + rightCols + ` FROM grants WHERE revoked_at = 0 AND expires_at > ? AND not_before <= ?
	AND org = COALESCE((SELECT org FROM sessions WHERE id = ?), 'default') AND human IN ('', ?, ?) AND agent IN ('', ?) AND session IN ('', ?) AND (max_uses = 0 OR uses < max_uses)
	ORDER BY expires_at, id LIMIT ?`

// GrantsFor implements policy.Source.
func (s *Store) GrantsFor(ctx context.Context, q outboard.GrantQuery) ([]outboard.Grant, error) {
	now := micros(q.Now)
	return collect(ctx, s, "reading grants", scanRight, rightsForSQL, now, now, string(q.Session), string(q.Person),
		string(q.Key), string(q.Agent), string(q.Session), maxRights)
}

const revokeRightSQL = `UPDATE grants SET revoked_at = ? WHERE id = ? AND revoked_at = 0`

// RevokeGrant ends a grant at once. Revoking twice keeps the first time.
func (s *Store) RevokeGrant(ctx context.Context, id outboard.GrantID, at time.Time) (outboard.Grant, error) {
	err := s.update(ctx, "revoking a grant", func(t tx) error {
		_, err := t.exec(ctx, revokeRightSQL, micros(at), string(id))
		return err
	})
	if err != nil {
		return outboard.Grant{}, err
	}
	return s.Grant(ctx, id)
}

const noteUseSQL = `INSERT INTO grant_uses (id, item, at) VALUES (?, ?, ?) ON CONFLICT (id, item) DO NOTHING`

const spendRightSQL = `UPDATE grants SET uses = uses + 1 WHERE id = ? AND revoked_at = 0 AND expires_at > ? AND not_before <= ?
	AND (max_uses = 0 OR uses < max_uses)`

// UseGrant implements policy.Source. Two requests cannot share the last use, and one request spends one however
// often it asks.
func (s *Store) UseGrant(ctx context.Context, id outboard.GrantID, key string, now time.Time) error {
	return s.update(ctx, "using a grant", func(t tx) error {
		n, err := t.exec(ctx, noteUseSQL, string(id), key, micros(now))
		if err != nil || n == 0 {
			return err
		}
		n, err = t.exec(ctx, spendRightSQL, string(id), micros(now), micros(now))
		if err == nil && n == 0 {
			return outboard.Errorf(outboard.Denied, "the grant %s is used up, over or revoked", id)
		}
		return err
	})
}

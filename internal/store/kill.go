package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

const killCols = `id, scope, target, org, level, reason, actor, at, lifted_at, lifted_by`

func scanKill(sc scanner) (outboard.Kill, error) {
	var k outboard.Kill
	var at, lifted int64
	err := sc.Scan(&k.ID, &k.Scope, &k.Target, &k.Org, &k.Level, &k.Reason, &k.By, &at, &lifted, &k.LiftedBy)
	k.At, k.LiftedAt = timeOf(at), timeOf(lifted)
	return k, err
}

const insertKillSQL = `INSERT INTO kills (` + killCols +
	`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, '') ON CONFLICT (id) DO NOTHING`

// PutKill inserts a kill. One that is there already stays as it is, lifted or not.
func (s *Store) PutKill(ctx context.Context, k outboard.Kill) error {
	return s.update(ctx, "storing a kill", func(t tx) error {
		_, err := t.exec(ctx, insertKillSQL, string(k.ID), string(k.Scope), plain(k.Target), orgText(k.Org),
			string(k.Level), plain(k.Reason), plain(k.By), micros(k.At))
		return err
	})
}

const activeKillsSQL = `SELECT ` + killCols + ` FROM kills WHERE lifted_at = 0 ORDER BY at, id`

// ActiveKills returns the kills in force, all of them.
func (s *Store) ActiveKills(ctx context.Context) ([]outboard.Kill, error) {
	return collect(ctx, s, "reading the kill switch", scanKill, activeKillsSQL)
}

const killSQL = `SELECT ` + killCols + ` FROM kills WHERE id = ?`

// Kill returns one.
func (s *Store) Kill(ctx context.Context, id outboard.KillID) (outboard.Kill, error) {
	return one(ctx, s, "kill", id, scanKill, killSQL, string(id))
}

const liftKillSQL = `UPDATE kills SET lifted_at = ?, lifted_by = ? WHERE id = ? AND lifted_at = 0`

// LiftKill ends a kill.
func (s *Store) LiftKill(ctx context.Context, id outboard.KillID, by string, at time.Time) error {
	return s.update(ctx, "lifting a kill", func(t tx) error {
		n, err := t.exec(ctx, liftKillSQL, micros(at), plain(by), string(id))
		if err == nil && n == 0 {
			return notFound("kill in force", id)
		}
		return err
	})
}

const killNetGrantsSQL = `UPDATE net_grants SET uses = 0 WHERE session = ? AND uses <> 0`

const killGrantsSQL = `UPDATE grants SET revoked_at = ? WHERE revoked_at = 0 AND session = ?`

// KillGrants ends every grant made to a session alone.
func (s *Store) KillGrants(ctx context.Context, id outboard.SessionID, at time.Time) error {
	return s.update(ctx, "revoking grants", func(t tx) error {
		if _, err := t.exec(ctx, killNetGrantsSQL, string(id)); err != nil {
			return err
		}
		_, err := t.exec(ctx, killGrantsSQL, micros(at), string(id))
		return err
	})
}

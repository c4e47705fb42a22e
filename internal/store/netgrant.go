package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

const grantCols = `id, session, host, port, uses, granted_by, created_at, websocket`

const insertGrantSQL = `INSERT INTO net_grants (` + grantCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

func putNetGrant(ctx context.Context, t tx, g *outboard.NetGrant) error {
	webSocket := 0
	if g.WebSocket {
		webSocket = 1
	}
	_, err := t.exec(ctx, insertGrantSQL, string(g.ID), string(g.Session), g.Host, g.Port, g.Uses, g.By,
		micros(g.CreatedAt), webSocket)
	return err
}

const allowNetSQL = `UPDATE approvals SET state = 'allowed', answer = ? WHERE id = ? AND net <> '' AND state = 'pending'`

// AllowNet inserts a grant and answers the approvals that it is the answer to, in one transaction. What was
// answered meanwhile stays so.
func (s *Store) AllowNet(ctx context.Context, g outboard.NetGrant, ans outboard.Answer,
	answers []outboard.ApprovalID) error {
	return s.update(ctx, "storing a network grant", func(t tx) error {
		for _, id := range answers {
			if _, err := t.exec(ctx, allowNetSQL, jsonText(&ans), string(id)); err != nil {
				return err
			}
		}
		return putNetGrant(ctx, t, &g)
	})
}

const endGrantsSQL = `DELETE FROM net_grants WHERE session = ? AND host = ? AND port = ?`

// EndNetGrants ends the grants of a session for a host and port, and returns how many there were. A grant that
// is used up is one of them: what it let begin may last.
func (s *Store) EndNetGrants(ctx context.Context, session outboard.SessionID, host string,
	port int) (ended int, err error) {
	err = s.update(ctx, "ending network grants", func(t tx) error {
		n, err := t.exec(ctx, endGrantsSQL, string(session), plain(host), port)
		ended = int(n)
		return err
	})
	return ended, err
}

const grantsSQL = `SELECT ` + grantCols + ` FROM net_grants WHERE session = ? AND uses <> 0 ORDER BY created_at, id`

// NetGrants returns the grants of a session that are not used up, oldest first.
func (s *Store) NetGrants(ctx context.Context, session outboard.SessionID) ([]outboard.NetGrant, error) {
	return collect(ctx, s, "listing network grants", scanGrant, grantsSQL, string(session))
}

func scanGrant(sc scanner) (outboard.NetGrant, error) {
	var g outboard.NetGrant
	var created, webSocket int64
	err := sc.Scan(&g.ID, &g.Session, &g.Host, &g.Port, &g.Uses, &g.By, &created, &webSocket)
	g.CreatedAt, g.WebSocket = timeOf(created), webSocket != 0
	return g, err
}

const grantIDsSQL = `SELECT id FROM net_grants WHERE session = ?`

// NetGrantIDs returns the grants of a session that nobody has ended, with those that are used up.
func (s *Store) NetGrantIDs(ctx context.Context, session outboard.SessionID) ([]outboard.NetGrantID, error) {
	return collect(ctx, s, "listing network grants",
		func(sc scanner) (id outboard.NetGrantID, err error) { return id, sc.Scan(&id) }, grantIDsSQL,
		string(session))
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

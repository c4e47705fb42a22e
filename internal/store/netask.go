package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

// NetAsks bounds the approvals of hosts: whoever is asked a thousand times says yes to anything.
type NetAsks struct {
	Pending int // of one session, at a time
	Session int // of one session, ever
	Org     int // of one organization, at a time
}

const expireNetSQL = `UPDATE approvals SET state = 'expired' WHERE session = ? AND net <> '' AND state = 'pending' AND expires_at <= ?`

const lastNetSQL = `SELECT ` + approvalCols +
	` FROM approvals WHERE session = ? AND net <> '' AND resource = ? ORDER BY created_at DESC, id DESC LIMIT 1`

const countNetSQL = `SELECT COUNT(*) FROM approvals WHERE session = ? AND net <> ''`

const countPendingNetSQL = `SELECT COUNT(*) FROM approvals WHERE session = ? AND net <> '' AND state = 'pending'`

const countOrgNetSQL = `SELECT COUNT(*) FROM approvals WHERE net <> '' AND state = 'pending'
	AND org = COALESCE((SELECT org FROM sessions WHERE id = ?), 'default')`

// AskNet inserts the approval of a host, unless the session has one of the same resource that waits or was
// denied: then it returns that one, so that a denial is the answer for the whole session. Exhausted: there are
// as many as there may be.
func (s *Store) AskNet(ctx context.Context, a outboard.Approval, most NetAsks) (outboard.Approval, error) {
	out := a
	err := s.update(ctx, "asking about a host", func(t tx) error {
		session := string(a.Session)
		if _, err := t.exec(ctx, lockQuotaSQL, "asks "+session); err != nil {
			return err
		}
		if _, err := t.exec(ctx, expireNetSQL, session, micros(a.CreatedAt)); err != nil {
			return err
		}
		last, err := collectTx(ctx, t, scanApproval, lastNetSQL, session, plain(a.Resource))
		if err != nil {
			return err
		}
		if len(last) == 1 && (last[0].State == outboard.ApprovalPending || last[0].State == outboard.ApprovalDenied) {
			out = last[0]
			return nil
		}
		for _, l := range []struct {
			query string
			most  int
		}{{countPendingNetSQL, most.Pending}, {countNetSQL, most.Session}, {countOrgNetSQL, most.Org}} {
			n, err := collectTx(ctx, t, scanCount, l.query, session)
			if err != nil {
				return err
			}
			if n[0] >= int64(l.most) {
				return outboard.Errorf(outboard.Exhausted, "session %s, or its organization, has asked about as "+
					"many hosts as it may", a.Session)
			}
		}
		out = a
		_, err = t.exec(ctx, insertApprovalSQL, insertApprovalArgs(&a)...)
		return err
	})
	return out, err
}

const answerNetSQL = `UPDATE approvals SET state = ?, answer = ? WHERE id = ? AND net <> '' AND digest = ? AND state = 'pending' AND expires_at > ?`

// AnswerNet answers the approval of a host and stores what the answer allows, in one transaction. Of several
// answers the first one counts; Conflict for the others, for one that comes too late and for one to another
// request.
func (s *Store) AnswerNet(ctx context.Context, a outboard.Approval, ans outboard.Answer, now time.Time,
	host *outboard.NetGrant, right *outboard.Grant) error {
	state := outboard.ApprovalDenied
	if ans.Allow {
		state = outboard.ApprovalAllowed
	}
	return s.update(ctx, "answering an approval", func(t tx) error {
		n, err := t.exec(ctx, answerNetSQL, string(state), jsonText(&ans), string(a.ID), a.Digest, micros(now))
		if err == nil && n == 0 {
			return outboard.Errorf(outboard.Conflict, "approval %s does not wait for this answer any more", a.ID).
				WithHint("outboard approval show %s", a.ID)
		}
		if err == nil && host != nil {
			err = putNetGrant(ctx, t, host)
		}
		if err == nil && right != nil {
			err = putGrant(ctx, t, right)
		}
		return err
	})
}

const askingSQL = `SELECT DISTINCT session FROM approvals WHERE net <> '' AND state = 'pending'`

// AskingHosts returns the sessions that have an approval of a host which waits. There are at most as many as
// NetAsks lets wait.
func (s *Store) AskingHosts(ctx context.Context) ([]outboard.SessionID, error) {
	return collect(ctx, s, "looking for sessions that ask about hosts",
		func(sc scanner) (id outboard.SessionID, err error) { return id, sc.Scan(&id) }, askingSQL)
}

const closeNetSQL = `UPDATE approvals SET state = 'closed', answer = ? WHERE session = ? AND net <> '' AND state = 'pending'`

// CloseNet ends the approvals of hosts that a session waits for. why says who ended them and for what reason;
// nobody has answered. It may be done twice: what has ended stays as it is.
func (s *Store) CloseNet(ctx context.Context, id outboard.SessionID, why outboard.Answer) error {
	return s.update(ctx, "closing the approvals of hosts", func(t tx) error {
		_, err := t.exec(ctx, closeNetSQL, jsonText(&why), string(id))
		return err
	})
}

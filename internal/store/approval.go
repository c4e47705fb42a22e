package store

import (
	"context"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
)

// Closing ends the approval of a call that nobody answered.
type Closing struct {
	Call  outboard.CallID
	State outboard.ApprovalState
	Why   *outboard.Answer // who ended it and for what reason, where that is known; nobody has answered
}

const approvalCols = `id, session, call, action, resource, digest, request, why, rules, approver, owner, state, created_at, expires_at, answer, net, needs, votes, org`

const insertApprovalSQL = `INSERT INTO approvals (` + approvalCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
	COALESCE((SELECT org FROM sessions WHERE id = ?), 'default'))`

const endApprovalSQL = `UPDATE approvals SET state = ?, answer = ? WHERE session = ? AND call = ? AND state = 'pending'`

// approvals are the statements of a commit about approvals.
func (c *Commit) approvals() []statement {
	var out []statement
	for i := range c.Approvals {
		out = append(out, statement{insertApprovalSQL, insertApprovalArgs(&c.Approvals[i])})
	}
	for i := range c.Answers {
		a := &c.Answers[i]
		state := outboard.ApprovalDenied
		if a.Allow {
			state = outboard.ApprovalAllowed
		}
		out = append(out, statement{endApprovalSQL, []any{string(state), jsonText(a), string(c.Session),
			string(a.Call)}})
	}
	for _, e := range c.Closed {
		out = append(out, statement{endApprovalSQL, []any{string(e.State), jsonText(e.Why), string(c.Session),
			string(e.Call)}})
	}
	return out
}

// insertApprovalArgs are a row's values. One of a host has no call, and stands for itself in its place.
func insertApprovalArgs(a *outboard.Approval) []any {
	call, target := string(a.Call), ""
	if a.Net != nil {
		call, target = string(a.ID), mustJSON(a.Net)
	}
	return []any{string(a.ID), string(a.Session), call, a.Action, plain(a.Resource), a.Digest, plain(a.Request),
		plain(a.Why), jsonText(a.Rules),
		string(a.Approver), string(a.Owner), string(a.State), micros(a.CreatedAt), micros(a.ExpiresAt), jsonText(a.Answer), target, a.Needs, jsonText(a.Votes), string(a.Session)}
}

// plain makes a text one that both databases store.
func plain(s string) string { return auditTextOf(s, len(s)) }

func scanApproval(sc scanner) (outboard.Approval, error) {
	var a outboard.Approval
	var rules, answer, target, votes string
	var created, expires int64
	err := sc.Scan(&a.ID, &a.Session, &a.Call, &a.Action, &a.Resource, &a.Digest, &a.Request, &a.Why, &rules,
		&a.Approver, &a.Owner,
		&a.State, &created, &expires, &answer, &target, &a.Needs, &votes, &a.Org)
	if err != nil {
		return a, err
	}
	a.CreatedAt, a.ExpiresAt = timeOf(created), timeOf(expires)
	if err := fromJSON(rules, &a.Rules); err != nil {
		return a, err
	}
	if err := fromJSON(target, &a.Net); err != nil {
		return a, err
	}
	if a.Net != nil {
		a.Call = ""
	}
	if err := fromJSON(votes, &a.Votes); err != nil {
		return a, err
	}
	return a, fromJSON(answer, &a.Answer)
}

const approvalSQL = `SELECT ` + approvalCols + ` FROM approvals WHERE id = ?`

// Approval returns one. Its State is as the row says, which for a pending one may be out of date: see
// outboard.ApprovalPending.
func (s *Store) Approval(ctx context.Context, id outboard.ApprovalID) (outboard.Approval, error) {
	return one(ctx, s, "approval", id, scanApproval, approvalSQL, string(id))
}

// ApprovalFilter selects approvals, newest first.
type ApprovalFilter struct {
	Org     outboard.OrgID     // "" = of all
	Session outboard.SessionID // "" = of all
	Pending time.Time          // not zero: only those that can be answered at that time
	Cursor  string             // the last id of the page before
	Limit   int                // 0 = 100
}

// Approvals returns one page.
func (s *Store) Approvals(ctx context.Context, f ApprovalFilter) ([]outboard.Approval, error) {
	w := where{conds: []string{`1 = 1`}}
	w.in(f.Org)
	if f.Session != "" {
		w.add(`session = ?`, string(f.Session))
	}
	if !f.Pending.IsZero() {
		w.add(`state = 'pending'`)
		w.add(`expires_at > ?`, micros(f.Pending))
	}
	if err := s.cursor(ctx, &w, "approvals", f.Cursor, false); err != nil {
		return nil, err
	}
	query := `SELECT ` + approvalCols + ` FROM approvals` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing approvals", scanApproval, query, append(w.args, limitOr(f.Limit, defaultPage))...)
}

const closeApprovalsSQL = `UPDATE approvals SET state = 'closed', answer = ? WHERE session = ? AND state = 'pending'`

// CloseApprovals ends what a session waits for, when it is archived, deleted or killed. why says who ended it
// and for what reason; nil = that is known from elsewhere.
func (s *Store) CloseApprovals(ctx context.Context, id outboard.SessionID, why *outboard.Answer) error {
	return s.update(ctx, "closing approvals", func(t tx) error {
		_, err := t.exec(ctx, closeApprovalsSQL, jsonText(why), string(id))
		return err
	})
}

// lockVotesSQL changes nothing, but takes the row for the transaction: of two votes at the same time each sees
// the other, or is seen.
const lockVotesSQL = `UPDATE approvals SET votes = votes WHERE id = ? AND state = 'pending' AND digest = ? AND expires_at > ? RETURNING votes`

const setVotesSQL = `UPDATE approvals SET votes = ? WHERE id = ?`

// maxVotes bounds the votes of one approval: keys of the same people are counted once, but stored each.
const maxVotes = 100

// AddVote adds a vote to a pending approval that needs several, and returns all of them. A key votes once;
// again, it changes nothing. Conflict: the approval does not wait any more, or is of another request than
// digest.
func (s *Store) AddVote(ctx context.Context, id outboard.ApprovalID, digest string,
	v outboard.Vote) (votes []outboard.Vote, err error) {
	err = s.update(ctx, "storing a vote", func(t tx) error {
		rows, err := collectTx(ctx, t, scanText[string], lockVotesSQL, string(id), digest, micros(v.At))
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return outboard.Errorf(outboard.Conflict, "approval %s does not wait for this answer any more", id).
				WithHint("outboard approval show %s", id)
		}
		votes = nil
		if err := fromJSON(rows[0], &votes); err != nil {
			return err
		}
		if slices.ContainsFunc(votes, func(o outboard.Vote) bool { return o.Key == v.Key }) {
			return nil
		}
		if len(votes) >= maxVotes {
			return outboard.Errorf(outboard.Exhausted, "approval %s has %d votes, and takes no more", id, len(votes))
		}
		votes = append(votes, v)
		_, err = t.exec(ctx, setVotesSQL, jsonText(votes), string(id))
		return err
	})
	return votes, err
}

const dueNoticesSQL = `SELECT ` + approvalCols + ` FROM approvals
	WHERE state = 'pending' AND expires_at > ? AND notice_at > 0 AND notice_at <= ? ORDER BY notice_at, id LIMIT ?`

const takeNoticeSQL = `UPDATE approvals SET notice_at = ?, notices = notices + 1
	WHERE id = ? AND notice_at > 0 AND notice_at <= ? RETURNING notices`

// Notice is one attempt to tell somebody outside about a pending approval.
type Notice struct {
	Approval outboard.Approval
	Attempt  int // from 1
}

// TakeNotices takes up to limit notices that are due at now; until then nobody else gets them again. Told ends them.
func (s *Store) TakeNotices(ctx context.Context, now, until time.Time, limit int) ([]Notice, error) {
	due, err := collect(ctx, s, "looking for notices", scanApproval, dueNoticesSQL, micros(now), micros(now), limit)
	if err != nil || len(due) == 0 {
		return nil, err
	}
	var out []Notice
	err = s.update(ctx, "taking notices", func(t tx) error {
		out = out[:0]
		for _, a := range due {
			got, err := collectTx(ctx, t, scanCount, takeNoticeSQL, micros(until), string(a.ID), micros(now))
			if err != nil {
				return err
			}
			if len(got) == 1 {
				out = append(out, Notice{a, int(got[0])})
			}
		}
		return nil
	})
	return out, err
}

func scanCount(sc scanner) (n int64, err error) { return n, sc.Scan(&n) }

const setNoticeSQL = `UPDATE approvals SET notice_at = ? WHERE id = ?`

// SetNotice says when the next attempt for an approval is due; zero ends them.
func (s *Store) SetNotice(ctx context.Context, id outboard.ApprovalID, next time.Time) error {
	return s.update(ctx, "storing a notice", func(t tx) error {
		_, err := t.exec(ctx, setNoticeSQL, micros(next), string(id))
		return err
	})
}

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// tidyFirst and tidyEvery are when a process looks for what nobody needs any more.
	tidyFirst = time.Minute
	tidyEvery = time.Hour
	// purgeGrace is how long a deleted session's rows stay: whoever was about to fork it, or one of its forks,
	// has done so or failed.
	purgeGrace = time.Hour
	// purgePage is how many sessions are looked up at a time, purgeEvents how many events one transaction
	// removes, since it holds the writer, and purgePause what others have between two sessions.
	purgePage   = 100
	purgeEvents = 500
	purgePause  = 5 * time.Millisecond
	// goneGrace is how long the row of a sandbox that was destroyed, or of a file that has expired, stays, for
	// whoever asks what became of it.
	goneGrace = 24 * time.Hour
	// goneAtOnce is how many of those, and of counters that are over, one statement deletes.
	goneAtOnce = 500
	// ratesKept is longer than any rate limit's window.
	ratesKept = 31 * 24 * time.Hour
)

// A session's log, policies and budget hold for its forks and theirs, deleted or not: it is purged when all of
// them are. One that was begun with is finished.
const purgeableSQL = `deleted_at > 0 AND deleted_at <= ? AND purge < 2 AND (purge = 1 OR NOT EXISTS
	(SELECT 1 FROM sessions AS f WHERE f.parent = sessions.id AND f.parent <> '' AND f.purge = 0))`

const findPurgeableSQL = `SELECT num, id, head, shared FROM sessions WHERE ` + purgeableSQL +
	` ORDER BY deleted_at LIMIT ?`

const beginPurgeSQL = `UPDATE sessions SET purge = 1 WHERE num = ? AND ` + purgeableSQL

const purgeEventsSQL = `DELETE FROM events WHERE key > ? AND key <= ?`

const endPurgeSQL = `UPDATE sessions SET purge = 2, title = '', metadata = '' WHERE num = ? AND purge = 1`

// purgeByNumSQL and purgeByIDSQL remove what is left besides events: rows that name the session by its number,
// and by its id. Those of purgePageSQL are found by reading the whole table, once for a page of sessions. Of the
// policies the newest row of all stays, whosever it is: the revision must not go back.
var (
	purgeByNumSQL = []string{
		`DELETE FROM events WHERE session = ?`,
		`DELETE FROM session_configs WHERE session = ?`,
		`DELETE FROM lineage WHERE session = ?`,
	}
	purgeByIDSQL = []string{
		`DELETE FROM net_grants WHERE session = ?`,
		`DELETE FROM net_hosts WHERE id = ?`,
		`DELETE FROM net_usage WHERE id = ?`,
		`DELETE FROM budget_holds WHERE session = ?`,
		`DELETE FROM budget_holds WHERE budget = 'session:' || ?`,
		`DELETE FROM budgets WHERE id = 'session:' || ?`,
	}
	purgePageSQL = []string{
		`DELETE FROM approvals WHERE session IN (%s)`,
		`DELETE FROM grant_uses WHERE id IN (SELECT id FROM grants WHERE session IN (%s))`,
		`DELETE FROM grants WHERE session IN (%s)`,
		`DELETE FROM policies WHERE level = 'session' AND target IN (%s) AND num < (SELECT MAX(num) FROM policies)`,
	}
)

// doomed is a session whose rows go.
type doomed struct {
	num, head, shared int64
	id                outboard.SessionID
}

// Purge removes the rows of sessions that were deleted before a time and that no fork needs any more: logs,
// configurations, approvals and whatever else names them. It returns how many sessions that were. Several
// processes may do so at the same time; one that is killed is continued by the next call.
func (s *Store) Purge(ctx context.Context, before time.Time) (n int, err error) {
	for {
		page, err := collect(ctx, s, "looking for deleted sessions", func(sc scanner) (d doomed, err error) {
			return d, sc.Scan(&d.num, &d.id, &d.head, &d.shared)
		}, findPurgeableSQL, micros(before), purgePage)
		if err != nil {
			return n, err
		}
		var begun []doomed
		for i := range page {
			some, err := s.purge(ctx, &page[i], before)
			if err != nil {
				return n, err
			}
			if some {
				begun = append(begun, page[i])
			}
			select {
			case <-time.After(purgePause):
			case <-ctx.Done():
				return n, s.fail("removing deleted sessions", ctx.Err())
			}
		}
		if len(page) == 0 {
			return n, nil
		}
		if err := s.endPurge(ctx, begun); err != nil {
			return n, err
		}
		n += len(begun)
	}
}

// purge removes the rows of one session but for those of endPurge, and reports whether there was something to
// do. Its log goes in parts, since each holds the writer.
func (s *Store) purge(ctx context.Context, d *doomed, before time.Time) (bool, error) {
	var begun int64
	err := s.update(ctx, "removing a deleted session", func(t tx) (err error) {
		begun, err = t.exec(ctx, beginPurgeSQL, d.num, micros(before))
		return err
	})
	if err != nil || begun == 0 {
		return false, err // another process has finished it
	}
	for from := d.shared; d.head-from > purgeEvents; from += purgeEvents {
		err := s.update(ctx, "removing the log of a deleted session", func(t tx) error {
			_, err := t.exec(ctx, purgeEventsSQL, eventKey(d.num, from), eventKey(d.num, from+purgeEvents))
			return err
		})
		if err != nil {
			return false, err
		}
	}
	return true, s.update(ctx, "removing a deleted session", func(t tx) error {
		for _, q := range purgeByNumSQL {
			if _, err := t.exec(ctx, q, d.num); err != nil {
				return err
			}
		}
		for _, q := range purgeByIDSQL {
			if _, err := t.exec(ctx, q, string(d.id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// endPurge removes what is left of sessions that purge was done with. They are found again until then.
func (s *Store) endPurge(ctx context.Context, page []doomed) error {
	if len(page) == 0 {
		return nil
	}
	ids := make([]any, len(page))
	for i := range page {
		ids[i] = string(page[i].id)
	}
	return s.update(ctx, "removing deleted sessions", func(t tx) error {
		for _, q := range purgePageSQL {
			if _, err := t.exec(ctx, fmt.Sprintf(q, marks(len(ids))), ids...); err != nil {
				return err
			}
		}
		for i := range page {
			if _, err := t.exec(ctx, endPurgeSQL, page[i].num); err != nil {
				return err
			}
		}
		return nil
	})
}

// The row of a destroyed sandbox is kept while its session lives, to which its end may have to be explained.
const findGoneSQL = `SELECT id FROM sandboxes WHERE state = 'destroyed' AND updated_at < ?
	AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.id = sandboxes.session AND s.deleted_at = 0) ORDER BY updated_at LIMIT ?`

const deleteGoneSQL = `DELETE FROM sandboxes WHERE id = ? AND state = 'destroyed' AND updated_at < ?`

const findRatesSQL = `SELECT id FROM rates WHERE start < ? LIMIT ?`

const deleteRateSQL = `DELETE FROM rates WHERE id = ? AND start < ?`

const findExpiredSQL = `SELECT id FROM files WHERE expires_at > 0 AND expires_at < ? LIMIT ?`

const deleteExpiredSQL = `DELETE FROM files WHERE id = ? AND expires_at > 0 AND expires_at < ?`

// TidyFiles deletes files that expired before a time, and returns how many.
func (s *Store) TidyFiles(ctx context.Context, before time.Time) (int64, error) {
	return s.tidyRows(ctx, "deleting files that have expired", findExpiredSQL, deleteExpiredSQL, before)
}

// TidySandboxes deletes rows of sandboxes that were destroyed before a time and belong to no living session, and
// returns how many.
func (s *Store) TidySandboxes(ctx context.Context, before time.Time) (int64, error) {
	return s.tidyRows(ctx, "deleting rows of sandboxes that are gone", findGoneSQL, deleteGoneSQL, before)
}

// TidyRates deletes counters of rate limits whose window began before a time, and returns how many.
func (s *Store) TidyRates(ctx context.Context, before time.Time) (int64, error) {
	return s.tidyRows(ctx, "deleting counters that are over", findRatesSQL, deleteRateSQL, before)
}

// tidyRows deletes what is found, in parts, since each holds the writer.
func (s *Store) tidyRows(ctx context.Context, doing, find, remove string, before time.Time) (n int64, err error) {
	for {
		ids, err := collect(ctx, s, doing, scanText[string], find, micros(before), goneAtOnce)
		if err != nil || len(ids) == 0 {
			return n, err
		}
		err = s.update(ctx, doing, func(t tx) error {
			for _, id := range ids {
				some, err := t.exec(ctx, remove, id, micros(before))
				if err != nil {
					return err
				}
				n += some
			}
			return nil
		})
		if err != nil {
			return n, err
		}
	}
}

// tidying removes what nobody needs any more, until ctx ends.
func (s *Store) tidying(ctx context.Context) {
	ctx = Removing(ctx)
	for next := tidyFirst; ; next = tidyEvery {
		t := time.NewTimer(next)
		select {
		case <-t.C:
			s.tidy(ctx)
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (s *Store) tidy(ctx context.Context) {
	warn := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			s.log.Warn(what, "err", err)
		}
	}
	now := s.now()
	_, err := s.TidyLogins(ctx, now.Add(-loginGrace))
	warn("logins that are over stay", err)
	_, err = s.Purge(ctx, now.Add(-purgeGrace))
	warn("rows of deleted sessions stay", err)
	_, err = s.TidySandboxes(ctx, now.Add(-goneGrace))
	warn("rows of sandboxes that are gone stay", err)
	_, err = s.TidyFiles(ctx, now.Add(-goneGrace))
	warn("files that have expired stay", err)
	_, err = s.TidyRates(ctx, now.Add(-ratesKept))
	warn("counters that are over stay", err)
}

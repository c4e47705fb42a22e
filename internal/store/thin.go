package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

const toThinSQL = `SELECT session FROM checkpoints WHERE thinned_at = 0 AND digest <> '' GROUP BY session HAVING count(*) > ?
	UNION SELECT DISTINCT session FROM checkpoints WHERE thinned_at > 0 AND digest <> ''`

// SessionsToThin returns the sessions that have more stored checkpoints than some, and those with marked ones. It
// reads all checkpoints.
func (s *Store) SessionsToThin(ctx context.Context, most int) ([]outboard.SessionID, error) {
	return collect(ctx, s, "looking for sessions with many checkpoints", scanText[outboard.SessionID], toThinSQL, most)
}

const descendantsSQL = `SELECT DISTINCT f.id FROM sessions AS s
	JOIN lineage AS l ON l.source = s.num JOIN sessions AS f ON f.num = l.session
	WHERE s.id = ? AND f.deleted_at = 0`

// Descendants returns the sessions whose logs begin with events of a session: its forks, and theirs.
func (s *Store) Descendants(ctx context.Context, id outboard.SessionID) ([]outboard.SessionID, error) {
	return collect(ctx, s, "looking for forks", scanText[outboard.SessionID], descendantsSQL, string(id))
}

const markThinnedSQL = `UPDATE checkpoints SET thinned_at = ? WHERE id = ? AND digest <> ''`

const dropThinnedSQL = `UPDATE checkpoints SET digest = '', size = 0 WHERE id = ? AND thinned_at > 0`

// Thin marks checkpoints as given up, keeps some that were marked after all, and drops what is stored of others
// that were. From a mark on nobody begins anything with a checkpoint; who began before is done when it is dropped.
func (s *Store) Thin(ctx context.Context, mark, keep, drop []outboard.CheckpointID, at time.Time) error {
	return s.update(ctx, "thinning checkpoints", func(t tx) error {
		for _, step := range []struct {
			ids  []outboard.CheckpointID
			sql  string
			args []any
		}{{mark, markThinnedSQL, []any{micros(at)}}, {keep, markThinnedSQL, []any{0}}, {drop, dropThinnedSQL, nil}} {
			for _, id := range step.ids {
				if _, err := t.exec(ctx, step.sql, append(step.args, string(id))...); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

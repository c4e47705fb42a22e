package store

import (
	"context"
	"encoding/json"

	"github.com/outboard-dev/outboard"
)

// taken is the name while the environment has it for itself: not when it is archived, and not of one that had a name
// twice before that was refused, until it is renamed.
const insertEnvironmentSQL = `INSERT INTO environments (id, created_at, archived_at, body, org, taken) VALUES (?, ?, ?, ?, ?, ?)`

const updateEnvironmentSQL = `UPDATE environments SET archived_at = ?, body = ?, taken = ? WHERE id = ?`

const environmentTakenSQL = `SELECT body, COALESCE(taken, '') FROM environments WHERE id = ?`

// PutEnvironment inserts or replaces an environment. Conflict if another one of its organization has its name.
func (s *Store) PutEnvironment(ctx context.Context, e outboard.Environment) error {
	return s.update(ctx, "storing environment", func(t tx) error {
		old, err := collectTx(ctx, t, scanTaken, environmentTakenSQL, string(e.ID))
		if err != nil {
			return err
		}
		taken := &e.Name
		switch {
		case !e.ArchivedAt.IsZero():
			taken = nil
		case len(old) > 0 && old[0].taken == "" && old[0].Name == e.Name && old[0].ArchivedAt.IsZero():
			taken = nil
		}
		if len(old) == 0 {
			_, err = t.exec(ctx, insertEnvironmentSQL, string(e.ID), micros(e.CreatedAt), micros(e.ArchivedAt),
				mustJSON(e), orgText(e.Org), taken)
		} else {
			_, err = t.exec(ctx, updateEnvironmentSQL, micros(e.ArchivedAt), mustJSON(e), taken, string(e.ID))
		}
		if s.d.unique(err) {
			return outboard.Errorf(outboard.Conflict, "there is another environment with the name %q", e.Name).
				WithHint("choose another name, or archive the other environment")
		}
		return err
	})
}

// named is an environment with the name that it has for itself.
type named struct {
	outboard.Environment
	taken string
}

func scanTaken(sc scanner) (n named, err error) {
	var body string
	if err := sc.Scan(&body, &n.taken); err != nil {
		return n, err
	}
	return n, json.Unmarshal([]byte(body), &n.Environment)
}

const environmentSQL = `SELECT body, org FROM environments WHERE id = ?`

func scanEnvironment(sc scanner) (outboard.Environment, error) {
	return scanIn(sc, func(e *outboard.Environment) *outboard.OrgID { return &e.Org })
}

// Environment returns one.
func (s *Store) Environment(ctx context.Context, id outboard.EnvironmentID) (outboard.Environment, error) {
	return one(ctx, s, "environment", id, scanEnvironment, environmentSQL, string(id))
}

// Environments returns one page.
func (s *Store) Environments(ctx context.Context, p Page) ([]outboard.Environment, error) {
	w, err := s.list(ctx, "environments", p)
	if err != nil {
		return nil, err
	}
	if !p.IncludeArchived {
		w.add(`archived_at = 0`)
	}
	query := `SELECT body, org FROM environments` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing environments", scanEnvironment, query,
		append(w.args, limitOr(p.Limit, defaultPage))...)
}

const deleteEnvironmentSQL = `DELETE FROM environments WHERE id = ?`

const sessionOfEnvironmentSQL = `SELECT id FROM sessions WHERE environment = ? AND deleted_at = 0 LIMIT 1`

// DeleteEnvironment removes one. Conflict if a session names it.
func (s *Store) DeleteEnvironment(ctx context.Context, id outboard.EnvironmentID) error {
	return s.update(ctx, "deleting environment", func(t tx) error {
		users, err := collectTx(ctx, t, scanText[string], sessionOfEnvironmentSQL, string(id))
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return outboard.Errorf(outboard.Conflict, "environment %s is used by sessions, of which %s is one", id,
				users[0]).
				WithHint("archive the environment, or delete its sessions first")
		}
		n, err := t.exec(ctx, deleteEnvironmentSQL, string(id))
		if err == nil && n == 0 {
			return notFound("environment", id)
		}
		return err
	})
}

// delete removes one row by id. NotFound if there is none.
func (s *Store) delete(ctx context.Context, what, id, query string) error {
	return s.update(ctx, "deleting "+what, func(t tx) error {
		n, err := t.exec(ctx, query, id)
		if err == nil && n == 0 {
			return notFound(what, id)
		}
		return err
	})
}

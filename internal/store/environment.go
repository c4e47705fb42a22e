package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

const putEnvironmentSQL = `INSERT INTO environments (id, created_at, archived_at, body, org) VALUES (?, ?, ?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET archived_at = excluded.archived_at, body = excluded.body`

// PutEnvironment inserts or replaces an environment.
func (s *Store) PutEnvironment(ctx context.Context, e outboard.Environment) error {
	return s.update(ctx, "storing environment", func(t tx) error {
		_, err := t.exec(ctx, putEnvironmentSQL, string(e.ID), micros(e.CreatedAt), micros(e.ArchivedAt), mustJSON(e), orgText(e.Org))
		return err
	})
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

// DeleteEnvironment removes one. Sessions keep their copy of its config.
func (s *Store) DeleteEnvironment(ctx context.Context, id outboard.EnvironmentID) error {
	return s.delete(ctx, "environment", string(id), deleteEnvironmentSQL)
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

package store

import (
	"context"
	"database/sql"
	"errors"
)

// hotReads and hotWrites are the statements outside a commit that a turn runs: compiling one of them takes
// SQLite several times as long as running it.
var (
	hotReads = []string{headSQL, lookupSQL, pageSQL, claimableSQL, nextTimerSQL, checkpointSQL, loadHeaderSQL,
		budgetsOverSQL, anyBudgetSQL}
	hotWrites = []string{expiredSQL, liveSQL, pickReadySQL + claimSQL, auditLastSQL, insertAuditSQL, headSQL}
)

// prepare implements dialect: it compiles what preparedRead and preparedWrite give out. A commit compiles its own.
func (d *sqliteDialect) prepare(ctx context.Context) (err error) {
	if d.hotReads, err = prepareAll(ctx, d.read, hotReads); err != nil {
		return err
	}
	d.hotWrites, err = prepareAll(ctx, d.write, hotWrites)
	return err
}

func prepareAll(ctx context.Context, db *sql.DB, queries []string) (map[string]*sql.Stmt, error) {
	out := make(map[string]*sql.Stmt, len(queries))
	for _, q := range queries {
		st, err := db.PrepareContext(ctx, q)
		if err != nil {
			return out, err
		}
		out[q] = st
	}
	return out, nil
}

// preparedRead implements dialect.
func (d *sqliteDialect) preparedRead(query string) *sql.Stmt { return d.hotReads[query] }

// preparedWrite implements dialect.
func (d *sqliteDialect) preparedWrite(query string) *sql.Stmt { return d.hotWrites[query] }

// closeHot lets go of what prepare made.
func (d *sqliteDialect) closeHot() error {
	var errs []error
	for _, hot := range []map[string]*sql.Stmt{d.hotReads, d.hotWrites} {
		for _, st := range hot {
			errs = append(errs, st.Close())
		}
	}
	for _, kind := range d.quickAudits {
		for _, st := range kind {
			if st != nil {
				errs = append(errs, st.Close())
			}
		}
	}
	return errors.Join(errs...)
}

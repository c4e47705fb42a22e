package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

const loadHeaderSQL = `SELECT ` + headerCols + ` FROM sessions WHERE id = ? AND deleted_at = 0`

// unchanged is the condition that a header is still the one a commit was planned on.
const unchanged = ` WHERE num = ? AND head = ? AND epoch = ? AND deleted_at = 0`

const updateHeadSQL = `UPDATE sessions SET head = ?, last_at = ?, updated_at = ?` + unchanged

const updateAllSQL = `UPDATE sessions SET ` + setHeader + `, worker = CASE ? WHEN 1 THEN ? ELSE worker END, epoch = epoch + ?` + unchanged

const onceSQL = `SELECT 1 FROM events WHERE session = ? AND ref = ? AND type = ? AND ref <> ''`

// prepare implements dialect.
func (d *sqliteDialect) prepare(ctx context.Context) (err error) {
	for q, st := range map[string]**sql.Stmt{
		loadHeaderSQL: &d.header, updateHeadSQL: &d.updateHead, updateAllSQL: &d.updateAll, onceSQL: &d.once,
	} {
		if *st, err = d.write.PrepareContext(ctx, q); err != nil {
			return err
		}
	}
	for i, n := range insertRows {
		if d.inserts[i], err = d.write.PrepareContext(ctx, insertEventSQL+strings.Repeat(", "+eventValues, n-1)); err != nil {
			return err
		}
	}
	return d.prepareHot(ctx)
}

// commit implements dialect.
func (d *sqliteDialect) commit(ctx context.Context, group []*pending, known map[outboard.SessionID]*row, k *taking, now time.Time) (map[outboard.SessionID]*row, error) {
	ctx = context.WithoutCancel(ctx) // the driver starts a goroutine per statement to watch one that can end; a file needs none
	t, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer t.Rollback() // after a commit it does nothing
	cached := len(known) > 0
	taken, err := d.load(ctx, t, group, known)
	if err != nil {
		return nil, err
	}
	live, err := d.live(ctx, t, k, group, now)
	if err != nil {
		return nil, err
	}
	if !live {
		k = nil
	}
	if refused := plan(group, known, taken, k, now); refused && cached {
		return nil, errStale
	}
	if err := d.writeHeaders(ctx, t, known); err != nil {
		return nil, err
	}
	if err := d.insertEvents(ctx, t, group, known); err != nil {
		return nil, err
	}
	for _, p := range group {
		if p.err != nil {
			continue
		}
		for _, st := range p.extras(known[p.commit.Session].num) {
			if _, err := t.ExecContext(ctx, st.query, st.args...); err != nil {
				return nil, err
			}
		}
	}
	return known, t.Commit()
}

// insertRows are how many events one statement inserts, the most first: to run a statement costs about as much as a row.
var insertRows = [...]int{16, 4, 3, 2, 1}

// insertEvents inserts the events of a group.
func (d *sqliteDialect) insertEvents(ctx context.Context, t *sql.Tx, group []*pending, known map[outboard.SessionID]*row) error {
	var args []any
	for _, p := range group {
		if p.err != nil {
			continue
		}
		num := known[p.commit.Session].num
		for i := range p.events {
			args = append(args, eventArgs(num, &p.events[i])...)
		}
	}
	for i, n := range insertRows {
		for width := n * eventColumns; len(args) >= width; args = args[width:] {
			if _, err := t.StmtContext(ctx, d.inserts[i]).ExecContext(ctx, args[:width]...); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeHeaders updates the rows that changed, or finds one of them stale.
func (d *sqliteDialect) writeHeaders(ctx context.Context, t *sql.Tx, rows map[outboard.SessionID]*row) error {
	head, all := t.StmtContext(ctx, d.updateHead), t.StmtContext(ctx, d.updateAll)
	for _, r := range rows {
		if r == nil || !r.dirty {
			continue
		}
		st, args := head, []any{r.Head, micros(r.LastAt), micros(r.UpdatedAt)}
		if r.full {
			st, args = all, append(r.headerArgs(), flag(r.released || r.claimed), string(r.Worker), flag(r.claimed))
		}
		res, err := st.ExecContext(ctx, append(args, r.num, r.base, r.Epoch-flag(r.claimed))...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, errStale)
		}
	}
	return nil
}

// load adds the headers that lack, and returns which of the group's once-only events exist already.
func (d *sqliteDialect) load(ctx context.Context, t *sql.Tx, group []*pending, rows map[outboard.SessionID]*row) (map[onceKey]bool, error) {
	taken, fresh := map[onceKey]bool{}, map[outboard.SessionID]bool{}
	for _, p := range group {
		id := p.commit.Session
		if _, ok := rows[id]; !ok {
			fresh[id] = true
			r, err := scanHeader(t.StmtContext(ctx, d.header).QueryRowContext(ctx, string(id)))
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return nil, err
			}
			rows[id] = nil
			if err == nil {
				rows[id] = &r
			}
		}
		for k := range p.onceKeys() {
			if rows[id] == nil || !fresh[id] { // the index refuses it, and then the headers are read afresh
				break
			}
			var n int
			err := t.StmtContext(ctx, d.once).QueryRowContext(ctx, rows[id].num, string(k.ref), string(k.typ)).Scan(&n)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return nil, err
			}
			taken[k] = err == nil
		}
	}
	return taken, nil
}

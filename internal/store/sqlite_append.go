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

// updateCourseSQL is for the steps of a turn but its first and its last: it leaves the indexes of the queue alone.
const updateCourseSQL = `UPDATE sessions SET ` + setCourse + `, cost = ?` + unchanged

const updateAllSQL = `UPDATE sessions SET ` + setHeader +
	`, worker = CASE ? WHEN 1 THEN ? ELSE worker END, epoch = epoch + ?` + unchanged

const onceSQL = `SELECT 1 FROM events WHERE session = ? AND ref = ? AND type = ? AND ref <> ''`

// commit implements dialect.
func (d *sqliteDialect) commit(ctx context.Context, group []*pending, known map[outboard.SessionID]*row, k *taking,
	now time.Time) (map[outboard.SessionID]*row, error) {
	// the driver starts a goroutine per statement to watch one that can end; a file needs none
	ctx = context.WithoutCancel(ctx)
	return known, d.transact(ctx, func(c *rawConn) error { return d.writeGroup(ctx, c, group, known, k, now) })
}

// writeGroup is commit within the transaction.
func (d *sqliteDialect) writeGroup(ctx context.Context, c *rawConn, group []*pending, known map[outboard.SessionID]*row,
	k *taking, now time.Time) error {
	cached := len(known) > 0
	taken, err := d.load(ctx, c, group, known)
	if err != nil {
		return err
	}
	live, err := d.live(ctx, c, k, group, now)
	if err != nil {
		return err
	}
	if !live {
		k = nil
	}
	if refused := plan(group, known, taken, k, now); refused && cached {
		return errStale
	}
	if err := d.writeHeaders(ctx, c, known); err != nil {
		return err
	}
	if err := d.insertEvents(ctx, c, group, known); err != nil {
		return err
	}
	for _, p := range group {
		if p.err != nil {
			continue
		}
		for _, st := range p.extras(known[p.commit.Session].num) {
			if _, err := c.exec(ctx, st.query, st.args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// insertRows are how many events one statement inserts, the most first: to run a statement costs about as much
// as a row.
var insertRows = [...]int{16, 4, 3, 2, 1}

// insertsSQL are the statements for them. A statement that fails ends the transaction, so that it need not be
// undone by itself: SQLite would copy each page that it changes for that.
var insertsSQL = func() (out [len(insertRows)]string) {
	for i, n := range insertRows {
		out[i] = strings.Replace(insertEventSQL, "INSERT", "INSERT OR FAIL", 1) + strings.Repeat(", "+eventValues, n-1)
	}
	return out
}()

// insertEvents inserts the events of a group.
func (d *sqliteDialect) insertEvents(ctx context.Context, c *rawConn, group []*pending,
	known map[outboard.SessionID]*row) error {
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
			if _, err := c.exec(ctx, insertsSQL[i], args[:width]...); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeHeaders updates the rows that changed, or finds one of them stale.
func (d *sqliteDialect) writeHeaders(ctx context.Context, c *rawConn, rows map[outboard.SessionID]*row) error {
	for _, r := range rows {
		if r == nil || !r.dirty {
			continue
		}
		query, args := updateHeadSQL, []any{r.Head, micros(r.LastAt), micros(r.UpdatedAt)}
		switch {
		case r.placed:
			query, args = updateAllSQL, append(r.headerArgs(), flag(r.released || r.claimed), string(r.Worker),
				flag(r.claimed))
		case r.full:
			query, args = updateCourseSQL, append(r.courseArgs(), int64(r.Usage.Cost))
		}
		n, err := c.exec(ctx, query, append(args, r.num, r.base, r.Epoch-flag(r.claimed))...)
		if err != nil {
			return err
		}
		if n != 1 {
			return errStale
		}
	}
	return nil
}

// load adds the headers that lack, and returns which of the group's once-only events exist already.
func (d *sqliteDialect) load(ctx context.Context, c *rawConn, group []*pending,
	rows map[outboard.SessionID]*row) (map[onceKey]bool, error) {
	taken, fresh := map[onceKey]bool{}, map[outboard.SessionID]bool{}
	for _, p := range group {
		id := p.commit.Session
		if _, ok := rows[id]; !ok {
			fresh[id] = true
			r, err := scanHeader(c.row(ctx, loadHeaderSQL, string(id)))
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
			err := c.row(ctx, onceSQL, rows[id].num, string(k.ref), string(k.typ)).Scan(&n)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return nil, err
			}
			taken[k] = err == nil
		}
	}
	return taken, nil
}

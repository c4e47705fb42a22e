package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboard-dev/outboard"
)

// The whole of a group is one statement: it updates the headers ($1 number, $2 head before, $3 epoch) and
// inserts the events, and divides by zero, which undoes both, where a header is not as planned or not there.
// Only the number is joined on: with more in the join PostgreSQL expects a single row of it, and may look
// through the whole group for each session. Events are unnested in the select list, which keeps no copy of them,
// as a function that is selected from does.
const (
	writeHeadSQL = `WITH u AS (UPDATE sessions AS s SET head = ` + plannedHead + `, last_at = k.last_at, updated_at = k.updated_at
	FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
	AS k(num, base, epoch, head, last_at, updated_at)` + itsRow + `),
	e AS (` + insertEventsSQL + ` SELECT unnest($7::bigint[]), unnest($8::bigint[]), unnest($9::bigint[]), unnest($10::text[]),
		unnest($11::text[]), unnest($12::text[]), unnest($13::text[]), unnest($14::bigint[]), unnest($15::bytea[]))` + allOrNothing

	writeAllSQL = `WITH u AS (UPDATE sessions AS s SET head = ` + plannedHead + `, last_at = k.last_at, updated_at = k.updated_at,
	phase = k.phase, stop = k.stop, inbox = k.inbox, urgent = k.urgent, wake_at = k.wake_at, input = k.input, output = k.output,
	cache_read = k.cache_read, cache_write_5m = k.cache_write_5m, cache_write_1h = k.cache_write_1h, active = k.active,
	running_since = k.running_since, title = k.title, metadata = k.metadata, archived_at = k.archived_at, ready_at = k.ready_at, cost = k.cost,
	worker = CASE k.released WHEN 1 THEN '' ELSE s.worker END
	FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
		$9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],
		$17::bigint[], $18::bigint[], $19::text[], $20::text[], $21::bigint[], $22::bigint[], $23::bigint[], $24::bigint[])
	AS k(num, base, epoch, head, last_at, updated_at, phase, stop, inbox, urgent, wake_at, input, output, cache_read,
		cache_write_5m, cache_write_1h, active, running_since, title, metadata, archived_at, ready_at, cost, released)` + itsRow + `),
	e AS (` + insertEventsSQL + ` SELECT unnest($25::bigint[]), unnest($26::bigint[]), unnest($27::bigint[]), unnest($28::text[]),
		unnest($29::text[]), unnest($30::text[]), unnest($31::text[]), unnest($32::bigint[]), unnest($33::bytea[]))` + allOrNothing

	plannedHead     = `k.head / CASE WHEN s.head = k.base AND s.epoch = k.epoch AND s.deleted_at = 0 THEN 1 ELSE 0 END`
	itsRow          = ` WHERE s.num = k.num RETURNING s.num`
	insertEventsSQL = `INSERT INTO events (key, session, seq, id, thread, type, ref, at, data)`
	allOrNothing    = ` SELECT 1 / CASE count(*) WHEN cardinality($1::bigint[]) THEN 1 ELSE 0 END FROM u`
)

const writeOneSQL = `WITH u AS (UPDATE sessions SET head = $6, last_at = $11, updated_at = $3
	WHERE num = $5 AND head = $1 AND epoch = $2 AND deleted_at + 0 = 0 RETURNING num)
	` + insertEventsSQL + ` SELECT $4::bigint, num, $6, $7, $8, $9, $10, $11, $12 FROM u`

// pgDivision is the code of a division by zero.
const pgDivision = "22012"

// commit implements dialect. On cached headers it is a single statement, and so a single round trip. Otherwise
// it takes two: BEGIN with all that must be read, then all that is written with COMMIT.
func (d *postgresDialect) commit(ctx context.Context, group []*pending, known map[outboard.SessionID]*row, _ *taking,
	now time.Time) (map[outboard.SessionID]*row, error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release() // closes a connection that is left in a transaction
	if quick(group, known) {
		if plan(group, known, map[onceKey]bool{}, nil, now) {
			return nil, errStale // perhaps; only fresh headers can refuse
		}
		query, args := write(group, known)
		tag, err := conn.Exec(ctx, query, args...)
		if err == nil && tag.RowsAffected() == 0 {
			err = errStale
		}
		return known, stale(err)
	}
	rows, err := locked(ctx, conn.Conn(), group, now)
	if err != nil {
		rollback(ctx, conn.Conn())
		return nil, stale(err)
	}
	return rows, nil
}

// quick reports whether a group can be tried as a single statement: its headers are known, and it writes nothing else.
func quick(group []*pending, known map[outboard.SessionID]*row) bool {
	for _, p := range group {
		c := &p.commit
		if known[c.Session] == nil || c.Checkpoint != nil || len(c.Files) > 0 || c.Config != nil || c.Charge != nil ||
			c.Budget != nil ||
			len(c.Approvals)+len(c.Answers)+len(c.Closed) > 0 {
			return false
		}
	}
	return true
}

// stale turns the division by zero into what it means.
func stale(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == pgDivision {
		return errStale
	}
	return err
}

// rollback ends a failed transaction. Should it fail as well, the pool drops the connection.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if !conn.IsClosed() {
		_, _ = conn.Exec(ctx, `ROLLBACK`) // the first error is the one that counts
	}
}

// locked commits a group on headers that it reads and locks.
func locked(ctx context.Context, conn *pgx.Conn, group []*pending, now time.Time) (map[outboard.SessionID]*row, error) {
	rows, taken, err := loadBatch(ctx, conn, group)
	if err != nil {
		return nil, err
	}
	plan(group, rows, taken, nil, now)
	b := &pgx.Batch{}
	if query, args := write(group, rows); query != "" {
		b.Queue(query, args...)
	}
	for _, p := range group {
		if p.err != nil {
			continue
		}
		for _, st := range p.extras(rows[p.commit.Session].num) {
			b.Queue(dollars(st.query), st.args...)
		}
	}
	b.Queue(`COMMIT`)
	return rows, conn.SendBatch(ctx, b).Close()
}

// Rows are locked in the order of their numbers, as everywhere, so that two groups do not wait for each other.
const lockHeadersSQL = `SELECT ` + headerCols +
	` FROM sessions WHERE id = ANY($1) AND deleted_at = 0 ORDER BY num FOR NO KEY UPDATE`

const takenSQL = `SELECT s.id, e.ref, e.type FROM unnest($1::text[], $2::text[], $3::text[]) AS k(id, ref, type)
	JOIN sessions AS s ON s.id = k.id
	JOIN events AS e ON e.session = s.num AND e.ref = k.ref AND e.type = k.type AND e.ref <> ''`

// loadBatch begins the transaction, locks the headers of a group and reads which of its once-only events exist
// already. The second query sees what was committed before the locks were granted.
func loadBatch(ctx context.Context, conn *pgx.Conn,
	group []*pending) (map[outboard.SessionID]*row, map[onceKey]bool, error) {
	rows, taken := make(map[outboard.SessionID]*row, len(group)), map[onceKey]bool{}
	ids := make([]string, 0, len(group))
	var sessions, refs, types []string
	for _, p := range group {
		id := p.commit.Session
		if _, ok := rows[id]; !ok {
			rows[id] = nil
			ids = append(ids, string(id))
		}
		for k := range p.onceKeys() {
			sessions, refs, types = append(sessions, string(k.session)), append(refs, string(k.ref)), append(types,
				string(k.typ))
		}
	}
	b := &pgx.Batch{}
	b.Queue(`BEGIN`)
	b.Queue(lockHeadersSQL, ids).Query(func(rs pgx.Rows) error {
		for rs.Next() {
			r, err := scanHeader(rs)
			if err != nil {
				return err
			}
			rows[r.ID] = &r
		}
		return rs.Err()
	})
	if len(refs) > 0 {
		b.Queue(takenSQL, sessions, refs, types).Query(func(rs pgx.Rows) error {
			for rs.Next() {
				var id, ref, typ string
				if err := rs.Scan(&id, &ref, &typ); err != nil {
					return err
				}
				taken[onceKey{outboard.SessionID(id), outboard.EventID(ref), outboard.EventType(typ)}] = true
			}
			return rs.Err()
		})
	}
	return rows, taken, conn.SendBatch(ctx, b).Close()
}

// write returns the statement that writes the headers that changed and the events of the group, or "" when none did.
func write(group []*pending, rows map[outboard.SessionID]*row) (string, []any) {
	full, some := false, false
	for _, r := range rows {
		if r != nil && r.dirty {
			full, some = full || r.full, true
		}
	}
	if !some {
		return "", nil
	}
	if len(group) == 1 && len(rows) == 1 && !full && len(group[0].events) == 1 {
		r, e := rows[group[0].commit.Session], &group[0].events[0]
		return writeOneSQL, append([]any{r.base, r.Epoch, micros(r.UpdatedAt)}, eventArgs(r.num, e)...)
	}
	query := writeHeadSQL
	if full {
		query = writeAllSQL
	}
	return query, append(headerArrays(rows, full), eventArrays(group, rows)...)
}

// headerArrays are the columns of the headers that changed, an array for each, in the order of their numbers.
func headerArrays(rows map[outboard.SessionID]*row, full bool) []any {
	var cols []any
	for _, r := range changed(rows) {
		vals := []any{r.num, r.base, r.Epoch, r.Head, micros(r.LastAt), micros(r.UpdatedAt)}
		if full {
			vals = append(append(vals[:3], r.headerArgs()...), flag(r.released))
		}
		if cols == nil {
			cols = make([]any, len(vals), len(vals)+8)
		}
		for i, v := range vals {
			switch v := v.(type) {
			case int:
				col, _ := cols[i].([]int64)
				cols[i] = append(col, int64(v))
			case int64:
				col, _ := cols[i].([]int64)
				cols[i] = append(col, v)
			case string:
				col, _ := cols[i].([]string)
				cols[i] = append(col, v)
			}
		}
	}
	return cols
}

// changed are the rows that differ from the database's, in the order of their numbers.
func changed(rows map[outboard.SessionID]*row) []*row {
	dirty := make([]*row, 0, len(rows))
	for _, r := range rows {
		if r != nil && r.dirty {
			dirty = append(dirty, r)
		}
	}
	slices.SortFunc(dirty, func(a, b *row) int { return cmp.Compare(a.num, b.num) })
	return dirty
}

// eventArrays are the columns of the events of all accepted commits.
func eventArrays(group []*pending, rows map[outboard.SessionID]*row) []any {
	n := 0
	for _, p := range group {
		n += len(p.events)
	}
	keys, nums, seqs, ats := make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
	ids, threads, types, refs := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	data := make([][]byte, 0, n)
	for _, p := range group {
		for i := range p.events {
			e := &p.events[i]
			num := rows[e.Session].num
			keys, nums, seqs, ats = append(keys, eventKey(num, e.Seq)), append(nums, num), append(seqs,
				e.Seq), append(ats, e.Time.UnixMicro())
			ids, threads = append(ids, string(e.ID)), append(threads, string(e.Thread))
			types, refs = append(types, string(e.Type)), append(refs, string(e.Ref))
			data = append(data, e.Data)
		}
	}
	return []any{keys, nums, seqs, ids, threads, types, refs, ats, data}
}

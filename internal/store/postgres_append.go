package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboard-dev/outboard"
)

// Rows are locked in the order of their numbers, as everywhere, so that two groups cannot wait for each other.
const lockHeadersSQL = `SELECT ` + headerCols + ` FROM sessions WHERE id = ANY($1) AND deleted_at = 0 ORDER BY num FOR NO KEY UPDATE`

const takenSQL = `SELECT s.id, e.ref, e.type FROM unnest($1::text[], $2::text[], $3::text[]) AS k(id, ref, type)
	JOIN sessions AS s ON s.id = k.id
	JOIN events AS e ON e.session = s.num AND e.ref = k.ref AND e.type = k.type
		AND e.type IN ('call.finished', 'input.processed', 'input.confirmation', 'input.tool_result')`

const insertEventsSQL = `INSERT INTO events (session, seq, id, thread, type, ref, at, data)
	SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bytea[])`

const updateHeadersSQL = `UPDATE sessions AS s SET head = u.head, last_at = u.last_at, phase = u.phase, stop = u.stop,
	inbox = u.inbox, urgent = u.urgent, wake_at = u.wake_at, input = u.input, output = u.output, cache_read = u.cache_read,
	cache_write_5m = u.cache_write_5m, cache_write_1h = u.cache_write_1h, active = u.active, running_since = u.running_since,
	title = u.title, metadata = u.metadata, updated_at = u.updated_at, archived_at = u.archived_at, worker = u.worker,
	ready_at = u.ready_at
	FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
		$9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[],
		$17::text[], $18::bigint[], $19::bigint[], $20::text[], $21::bigint[])
	AS u(num, head, last_at, phase, stop, inbox, urgent, wake_at, input, output, cache_read, cache_write_5m, cache_write_1h,
		active, running_since, title, metadata, updated_at, archived_at, worker, ready_at)
	WHERE s.num = u.num`

// commit implements dialect in two round trips: BEGIN with all that must be read, then all that is written with COMMIT.
func (d *postgresDialect) commit(ctx context.Context, group []*pending, now time.Time) (map[outboard.SessionID]*row, error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release() // closes a connection that is left in a transaction
	rows, taken, err := loadBatch(ctx, conn.Conn(), group)
	if err != nil {
		rollback(ctx, conn.Conn())
		return nil, err
	}
	plan(group, rows, taken, now)
	b := &pgx.Batch{}
	queueEvents(b, group, rows)
	queueHeaders(b, rows)
	for _, p := range group {
		if p.err != nil {
			continue
		}
		for _, st := range p.extras(rows[p.commit.Session].num) {
			b.Queue(dollars(st.query), st.args...)
		}
	}
	b.Queue(`COMMIT`)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		rollback(ctx, conn.Conn())
		return nil, err
	}
	return rows, nil
}

// rollback ends a failed transaction. Should it fail as well, the pool drops the connection.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if !conn.IsClosed() {
		_, _ = conn.Exec(ctx, `ROLLBACK`) // the first error is the one that counts
	}
}

// loadBatch begins the transaction, locks the headers of a group and reads which of its once-only events exist already. The
// second query sees what was committed before the locks were granted.
func loadBatch(ctx context.Context, conn *pgx.Conn, group []*pending) (map[outboard.SessionID]*row, map[onceKey]bool, error) {
	rows, taken := make(map[outboard.SessionID]*row, len(group)), map[onceKey]bool{}
	ids := make([]string, 0, len(group))
	var kids, refs, types []string
	for _, p := range group {
		id := p.commit.Session
		if _, ok := rows[id]; !ok {
			rows[id] = nil
			ids = append(ids, string(id))
		}
		for k := range p.onceKeys() {
			kids, refs, types = append(kids, string(k.session)), append(refs, string(k.ref)), append(types, string(k.typ))
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
	if len(kids) > 0 {
		b.Queue(takenSQL, kids, refs, types).Query(func(rs pgx.Rows) error {
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
	err := conn.SendBatch(ctx, b).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		err = sql.ErrNoRows
	}
	return rows, taken, err
}

// queueEvents adds one INSERT for the events of all accepted commits.
func queueEvents(b *pgx.Batch, group []*pending, rows map[outboard.SessionID]*row) {
	n := 0
	for _, p := range group {
		n += len(p.events)
	}
	if n == 0 {
		return
	}
	nums, seqs, ats := make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
	ids, threads, types, refs := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	data := make([][]byte, 0, n)
	for _, p := range group {
		for i := range p.events {
			e := &p.events[i]
			nums, seqs, ats = append(nums, rows[e.Session].num), append(seqs, e.Seq), append(ats, e.Time.UnixMicro())
			ids, threads = append(ids, string(e.ID)), append(threads, string(e.Thread))
			types, refs = append(types, string(e.Type)), append(refs, string(e.Ref))
			data = append(data, e.Data)
		}
	}
	b.Queue(insertEventsSQL, nums, seqs, ids, threads, types, refs, ats, data)
}

// queueHeaders adds one UPDATE for all rows that changed: the columns of headerArgs, turned into arrays.
func queueHeaders(b *pgx.Batch, rows map[outboard.SessionID]*row) {
	var cols []any
	for _, r := range rows {
		if r == nil || !r.dirty {
			continue
		}
		for i, v := range append([]any{r.num}, r.headerArgs()...) {
			if len(cols) <= i {
				cols = append(cols, nil)
			}
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
	if cols != nil {
		b.Queue(updateHeadersSQL, cols...)
	}
}

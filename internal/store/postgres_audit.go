package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

const insertAuditArraysSQL = insertAuditInto + `SELECT k.* FROM unnest(?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::text[],
	?::text[], ?::text[], ?::text[], ?::bytea[], ?::bytea[]) AS k`

// The lock is taken by the statement itself, whose view of the table may then be older than the lock. What
// another process appended in between is found all the same: its first number is ours.
const quickAuditSQL = `WITH l AS MATERIALIZED (SELECT pg_advisory_xact_lock(?, hashtext(current_schema()))) ` + insertAuditArraysSQL + `, l
	WHERE EXISTS (SELECT 1 FROM audit WHERE num = ? AND hashes = ?) AND NOT EXISTS (SELECT 1 FROM audit WHERE num > ?)
	AND NOT EXISTS (SELECT 1 FROM unnest(?::text[], ?::bigint[]) AS m (id, head) LEFT JOIN sessions AS s ON s.id = m.id AND s.deleted_at = 0
		WHERE s.head IS DISTINCT FROM m.head)`

var (
	insertAuditArrays = dollars(insertAuditArraysSQL)
	quickAudit        = dollars(quickAuditSQL)
)

// insertAudit implements dialect.
func (d *postgresDialect) insertAudit(ctx context.Context, t tx, rows []auditRow) error {
	_, err := t.ExecContext(ctx, insertAuditArrays, auditArrays(rows)...)
	return err
}

// quickAudit implements dialect: one round trip, where a transaction with a lock and a look takes five.
func (d *postgresDialect) quickAudit(ctx context.Context, end auditTail, marks map[outboard.SessionID]int64,
	rows []auditRow) (bool, error) {
	num := end.tree.Size()
	ids, heads := make([]string, 0, len(marks)), make([]int64, 0, len(marks))
	for id, head := range marks {
		ids, heads = append(ids, string(id)), append(heads, head)
	}
	tag, err := d.pool.Exec(ctx, quickAudit, append(append([]any{int32(auditLock)}, auditArrays(rows)...), num,
		end.hashes, num, ids, heads)...)
	if d.unique(err) {
		return false, nil
	}
	return err == nil && tag.RowsAffected() == int64(len(rows)), err
}

// auditArrays are the columns of rows, an array for each.
func auditArrays(rows []auditRow) []any {
	nums, ats := make([]int64, len(rows)), make([]int64, len(rows))
	var texts [7][]string
	for i := range texts {
		texts[i] = make([]string, len(rows))
	}
	proofs, hashes := make([][]byte, len(rows)), make([][]byte, len(rows))
	for i, row := range rows {
		r := row.record
		nums[i], ats[i], proofs[i], hashes[i] = r.Num, micros(r.At), row.proof, row.hashes
		for k, s := range [...]string{r.Org, r.Actor, r.Action, r.Resource, r.Decision, r.Rule, string(r.Detail)} {
			texts[k][i] = s
		}
	}
	return []any{nums, ats, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], proofs, hashes}
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"

	"github.com/outboard-dev/outboard"
)

// quickRows is the longest group that one statement appends. A longer one shares its transaction among so many
// that the statements around it do not matter; each length is a statement of its own, compiled when the first
// group of it comes.
const quickRows = 64

const auditValues = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// quickAuditWhere lets the rows in only behind the record that they continue.
const quickAuditWhere = ` WHERE EXISTS (SELECT 1 FROM (SELECT num, hashes FROM audit ORDER BY num DESC LIMIT 1) WHERE num = ? AND hashes = ?)`

// quickAuditMarks is a condition beside it: the sessions of an object have the heads that it says.
const quickAuditMarks = ` AND NOT EXISTS (SELECT 1 FROM json_each(?) AS m LEFT JOIN sessions AS s ON s.id = m.key AND s.deleted_at = 0
	WHERE s.head IS NOT m.value)`

func quickAuditOf(rows int, marks bool) string {
	q := insertAuditInto + `SELECT * FROM (VALUES ` + auditValues + strings.Repeat(", "+auditValues, rows-1) + `)` +
		quickAuditWhere
	if marks {
		q += quickAuditMarks
	}
	return q
}

// insertAudit implements dialect.
func (d *sqliteDialect) insertAudit(ctx context.Context, t tx, rows []auditRow) error {
	ctx = context.WithoutCancel(ctx) // as in commit
	insert := t.StmtContext(ctx, d.hotWrites[insertAuditSQL])
	for i := range rows {
		if _, err := insert.ExecContext(ctx, auditArgs(nil, &rows[i])...); err != nil {
			return err
		}
	}
	return nil
}

// quickAudit implements dialect. A statement outside a transaction is one: it takes the lock, looks, writes and
// commits in a single call, where a transaction is four of them, with a goroutine that watches it.
func (d *sqliteDialect) quickAudit(ctx context.Context, end auditTail, marks map[outboard.SessionID]int64,
	rows []auditRow) (bool, error) {
	if len(rows) > quickRows {
		return false, nil
	}
	insert, err := d.quickAuditFor(ctx, len(rows), len(marks) > 0)
	if err != nil {
		return false, err
	}
	args := make([]any, 0, len(rows)*11+3)
	for i := range rows {
		args = auditArgs(args, &rows[i])
	}
	args = append(args, end.tree.Size(), end.hashes)
	if len(marks) > 0 {
		b, err := json.Marshal(marks)
		if err != nil {
			return false, err
		}
		args = append(args, string(b))
	}
	var res sql.Result
	err = retryLocked(ctx, d, func() (err error) {
		res, err = insert.ExecContext(context.WithoutCancel(ctx), args...) // as in commit
		return err
	})
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == int64(len(rows)), err
}

// quickAuditFor returns the statement for a group of n. Only the writer of audit records calls it, of whom there
// is one.
func (d *sqliteDialect) quickAuditFor(ctx context.Context, n int, marks bool) (_ *sql.Stmt, err error) {
	st := &d.quickAudits[0][n-1]
	if marks {
		st = &d.quickAudits[1][n-1]
	}
	if *st == nil {
		*st, err = d.write.PrepareContext(ctx, quickAuditOf(n, marks))
	}
	return *st, err
}

// auditArgs appends the values of a row, in the order of its columns.
func auditArgs(args []any, row *auditRow) []any {
	r := row.record
	return append(args, r.Num, micros(r.At), r.Org, r.Actor, r.Action, r.Resource, r.Decision, r.Rule, string(r.Detail),
		row.proof, row.hashes)
}

package store

import (
	"context"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
)

const auditEntrySQL = `SELECT num, ` + auditCols + `, proof, hashes FROM audit WHERE num = ?`

const redactAuditSQL = `UPDATE audit SET actor = ?, resource = ?, rule = ?, detail = ?, proof = ? WHERE num = ?`

// RedactAudit takes the text of some fields out of some records for good. Their hashes stay. The caller has
// recorded that it will.
func (s *Store) RedactAudit(ctx context.Context, nums []int64, fields []string) error {
	return s.update(ctx, "redacting audit records", func(t tx) error {
		for _, n := range nums {
			e, err := scanEntry(t.queryRow(ctx, auditEntrySQL, n))
			if err != nil {
				return err
			}
			before := string(e.Proof)
			if err := e.Redact(fields...); err != nil {
				return outboard.Errorf(outboard.Conflict, "redacting audit record %d: %w", n, err).
					WithHint("run 'outboard audit verify'")
			}
			if string(e.Proof) == before {
				continue
			}
			if _, err := t.exec(ctx, redactAuditSQL, e.Actor, e.Resource, e.Rule, string(e.Detail), e.Proof,
				n); err != nil {
				return err
			}
		}
		return nil
	})
}

const untakenSQL = `SELECT num, ` + auditCols + `, proof, hashes FROM audit WHERE num > ? ORDER BY num LIMIT ?`

const takeInSQL = `UPDATE audit SET hashes = ? WHERE num = ?`

// takeInAudit computes the hashes of the records that older programs wrote.
func takeInAudit(ctx context.Context, t tx) error {
	var tree audit.Tree
	for {
		page, err := collectTx(ctx, t, scanEntry, untakenSQL, tree.Size(), defaultPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for i := range page {
			leaf, err := audit.Leaf(&page[i].AuditRecord, page[i].Proof)
			if err != nil {
				return err
			}
			if _, err := t.exec(ctx, takeInSQL, tree.Add(leaf), page[i].Num); err != nil {
				return err
			}
		}
	}
}

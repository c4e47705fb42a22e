package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/store"
)

// MaxRedact bounds the records of one redaction: the record that speaks of it names each.
const MaxRedact = 1000

// AuditEntry is a record of the audit with what ties it to the log; see audit.Entry.
type AuditEntry = audit.Entry

// AuditQuery selects records; see store.AuditQuery.
type AuditQuery = store.AuditQuery

// AuditCheckpoint is the last signed state of the audit.
type AuditCheckpoint struct {
	Note   string // signed
	Public string // the key that checks it
	Size   int64
}

// auditor refuses callers who may not act on the log, which is one for all organizations.
func auditor(by outboard.Caller) error {
	if err := requireReader(by); err != nil {
		return err
	}
	if !by.Operator() || by.Role != outboard.RoleAdmin {
		return outboard.Errorf(outboard.Denied, "only the server's operator verifies, signs and redacts the audit").
			WithHint("use the key in admin.key of the data directory")
	}
	return nil
}

// Audit returns a page of records: the operator sees all of them, an organization's administrator those of the
// organization.
func (c *Control) Audit(ctx context.Context, by outboard.Caller, q AuditQuery) ([]AuditEntry, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	if by.Role != outboard.RoleAdmin {
		return nil, outboard.Errorf(outboard.Denied,
			"only an administrator sees the audit, and the caller's role is %s", quote(by.Role))
	}
	q.Org = ""
	if !by.Operator() {
		q.Org = string(by.In())
	}
	return c.store.AuditEntries(ctx, q)
}

// WholeAudit is Audit for who verifies the log: all of it or nothing.
func (c *Control) WholeAudit(ctx context.Context, by outboard.Caller, q AuditQuery) ([]AuditEntry, error) {
	if err := auditor(by); err != nil {
		return nil, err
	}
	return c.Audit(ctx, by, q)
}

// CheckpointAudit signs what is in the audit now.
func (c *Control) CheckpointAudit(ctx context.Context, by outboard.Caller) (AuditCheckpoint, error) {
	if err := auditor(by); err != nil {
		return AuditCheckpoint{}, err
	}
	if c.witness == nil {
		return AuditCheckpoint{}, outboard.Errorf(outboard.Unavailable, "this server signs no audit")
	}
	at, err := c.witness.Update(ctx, c.store)
	if err != nil {
		return AuditCheckpoint{}, outboard.Errorf(outboard.KindOf(err), "signing the audit: %w", err)
	}
	note, err := c.witness.Checkpoint()
	return AuditCheckpoint{Note: string(note), Public: c.witness.Public(), Size: at.Size}, err
}

// RedactAudit takes the text of fields out of records for good. First a record says which and why.
func (c *Control) RedactAudit(ctx context.Context, by outboard.Caller, nums []int64, fields []string,
	why string) error {
	if err := auditor(by); err != nil {
		return err
	}
	if len(nums) == 0 || len(nums) > MaxRedact {
		return invalid("records must have 1 to %d numbers, not %d", MaxRedact, len(nums))
	}
	if err := length("why", why, 1, maxTitle); err != nil {
		return err
	}
	if len(fields) == 0 {
		return invalid("fields must name at least one of %v", audit.Fields)
	}
	for _, f := range fields {
		if !slices.Contains(audit.Fields, f) {
			return invalid("fields may have %v, not %s", audit.Fields, quote(f))
		}
	}
	for _, n := range nums {
		if err := c.redactable(ctx, n); err != nil {
			return err
		}
	}
	err := c.record(ctx, by, audit.ActionRedact, fmt.Sprintf("%d records", len(nums)),
		audit.Redaction{Why: why, Fields: fields, Records: nums})
	if err != nil {
		return err
	}
	return c.store.RedactAudit(ctx, nums, fields)
}

// redactable refuses a record that is not there, and those that say what was redacted.
func (c *Control) redactable(ctx context.Context, n int64) error {
	list, err := c.store.AuditEntries(ctx, AuditQuery{After: n - 1, Limit: 1})
	if err != nil {
		return err
	}
	if len(list) == 0 || list[0].Num != n {
		return notFound("audit record", fmt.Sprint(n))
	}
	if list[0].Action == audit.ActionRedact {
		return invalid("record %d says what was redacted, and stays", n)
	}
	return nil
}

// AuditSettings records settings of this server that lower what protects it.
func (c *Control) AuditSettings(ctx context.Context, lowered map[string]string) error {
	if len(lowered) == 0 {
		return nil
	}
	detail, err := json.Marshal(lowered)
	if err != nil {
		return outboard.Errorf(outboard.Internal, "encoding an audit record: %w", err)
	}
	return c.store.Audit(ctx, outboard.AuditRecord{At: c.clock(), Org: outboard.DefaultOrg, Actor: "server",
		Action:   "config.lowered",
		Resource: "protection", Decision: outboard.Allowed, Rule: "configuration", Detail: detail})
}

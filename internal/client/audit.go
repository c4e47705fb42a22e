package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/outboard-dev/outboard"
)

// AuditEntry is a record of the audit with what ties it to the log.
type AuditEntry struct {
	outboard.AuditRecord
	Proof  []byte `json:"proof"`
	Hashes []byte `json:"hashes"`
}

// AuditCheckpoint is the signed state of the audit.
type AuditCheckpoint struct {
	Type   string `json:"type"`
	Size   int64  `json:"size"`
	Note   string `json:"note"`
	Public string `json:"public_key"`
}

// Audit lists records: order=asc or desc, and by actor, action, decision, text, since and until.
func (c *Client) Audit(ctx context.Context, query url.Values) iter.Seq2[AuditEntry, error] {
	return pages[AuditEntry](ctx, c, "/v1/outboard/audit", query)
}

// CheckpointAudit signs the audit as it is now.
func (c *Client) CheckpointAudit(ctx context.Context) (out AuditCheckpoint, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/outboard/audit/checkpoint", nil, nil, &out)
}

// RedactAudit takes the text of fields out of records for good.
func (c *Client) RedactAudit(ctx context.Context, nums []int64, fields []string, why string) error {
	in := map[string]any{"records": nums, "fields": fields, "why": why}
	return c.call(ctx, http.MethodPost, "/v1/outboard/audit/redact", nil, in, nil)
}

package api

import (
	"strconv"
	"time"

	"github.com/outboard-dev/outboard/internal/control"
)

// auditPage is how many records a page has at most: an export walks all of them.
const auditPage = 1000

type auditEntryOut struct {
	Type string `json:"type"`
	control.AuditEntry
}

// listAudit lists records, newest first unless order=asc. A page's cursor is the number of its last record.
func (s *server) listAudit(r *request) (any, error) {
	limit, err := r.limit(otherPage, auditPage)
	if err != nil {
		return nil, err
	}
	q := control.AuditQuery{Actor: r.query.Get("actor"), Action: r.query.Get("action"),
		Decision: r.query.Get("decision"), Text: r.query.Get("text"),
		Limit: limit + 1, Newest: true}
	switch order := r.query.Get("order"); order {
	case "", "desc":
	case "asc":
		q.Newest = false
	default:
		return nil, bad("order: must be asc or desc, not %q", clip(order))
	}
	for name, at := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if text := r.query.Get(name); text != "" {
			if *at, err = time.Parse(time.RFC3339, text); err != nil {
				return nil, bad("%s: %q is not a time as in 2006-01-02T15:04:05Z", name, clip(text))
			}
		}
	}
	if p := r.query.Get("page"); p != "" {
		n, err := strconv.ParseInt(p, 10, 64)
		if err != nil || n < 1 {
			return nil, bad("page: %q is not a cursor of this list", clip(p))
		}
		if q.Newest {
			q.Before = n
		} else {
			q.After = n
		}
	}
	read := s.ctl.Audit
	if r.query.Get("whole") == "true" {
		read = s.ctl.WholeAudit
	}
	list, err := read(r.Context(), r.by, q)
	if err != nil {
		return nil, err
	}
	out := listOut[auditEntryOut]{Data: []auditEntryOut{}}
	if len(list) > limit {
		list = list[:limit]
		next := strconv.FormatInt(list[limit-1].Num, 10)
		out.NextPage = &next
	}
	for _, e := range list {
		out.Data = append(out.Data, auditEntryOut{"outboard.audit.record", e})
	}
	return out, nil
}

// checkpointAudit signs the audit as it is now.
func (s *server) checkpointAudit(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	c, err := s.ctl.CheckpointAudit(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	return struct {
		Type   string `json:"type"`
		Size   int64  `json:"size"`
		Note   string `json:"note"`
		Public string `json:"public_key"`
	}{"outboard.audit.checkpoint", c.Size, c.Note, c.Public}, nil
}

// redactAudit takes text out of records.
func (s *server) redactAudit(r *request) (any, error) {
	var in struct {
		Records []int64  `json:"records" need:"yes"`
		Fields  []string `json:"fields" need:"yes"`
		Why     string   `json:"why" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if err := s.ctl.RedactAudit(r.Context(), r.by, in.Records, in.Fields, in.Why); err != nil {
		return nil, err
	}
	return struct {
		Type    string `json:"type"`
		Records int    `json:"records"`
	}{"outboard.audit.redaction", len(in.Records)}, nil
}

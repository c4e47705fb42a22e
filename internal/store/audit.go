package store

import (
	"context"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

const auditCols = `at, org, actor, action, resource, decision, rule, detail`

const insertAuditSQL = `INSERT INTO audit (` + auditCols + `) VALUES `

// maxAuditText bounds each text of an audit row: a name or path that is longer is evidence enough when cut.
const maxAuditText = 4 << 10

// auditing is a record on its way through the auditor. The sender owns it until it is queued and after done is closed.
type auditing struct {
	args []any
	err  error
	done chan struct{}
}

// Audit makes a record durable, and returns only then: whoever gets an error must not do what the record is about. Records that
// wait at the same time share a transaction. Texts that are too long are cut; a detail over outboard.MaxEventData is TooLarge.
func (s *Store) Audit(ctx context.Context, r outboard.AuditRecord) error {
	if len(r.Detail) > outboard.MaxEventData {
		return outboard.Errorf(outboard.TooLarge, "the detail of an audit record is %d bytes, over the limit of %d", len(r.Detail), outboard.MaxEventData)
	}
	if r.At.IsZero() {
		r.At = s.now()
	}
	a := &auditing{args: []any{micros(r.At), auditText(r.Org), auditText(r.Actor), auditText(r.Action), auditText(r.Resource),
		auditText(r.Decision), auditText(r.Rule), string(r.Detail)}, done: make(chan struct{})}
	select {
	case s.audits <- a:
	case <-s.closing:
		return errClosed
	case <-ctx.Done():
		return s.fail("writing an audit record", ctx.Err())
	}
	select {
	case <-a.done:
		return a.err
	case <-s.stopped: // the auditor is gone; the record was written, or nobody took it
		select {
		case <-a.done:
			return a.err
		default:
			return errClosed
		}
	}
}

// auditText cuts a text and makes it one that both databases store.
func auditText(s string) string { return auditTextOf(s, maxAuditText) }

func auditTextOf(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// auditor writes what is queued, in groups, until the store closes and the queue is empty.
func (s *Store) auditor() {
	for {
		select {
		case a := <-s.audits:
			s.auditGroup(a)
		case <-s.closing:
			select {
			case a := <-s.audits:
				s.auditGroup(a)
			default:
				return
			}
		}
	}
}

// auditGroup writes first and what waits behind it as one statement.
func (s *Store) auditGroup(first *auditing) {
	group := []*auditing{first}
	for len(group) < maxGroup {
		select {
		case a := <-s.audits:
			group = append(group, a)
			continue
		default:
		}
		break
	}
	var args []any
	for _, a := range group {
		args = append(args, a.args...)
	}
	row := "(" + marks(len(first.args)) + ")"
	query := insertAuditSQL + row + strings.Repeat(", "+row, len(group)-1)
	ctx, cancel := context.WithTimeout(context.Background(), commitWait)
	defer cancel()
	err := s.update(ctx, "writing audit records", func(t tx) error {
		_, err := t.exec(ctx, query, args...)
		return err
	})
	for _, a := range group {
		a.err = err
		close(a.done)
	}
}

// AuditQuery selects audit records.
type AuditQuery struct {
	Actor  string // "" = everybody
	Action string // "" = every action
	After  int64  // only records with a higher number
	Before int64  // only records with a lower number, 0 = no bound
	Newest bool   // newest first
	Limit  int    // 0 = a default
}

// AuditRecords returns one page.
func (s *Store) AuditRecords(ctx context.Context, q AuditQuery) ([]outboard.AuditRecord, error) {
	w := where{conds: []string{`num > ?`}, args: []any{q.After}}
	if q.Before > 0 {
		w.add(`num < ?`, q.Before)
	}
	if q.Actor != "" {
		w.add(`actor = ?`, q.Actor)
	}
	if q.Action != "" {
		w.add(`action = ?`, q.Action)
	}
	query := `SELECT num, ` + auditCols + ` FROM audit` + w.String() + order("num", !q.Newest) + ` LIMIT ?`
	return collect(ctx, s, "reading audit records", scanAudit, query, append(w.args, limitOr(q.Limit, defaultPage))...)
}

func scanAudit(sc scanner) (outboard.AuditRecord, error) {
	var r outboard.AuditRecord
	var at int64
	var detail string
	err := sc.Scan(&r.Num, &at, &r.Org, &r.Actor, &r.Action, &r.Resource, &r.Decision, &r.Rule, &detail)
	r.At = timeOf(at)
	if detail != "" {
		r.Detail = outboard.Raw(detail)
	}
	return r, err
}

const grantCols = `id, session, host, port, uses, granted_by, created_at`

const insertGrantSQL = `INSERT INTO net_grants (` + grantCols + `) VALUES (?, ?, ?, ?, ?, ?, ?)`

// PutNetGrant inserts a grant.
func (s *Store) PutNetGrant(ctx context.Context, g outboard.NetGrant) error {
	return s.update(ctx, "storing a network grant", func(t tx) error {
		_, err := t.exec(ctx, insertGrantSQL, string(g.ID), string(g.Session), g.Host, g.Port, g.Uses, g.By, micros(g.CreatedAt))
		return err
	})
}

const grantsSQL = `SELECT ` + grantCols + ` FROM net_grants WHERE session = ? AND uses <> 0 ORDER BY created_at, id`

// NetGrants returns the grants of a session that are not used up, oldest first.
func (s *Store) NetGrants(ctx context.Context, session outboard.SessionID) ([]outboard.NetGrant, error) {
	return collect(ctx, s, "listing network grants", scanGrant, grantsSQL, string(session))
}

func scanGrant(sc scanner) (outboard.NetGrant, error) {
	var g outboard.NetGrant
	var created int64
	err := sc.Scan(&g.ID, &g.Session, &g.Host, &g.Port, &g.Uses, &g.By, &created)
	g.CreatedAt = timeOf(created)
	return g, err
}

const useGrantSQL = `UPDATE net_grants SET uses = uses - 1 WHERE id = ? AND uses > 0`

// UseNetGrant takes one use of a counted grant, and reports whether there was one: two requests cannot share the last.
func (s *Store) UseNetGrant(ctx context.Context, id outboard.NetGrantID) (bool, error) {
	var n int64
	err := s.update(ctx, "using a network grant", func(t tx) (err error) {
		n, err = t.exec(ctx, useGrantSQL, string(id))
		return err
	})
	return n == 1, err
}

const auditCountSQL = `SELECT COUNT(*) FROM audit WHERE actor = ? AND action = ? AND decision = ? AND at >= ?`

// CountAudit returns how many records an actor has of one action and decision since a time.
func (s *Store) CountAudit(ctx context.Context, actor, action, decision string, since time.Time) (n int64, err error) {
	err = s.queryRow(ctx, auditCountSQL, actor, action, decision, micros(since)).Scan(&n)
	return n, s.fail("counting audit records", err)
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// defaultPage is a page of a list without a limit.
const defaultPage = 100

const insertSessionSQL = `INSERT INTO sessions (id, thread, head, last_at, updated_at, phase, stop, inbox, urgent, wake_at,
	input, output, cache_read, cache_write_5m, cache_write_1h, active, running_since, title, metadata,
	archived_at, ready_at, cost, agent, agent_version, environment, created_at, epoch, worker, org, person)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING num`

const insertConfigSQL = `INSERT INTO session_configs (session, config) VALUES (?, ?)`

// CreateSession inserts header and config and appends the first events, all in one transaction. It returns the
// header after them. Conflict if the id exists.
func (s *Store) CreateSession(ctx context.Context, h outboard.Header, cfg outboard.SessionConfig,
	events ...outboard.Event) (outboard.Header, error) {
	c := Commit{Session: h.ID, Expect: h.Head, Events: events}
	if err := c.check(); err != nil {
		return h, err
	}
	now := s.now()
	r := newRow(h, now)
	stored, err := r.apply(&c, now)
	if err != nil {
		return h, err
	}
	err = s.update(ctx, "creating session", func(t tx) error { return r.insert(ctx, t, cfg, stored) })
	if s.d.unique(err) {
		return h, ErrDuplicate
	}
	if err != nil {
		return h, err
	}
	s.announce(map[outboard.SessionID]*row{h.ID: r})
	return r.Header, nil
}

// newRow is the row of a session that is about to be created.
func newRow(h outboard.Header, now time.Time) *row {
	if h.Phase == "" {
		h.Phase = outboard.PhaseIdle
	}
	if h.Org == "" {
		h.Org = outboard.DefaultOrg
	}
	if h.CreatedAt.IsZero() {
		h.CreatedAt = now.UTC().Truncate(time.Microsecond)
	}
	if h.UpdatedAt.IsZero() {
		h.UpdatedAt = h.CreatedAt
	}
	return &row{Header: h, dirty: true}
}

// insert writes a new session with its config and first events.
func (r *row) insert(ctx context.Context, t tx, cfg outboard.SessionConfig, events []outboard.Event) error {
	args := append([]any{string(r.ID), string(r.Thread)}, r.headerArgs()...)
	args = append(args, string(r.AgentID), r.AgentVersion, string(r.EnvironmentID), micros(r.CreatedAt), r.Epoch,
		string(r.Worker), string(r.Org), string(r.User))
	if err := t.queryRow(ctx, insertSessionSQL, args...).Scan(&r.num); err != nil {
		return err
	}
	if _, err := t.exec(ctx, insertConfigSQL, r.num, mustJSON(cfg)); err != nil {
		return err
	}
	if cfg.Budget > 0 {
		b := outboard.Budget{Scope: outboard.BudgetSession, Target: string(r.ID), Org: r.Org,
			Limit: outboard.Spend{Cost: cfg.Budget}}
		if _, err := t.exec(ctx, putBudgetSQL, putBudgetArgs(&b, micros(r.CreatedAt))...); err != nil {
			return err
		}
	}
	for i := range events {
		if _, err := t.exec(ctx, insertEventSQL, eventArgs(r.num, &events[i])...); err != nil {
			return err
		}
	}
	return nil
}

// Session returns a header. NotFound also for deleted sessions.
func (s *Store) Session(ctx context.Context, id outboard.SessionID) (outboard.Header, error) {
	r, err := one(ctx, s, "session", id, scanHeader, loadHeaderSQL, string(id))
	return r.Header, err
}

const configSQL = `SELECT c.config FROM sessions AS s JOIN session_configs AS c ON c.session = s.num WHERE s.id = ? AND s.deleted_at = 0`

// SessionConfig returns the session's current config.
func (s *Store) SessionConfig(ctx context.Context, id outboard.SessionID) (outboard.SessionConfig, error) {
	return one(ctx, s, "session", id, scanJSON[outboard.SessionConfig], configSQL, string(id))
}

// scanJSON reads a single JSON column.
func scanJSON[T any](sc scanner) (T, error) {
	var v T
	var text string
	if err := sc.Scan(&text); err != nil {
		return v, err
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return v, outboard.Errorf(outboard.Internal, "decoding a column: %w", err)
	}
	return v, nil
}

// scanIn reads a JSON column and the organization beside it.
func scanIn[T any](sc scanner, org func(*T) *outboard.OrgID) (T, error) {
	var v T
	var text, owner string
	if err := sc.Scan(&text, &owner); err != nil {
		return v, err
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return v, outboard.Errorf(outboard.Internal, "decoding a column: %w", err)
	}
	*org(&v) = outboard.OrgID(owner)
	return v, nil
}

// orgText is an organization as a column: what nobody set is the default one.
func orgText(org outboard.OrgID) string {
	if org == "" {
		return outboard.DefaultOrg
	}
	return string(org)
}

// SessionFilter selects sessions, newest first (created_at, id) unless Asc. Cursor is the id of the last one of
// the page before.
type SessionFilter struct {
	Org             outboard.OrgID // "" = of all
	Phases          []outboard.Phase
	Agent           outboard.AgentID
	AgentVersion    int
	IncludeArchived bool
	From, Until     time.Time // created_at: From inclusive, Until exclusive
	Asc             bool
	Cursor          outboard.SessionID
	Limit           int // 0 = 100
}

// Sessions returns one page. A cursor that names no session is Invalid.
func (s *Store) Sessions(ctx context.Context, f SessionFilter) ([]outboard.Header, error) {
	w := where{conds: []string{`deleted_at = 0`}}
	w.in(f.Org)
	if len(f.Phases) > 0 {
		w.add(`phase IN (`+marks(len(f.Phases))+`)`, texts(f.Phases)...)
	}
	if f.Agent != "" {
		w.add(`agent = ?`, string(f.Agent))
	}
	if f.AgentVersion != 0 {
		w.add(`agent_version = ?`, f.AgentVersion)
	}
	if !f.IncludeArchived {
		w.add(`archived_at = 0`)
	}
	if !f.From.IsZero() {
		w.add(`created_at >= ?`, micros(f.From))
	}
	if !f.Until.IsZero() {
		w.add(`created_at < ?`, micros(f.Until))
	}
	if err := s.cursor(ctx, &w, "sessions", string(f.Cursor), f.Asc); err != nil {
		return nil, err
	}
	query := `SELECT ` + headerCols + ` FROM sessions` + w.String() + order("created_at, id", f.Asc) + ` LIMIT ?`
	rows, err := collect(ctx, s, "listing sessions", scanHeader, query,
		append(w.args, limitOr(f.Limit, defaultPage))...)
	out := make([]outboard.Header, len(rows))
	for i, r := range rows {
		out[i] = r.Header
	}
	return out, err
}

// where collects the conditions of a list query.
type where struct {
	conds []string
	args  []any
	org   outboard.OrgID
}

// in limits the query, and the row its cursor may name, to an organization; "" is all of them.
func (w *where) in(org outboard.OrgID) {
	if w.org = org; org != "" {
		w.add(`org = ?`, string(org))
	}
}

func (w *where) add(cond string, args ...any) {
	w.conds = append(w.conds, cond)
	w.args = append(w.args, args...)
}

// String is the WHERE clause, or nothing.
func (w *where) String() string {
	if len(w.conds) == 0 {
		return ""
	}
	return ` WHERE ` + strings.Join(w.conds, ` AND `)
}

// cursor adds the condition that a list ordered by (created_at, id) goes on after the row with this id. The row
// may have been archived or hidden since; it only has to exist.
func (s *Store) cursor(ctx context.Context, w *where, table, id string, asc bool) error {
	if id == "" {
		return nil
	}
	var at int64
	query, args := `SELECT created_at FROM `+table+` WHERE id = ?`, []any{id}
	if w.org != "" {
		query, args = query+` AND org = ?`, append(args, string(w.org))
	}
	err := s.queryRow(ctx, query, args...).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return outboard.Errorf(outboard.Invalid, "the page cursor %q names no row", id)
	}
	if err != nil {
		return s.fail("reading cursor", err)
	}
	if asc {
		w.add(`(created_at, id) > (?, ?)`, at, id)
	} else {
		w.add(`(created_at, id) < (?, ?)`, at, id)
	}
	return nil
}

const hideSessionSQL = `UPDATE sessions SET deleted_at = ?, worker = '', ready_at = 0, epoch = epoch + 1 WHERE id = ? AND deleted_at = 0`

const deleteFilesSQL = `DELETE FROM files WHERE session = ?`

// DeleteSession hides the session and everything of it for good. Its log and what else names it are removed
// later, by Purge, since forks may read them. Rows of its sandboxes stay until fleet has destroyed the machines.
func (s *Store) DeleteSession(ctx context.Context, id outboard.SessionID) error {
	now := micros(s.now())
	err := s.update(ctx, "deleting session", func(t tx) error {
		n, err := t.exec(ctx, hideSessionSQL, now, string(id))
		if err == nil && n == 0 {
			err = notFound("session", id)
		}
		if err != nil {
			return err
		}
		if _, err := t.exec(ctx, deleteFilesSQL, string(id)); err != nil {
			return err
		}
		_, err = t.exec(ctx, deleteCheckpointsSQL, string(id), string(id))
		return err
	})
	if err == nil {
		s.announce(map[outboard.SessionID]*row{id: {Header: outboard.Header{ID: id}, dirty: true}})
	}
	return err
}

package store

import (
	"encoding/json"
	"time"

	"github.com/outboard-dev/outboard"
)

// row is a session's row: its header, and what only the store knows of it.
type row struct {
	outboard.Header
	num     int64
	readyAt int64 // µs from when on a worker should claim it; 0 = nothing to do

	// How it differs from the database's row while a group is planned.
	base     int64 // the head there
	dirty    bool  // it differs
	full     bool  // in more than head, last_at and updated_at
	placed   bool  // in more than what most steps of a turn change too, which no index is about
	released bool  // the lease was given up
	claimed  bool  // the lease was taken by an InlineClaim, and so Epoch is one more than there
}

// headerCols are the columns scanHeader reads, in its order.
const headerCols = `num, ready_at, id, thread, head, last_at, phase, stop, inbox, urgent, wake_at,
	input, output, cache_read, cache_write_5m, cache_write_1h, active, running_since, title, metadata,
	agent, agent_version, environment, created_at, updated_at, archived_at, epoch, worker, org, person, cost`

// scanner is a *sql.Row or *sql.Rows (or their pgx counterparts).
type scanner interface{ Scan(dest ...any) error }

// scanHeader reads one row of headerCols.
func scanHeader(sc scanner) (row, error) {
	var (
		r                                              row
		id, thread, phase, agent, env, worker, org, by string // named types would be scanned by reflection
		stop, metadata                                 string
		last, wake, active, since, created, upd, arch  int64
	)
	h := &r.Header
	err := sc.Scan(&r.num, &r.readyAt, &id, &thread, &h.Head, &last, &phase, &stop, &h.Inbox, &h.Urgent, &wake,
		&h.Usage.Input, &h.Usage.Output, &h.Usage.CacheRead, &h.Usage.CacheWrite5m, &h.Usage.CacheWrite1h, &active, &since,
		&h.Title, &metadata, &agent, &h.AgentVersion, &env, &created, &upd, &arch, &h.Epoch, &worker, &org, &by, &h.Usage.Cost)
	if err != nil {
		return r, err
	}
	h.ID, h.Thread, h.Phase = outboard.SessionID(id), outboard.ThreadID(thread), outboard.Phase(phase)
	h.AgentID, h.EnvironmentID, h.Worker = outboard.AgentID(agent), outboard.EnvironmentID(env), outboard.WorkerID(worker)
	h.Org, h.User = outboard.OrgID(org), outboard.UserID(by)
	r.base = h.Head
	h.LastAt, h.WakeAt, h.RunningSince = timeOf(last), timeOf(wake), timeOf(since)
	h.CreatedAt, h.UpdatedAt, h.ArchivedAt = timeOf(created), timeOf(upd), timeOf(arch)
	h.Active = time.Duration(active) * time.Microsecond
	if stop != "" {
		if err := json.Unmarshal([]byte(stop), &h.Stop); err != nil {
			return r, outboard.Errorf(outboard.Internal, "decoding stop of %s: %w", h.ID, err)
		}
	}
	if metadata != "" {
		if err := json.Unmarshal([]byte(metadata), &h.Metadata); err != nil {
			return r, outboard.Errorf(outboard.Internal, "decoding metadata of %s: %w", h.ID, err)
		}
	}
	return r, nil
}

// setHeader is the assignment list of an UPDATE that headerArgs fills: what an append may change. The worker is
// not written back, because it changes without the log.
const setHeader = setCourse + `, title = ?, metadata = ?, archived_at = ?, ready_at = ?, cost = ?`

// setCourse is the part of setHeader that courseArgs fills.
const setCourse = `head = ?, last_at = ?, updated_at = ?, phase = ?, stop = ?, inbox = ?, urgent = ?, wake_at = ?,
	input = ?, output = ?, cache_read = ?, cache_write_5m = ?, cache_write_1h = ?, active = ?, running_since = ?`

// headerArgs are the values of setHeader.
func (r *row) headerArgs() []any {
	h := &r.Header
	return append(r.courseArgs(), h.Title, jsonText(h.Metadata), micros(h.ArchivedAt), r.readyAt, int64(h.Usage.Cost))
}

// courseArgs are the values of setCourse, with room for more.
func (r *row) courseArgs() []any {
	h := &r.Header
	return append(make([]any, 0, 32), h.Head, micros(h.LastAt), micros(h.UpdatedAt), string(h.Phase), jsonText(h.Stop),
		h.Inbox, h.Urgent,
		micros(h.WakeAt), h.Usage.Input, h.Usage.Output, h.Usage.CacheRead, h.Usage.CacheWrite5m, h.Usage.CacheWrite1h,
		h.Active.Microseconds(), micros(h.RunningSince))
}

// setReady brings ready_at in step with the header. A session keeps its place in the queue while it stays runnable.
func (r *row) setReady(now time.Time) {
	switch {
	case r.Phase == outboard.PhaseRetrying && r.Urgent == 0, (r.Parked() || r.Broke()) && r.Urgent == 0 &&
		!r.WakeAt.IsZero():
		r.readyAt = max(micros(r.WakeAt), 1)
	case !r.Runnable(now):
		r.readyAt = 0
	case r.readyAt == 0 || r.readyAt > micros(now):
		r.readyAt = micros(now)
	}
}

// differs reports whether an append changed more than head, last_at and updated_at. Title and metadata are not
// compared: only one type of event changes them.
func (r *row) differs(old *row) bool {
	a, b := &r.Header, &old.Header
	return a.Phase != b.Phase || a.Stop != b.Stop || a.Inbox != b.Inbox || a.Urgent != b.Urgent ||
		!a.WakeAt.Equal(b.WakeAt) ||
		a.Usage != b.Usage || a.Active != b.Active || !a.RunningSince.Equal(b.RunningSince) || r.moved(old)
}

// moved reports whether an append changed what a session is found by.
func (r *row) moved(old *row) bool {
	return !r.ArchivedAt.Equal(old.ArchivedAt) || r.readyAt != old.readyAt
}

// jsonText encodes a small column that is never queried; nothing is the empty string.
func jsonText[T any](v T) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("store: encoding a column: " + err.Error()) // string maps and plain structs of ours
	}
	if s := string(b); s != "null" {
		return s
	}
	return ""
}

// micros is a time as a column: µs since 1970, 0 for no time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// timeOf is the inverse of micros.
func timeOf(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// flag is a bool as a column.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

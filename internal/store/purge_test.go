package store_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// namedBy are the rows that name a session, by its id or its number.
var namedBy = map[string]string{
	"events": `session = (SELECT num FROM sessions WHERE id = '%s')`, "session_configs": `session = (SELECT num FROM sessions WHERE id = '%s')`,
	"lineage": `session = (SELECT num FROM sessions WHERE id = '%s')`, "net_grants": `session = '%s'`, "net_hosts": `id = '%s'`, "net_usage": `id = '%s'`,
	"budgets": `id = 'session:%s'`, "budget_holds": `session = '%s'`, "approvals": `session = '%s'`, "grants": `session = '%s'`,
	"grant_uses": `id = 'grant of %s'`, "policies": `target = '%s'`,
}

// name stores a row in each of those tables that a session does not have by itself.
func name(t *testing.T, db *sql.DB, id outboard.SessionID) {
	t.Helper()
	for _, q := range []string{
		`INSERT INTO net_grants (id, session, host, port, uses, granted_by, created_at) VALUES ('ng %[1]s', '%[1]s', 'h', 0, 1, 'k', 1)`,
		`INSERT INTO net_hosts (id, host) VALUES ('%[1]s', 'h')`,
		`INSERT INTO net_usage (id, requests, bytes, hosts, updated_at) VALUES ('%[1]s', 1, 1, 1, 1)`,
		`INSERT INTO budgets (id, scope, target, org, limits, created_at, updated_at) VALUES ('session:%[1]s', 'session', '%[1]s', 'default', '{}', 1, 1)`,
		`INSERT INTO budget_holds (budget, session, cost, tokens, steps) VALUES ('owner:o', '%[1]s', 1, 1, 1)`,
		`INSERT INTO approvals (id, session, call, action, resource, digest, request, why, rules, approver, owner, state, created_at, expires_at, answer)
			VALUES ('apr %[1]s', '%[1]s', 'c', 'bash', 'r', 'd', 'rm -rf secret', 'w', '', 'any', '', 'allowed', 1, 2, '')`,
		`INSERT INTO grants (id, human, agent, session, actions, resources, not_before, expires_at, max_uses, uses, approved_by, approved_name, why, created_at,
			revoked_at) VALUES ('grant of %[1]s', '', '', '%[1]s', '["bash"]', '["*"]', 0, 9, 0, 0, 'k', 'n', 'w', 1, 0)`,
		`INSERT INTO grant_uses (id, item, at) VALUES ('grant of %[1]s', 'i', 1)`,
		`INSERT INTO policies (id, level, target, version, body, created_at, created_by) VALUES ('p %[1]s', 'session', '%[1]s', 1, 'b', 1, 'k')`,
	} {
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf(q, id)); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func count(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// Broken if what a deleted session said and did stays in the database, if a fork of it loses what it shares, the
// budget or the policy that holds for it, or if another session loses anything.
func TestPurge(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		db := raw(t, cfg)
		left := func(id outboard.SessionID) (tables []string) {
			for table, where := range namedBy {
				if count(t, db, fmt.Sprintf(`SELECT COUNT(*) FROM `+table+` WHERE `+where, id)) > 0 {
					tables = append(tables, table)
				}
			}
			return tables
		}
		purge := func(want int) {
			t.Helper()
			if n, err := s.Purge(t.Context(), s.Now().Add(time.Second)); err != nil || n != want {
				t.Errorf("%d sessions purged, %v; want %d", n, err, want)
			}
		}
		remove := func(id outboard.SessionID) {
			t.Helper()
			if err := s.DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		a, other := newSession(t, s), newSession(t, s)
		for range 6 { // more than one transaction removes
			var many []outboard.Event
			for range outboard.MaxAppend {
				many = append(many, said("x"))
			}
			mustAppend(t, s, a.ID, many...)
		}
		head := mustSession(t, s, a.ID).Head
		if head < 600 {
			t.Fatalf("a log of %d events is not long", head)
		}
		b := forkOf(t, s, a.ID, head)
		c := forkOf(t, s, b.ID, 3) // shares nothing with b, and is of its tree all the same
		for _, id := range []outboard.SessionID{a.ID, b.ID, c.ID, other.ID} {
			name(t, db, id)
		}
		logs := map[outboard.SessionID][]string{}
		for _, id := range []outboard.SessionID{b.ID, c.ID, other.ID} {
			logs[id] = ids(readAll(t, s, id))
		}
		whole := func(id outboard.SessionID) {
			t.Helper()
			if got := ids(readAll(t, s, id)); strings.Join(got, " ") != strings.Join(logs[id], " ") {
				t.Errorf("the log of %s has %d events, and had %d", id, len(got), len(logs[id]))
			}
		}
		remove(a.ID)
		purge(0)
		whole(b.ID)
		whole(c.ID)
		for _, id := range []outboard.SessionID{a.ID, other.ID} { // deleted is not enough
			q := fmt.Sprintf(`DELETE FROM events WHERE session = (SELECT num FROM sessions WHERE id = '%s')`, id)
			if _, err := db.ExecContext(t.Context(), q); err == nil || !strings.Contains(err.Error(), "insert-only") {
				t.Errorf("%s: %v", q, err)
			}
		}
		remove(b.ID)
		purge(0)
		whole(c.ID)
		if len(left(a.ID)) != len(namedBy)-1 || len(left(b.ID)) != len(namedBy) { // a is no fork
			t.Errorf("a fork lives, and there is left: %v, %v", left(a.ID), left(b.ID))
		}
		remove(c.ID)
		if n, err := s.Purge(t.Context(), s.Now().Add(-time.Minute)); err != nil || n != 0 {
			t.Errorf("%d purged that were deleted just now, %v", n, err)
		}
		// A server that was killed in between has begun with c, and removed a part of its log.
		for _, q := range []string{`UPDATE sessions SET purge = 1 WHERE id = '%s'`,
			`DELETE FROM events WHERE session = (SELECT num FROM sessions WHERE id = '%s') AND type = 'session.forked'`} {
			if _, err := db.ExecContext(t.Context(), fmt.Sprintf(q, c.ID)); err != nil {
				t.Fatal(err)
			}
		}
		purge(3)
		purge(0)
		for _, id := range []outboard.SessionID{a.ID, b.ID, c.ID} {
			if l := left(id); len(l) > 0 {
				t.Errorf("of %s there is left: %v", id, l)
			}
			if n := count(t, db, fmt.Sprintf(`SELECT COUNT(*) FROM sessions WHERE id = '%s' AND title = '' AND metadata = ''`, id)); n != 1 {
				t.Errorf("the row of %s is gone, or says more than that there was one", id)
			}
		}
		whole(other.ID)
		if l := left(other.ID); len(l) != len(namedBy)-1 {
			t.Errorf("of a session that lives there is left: %v", l)
		}
		if next := newSession(t, s); len(readAll(t, s, next.ID)) != 1 {
			t.Error("a new session has events of another one")
		}
	})
}

// Broken if of more deleted sessions than are looked up at a time something stays, one is counted twice, or a
// session that lives loses something.
func TestPurgeOfMany(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		db := raw(t, cfg)
		const most = 230
		living := newSession(t, s)
		name(t, db, living.ID)
		for range most {
			id := newSession(t, s).ID
			name(t, db, id)
			if err := s.DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		name(t, db, "sesn_last") // whose policy is the newest of all
		if n, err := s.Purge(t.Context(), s.Now().Add(time.Second)); err != nil || n != most {
			t.Errorf("%d sessions purged, %v; want %d", n, err, most)
		}
		for _, table := range []string{"approvals", "grants", "grant_uses", "policies", "net_usage", "budgets"} {
			if n := count(t, db, `SELECT COUNT(*) FROM `+table); n != 2 {
				t.Errorf("%s has %d rows, want those of two", table, n)
			}
		}
		if n := count(t, db, `SELECT COUNT(*) FROM sessions WHERE purge = 2`); n != most {
			t.Errorf("%d are marked as purged", n)
		}
	})
}

// Broken if rows of sandboxes, expired files and counters pile up for ever, or one goes that is still asked for.
func TestTidyRows(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := s.Now().UTC().Truncate(time.Microsecond)
		living, deleted := newSession(t, s), newSession(t, s)
		long, just := now.Add(-48*time.Hour), now.Add(-time.Minute)
		put := func(id, state string, of outboard.SessionID, at time.Time) {
			t.Helper()
			if err := s.PutSandbox(t.Context(), outboard.Sandbox{ID: outboard.SandboxID(id), Session: of, Host: "h",
				State: state, CreatedAt: at, UpdatedAt: at}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 1100 {
			put(fmt.Sprint("box", i), "destroyed", "", long)
		}
		put("old", "destroyed", deleted.ID, long)
		put("recent", "destroyed", deleted.ID, just)
		put("alive", "live", deleted.ID, long)
		put("of a session", "destroyed", living.ID, long)
		if err := s.DeleteSession(t.Context(), deleted.ID); err != nil {
			t.Fatal(err)
		}
		if n, err := s.TidySandboxes(t.Context(), now.Add(-24*time.Hour)); err != nil || n != 1101 {
			t.Errorf("%d rows deleted, %v", n, err)
		}
		for id, want := range map[outboard.SandboxID]bool{"old": false, "box7": false, "recent": true, "alive": true,
			"of a session": true} {
			if _, err := s.Sandbox(t.Context(), id); (err == nil) != want {
				t.Errorf("%s: %v", id, err)
			}
		}
		for id, at := range map[outboard.FileID]time.Time{"file_over": long, "file_just": just, "file_always": {}} {
			if err := s.PutFile(t.Context(), outboard.File{ID: id, Filename: "f", CreatedAt: long,
				ExpiresAt: at}); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := s.TidyFiles(t.Context(), now.Add(-24*time.Hour)); err != nil || n != 1 {
			t.Errorf("%d files deleted, %v", n, err)
		}
		for id, want := range map[outboard.FileID]bool{"file_over": false, "file_just": true, "file_always": true} {
			if _, err := s.File(t.Context(), id); (err == nil) != want {
				t.Errorf("%s: %v", id, err)
			}
		}
		for key, start := range map[string]time.Time{"over": now.Add(-40 * 24 * time.Hour),
			"long": now.Add(-29 * 24 * time.Hour)} {
			if ok, err := s.TakeRate(t.Context(), key, start, 1); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		if n, err := s.TidyRates(t.Context(), now.Add(-31*24*time.Hour)); err != nil || n != 1 {
			t.Errorf("%d counters deleted, %v", n, err)
		}
		if ok, err := s.TakeRate(t.Context(), "long", now.Add(-29*24*time.Hour), 1); err != nil || ok {
			t.Errorf("the counter of a window that goes on began anew: %v, %v", ok, err)
		}
	})
}

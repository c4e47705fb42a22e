package store_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
	sqlite3 "modernc.org/sqlite/lib"
)

// An upgrade must keep what any released version wrote: testdata/schema/NNNN.sql holds rows as schema NNNN has them.
func TestMigrateFromEveryRelease(t *testing.T) {
	latest, err := store.LatestSchema()
	if err != nil || latest == 0 {
		t.Fatalf("%d schemas, %v", latest, err)
	}
	for v := 1; v <= latest; v++ {
		if testing.Short() && v > 1 && v < latest-1 { // the race detector sees the same code for all of them
			continue
		}
		t.Run(fmt.Sprintf("%04d", v), func(t *testing.T) {
			rows, err := os.ReadFile(fmt.Sprintf("testdata/schema/%04d.sql", v))
			if err != nil {
				t.Fatalf("a released schema without rows to test it: %v", err)
			}
			storetest.EachConfig(t, func(t *testing.T, cfg store.Config) { upgrade(t, cfg, v, string(rows)) })
		})
	}
}

func upgrade(t *testing.T, cfg store.Config, version int, rows string) {
	old, err := store.OpenAt(t.Context(), cfg, version)
	if err != nil {
		t.Fatal(err)
	}
	bytes := "BLOB"
	if cfg.URL != "" {
		bytes = "BYTEA"
	}
	if _, err := old.Exec(t.Context(), strings.ReplaceAll(rows, "BYTES", bytes)); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, cfg)
	if log := readAll(t, s, "sesn_1"); len(log) != 2 || log[1].ID != "sevt_2" ||
		string(log[1].Data) != `{"content":[]}` {
		t.Errorf("the log is %+v", log)
	}
	h := mustSession(t, s, "sesn_1")
	if h.Head != 2 || h.Inbox != 1 || h.Stop.Type != "end_turn" || h.Metadata["a"] != "b" ||
		h.Usage.CacheWrite1h != 5 || h.Epoch != 3 {
		t.Errorf("the header is %+v", h)
	}
	if got := mustAppend(t, s, "sesn_1", said("x")); got[0].Seq != 3 {
		t.Errorf("an append after the upgrade is at %d", got[0].Seq)
	}
	if ws, err := s.Waiting(t.Context(), "sesn_1"); err != nil || len(ws) != 1 {
		t.Errorf("waiting: %v, %v", ws, err)
	}
	if c, err := s.SessionConfig(t.Context(), "sesn_1"); err != nil || c.Environment != "env_1" {
		t.Errorf("config: %+v, %v", c, err)
	}
	for what, err := range map[string]error{
		"agent":       second(s.Agent(t.Context(), "agent_1", 0)),
		"environment": second(s.Environment(t.Context(), "env_1")),
		"file":        second(s.File(t.Context(), "file_1")),
		"checkpoint":  second(s.Checkpoint(t.Context(), "ckpt_1")),
		"sandbox":     second(s.Sandbox(t.Context(), "sbx_1")),
		"key":         second(s.KeyByHash(t.Context(), "h")),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if version == 23 { // which had two environments of one name
		if err := s.PutEnvironment(t.Context(), outboard.Environment{ID: "env_2", Name: "e", Description: "d",
			Org: outboard.DefaultOrg}); err != nil {
			t.Errorf("changing the environment that shares its name: %v", err)
		}
		if err := s.PutEnvironment(t.Context(), outboard.Environment{ID: "env_3", Name: "e",
			Org: outboard.DefaultOrg}); outboard.KindOf(err) != outboard.Conflict {
			t.Errorf("a third environment of the name: %v", err)
		}
		if err := s.PutEnvironment(t.Context(), outboard.Environment{ID: "env_2", Name: "f",
			Org: outboard.DefaultOrg}); err != nil {
			t.Errorf("renaming it: %v", err)
		}
	}
	if version >= 3 {
		if log := readAll(t, s, "sesn_2"); len(log) != 2 || log[0].ID != "sevt_1" || log[1].ID != "sevt_3" {
			t.Errorf("the fork's log is %+v", log)
		}
	}
	if version >= 6 {
		if b, err := s.BoxOf(t.Context(), "sbx_2"); err != nil || b.ID != "boxa" {
			t.Errorf("box: %+v, %v", b, err)
		}
		if n, err := s.Snapshot(t.Context(), outboard.DefaultOrg, "n"); err != nil || n.ID != "snapa" {
			t.Errorf("snapshot: %+v, %v", n, err)
		}
	}
	if version >= 16 {
		m, err := s.Template(t.Context(), outboard.DefaultOrg, "n")
		tagged, terr := s.TaggedBuilds(t.Context())
		lines, lerr := s.TemplateLog(t.Context(), "b1", 0, 9)
		ref, ferr := s.TemplateFile(t.Context(), "tpla", "h")
		if err := errors.Join(err, terr, lerr, ferr); err != nil || m.ID != "tpla" || len(tagged) != 1 ||
			len(lines) != 1 || ref.Size != 1 {
			t.Errorf("template: %+v, %+v, %+v, %+v, %v", m, tagged, lines, ref, err)
		}
	}
	if version >= 5 { // those of a schema before 0018 are one person's
		list, err := s.Approvals(t.Context(), store.ApprovalFilter{})
		if err != nil || len(list) == 0 {
			t.Errorf("approvals: %+v, %v", list, err)
		}
		for _, a := range list {
			if several := version >= 18; (a.Needs == 2) != several || (len(a.Votes) == 1) != several || several &&
				a.Votes[0].Name != "ann" {
				t.Errorf("approval %s needs %d, with the votes %+v", a.ID, a.Needs, a.Votes)
			}
		}
	}
	k, err := s.Key(t.Context(), "apikey_1")
	if kind := map[bool]outboard.KeyKind{true: outboard.KeyOperator,
		false: outboard.KeyAPI}[version < 10]; err != nil || k.Org != outboard.DefaultOrg || k.Kind != kind {
		t.Errorf("the old key: %+v, %v, want %s", k, err, kind)
	}
	if a, err := s.Agent(t.Context(), "agent_1", 0); err != nil || a.Org != outboard.DefaultOrg ||
		h.Org != outboard.DefaultOrg {
		t.Errorf("what was there belongs to %q and %q, %v", a.Org, h.Org, err)
	}
	if version >= 10 {
		k, err := s.KeyByHash(t.Context(), "h2")
		list, uerr := s.UsersBySubject(t.Context(), "https://idp.test", "s")
		if len(list) != 1 {
			t.Fatalf("users %+v, %v", list, uerr)
		}
		u := list[0]
		if err != nil || uerr != nil || k.Org != "org_1" || k.User != u.ID || u.Role != outboard.RoleDeveloper ||
			len(k.Scopes) != 1 {
			t.Errorf("key %+v, user %+v, %v, %v", k, u, err, uerr)
		}
	}
	if version >= 20 { // what was made before 0021 is its person's as well
		row, err := s.Sandbox(t.Context(), "sbx_3")
		b, berr := s.Box(t.Context(), "boxb")
		if err != nil || berr != nil || row.Person != "user_1" || b.Person != "user_1" {
			t.Errorf("sandbox %+v, box %+v, %v, %v", row, b, err, berr)
		}
	}
	if hs, err := s.Claim(t.Context(), newWorker(t, s), 9); err != nil || len(hs) != 1 || hs[0].Epoch != 4 {
		t.Errorf("claimed %v, %v", hs, err)
	}
}

func second[T any](_ T, err error) error { return err }

// The dialects must move in step, else a number means two things.
func TestDialectsHaveSameMigrations(t *testing.T) {
	var names [2][]string
	for i, d := range []string{"sqlite", "postgres"} {
		found, err := fs.Glob(store.Migrations, "migrations/"+d+"/*.sql")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			names[i] = append(names[i], strings.TrimPrefix(f, "migrations/"+d))
		}
	}
	if a, b := fmt.Sprint(names[0]), fmt.Sprint(names[1]); a != b || len(names[0]) == 0 {
		t.Fatalf("sqlite has %s, postgres has %s", a, b)
	}
}

// A disk that is full when a database is opened has no room for the index of the log. SQLite calls that a disk
// that fails, and nobody should replace one for it.
func TestFullDiskAtOpening(t *testing.T) {
	mustKind(t, store.ExplainSQLite(sqlite3.SQLITE_IOERR_SHMSIZE, errors.New("disk I/O error (4874)")),
		outboard.Unavailable, "x.db is full")
	mustKind(t, store.ExplainSQLite(sqlite3.SQLITE_IOERR_FSYNC, errors.New("disk I/O error (1034)")),
		outboard.Unavailable, "x.db fails: disk I/O error (1034)")
}

// A full disk must be reported as such, leave the log as it was, and stop being an error once there is space.
func TestFullDisk(t *testing.T) {
	s := storetest.Open(t, storetest.SQLite(t))
	id := newSession(t, s).ID
	limit := func(pages int) {
		t.Helper()
		if _, err := s.Exec(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
			t.Fatal(err)
		}
	}
	mustAppend(t, s, id, said("there is room"))
	limit(1) // SQLite makes it what the file has
	var err error
	for range 100 {
		if _, err = s.Append(t.Context(), id, 0, store.Any, said(strings.Repeat("x", 10_000))); err != nil {
			break
		}
	}
	mustKind(t, err, outboard.Unavailable, "the disk that holds", "is full")
	if h, n := mustSession(t, s, id), len(readAll(t, s, id)); h.Head != int64(n) || n < 2 {
		t.Fatalf("the head is %d and there are %d events", h.Head, n)
	}
	limit(10_000)
	mustAppend(t, s, id, said(strings.Repeat("x", 10_000)))
}

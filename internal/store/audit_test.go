package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// An audit record that was acknowledged and is not there, twice there, or editable, proves nothing.
func TestAudit(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		const writers, each = 32, 8
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for n := range each {
					r := outboard.AuditRecord{Actor: fmt.Sprint("sesn_", i), Action: "http.request",
						Resource: fmt.Sprint(n), Decision: outboard.Allowed,
						Rule: "r", Detail: outboard.Raw(`{"n":1}`)}
					if err := s.Audit(t.Context(), r); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		all, err := s.AuditRecords(t.Context(), store.AuditQuery{Limit: 1000})
		if err != nil || len(all) != writers*each {
			t.Fatalf("%d records, %v", len(all), err)
		}
		one, err := s.AuditRecords(t.Context(), store.AuditQuery{Actor: "sesn_3", Action: "http.request", Newest: true,
			Limit: 2})
		if err != nil || len(one) != 2 || one[0].Resource != "7" || one[1].Resource != "6" ||
			one[0].Num <= one[1].Num || string(one[0].Detail) != `{"n":1}` {
			t.Errorf("the newest of one actor: %+v, %v", one, err)
		}
		if n, err := s.CountAudit(t.Context(), "sesn_3", "http.request", outboard.Allowed,
			one[0].At.AddDate(-1, 0, 0)); err != nil || n != each {
			t.Errorf("counted %d, %v", n, err)
		}
		db := raw(t, cfg)
		for _, q := range []string{`UPDATE audit SET decision = 'deny'`, `DELETE FROM audit WHERE num = 1`} {
			if _, err := db.ExecContext(t.Context(), q); err == nil || !strings.Contains(err.Error(), "insert-only") {
				t.Errorf("%s: %v", q, err)
			}
		}
	})
}

// A group of any length is one statement or one transaction: broken if a length between the two, or the first of
// a log, loses a record.
func TestAuditGroupsOfAllLengths(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		total := 0
		for _, writers := range []int{1, 2, 7, 63, 64, 65, 130} {
			var wg sync.WaitGroup
			for range writers {
				wg.Go(func() { record(t, s, fmt.Sprint("sesn_", writers), 2) })
			}
			wg.Wait()
			total += 2 * writers
			if n, err := s.AuditSize(t.Context()); err != nil || n != int64(total) {
				t.Fatalf("%d writers: %d records, want %d, %v", writers, n, total, err)
			}
		}
		w := witness(t, t.TempDir())
		if _, err := w.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if r := report(t, s, w); r.Bad != nil || r.Size != int64(total) {
			t.Errorf("%+v, %+v", r, r.Bad)
		}
	})
}

// Bytes that came from a hostile client must not keep a record from being written.
func TestAuditOddText(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		odd := "a\x00b\xff" + strings.Repeat("x", 1<<20)
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "a", Action: "x", Resource: odd,
			Decision: outboard.Refused}); err != nil {
			t.Fatal(err)
		}
		got, err := s.AuditRecords(t.Context(), store.AuditQuery{Actor: "a"})
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0].Resource, "a\uFFFDb\uFFFDxx") ||
			len(got[0].Resource) > 5000 {
			t.Errorf("%d records, %v", len(got), err)
		}
		big := outboard.Raw(`"` + strings.Repeat("x", outboard.MaxEventData) + `"`)
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "a",
			Detail: big}); outboard.KindOf(err) != outboard.TooLarge {
			t.Errorf("a detail over the limit: %v", err)
		}
	})
}

// After Close there is no durable row, so Audit must say so.
func TestAuditClosed(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "a"}); err != nil {
			t.Errorf("control: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "a"}); outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("after Close: %v", err)
		}
	})
}

// Broken if a record is confirmed and not there, or its sender is never answered, when many write at once and
// the store closes meanwhile.
func TestAuditWhileClosing(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		const writers = 20
		var wg sync.WaitGroup
		var confirmed, refused atomic.Int64
		busy := make(chan struct{}, writers)
		for i := range writers {
			wg.Go(func() {
				for n := 0; ; n++ {
					err := s.Audit(context.Background(), outboard.AuditRecord{Actor: fmt.Sprint("a", i),
						Resource: fmt.Sprint(n)})
					if err != nil {
						refused.Add(1)
						if outboard.KindOf(err) != outboard.Unavailable {
							t.Errorf("%v", err)
						}
						return
					}
					if confirmed.Add(1); n == 2 {
						busy <- struct{}{}
					}
				}
			})
		}
		for range writers {
			<-busy
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		again := storetest.Open(t, cfg)
		size, err := again.AuditSize(t.Context())
		if err != nil || size != confirmed.Load() || refused.Load() != writers {
			t.Errorf("%d records, %d were confirmed, %d writers were refused, %v", size, confirmed.Load(),
				refused.Load(), err)
		}
	})
}

// record writes n records of an actor.
func record(t *testing.T, s *store.Store, actor string, n int) {
	t.Helper()
	for i := range n {
		r := outboard.AuditRecord{Actor: actor, Action: "http.request", Resource: fmt.Sprint("GET https://a.test/", i),
			Decision: outboard.Allowed, Rule: "r",
			Detail: outboard.Raw(`{"n":1}`)}
		if err := s.Audit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

func witness(t *testing.T, dir string) *audit.Witness {
	t.Helper()
	w, err := audit.OpenWitness(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// report verifies what is in a database now.
func report(t *testing.T, s *store.Store, w *audit.Witness) audit.Report {
	t.Helper()
	trust, done, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	list, err := s.AuditEntries(t.Context(), store.AuditQuery{Limit: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	r, err := audit.Verify(func(yield func(audit.Entry, error) bool) {
		for _, e := range list {
			if !yield(e, nil) {
				return
			}
		}
	}, trust)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Broken if somebody with the whole database in their hands can change the audit, and nobody can tell where.
func TestTampering(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		record(t, s, "sesn_1", 20)
		w := witness(t, t.TempDir())
		if _, err := w.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if r := report(t, s, w); r.Bad != nil || r.Size != 20 || r.Signed != 20 {
			t.Fatalf("control: %+v", r)
		}
		db := raw(t, cfg)
		do := func(queries ...string) {
			t.Helper()
			for _, q := range queries {
				if _, err := db.ExecContext(t.Context(), q); err != nil {
					t.Fatalf("%s: %v", q, err)
				}
			}
		}
		if cfg.URL != "" {
			do(`ALTER TABLE audit DISABLE TRIGGER ALL`)
		} else {
			do(`DROP TRIGGER audit_no_update`, `DROP TRIGGER audit_no_delete`)
		}
		const cols = "at, org, actor, action, resource, decision, rule, detail, proof, hashes"
		do(`CREATE TABLE copy AS SELECT * FROM audit`)
		for _, c := range []struct {
			name string
			num  int64
			kind string
			do   []string
		}{
			{"edit", 7, audit.Changed, []string{`UPDATE audit SET decision = 'deny' WHERE num = 7`}},
			{"edit two", 3, audit.Changed, []string{`UPDATE audit SET actor = 'x' WHERE num IN (3, 9)`}},
			{"edit the detail", 7, audit.Changed, []string{`UPDATE audit SET detail = '{}' WHERE num = 7`}},
			{"edit the time", 7, audit.Changed, []string{`UPDATE audit SET at = at + 1 WHERE num = 7`}},
			{"take the hashes of another", 8, audit.Changed,
				[]string{`UPDATE audit SET hashes = (SELECT hashes FROM copy WHERE num = 4) WHERE num = 8`}},
			{"delete", 5, audit.Missing, []string{`DELETE FROM audit WHERE num = 5`}},
			{"delete and close the gap", 5, audit.Changed, []string{`DELETE FROM audit WHERE num = 5`,
				`UPDATE audit SET num = -num WHERE num > 5`,
				`UPDATE audit SET num = -num - 1 WHERE num < 0`}},
			{"reorder", 5, audit.Changed, []string{`UPDATE audit SET num = 99 WHERE num = 5`,
				`UPDATE audit SET num = 5 WHERE num = 6`,
				`UPDATE audit SET num = 6 WHERE num = 99`}},
			{"duplicate", 21, audit.Changed, []string{`INSERT INTO audit SELECT 21, ` + cols +
				` FROM copy WHERE num = 20`}},
			{"truncate", 18, audit.Missing, []string{`DELETE FROM audit WHERE num > 17`}},
			{"empty", 1, audit.Missing, []string{`DELETE FROM audit`}},
			{"redact and say nothing", 7, audit.Changed,
				[]string{`UPDATE audit SET resource = '[redacted]' WHERE num = 7`}},
		} {
			do(c.do...)
			if r := report(t, s, w); r.Bad == nil || r.Bad.Num != c.num || r.Bad.Kind != c.kind {
				t.Errorf("%s: %+v, want %d %s", c.name, r.Bad, c.num, c.kind)
			}
			do(`DELETE FROM audit`, `INSERT INTO audit SELECT * FROM copy`)
		}
		if r := report(t, s, w); r.Bad != nil {
			t.Errorf("control after all: %+v", r.Bad)
		}
	})
}

// Broken if a server goes on writing behind a log that was cut, or that another database replaced: what follows
// would look genuine.
func TestRollbackAndForkAreRefused(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		record(t, s, "sesn_1", 10)
		dir := t.TempDir()
		if _, err := witness(t, dir).Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		db := raw(t, cfg)
		for _, q := range map[bool][]string{false: {`DROP TRIGGER audit_no_delete`},
			true: {`ALTER TABLE audit DISABLE TRIGGER ALL`}}[cfg.URL != ""] {
			if _, err := db.ExecContext(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.ExecContext(t.Context(), `DELETE FROM audit WHERE num > 6`); err != nil {
			t.Fatal(err)
		}
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "a"}); outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("a running server went on behind a log that was cut: %v", err)
		}
		later := storetest.Open(t, cfg) // it knows nothing of the records that are gone; the witness does
		w := witness(t, dir)
		if _, err := w.Update(t.Context(), later); err == nil || !strings.Contains(err.Error(),
			"has 6 records, and had 10") {
			t.Errorf("rolled back: %v", err)
		}
		record(t, later, "sesn_2", 8)
		if _, err := w.Update(t.Context(), later); err == nil || !strings.Contains(err.Error(),
			"not those that were signed") {
			t.Errorf("forked: %v", err)
		}
		if r := report(t, later, w); r.Bad == nil || r.Bad.Num != 7 || r.Bad.Kind != audit.Replaced {
			t.Errorf("a fork: %+v", r.Bad)
		}
		later.SealAudit(fmt.Errorf("why"))
		if err := later.Audit(t.Context(),
			outboard.AuditRecord{Actor: "a"}); outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("sealed: %v", err)
		}
	})
}

// Broken if two servers on one database give two records one number, or continue two different trees.
func TestServersShareOneLog(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		servers := []*store.Store{storetest.Open(t, cfg), storetest.Open(t, cfg), storetest.Open(t, cfg)}
		var wg sync.WaitGroup
		const writers, each = 6, 5
		for i := range writers {
			wg.Go(func() { record(t, servers[i%len(servers)], fmt.Sprint("sesn_", i), each) })
		}
		wg.Wait()
		dir := t.TempDir()
		for i, s := range servers { // each has its own eyes, on the same file or not
			w := witness(t, fmt.Sprint(dir, i%2))
			if c, err := w.Update(t.Context(), s); err != nil || c.Size != writers*each {
				t.Fatalf("%+v, %v", c, err)
			}
			if r := report(t, s, w); r.Bad != nil || r.Size != writers*each || r.Signed != writers*each {
				t.Errorf("%+v, %+v", r, r.Bad)
			}
		}
	})
}

// Broken if a person's data cannot be taken out, or only by making the log look tampered with.
func TestRedactAudit(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		record(t, s, "sesn_1", 3)
		record(t, s, "ann", 3)
		w := witness(t, t.TempDir())
		if _, err := w.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		mine, err := s.AuditEntries(t.Context(), store.AuditQuery{Text: "ann"})
		if err != nil || len(mine) != 3 || mine[0].Num != 4 {
			t.Fatalf("%d records, %v", len(mine), err)
		}
		if none, err := s.AuditEntries(t.Context(), store.AuditQuery{Text: "a_n%"}); err != nil || len(none) != 0 {
			t.Errorf("a pattern was taken for one: %v, %v", none, err)
		}
		if err := s.RedactAudit(t.Context(), []int64{4, 5, 6}, []string{"actor"}); err != nil {
			t.Fatal(err)
		}
		if r := report(t, s, w); r.Bad == nil || r.Bad.Num != 4 || r.Bad.Kind != audit.Silent {
			t.Errorf("nothing says who redacted: %+v", r.Bad)
		}
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "k", Action: audit.ActionRedact,
			Detail: outboard.Raw(`{"records":[4,5,6]}`)}); err != nil {
			t.Fatal(err)
		}
		if r := report(t, s, w); r.Bad != nil || r.Redacted != 3 || r.Size != 7 {
			t.Errorf("%+v, %+v", r, r.Bad)
		}
		all, err := s.AuditEntries(t.Context(), store.AuditQuery{})
		if err != nil || slices.ContainsFunc(all, func(e audit.Entry) bool { return e.Actor == "ann" }) ||
			all[4].Resource != "GET https://a.test/1" {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// Broken if the records of an older database are outside of the log that newer ones are in.
func TestAuditOfOldDatabases(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		old, err := store.OpenAt(t.Context(), cfg, 7)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 230 { // over two pages
			q := fmt.Sprintf(`INSERT INTO audit (at, org, actor, action, resource, decision, rule, detail) VALUES (%d, '', 'sesn_1', 'x', 'r', 'allow', '', '')`, i)
			if _, err := old.Exec(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		if cfg.URL != "" { // a number that a transaction took and did not use
			if _, err := old.Exec(t.Context(), `SELECT nextval(pg_get_serial_sequence('audit', 'num'))`); err != nil {
				t.Fatal(err)
			}
			if _, err := old.Exec(t.Context(),
				`INSERT INTO audit (at, org, actor, action, resource, decision, rule, detail) VALUES (231, '', 'a', 'x', 'r', 'allow', '', '')`); err != nil {
				t.Fatal(err)
			}
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		s := storetest.Open(t, cfg)
		record(t, s, "sesn_2", 3)
		w := witness(t, t.TempDir())
		if _, err := w.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if r := report(t, s, w); r.Bad != nil || r.Size < 233 || r.Signed != r.Size {
			t.Errorf("%+v, %+v", r, r.Bad)
		}
	})
}

var _ audit.Log = (*store.Store)(nil)

// If a record that is true only while a log is as it was is written after the log has grown, what was judged by
// the old one is done. The records of others that wait with it must be written all the same, and the tree must
// stay whole.
func TestAuditWhile(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		h, second := newSession(t, s), newSession(t, s)
		write := func(session outboard.SessionID, head int64) error {
			r := outboard.AuditRecord{Actor: string(session), Action: "http.request", Decision: outboard.Allowed,
				Detail: outboard.Raw(`{}`)}
			return s.AuditWhile(t.Context(), r, store.Mark{Session: session, Head: head})
		}
		written := int64(0)
		expect := func(what string, err error, moved bool) {
			t.Helper()
			if moved != errors.Is(err, store.ErrMoved) || !moved && err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !moved {
				written++
			}
			if n, err := s.AuditSize(t.Context()); err != nil || n != written {
				t.Fatalf("%s: %d records, want %d, %v", what, n, written, err)
			}
		}
		expect("a stale mark, first of the log", write(h.ID, h.Head+1), true)
		for range 2 { // the first record of a log is written in another way than those after it
			expect("as it is", write(h.ID, h.Head), false)
		}
		if _, err := other.Append(t.Context(), h.ID, 0, store.Any, said("another server")); err != nil {
			t.Fatal(err)
		}
		expect("grown by another server", write(h.ID, h.Head), true)
		expect("read again", write(h.ID, h.Head+1), false)
		expect("another session", write(second.ID, second.Head), false)
		expect("no session", write("ses_nobody", 1), true)

		var wg sync.WaitGroup
		var moved atomic.Int64
		const writers = 90 // more than one statement takes, with marks that hold, that do not, and none
		for i := range writers {
			wg.Go(func() {
				switch i % 3 {
				case 0:
					if err := write(h.ID, h.Head); errors.Is(err, store.ErrMoved) {
						moved.Add(1)
					}
				case 1:
					if err := write([]outboard.SessionID{h.ID, second.ID}[i%2],
						[]int64{h.Head + 1, second.Head}[i%2]); err != nil {
						t.Error(err)
					}
				default:
					record(t, s, "sesn_without", 1)
				}
			})
		}
		wg.Wait()
		if moved.Load() != writers/3 {
			t.Errorf("%d records were refused, want the %d whose mark does not hold", moved.Load(), writers/3)
		}
		if err := s.DeleteSession(t.Context(), second.ID); err != nil {
			t.Fatal(err)
		}
		written += writers - writers/3
		expect("deleted", write(second.ID, second.Head), true)
		w := witness(t, t.TempDir())
		if _, err := w.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if r := report(t, s, w); r.Bad != nil || r.Size != written {
			t.Errorf("%+v, %+v", r, r.Bad)
		}
	})
}

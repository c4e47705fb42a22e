package store_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
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
					r := outboard.AuditRecord{Actor: fmt.Sprint("sesn_", i), Action: "http.request", Resource: fmt.Sprint(n), Decision: outboard.Allowed,
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
		one, err := s.AuditRecords(t.Context(), store.AuditQuery{Actor: "sesn_3", Action: "http.request", Newest: true, Limit: 2})
		if err != nil || len(one) != 2 || one[0].Resource != "7" || one[1].Resource != "6" || one[0].Num <= one[1].Num || string(one[0].Detail) != `{"n":1}` {
			t.Errorf("the newest of one actor: %+v, %v", one, err)
		}
		if n, err := s.CountAudit(t.Context(), "sesn_3", "http.request", outboard.Allowed, one[0].At.AddDate(-1, 0, 0)); err != nil || n != each {
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

// Bytes that came from a hostile client must not keep a record from being written.
func TestAuditOddText(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		odd := "a\x00b\xff" + strings.Repeat("x", 1<<20)
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "a", Action: "x", Resource: odd, Decision: outboard.Refused}); err != nil {
			t.Fatal(err)
		}
		got, err := s.AuditRecords(t.Context(), store.AuditQuery{Actor: "a"})
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0].Resource, "a\uFFFDb\uFFFDxx") || len(got[0].Resource) > 5000 {
			t.Errorf("%d records, %v", len(got), err)
		}
		big := outboard.Raw(`"` + strings.Repeat("x", outboard.MaxEventData) + `"`)
		if err := s.Audit(t.Context(), outboard.AuditRecord{Actor: "a", Detail: big}); outboard.KindOf(err) != outboard.TooLarge {
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

// Two requests that share a grant for one request would be one request too many.
func TestNetGrants(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		id := newSession(t, s).ID
		once := outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant), Session: id, Host: "a.test", Uses: 1, By: "k", CreatedAt: time.Now()}
		ever := outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant), Session: id, Host: "b.test", Port: 8443, Uses: -1, By: "k",
			CreatedAt: time.Now()}
		for _, g := range []outboard.NetGrant{once, ever} {
			if err := s.PutNetGrant(t.Context(), g); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		won := make(chan bool, 8)
		for range cap(won) {
			wg.Go(func() {
				ok, err := s.UseNetGrant(t.Context(), once.ID)
				if err != nil {
					t.Error(err)
				}
				won <- ok
			})
		}
		wg.Wait()
		close(won)
		n := 0
		for ok := range won {
			if ok {
				n++
			}
		}
		if n != 1 {
			t.Errorf("one use was taken %d times", n)
		}
		left, err := s.NetGrants(t.Context(), id)
		if err != nil || len(left) != 1 || left[0].Host != "b.test" || left[0].Port != 8443 || left[0].Uses != -1 {
			t.Errorf("left: %+v, %v", left, err)
		}
	})
}

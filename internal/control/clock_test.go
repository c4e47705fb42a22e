package control_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// If this fails, setting the host's clock back brings back what had ended: a login, a grant, the time for an
// approval; while the server runs, or by starting it again.
func TestClockSetBack(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var host atomic.Int64
	set := func(at time.Time) { host.Store(at.UnixMicro()) }
	set(noon)
	dir := t.TempDir()
	open := func(trust bool) (*store.Store, *control.Control) {
		t.Helper()
		s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "db"),
			Now: func() time.Time { return time.UnixMicro(host.Load()).UTC() }, TrustClock: trust})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		b, err := blob.NewDir(filepath.Join(dir, "blob"))
		if err != nil {
			t.Fatal(err)
		}
		return s, control.New(control.Config{Store: s, Blob: b})
	}
	s, c := open(false)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	later := noon.Add(time.Hour)
	must(s.PutKey(t.Context(), outboard.Key{ID: "apikey_1", Name: "n", Hash: control.HashSecret("s"),
		Role: outboard.RoleAdmin, Kind: outboard.KeyLogin,
		Org: outboard.DefaultOrg, CreatedAt: noon, ExpiresAt: later}))
	must(s.PutGrant(t.Context(), outboard.Grant{ID: "grant_1", Actions: []string{"bash"}, Resources: []string{"*"},
		CreatedAt: noon, ExpiresAt: later, ApprovedBy: "apikey_1"}))
	a := outboard.Approval{ID: "apr_1", Session: "sesn_1", Resource: "h", State: outboard.ApprovalPending,
		CreatedAt: noon, ExpiresAt: later, Net: &outboard.NetTarget{Host: "h"}}
	_, err := s.AskNet(t.Context(), a, store.NetAsks{Pending: 9, Session: 9, Org: 9})
	must(err)
	valid := func(s *store.Store, c *control.Control) (n int) {
		t.Helper()
		if _, err := c.Authenticate(t.Context(), "s"); err == nil {
			n++
		} else if outboard.KindOf(err) != outboard.Unauthenticated {
			t.Fatal(err)
		}
		list, err := s.GrantsFor(t.Context(), outboard.GrantQuery{Action: "bash", Resource: "ls", Now: s.Now()})
		must(err)
		n += len(list)
		waiting, err := s.Approvals(t.Context(), store.ApprovalFilter{Pending: s.Now()})
		must(err)
		return n + len(waiting)
	}
	if n := valid(s, c); n != 3 {
		t.Fatalf("before their end %d of three hold", n)
	}
	set(later.Add(time.Minute))
	if n := valid(s, c); n != 0 {
		t.Fatalf("after their end %d hold", n)
	}
	must(s.Audit(t.Context(), outboard.AuditRecord{Action: "something"}))
	set(noon)
	if n := valid(s, c); n != 0 {
		t.Errorf("the clock was set back, and %d hold again", n)
	}
	if n := valid(open(false)); n != 0 {
		t.Errorf("started again with the clock set back, %d hold", n)
	}
	if n := valid(open(true)); n != 3 { // the same rows are there, and only the clock is between
		t.Errorf("a server that is told to trust the clock: %d", n)
	}
}

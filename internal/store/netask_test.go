package store_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Broken if a sandbox that asks for a thousand hosts makes a thousand rows, one host makes more than one, a
// denial is asked about again, or one session's asks take another's place.
func TestAskNet(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		most := store.NetAsks{Pending: 5, Session: 8, Org: 7}
		now := time.Now().UTC().Truncate(time.Microsecond)
		h, other := newSession(t, s), newSession(t, s)
		ask := func(id outboard.SessionID, host string, at time.Time) (outboard.Approval, error) {
			return s.AskNet(t.Context(),
				outboard.Approval{ID: outboard.NewID[outboard.ApprovalID](outboard.PrefixApproval), Session: id,
					Action:   "http.request",
					Resource: host, Digest: "d " +
						host, Request: "r", Why: "w", Rules: []string{"default"}, Approver: outboard.ApproverAny,
					State: outboard.ApprovalPending, CreatedAt: at, ExpiresAt: at.Add(time.Hour), Net: &outboard.NetTarget{Host: host}}, most)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := range 12 {
					_, err := ask(h.ID, fmt.Sprintf("h%d.test", (i+n)%12), now)
					if err != nil && outboard.KindOf(err) != outboard.Exhausted {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		rows := func(id outboard.SessionID) (hosts []string) {
			t.Helper()
			list, err := s.Approvals(t.Context(), store.ApprovalFilter{Session: id})
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range list {
				hosts = append(hosts, a.Resource)
			}
			slices.Sort(hosts)
			return hosts
		}
		if got := rows(h.ID); len(got) != 5 || len(slices.Compact(got)) != 5 {
			t.Fatalf("rows: %v", got)
		}
		list, _ := s.Approvals(t.Context(), store.ApprovalFilter{Session: h.ID})
		a := list[0]
		if again, err := ask(h.ID, a.Resource, now); err != nil || again.ID != a.ID || again.Net == nil ||
			again.Net.Host != a.Resource || again.Call != "" {
			t.Errorf("the same host: %+v, %v", again, err)
		}
		answer := func(a outboard.Approval, allow bool, at time.Time) error {
			g := &outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant),
				Session: a.Session, Host: a.Resource, Uses: 1, CreatedAt: at}
			if !allow {
				g = nil
			}
			return s.AnswerNet(t.Context(), a, outboard.Answer{Allow: allow, Key: "apikey_1", At: at}, at, g, nil)
		}
		if err := answer(a, false, now); err != nil {
			t.Fatal(err)
		}
		if again, err := ask(h.ID, a.Resource, now); err != nil || again.ID != a.ID ||
			again.State != outboard.ApprovalDenied {
			t.Errorf("a denied host: %+v, %v", again, err)
		}
		var won atomic.Int32
		for range 6 {
			wg.Go(func() {
				switch err := answer(list[1], true, now); {
				case err == nil:
					won.Add(1)
				case outboard.KindOf(err) != outboard.Conflict:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		grants, err := s.NetGrants(t.Context(), h.ID)
		if err != nil || won.Load() != 1 || len(grants) != 1 || grants[0].Host != list[1].Resource {
			t.Errorf("%d answers counted, grants %+v, %v", won.Load(), grants, err)
		}
		if again, err := ask(h.ID, list[1].Resource, now); err != nil || again.ID == list[1].ID ||
			again.State != outboard.ApprovalPending {
			t.Errorf("a host that was allowed and is refused again: %+v, %v", again, err)
		}
		wrong := list[2]
		wrong.Digest = "of something else"
		for name, err := range map[string]error{"another request": answer(wrong, true, now),
			"too late": answer(list[2], true, now.Add(time.Hour))} {
			if outboard.KindOf(err) != outboard.Conflict {
				t.Errorf("%s: %v", name, err)
			}
		}
		// What expired makes room, until the session has asked for all it may.
		for i := range 3 {
			_, err := ask(h.ID, fmt.Sprintf("later%d.test", i), now.Add(2*time.Hour))
			if want := i < 2; (err == nil) != want {
				t.Errorf("later %d: %v", i, err)
			}
		}
		if got := rows(h.ID); len(got) != 8 {
			t.Errorf("rows at the end: %v", got)
		}
		for i := range 6 { // two of the first session wait, and seven may in the organization
			if _, err := ask(other.ID, fmt.Sprintf("o%d.test", i), now.Add(2*time.Hour)); (err == nil) != (i < 5) {
				t.Errorf("another session %d: %v", i, err)
			}
		}
	})
}

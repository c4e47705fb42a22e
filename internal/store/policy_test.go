package store_test

import (
	"context"
	"errors"
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

// If this fails, a saved policy is lost, an old version comes back into force, or two people overwrite each
// other without a word.
func TestPolicies(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		before, err := s.PolicyRevision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		save := func(level outboard.PolicyLevel, target, text string, expect int) (outboard.Policy, error) {
			return s.SavePolicy(t.Context(), outboard.Policy{Level: level, Target: target, Text: text, CreatedBy: "ann",
				CreatedAt: time.Now()}, expect)
		}
		must := func(p outboard.Policy, err error) outboard.Policy {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		org := must(save(outboard.LevelOrganization, "", "one", 0))
		must(save(outboard.LevelOrganization, "", "two", 1))
		must(save(outboard.LevelSession, "sesn_1", "mine", -1))
		must(save(outboard.LevelAgent, "agent_1", "agents", -1))
		must(save(outboard.LevelAgent, "agent_2", "others", -1))
		if _, err := save(outboard.LevelOrganization, "", "three", 1); outboard.KindOf(err) != outboard.Conflict {
			t.Errorf("saving over a version that is not in force: %v, want a conflict", err)
		}
		docs, err := s.PoliciesFor(t.Context(), "", "agent_1", "sesn_1")
		var texts []string
		for _, d := range docs {
			texts = append(texts, d.Text)
		}
		if err != nil || !slices.Equal(texts, []string{"two", "agents", "mine"}) {
			t.Errorf("in force: %v, %v", texts, err)
		}
		if p, err := s.Policy(t.Context(), org.ID, 1); err != nil || p.Text != "one" {
			t.Errorf("version 1: %+v, %v", p, err)
		}
		if vs, err := s.PolicyVersions(t.Context(), org.ID, 0); err != nil || len(vs) != 2 || vs[0].Version != 2 {
			t.Errorf("versions: %+v, %v", vs, err)
		}
		if all, err := s.Policies(t.Context(), store.Page{}); err != nil || len(all) != 4 {
			t.Errorf("all: %d, %v", len(all), err)
		}
		if after, err := s.PolicyRevision(t.Context()); err != nil || after <= before {
			t.Errorf("revision %d after %d, %v", after, before, err)
		}
	})
}

// If this fails, requests that come at the same time share the last use of a grant, or one that repeats after a
// crash spends two.
func TestGrantUses(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := time.Now().UTC().Truncate(time.Microsecond)
		g := outboard.Grant{ID: "grant_1", Human: "apikey_1", Actions: []string{"bash"}, Resources: []string{"git *"},
			ExpiresAt: now.Add(time.Hour),
			MaxUses:   3, ApprovedBy: "apikey_2", ApprovedName: "bob", Why: "release", CreatedAt: now}
		if err := s.PutGrant(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		var spent atomic.Int32
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				key := string(rune('a' + i))
				for range 2 { // the second time it has one already
					if err := s.UseGrant(t.Context(), g.ID, key, now); err == nil {
						spent.Add(1)
					} else if outboard.KindOf(err) != outboard.Denied {
						t.Errorf("use: %v", err)
					}
				}
			})
		}
		wg.Wait()
		if n := spent.Load(); n != 6 { // three keys, twice each
			t.Errorf("%d uses went through, want 3 keys twice", n)
		}
		if got, err := s.Grant(t.Context(), g.ID); err != nil || got.Uses != 3 {
			t.Errorf("uses = %d, %v; want 3", got.Uses, err)
		}
		q := outboard.GrantQuery{Key: "apikey_1", Action: "bash", Resource: "git push", Now: now}
		if gs, err := s.GrantsFor(t.Context(), q); err != nil || len(gs) != 0 {
			t.Errorf("a spent grant is still offered: %v, %v", gs, err)
		}
		g.ID, g.MaxUses = "grant_2", 0
		if err := s.PutGrant(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		if gs, err := s.GrantsFor(t.Context(), q); err != nil || len(gs) != 1 || !gs[0].Covers(q) ||
			gs[0].Why != "release" {
			t.Errorf("control: %+v, %v", gs, err)
		}
		if got, err := s.RevokeGrant(t.Context(), g.ID, now); err != nil || got.RevokedAt.IsZero() {
			t.Errorf("revoke: %+v, %v", got, err)
		}
		if err := s.UseGrant(t.Context(), g.ID, "x", now); outboard.KindOf(err) != outboard.Denied {
			t.Errorf("using a revoked grant: %v", err)
		}
		if gs, err := s.GrantsFor(t.Context(), q); err != nil || len(gs) != 0 {
			t.Errorf("a revoked grant is still offered: %v, %v", gs, err)
		}
		if gs, err := s.Grants(t.Context(), store.Page{}); err != nil || len(gs) != 1 {
			t.Errorf("live grants: %v, %v", gs, err)
		}
	})
}

// If this fails, a rate limit lets more through than it says when requests come together, or never opens again.
func TestTakeRate(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		start := time.Unix(1000, 0)
		var passed atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				ok, err := s.TakeRate(t.Context(), "k", start, 5)
				if err != nil {
					t.Error(err)
				}
				if ok {
					passed.Add(1)
				}
			})
		}
		wg.Wait()
		if n := passed.Load(); n != 5 {
			t.Errorf("%d passed, want 5", n)
		}
		if ok, err := s.TakeRate(t.Context(), "k", start.Add(time.Minute), 5); !ok || err != nil {
			t.Errorf("the next window: %v, %v", ok, err)
		}
	})
}

// If this fails, an approval is not there when its call is, is answered twice, or stays open after its call has ended.
func TestApprovalRows(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		now := time.Now().UTC().Truncate(time.Microsecond)
		row := func(id string) outboard.Approval {
			return outboard.Approval{ID: outboard.ApprovalID("apr_" + id), Session: h.ID,
				Call: outboard.CallID("sevt_" + id), Action: "bash", Resource: "ls\x00",
				Digest: "d", Request: "bash {}", Why: "because", Rules: []string{"a/b"}, Approver: outboard.ApproverAny,
				State: outboard.ApprovalPending, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
		}
		commit := func(c store.Commit) {
			t.Helper()
			c.Session, c.Expect = h.ID, store.Any
			if _, err := s.Commit(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		commit(store.Commit{Events: []outboard.Event{said("x")}, Approvals: []outboard.Approval{row("1"), row("2"),
			row("3")}})
		list, err := s.Approvals(t.Context(), store.ApprovalFilter{Pending: now})
		if err != nil || len(list) != 3 {
			t.Fatalf("pending: %v, %v", list, err)
		}
		answer := outboard.Answer{Call: "sevt_1", Allow: true, Key: "apikey_1", Name: "ann", At: now}
		commit(store.Commit{Events: []outboard.Event{said("x")}, Answers: []outboard.Answer{answer},
			Closed: []store.Closing{{Call: "sevt_2", State: outboard.ApprovalExpired}}})
		answer.Allow = false
		commit(store.Commit{Events: []outboard.Event{said("x")}, Answers: []outboard.Answer{answer}})
		one, err := s.Approval(t.Context(), "apr_1")
		if err != nil || one.State != outboard.ApprovalAllowed || one.Answer == nil || one.Answer.Name != "ann" ||
			!slices.Equal(one.Rules, []string{"a/b"}) {
			t.Errorf("answered: %+v, %v", one, err)
		}
		if two, err := s.Approval(t.Context(), "apr_2"); err != nil || two.State != outboard.ApprovalExpired {
			t.Errorf("expired: %+v, %v", two, err)
		}
		notices, err := s.TakeNotices(t.Context(), now, now.Add(time.Minute), 10)
		if err != nil || len(notices) != 1 || notices[0].Approval.ID != "apr_3" || notices[0].Attempt != 1 {
			t.Errorf("notices: %+v, %v", notices, err)
		}
		if again, err := s.TakeNotices(t.Context(), now, now.Add(time.Minute), 10); err != nil || len(again) != 0 {
			t.Errorf("a notice was given out twice: %v, %v", again, err)
		}
		if err := s.CloseApprovals(t.Context(), h.ID, nil); err != nil {
			t.Fatal(err)
		}
		if list, err := s.Approvals(t.Context(), store.ApprovalFilter{Session: h.ID, Pending: now}); err != nil ||
			len(list) != 0 {
			t.Errorf("after the session's end: %v, %v", list, err)
		}
	})
}

// If this fails, of two votes at the same time one is lost, a vote counts twice, or one comes after the end or
// to another request.
func TestVotes(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		now := time.Now().UTC().Truncate(time.Microsecond)
		a := outboard.Approval{ID: "apr_1", Session: h.ID, Call: "sevt_1", Action: "bash", Digest: "d", Needs: 2,
			State:     outboard.ApprovalPending,
			CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
		if _, err := s.Commit(t.Context(), store.Commit{Session: h.ID, Expect: store.Any,
			Events: []outboard.Event{said("x")}, Approvals: []outboard.Approval{a}}); err != nil {
			t.Fatal(err)
		}
		const people = 8
		var all sync.WaitGroup
		for i := range people {
			for range 2 {
				all.Go(func() {
					if _, err := s.AddVote(t.Context(), a.ID, "d",
						outboard.Vote{Key: outboard.KeyID(fmt.Sprint("apikey_", i)), Name: "n", At: now}); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		got, err := s.Approval(t.Context(), a.ID)
		if err != nil || len(got.Votes) != people || got.Needs != 2 || !got.Votes[0].At.Equal(now) {
			t.Errorf("%+v, %v", got, err)
		}
		if list, err := s.Approvals(t.Context(), store.ApprovalFilter{Session: h.ID}); err != nil || len(list) != 1 ||
			len(list[0].Votes) != people || list[0].Needs != 2 {
			t.Errorf("in the list: %+v, %v", list, err)
		}
		for name, c := range map[string]struct {
			digest string
			at     time.Time
		}{"another request": {"e", now}, "too late": {"d", a.ExpiresAt}} {
			if _, err := s.AddVote(t.Context(), a.ID, c.digest, outboard.Vote{Key: "apikey_late",
				At: c.at}); outboard.KindOf(err) != outboard.Conflict {
				t.Errorf("%s: %v", name, err)
			}
		}
		why := outboard.Answer{Name: "kill kill_1", Message: "enough", At: now}
		if err := s.CloseApprovals(t.Context(), h.ID, &why); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AddVote(t.Context(), a.ID, "d", outboard.Vote{Key: "apikey_late",
			At: now}); outboard.KindOf(err) != outboard.Conflict {
			t.Errorf("closed: %v", err)
		}
		if got, err := s.Approval(t.Context(), a.ID); err != nil || got.Answer == nil ||
			got.Answer.Message != "enough" || len(got.Votes) != people {
			t.Errorf("closed: %+v, %v", got, err)
		}
	})
}

// If this fails, a server does not notice a policy whose save began before another one and was committed after
// it, and goes on without it.
func TestPolicyRevisionOfSavesThatOverlap(t *testing.T) {
	cfg := store.Config{URL: storetest.Postgres(t)} // SQLite has one writer
	s := storetest.Open(t, cfg)
	slow, err := raw(t, cfg).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Rollback()
	if _, err := slow.ExecContext(t.Context(), `INSERT INTO policies (id, level, target, version, body, created_at, created_by, org)
		VALUES ('pol_slow', 'agent', 'agent_1', 1, 'x', 1, 'ann', 'default')`); err != nil {
		t.Fatal(err)
	}
	save := func(ctx context.Context) (int64, error) {
		_, err := s.SavePolicy(ctx, outboard.Policy{Level: outboard.LevelOrganization, Text: "y",
			CreatedAt: time.Now()}, -1)
		n, failed := s.PolicyRevision(t.Context())
		return n, errors.Join(err, failed)
	}
	soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if n, err := save(soon); err == nil || n != 0 {
		t.Fatalf("a save did not wait for one that is under way: revision %d, %v", n, err)
	}
	if err := slow.Commit(); err != nil {
		t.Fatal(err)
	}
	before, err := s.PolicyRevision(t.Context())
	if err != nil || before == 0 {
		t.Fatalf("revision %d after the slow save, %v", before, err)
	}
	if n, err := save(t.Context()); err != nil || n <= before {
		t.Errorf("revision %d after %d, %v", n, before, err)
	}
}

// If this fails, a fork is a way out of the rules of the session that it was made from.
func TestPoliciesForForks(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		parent, other := newSession(t, s), newSession(t, s)
		child := forkOf(t, s, parent.ID, 1)
		grandchild := forkOf(t, s, child.ID, 1)
		for target, text := range map[outboard.SessionID]string{parent.ID: "parent", child.ID: "child",
			other.ID: "other"} {
			p := outboard.Policy{Level: outboard.LevelSession, Target: string(target), Text: text,
				CreatedAt: time.Now()}
			if _, err := s.SavePolicy(t.Context(), p, -1); err != nil {
				t.Fatal(err)
			}
		}
		hold := func(id outboard.SessionID, want ...string) {
			t.Helper()
			docs, err := s.PoliciesFor(t.Context(), "", "", id)
			var texts []string
			for _, d := range docs {
				texts = append(texts, d.Text)
			}
			if err != nil || !slices.Equal(texts, want) {
				t.Errorf("in force for %s: %v, %v; want %v", id, texts, err, want)
			}
		}
		hold(parent.ID, "parent")
		hold(child.ID, "child", "parent")
		hold(grandchild.ID, "child", "parent")
		hold(other.ID, "other")
		if err := s.DeleteSession(t.Context(), parent.ID); err != nil {
			t.Fatal(err)
		}
		hold(grandchild.ID, "child", "parent")
	})
}

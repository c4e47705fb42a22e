package store_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If this failed, an identity could become somebody else's, get lost when a role changes, or stay when it is to
// be forgotten.
func TestUserIdentity(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		add := func(email string) outboard.User {
			t.Helper()
			u := outboard.User{ID: outboard.NewID[outboard.UserID](outboard.PrefixUser), Org: outboard.DefaultOrg,
				Email: email, Role: outboard.RoleViewer,
				CreatedAt: time.Now().Truncate(time.Microsecond)}
			must(s.AddUser(ctx, u))
			return u
		}
		ann, bob := add("ann@acme.test"), add("bob@acme.test")
		identity := func(issuer, subject string) (outboard.User, error) {
			list, err := s.UsersBySubject(ctx, issuer, subject)
			if err == nil && len(list) == 0 {
				err = outboard.Errorf(outboard.NotFound, "nobody")
			}
			if err != nil {
				return outboard.User{}, err
			}
			return list[0], nil
		}
		if _, err := identity("", ""); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("nobody's identity is somebody: %v", err)
		}
		must(s.BindUser(ctx, ann.ID, "https://id.test", "1"))
		for _, err := range []error{s.BindUser(ctx, bob.ID, "https://id.test", "1"),
			s.BindUser(ctx, ann.ID, "https://id.test", "2")} {
			if !errors.Is(err, store.ErrDuplicate) {
				t.Errorf("an identity was given away, or replaced: %v", err)
			}
		}
		ann, err := identity("https://id.test", "1")
		must(err)
		ann.Role = outboard.RoleAdmin
		_, err = s.ChangeUser(ctx, ann, false)
		must(err)
		if got, err := identity("https://id.test", "1"); err != nil || got.ID != ann.ID ||
			got.Role != outboard.RoleAdmin {
			t.Errorf("after another role: %+v, %v", got, err)
		}
		ann.Issuer, ann.Subject = "", ""
		_, err = s.ChangeUser(ctx, ann, false)
		must(err)
		if _, err := identity("https://id.test", "1"); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("a forgotten identity is somebody's: %v", err)
		}
		must(s.BindUser(ctx, bob.ID, "https://id.test", "1"))
		must(s.AddOrg(ctx, outboard.Organization{ID: "org_other", Name: "other", CreatedAt: time.Now()}))
		cas := outboard.User{ID: "user_other", Org: "org_other", Email: "bob@acme.test", Role: outboard.RoleViewer,
			CreatedAt: time.Now()}
		must(s.AddUser(ctx, cas))
		must(s.BindUser(ctx, cas.ID, "https://id.test", "1"))
		if both, err := s.UsersBySubject(ctx, "https://id.test", "1"); err != nil || len(both) != 2 {
			t.Errorf("the rows of one person in two organizations: %+v, %v", both, err)
		}
	})
}

// If this fails, the keys of everybody who ever signed in stay for ever, or one goes that something still asks
// for: a grant or a session would lose its person; or a revocation goes unnoticed because another key was
// deleted at the same time.
func TestTidyLogins(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := time.Now().UTC().Truncate(time.Microsecond)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		put := func(id string, kind outboard.KeyKind, user outboard.UserID, over time.Time) {
			t.Helper()
			k := outboard.Key{ID: outboard.KeyID(id), Name: "n", Hash: "hash of " + id, Role: outboard.RoleDeveloper,
				Kind: kind, User: user,
				CreatedAt: over.Add(-time.Hour), ExpiresAt: over}
			if over.IsZero() {
				k.CreatedAt = now.Add(-time.Hour)
			}
			must(s.PutKey(t.Context(), k))
		}
		long, just := now.Add(-60*24*time.Hour), now.Add(-time.Minute)
		put("old", outboard.KeyLogin, "user_1", long)
		put("signed out", outboard.KeyLogin, "user_1", long)
		_, err := s.RevokeKey(t.Context(), "signed out", long)
		must(err)
		put("just over", outboard.KeyLogin, "user_1", just)
		put("alive", outboard.KeyLogin, "user_1", now.Add(time.Hour))
		put("program", outboard.KeyAPI, "user_1", long)
		put("for ever", outboard.KeyAPI, "", time.Time{})
		put("gave a grant", outboard.KeyLogin, "user_2", long)
		put("gave one that is over", outboard.KeyLogin, "user_2", long)
		put("has a session", outboard.KeyLogin, "user_3", now.Add(-40*24*time.Hour))
		for _, g := range []struct {
			by    string
			until time.Time
		}{{"gave a grant", now.Add(time.Hour)}, {"gave one that is over", just}} {
			must(s.PutGrant(t.Context(), outboard.Grant{ID: outboard.NewID[outboard.GrantID](outboard.PrefixGrant),
				Actions: []string{"bash"}, Resources: []string{"*"},
				ExpiresAt: g.until, ApprovedBy: outboard.KeyID(g.by), CreatedAt: long}))
		}
		h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_1",
			User: "user_3", CreatedAt: now.Add(-40*24*time.Hour - 30*time.Minute)}
		_, err = s.CreateSession(t.Context(), h,
			outboard.SessionConfig{Owner: outboard.Owner{User: "user_3", Key: "has a session"}}, outboard.NewEvent("",
				&outboard.SessionCreated{}))
		must(err)

		before, err := s.Revocations(t.Context())
		must(err)
		n, err := s.TidyLogins(t.Context(), now.Add(-30*24*time.Hour))
		if err != nil || n != 3 {
			t.Errorf("%d deleted, %v", n, err)
		}
		_, err = s.RevokeKey(t.Context(), "alive", now)
		must(err)
		if after, err := s.Revocations(t.Context()); err != nil || after == before {
			t.Errorf("a revocation beside a deletion is not seen: %d, %v", after, err)
		}
		for id, want := range map[string]bool{"old": false, "signed out": false, "gave one that is over": false,
			"just over": true, "alive": true, "program": true,
			"for ever": true, "gave a grant": true, "has a session": true} {
			if _, err := s.Key(t.Context(), outboard.KeyID(id)); (err == nil) != want {
				t.Errorf("%s: %v", id, err)
			}
		}
	})
}

// If this fails on a database, what a person made outlives them there, or its sessions go on: the key they act
// for is in their configuration alone.
func TestChangeUserEndsWhatTheyMade(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		ann := outboard.User{ID: outboard.NewID[outboard.UserID](outboard.PrefixUser), Org: outboard.DefaultOrg,
			Email: "ann@acme.test", Role: outboard.RoleAdmin, CreatedAt: time.Now()}
		must(s.AddUser(t.Context(), ann))
		sessions := map[string]outboard.SessionID{}
		put := func(name, role, maker string, user outboard.UserID) {
			t.Helper()
			k := outboard.Key{ID: outboard.NewID[outboard.KeyID](outboard.PrefixKey), Name: name, Hash: "hash of " +
				name, Role: role, Org: outboard.DefaultOrg, Maker: maker, User: user, CreatedAt: time.Now()}
			must(s.PutKey(t.Context(), k))
			h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_1",
				Org: outboard.DefaultOrg, User: user}
			_, err := s.CreateSession(t.Context(), h,
				outboard.SessionConfig{Owner: outboard.Owner{Org: k.Org, User: user, Key: k.ID,
					Maker: maker}}, outboard.NewEvent("", &outboard.SessionCreated{}))
			must(err)
			sessions[name] = h.ID
		}
		put("hers", outboard.RoleAdmin, string(ann.ID), ann.ID)
		put("high", outboard.RoleAdmin, string(ann.ID), "")
		put("low", outboard.RoleViewer, string(ann.ID), "")
		put("for bob", outboard.RoleAdmin, string(ann.ID), "user_bob")
		put("another's", outboard.RoleAdmin, "user_bob", "")
		put("nobody's", outboard.RoleAdmin, "", "")
		change := func(wantAlive, wantSessions string) {
			t.Helper()
			ended, err := s.ChangeUser(t.Context(), ann, true)
			must(err)
			keys, err := s.Keys(t.Context(), store.Page{Org: outboard.DefaultOrg})
			must(err)
			var alive, theirs []string
			for _, k := range keys {
				alive = append(alive, k.Name)
			}
			for name, id := range sessions {
				if slices.Contains(ended, id) {
					theirs = append(theirs, name)
				}
			}
			slices.Sort(alive)
			slices.Sort(theirs)
			if got := strings.Join(alive, ", "); got != wantAlive {
				t.Errorf("as %s, removed %v: alive are %s, want %s", ann.Role, !ann.RemovedAt.IsZero(), got, wantAlive)
			}
			if got := strings.Join(theirs, ", "); got != wantSessions {
				t.Errorf("as %s, removed %v: the sessions of %s are to end, want %s", ann.Role, !ann.RemovedAt.IsZero(),
					got, wantSessions)
			}
		}
		ann.Role = outboard.RoleDeveloper
		change("another's, low, nobody's", "hers, high")
		ann.RemovedAt = time.Now()
		change("another's, nobody's", "hers, low")
	})
}

// If this fails, a grant for a person holds with one of their keys only, or for somebody else; or it outlives
// their removal or a lower role, also where it is stored while they are removed.
func TestGrantsEndWithThePerson(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := time.Now().UTC().Truncate(time.Microsecond)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		user := func(email string) outboard.User {
			u := outboard.User{ID: outboard.NewID[outboard.UserID](outboard.PrefixUser), Org: outboard.DefaultOrg,
				Email: email, Role: outboard.RoleAdmin, CreatedAt: now}
			must(s.AddUser(t.Context(), u))
			return u
		}
		ann, bob := user("ann@acme.test"), user("bob@acme.test")
		for id, u := range map[outboard.KeyID]outboard.UserID{"ann 1": ann.ID, "ann 2": ann.ID, "bob": bob.ID,
			"ci": ""} {
			must(s.PutKey(t.Context(), outboard.Key{ID: id, Name: string(id), Hash: string(id),
				Role: outboard.RoleAdmin, Org: outboard.DefaultOrg, User: u, CreatedAt: now}))
		}
		names := map[outboard.GrantID]string{}
		give := func(human string) error {
			g := outboard.Grant{ID: outboard.NewID[outboard.GrantID](outboard.PrefixGrant), Human: human,
				Actions: []string{"bash"}, Resources: []string{"*"},
				ExpiresAt: now.Add(time.Hour), ApprovedBy: "ci", CreatedAt: now}
			names[g.ID] = strings.ReplaceAll(strings.ReplaceAll(human, string(ann.ID), "ann"), string(bob.ID), "bob")
			return s.PutGrant(t.Context(), g)
		}
		covers := func(what string, u outboard.UserID, k outboard.KeyID, want ...string) {
			t.Helper()
			q := outboard.GrantQuery{Person: u, Key: k, Action: "bash", Resource: "ls", Now: now}
			list, err := s.GrantsFor(t.Context(), q)
			must(err)
			got := []string{}
			for i := range list {
				if list[i].Covers(q) {
					got = append(got, names[list[i].ID])
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: grants for %q, want %q", what, got, want)
			}
		}
		for _, human := range []string{string(ann.ID), string(bob.ID), "ann 1", "ci"} {
			must(give(human))
		}
		covers("one key", ann.ID, "ann 1", "ann", "ann 1")
		covers("another key", ann.ID, "ann 2", "ann")
		covers("somebody else", bob.ID, "bob", "bob")
		covers("a program", "", "ci", "ci")

		ann.Role = outboard.RoleDeveloper
		_, err := s.ChangeUser(t.Context(), ann, true)
		must(err)
		covers("demoted", ann.ID, "ann 1")
		covers("somebody else, after that", bob.ID, "bob", "bob")
		must(give(string(ann.ID)))
		covers("given after that", ann.ID, "ann 2", "ann")
		must(s.EndKeysOf(t.Context(), ann.ID))
		covers("all they held has ended", ann.ID, "ann 2")
		must(give(string(ann.ID)))
		ann.RemovedAt = now
		_, err = s.ChangeUser(t.Context(), ann, true)
		must(err)
		if err := give(string(ann.ID)); outboard.KindOf(err) != outboard.Conflict {
			t.Errorf("a grant for somebody who was removed: %v", err)
		}
		ann.RemovedAt = time.Time{}
		_, err = s.ChangeUser(t.Context(), ann, false)
		must(err)
		covers("let in again", ann.ID, "ann 2")
		covers("a program, after that", "", "ci", "ci")
	})
}

// If this fails, a grant that is given for a person at the moment in which they are removed is there when they
// are let in again.
func TestGrantsThatMeetARemoval(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := time.Now().UTC().Truncate(time.Microsecond)
		for i := range 20 {
			u := outboard.User{ID: outboard.NewID[outboard.UserID](outboard.PrefixUser), Org: outboard.DefaultOrg,
				Email: fmt.Sprintf("a%d@acme.test", i), Role: outboard.RoleAdmin, CreatedAt: now}
			if err := s.AddUser(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			var both sync.WaitGroup
			for range 4 {
				both.Go(func() {
					err := s.PutGrant(t.Context(),
						outboard.Grant{ID: outboard.NewID[outboard.GrantID](outboard.PrefixGrant), Human: string(u.ID),
							Actions: []string{"bash"}, Resources: []string{"*"}, ExpiresAt: now.Add(time.Hour), ApprovedBy: "ci", CreatedAt: now})
					if err != nil && outboard.KindOf(err) != outboard.Conflict {
						t.Error(err)
					}
				})
			}
			both.Go(func() {
				u := u
				u.RemovedAt = now
				if _, err := s.ChangeUser(t.Context(), u, true); err != nil {
					t.Error(err)
				}
			})
			both.Wait()
			if list, err := s.GrantsFor(t.Context(), outboard.GrantQuery{Person: u.ID, Now: now}); err != nil ||
				len(list) != 0 {
				t.Fatalf("%d grants of somebody who was removed are in force, %v", len(list), err)
			}
		}
	})
}

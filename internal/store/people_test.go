package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If this failed, an identity could become somebody else's, get lost when a role changes, or stay when it is to be forgotten.
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
			u := outboard.User{ID: outboard.NewID[outboard.UserID](outboard.PrefixUser), Org: outboard.DefaultOrg, Email: email, Role: outboard.RoleViewer,
				CreatedAt: time.Now().Truncate(time.Microsecond)}
			must(s.AddUser(ctx, u))
			return u
		}
		ann, bob := add("ann@acme.test"), add("bob@acme.test")
		if _, err := s.UserBySubject(ctx, "", ""); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("nobody's identity is somebody: %v", err)
		}
		must(s.BindUser(ctx, ann.ID, "https://id.test", "1"))
		for _, err := range []error{s.BindUser(ctx, bob.ID, "https://id.test", "1"), s.BindUser(ctx, ann.ID, "https://id.test", "2")} {
			if !errors.Is(err, store.ErrDuplicate) {
				t.Errorf("an identity was given away, or replaced: %v", err)
			}
		}
		ann, err := s.UserBySubject(ctx, "https://id.test", "1")
		must(err)
		ann.Role = outboard.RoleAdmin
		_, err = s.ChangeUser(ctx, ann, false)
		must(err)
		if got, err := s.UserBySubject(ctx, "https://id.test", "1"); err != nil || got.ID != ann.ID || got.Role != outboard.RoleAdmin {
			t.Errorf("after another role: %+v, %v", got, err)
		}
		ann.Issuer, ann.Subject = "", ""
		_, err = s.ChangeUser(ctx, ann, false)
		must(err)
		if _, err := s.UserBySubject(ctx, "https://id.test", "1"); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("a forgotten identity is somebody's: %v", err)
		}
		must(s.BindUser(ctx, bob.ID, "https://id.test", "1"))
	})
}

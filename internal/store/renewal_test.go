package store_test

import (
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If this fails, two processes renew one login at the same time, one that was ended is moved on, or what it was
// renewed with outlives it.
func TestLoginRenewals(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx, now := t.Context(), time.Now().UTC().Truncate(time.Microsecond)
		login := func(id outboard.KeyID, kind outboard.KeyKind) {
			t.Helper()
			k := outboard.Key{ID: id, Hash: string(id), Kind: kind, Role: outboard.RoleDeveloper,
				Org: outboard.DefaultOrg, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
			if err := s.PutKey(ctx, k); err != nil {
				t.Fatal(err)
			}
		}
		login("apikey_a", outboard.KeyLogin)
		login("apikey_b", outboard.KeyAPI)
		if _, err := s.LoginRenewal(ctx, "apikey_a"); outboard.KindOf(err) != outboard.NotFound || err == nil {
			t.Errorf("before there is one: %v", err)
		}
		r := store.LoginRenewal{Key: "apikey_a", Until: now.Add(24 * time.Hour),
			Sealed: outboard.Sealed{Key: "k", Data: []byte("one")}}
		mustBe(t, s.PutLoginRenewal(ctx, r), store.ErrRotated) // there is no key yet
		sealUnder(t, s, "k")
		if err := s.PutLoginRenewal(ctx, r); err != nil {
			t.Fatal(err)
		}
		for i, want := range []bool{true, false} {
			if won, err := s.ClaimLoginRenewal(ctx, r.Key, now, now.Add(time.Minute)); err != nil || won != want {
				t.Errorf("claim %d: %v, %v", i, won, err)
			}
		}
		next := r
		next.Until, next.Sealed.Data = r.Until.Add(time.Hour), []byte("two") // its end does not move
		if err := s.PutLoginRenewal(ctx, next); err != nil {
			t.Fatal(err)
		}
		if got, err := s.LoginRenewal(ctx, r.Key); err != nil || !got.Until.Equal(r.Until) ||
			string(got.Sealed.Data) != "two" {
			t.Errorf("%+v, %v", got, err)
		}
		if won, err := s.ClaimLoginRenewal(ctx, r.Key, now, now.Add(time.Minute)); err != nil || won {
			t.Errorf("a new value lets another one in: %v, %v", won, err)
		}
		if won, err := s.ClaimLoginRenewal(ctx, r.Key, now.Add(2*time.Minute), now.Add(3*time.Minute)); err != nil ||
			!won {
			t.Errorf("after whoever had it died: %v, %v", won, err)
		}
		if err := s.ReleaseLoginRenewal(ctx, r.Key); err != nil {
			t.Fatal(err)
		}
		if won, err := s.ClaimLoginRenewal(ctx, r.Key, now, now.Add(time.Minute)); err != nil || !won {
			t.Errorf("after it was released: %v, %v", won, err)
		}
		if k, err := s.ExtendLogin(ctx, "apikey_a", now.Add(2*time.Hour)); err != nil ||
			!k.ExpiresAt.Equal(now.Add(2*time.Hour)) {
			t.Errorf("extended: %+v, %v", k, err)
		}
		if _, err := s.ExtendLogin(ctx, "apikey_b", now.Add(2*time.Hour)); outboard.KindOf(err) != outboard.NotFound ||
			err == nil {
			t.Errorf("a key that is no login: %v", err)
		}
		if _, err := s.RevokeKey(ctx, "apikey_a", now); err != nil {
			t.Fatal(err)
		}
		if _, err := s.ExtendLogin(ctx, "apikey_a", now.Add(3*time.Hour)); outboard.KindOf(err) != outboard.NotFound ||
			err == nil {
			t.Errorf("after its end: %v", err)
		}
		if _, err := s.LoginRenewal(ctx, "apikey_a"); outboard.KindOf(err) != outboard.NotFound || err == nil {
			t.Errorf("what it was renewed with: %v", err)
		}
	})
}

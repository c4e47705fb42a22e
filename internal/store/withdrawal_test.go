package store_test

import (
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If this fails, what a login was renewed with is lost when the login ends, two servers have it at the same
// time, one that was late undoes what another has done since, or a token that was given back stays in the
// database.
func TestWithdrawals(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx, now := t.Context(), s.Now().UTC().Truncate(time.Microsecond)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		sealUnder(t, s, "k")
		must(s.AddUser(ctx, outboard.User{ID: "user_1", Org: outboard.DefaultOrg, Email: "ann@acme.test",
			Role: outboard.RoleDeveloper, Issuer: "https://id.test", Subject: "1", CreatedAt: now}))
		login := func(id outboard.KeyID, until time.Time) store.LoginRenewal {
			t.Helper()
			must(s.PutKey(ctx, outboard.Key{ID: id, Hash: string(id), Kind: outboard.KeyLogin,
				Role: outboard.RoleDeveloper, Org: outboard.DefaultOrg, User: "user_1", CreatedAt: now, ExpiresAt: now.Add(time.Hour)}))
			r := store.LoginRenewal{Key: id, Until: until, Sealed: outboard.Sealed{Key: "k",
				Data: []byte("token of " + id)}}
			must(s.PutLoginRenewal(ctx, r))
			return r
		}
		take := func(issuer string, at time.Time, want bool) store.Withdrawal {
			t.Helper()
			w, found, err := s.TakeWithdrawal(ctx, issuer, at, at.Add(time.Minute))
			if err != nil || found != want {
				t.Fatalf("taken: %t, %v, want %t", found, err, want)
			}
			return w
		}
		left := func(id outboard.KeyID, want bool) {
			t.Helper()
			if _, err := s.Withdrawal(ctx, id); (err == nil) != want {
				t.Errorf("%s: %v", id, err)
			}
			if _, err := s.LoginRenewal(ctx, id); want && outboard.KindOf(err) != outboard.NotFound {
				t.Errorf("%s can be renewed: %v", id, err)
			}
		}
		later := now.Add(time.Hour)
		login("apikey_a", later)
		login("apikey_b", later)
		if _, err := s.RevokeKey(ctx, "apikey_a", now); err != nil {
			t.Fatal(err)
		}
		left("apikey_a", true)
		left("apikey_b", false)
		soon := now.Add(10 * time.Second)
		take("https://other.test", soon, false)
		w := take("https://id.test", soon, true)
		if w.Key != "apikey_a" || w.User != "user_1" || w.Org != outboard.DefaultOrg || w.Issuer != "https://id.test" ||
			w.Why == "" ||
			string(w.Sealed.Data) != "token of apikey_a" || w.Sealed.Key != "k" || w.Tries != 1 ||
			!w.Until.After(now.Add(time.Hour)) {
			t.Errorf("%+v", w)
		}
		take("https://id.test", soon, false)
		again := take("https://id.test", soon.Add(time.Minute), true) // whoever had it died, or is late
		must(s.EndWithdrawal(ctx, w))
		must(s.SetWithdrawal(ctx, w, soon))
		left("apikey_a", true)
		take("https://id.test", soon.Add(time.Minute), false)
		must(s.SetWithdrawal(ctx, again, soon.Add(time.Minute)))
		again = take("https://id.test", soon.Add(time.Minute), true)
		must(s.EndWithdrawal(ctx, again))
		left("apikey_a", false)

		if _, w, found, err := s.EndLogin(ctx, "apikey_b", "why", now, later); err != nil || !found || w.Why != "why" ||
			w.Tries != 1 {
			t.Errorf("a login that is ended and given back: %+v, %t, %v", w, found, err)
		}
		if _, _, found, err := s.EndLogin(ctx, "apikey_b", "why", now, later); err != nil || found {
			t.Errorf("somebody else is at it: %t, %v", found, err)
		}
		take("https://id.test", soon, false)
		take("https://other.test", later.Add(100*time.Hour), true) // to give it up, which anybody may

		r := login("apikey_c", later) // it ends while it is renewed
		if _, err := s.RevokeKey(ctx, "apikey_c", now); err != nil {
			t.Fatal(err)
		}
		w = take("https://id.test", soon, true)
		r.Sealed.Data = []byte("a newer token")
		must(s.PutLoginRenewal(ctx, r))
		must(s.EndWithdrawal(ctx, w)) // of the older one
		if w = take("https://id.test", soon, true); w.Key != "apikey_c" || string(w.Sealed.Data) != "a newer token" {
			t.Errorf("%+v", w)
		}

		login("apikey_d", now.Add(-time.Second))
		login("apikey_e", later)
		login("apikey_f", later)
		// as a server did that knew of no withdrawals
		_, err := s.Exec(ctx, `UPDATE keys SET revoked_at = 1 WHERE id = 'apikey_e'`)
		must(err)
		_, err = s.TidyLogins(ctx, now)
		must(err)
		left("apikey_d", true)
		left("apikey_e", true)
		left("apikey_f", false)
		if _, err := s.LoginRenewal(ctx, "apikey_f"); err != nil {
			t.Errorf("a login that lives: %v", err)
		}
	})
}

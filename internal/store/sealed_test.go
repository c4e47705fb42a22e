package store_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// sealUnder makes a data key the default organization's.
func sealUnder(t *testing.T, s *store.Store, key string) {
	t.Helper()
	if err := reseal(t.Context(), s, key, nil); err != nil {
		t.Fatal(err)
	}
}

// reseal makes a data key the default organization's, after fn has had what is sealed.
func reseal(ctx context.Context, s *store.Store, key string, fn func(*store.SealedValue) bool) error {
	return s.EditVaults(ctx, "default", true, func(st store.VaultState) (store.VaultEdit, error) {
		e := store.VaultEdit{Key: outboard.VaultKey{ID: key, Wrapping: outboard.Raw(`{}`), Wrapped: []byte{9},
			Sequence: st.Key.Sequence + 1, Tag: []byte{8}}}
		for _, v := range st.Values {
			if fn(&v) {
				e.Values = append(e.Values, v)
			}
		}
		return e, nil
	})
}

// plainBytes are the columns of bytes that hold nothing sealed under a data key, with what they hold.
var plainBytes = map[string]string{
	"events.data": "JSON", "audit.proof": "salts", "audit.hashes": "hashes",
	"vault_keys.wrapped": "the data key itself, under a key that is not in the database", "vault_keys.tag": "a MAC",
}

// Fails if a column for secrets was added that a rotation of the keys forgets.
func TestSealedTables(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		var sealed, keyed []string
		seen := map[string]bool{}
		cols, err := s.Columns(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cols {
			name := c.Table + "." + c.Name
			seen[name] = true
			switch _, plain := plainBytes[name]; {
			case c.Name == "key_id":
				keyed = append(keyed, c.Table)
			case c.Name == "sealed":
				sealed = append(sealed, c.Table)
			case c.Bytes && !plain:
				t.Errorf("%s holds bytes: seal it in a table of sealedTables, or say in plainBytes what it holds", name)
			}
		}
		for name := range plainBytes {
			if !seen[name] {
				t.Errorf("there is no %s", name)
			}
		}
		want := store.SealedTables()
		slices.Sort(want)
		for _, have := range [][]string{sealed, keyed} {
			slices.Sort(have)
			if !slices.Equal(have, want) || len(have) == 0 {
				t.Errorf("the schema has %v, sealedTables has %v", have, want)
			}
		}
	})
}

// Fails if a key is given up while something is sealed under it, if what is written at the same time is sealed
// under the key that goes, or if another organization's rows change.
func TestReseal(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx, now := t.Context(), s.Now().UTC().Truncate(time.Microsecond)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		sealUnder(t, s, "k0")
		renewal := func(id outboard.KeyID, key, data string) store.LoginRenewal {
			return store.LoginRenewal{Key: id, Until: now.Add(time.Hour),
				Sealed: outboard.Sealed{Key: key, Data: []byte(data)}}
		}
		for _, id := range []outboard.KeyID{"apikey_a", "apikey_b"} {
			must(s.PutKey(ctx, outboard.Key{ID: id, Hash: string(id), Kind: outboard.KeyLogin,
				Role: outboard.RoleDeveloper, Org: outboard.DefaultOrg, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}))
			must(s.PutLoginRenewal(ctx, renewal(id, "k0", "of "+string(id))))
		}
		must(second(s.RevokeKey(ctx, "apikey_b", now)))

		var met []string
		forgets := func(v *store.SealedValue) bool {
			met = append(met, v.Table+" "+v.Row+" "+v.Use)
			v.Sealed = outboard.Sealed{Key: "k1", Data: []byte("new " + v.Row)}
			return v.Table != "login_withdrawals"
		}
		if err := reseal(ctx, s, "k1", forgets); err == nil || outboard.KindOf(err) != outboard.Internal {
			t.Errorf("with a row that stays: %v", err)
		}
		if !slices.Equal(met, []string{"login_renewals apikey_a login apikey_a",
			"login_withdrawals apikey_b login apikey_b"}) {
			t.Errorf("read %q", met)
		}
		if r, err := s.LoginRenewal(ctx, "apikey_a"); err != nil || r.Sealed.Key != "k0" ||
			string(r.Sealed.Data) != "of apikey_a" {
			t.Errorf("after a refused rotation: %+v, %v", r, err)
		}
		must(reseal(ctx, s, "k1", func(v *store.SealedValue) bool { forgets(v); return true }))
		if r, err := s.LoginRenewal(ctx, "apikey_a"); err != nil || r.Sealed.Key != "k1" ||
			string(r.Sealed.Data) != "new apikey_a" || !r.Until.Equal(now.Add(time.Hour)) {
			t.Errorf("after a rotation: %+v, %v", r, err)
		}
		if w, err := s.Withdrawal(ctx, "apikey_b"); err != nil || w.Sealed.Key != "k1" ||
			string(w.Sealed.Data) != "new apikey_b" || w.Tries != 0 {
			t.Errorf("on its way back: %+v, %v", w, err)
		}
		mustBe(t, s.PutLoginRenewal(ctx, renewal("apikey_a", "k0", "late")), store.ErrRotated)
		if err := s.PutLoginRenewal(ctx, renewal("apikey_none", "k1", "x")); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("of no login: %v", err)
		}
	})
}

// Fails if a rotation and what goes on beside it lose a token: what is written, or moves from one table to the
// other, between the moment when the rotation reads and the one when it writes.
func TestResealBesides(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		ctx, now := t.Context(), s.Now().UTC().Truncate(time.Microsecond)
		sealUnder(t, s, "k0")
		key, ids := "k0", []outboard.KeyID{}
		for i := range 12 {
			id := outboard.KeyID("apikey_" + string(rune('a'+i)))
			ids = append(ids, id)
			if err := errors.Join(s.PutKey(ctx, outboard.Key{ID: id, Hash: string(id), Kind: outboard.KeyLogin,
				Role: outboard.RoleDeveloper, Org: outboard.DefaultOrg, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}),
				s.PutLoginRenewal(ctx, store.LoginRenewal{Key: id, Until: now.Add(time.Hour),
					Sealed: outboard.Sealed{Key: key, Data: []byte("0")}})); err != nil {
				t.Fatal(err)
			}
		}
		put := func(id outboard.KeyID, data string) (stored bool) { // as KeepValue does
			for range 100 {
				k, err := other.VaultKey(ctx, "default")
				if err == nil {
					err = other.PutLoginRenewal(ctx, store.LoginRenewal{Key: id, Until: now.Add(time.Hour),
						Sealed: outboard.Sealed{Key: k.ID, Data: []byte(data)}})
				}
				if err == nil {
					return true
				}
				if !errors.Is(err, store.ErrRotated) {
					t.Error(err)
					return false
				}
			}
			return false
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 8 {
				next := "k" + string(rune('1'+i))
				if err := reseal(ctx, s, next,
					func(v *store.SealedValue) bool { v.Sealed.Key = next; return true }); err != nil {
					t.Error(err)
				}
				key = next
			}
		})
		wg.Go(func() {
			for _, id := range ids {
				if !put(id, "1") {
					t.Errorf("%s was not stored", id)
				}
			}
		})
		wg.Go(func() {
			for i, id := range ids {
				if i%2 == 0 {
					if _, err := other.RevokeKey(ctx, id, now); err != nil {
						t.Error(err)
					}
				}
			}
		})
		wg.Wait()
		for i, id := range ids {
			r, err := s.LoginRenewal(ctx, id)
			got := r.Sealed
			if i%2 == 0 {
				var w store.Withdrawal
				w, err = s.Withdrawal(ctx, id)
				got = w.Sealed
			}
			if err != nil || got.Key != key || string(got.Data) != "1" {
				t.Errorf("%s: %s under %s, %v, want the new token under %s", id, got.Data, got.Key, err, key)
			}
		}
	})
}

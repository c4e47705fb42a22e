package store_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// If this fails, a credential's sealed bytes, its place in a list or the key beside it do not survive the database.
func TestVaultRows(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx := t.Context()
		if k, err := s.VaultKey(ctx, "default"); err != nil || k.ID != "" {
			t.Fatalf("before the first key: %+v, %v", k, err)
		}
		v := outboard.Vault{ID: "vlt_01a", DisplayName: "v", CreatedAt: day(1)}
		c := store.Credential{Unique: "name a", Sealed: outboard.Sealed{Key: "k1", Data: []byte{0, 1, 255}},
			Credential: outboard.Credential{ID: "vcrd_01a", Vault: v.ID, Version: 1, CreatedAt: day(2),
				Auth: outboard.Auth{Name: "A"}}}
		put := func(cs ...store.Credential) error {
			return s.EditVaults(ctx, "default", true, func(st store.VaultState) (store.VaultEdit, error) {
				return store.VaultEdit{Put: cs, Vaults: []outboard.Vault{v},
					Key: outboard.VaultKey{ID: "k1", Wrapping: outboard.Raw(`{}`),
						Wrapped: []byte{9}, Sequence: st.Key.Sequence + 1, Tag: []byte{8}}}, nil
			})
		}
		if err := put(c); err != nil {
			t.Fatal(err)
		}
		got, err := s.Credential(ctx, c.ID)
		if err != nil || !bytes.Equal(got.Sealed.Data, c.Sealed.Data) || got.Sealed.Key != "k1" ||
			got.Auth.Name != "A" || got.Version != 1 {
			t.Fatalf("read back %+v, %v", got, err)
		}
		twin := c
		twin.ID = "vcrd_01b"
		mustBe(t, put(twin), store.ErrDuplicate)
		st, err := s.VaultState(ctx, "default")
		if err != nil || st.Key.Sequence != 1 || len(st.Marks) != 1 || st.Marks[0].Archived {
			t.Fatalf("after a refused edit: %+v, %v", st, err)
		}
		c.ArchivedAt, c.Version, c.Sealed = day(3), 2, outboard.Sealed{}
		if err := put(c, twin); err != nil { // the archived one's name is free
			t.Fatal(err)
		}
		living, err := s.LivingCredentials(ctx, []outboard.VaultID{v.ID})
		if err != nil || len(living) != 1 || living[0].ID != twin.ID {
			t.Fatalf("living: %+v, %v", living, err)
		}
		all, err := s.Credentials(ctx, v.ID, store.Page{IncludeArchived: true})
		if err != nil || len(all) != 2 {
			t.Fatalf("all: %+v, %v", all, err)
		}
		v.ArchivedAt = day(4)
		if err := s.PutVault(ctx, v); err != nil {
			t.Fatal(err)
		}
		if living, err = s.LivingCredentials(ctx, []outboard.VaultID{v.ID}); err != nil || len(living) != 0 {
			t.Fatalf("living in an archived vault: %+v, %v", living, err)
		}
		stop := errors.New("stop")
		mustBe(t, s.EditVaults(ctx, "default", true, func(st store.VaultState) (store.VaultEdit, error) {
			if len(st.Rows) != 2 || st.Key.Sequence != 2 || st.Key.Wrapped[0] != 9 || st.Key.Tag[0] != 8 {
				t.Errorf("the state an edit sees: %+v", st)
			}
			return store.VaultEdit{}, stop
		}), stop)
	})
}

// If this fails, two processes renew one token at the same time, and the issuer takes one of the results for theft.
func TestClaimRenewal(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		c := store.Credential{Unique: "u", Credential: outboard.Credential{ID: "vcrd_01a", Vault: "vlt_01a", Version: 3,
			CreatedAt: day(2)}}
		if err := s.EditVaults(t.Context(), "default", false, func(store.VaultState) (store.VaultEdit, error) {
			return store.VaultEdit{Put: []store.Credential{c}, Key: outboard.VaultKey{ID: "k",
				Wrapping: outboard.Raw(`{}`), Wrapped: []byte{1}, Tag: []byte{1}}}, nil
		}); err != nil {
			t.Fatal(err)
		}
		claim := func(version int64, ttl time.Duration) bool {
			won, err := s.ClaimRenewal(t.Context(), c.ID, version, ttl)
			if err != nil {
				t.Fatal(err)
			}
			return won
		}
		if claim(2, time.Minute) {
			t.Error("an old version was claimed")
		}
		if !claim(3, -time.Second) || !claim(3, time.Minute) {
			t.Error("a free or a run-out claim was refused")
		}
		if claim(3, time.Minute) {
			t.Error("claimed twice")
		}
		release := func(version int64) {
			if err := s.ReleaseRenewal(t.Context(), c.ID, version); err != nil {
				t.Fatal(err)
			}
		}
		if release(2); claim(3, time.Minute) {
			t.Error("claimed twice after the claim of an old version was released")
		}
		if release(3); !claim(3, time.Minute) {
			t.Error("a claim that was released was refused")
		}
	})
}

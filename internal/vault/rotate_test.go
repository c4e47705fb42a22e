package vault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// logins are a vault with a credential and two people's logins, of whom the second has left.
type logins struct {
	t     *testing.T
	cfg   store.Config
	store *store.Store
	dir   string
	*Keeper
	credential outboard.CredentialID
}

const stays, leaves = outboard.KeyID("apikey_stays"), outboard.KeyID("apikey_leaves")

func newLogins(t *testing.T, cfg store.Config) *logins {
	t.Helper()
	l := &logins{t: t, cfg: cfg, store: storetest.Open(t, cfg), dir: t.TempDir(),
		credential: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential)}
	l.Keeper = l.another()
	now := l.store.Now().UTC().Truncate(time.Microsecond)
	l.must(l.Create(t.Context(), outboard.Credential{ID: l.credential, Vault: "vlt_01a", Auth: header("a", "a.test"),
		CreatedAt: now}, Secrets{Value: outboard.NewSecret("the secret")}))
	for _, id := range []outboard.KeyID{stays, leaves} {
		l.must(l.store.PutKey(t.Context(), outboard.Key{ID: id, Hash: string(id), Kind: outboard.KeyLogin,
			Role: outboard.RoleDeveloper, Org: outboard.DefaultOrg, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}))
		l.must(l.keep(l.Keeper, id, "token of "+string(id)))
	}
	_, err := l.store.RevokeKey(t.Context(), leaves, now)
	l.must(err)
	return l
}

// another is a second process.
func (l *logins) another() *Keeper { return rotatingKeeper(l.store, l.dir, nil) }

func rotatingKeeper(s *store.Store, dir string, reached func(string)) *Keeper {
	return New(Config{Store: s, Wrappers: []Wrapper{KeyDir{filepath.Join(dir, "vault-keys")}},
		Mark: filepath.Join(dir, "vault.seq"), reached: reached})
}

func (l *logins) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *logins) keep(k *Keeper, id outboard.KeyID, token string) error {
	return k.KeepValue(l.t.Context(), store.LoginUse(id), outboard.NewSecret(token), func(s outboard.Sealed) error {
		return l.store.PutLoginRenewal(l.t.Context(), store.LoginRenewal{Key: id, Until: l.store.Now().Add(time.Hour),
			Sealed: s})
	})
}

// token opens what a login is renewed with, wherever it is.
func (l *logins) token(k *Keeper, id outboard.KeyID) string {
	l.t.Helper()
	v, err := k.OpenValue(l.t.Context(), store.LoginUse(id), func() (outboard.Sealed, error) {
		if id == leaves {
			w, err := l.store.Withdrawal(l.t.Context(), id)
			return w.Sealed, err
		}
		r, err := l.store.LoginRenewal(l.t.Context(), id)
		return r.Sealed, err
	})
	l.must(err)
	return v.Reveal()
}

// opens wants that a process can open everything, under one key.
func (l *logins) opens(when string, k *Keeper) (key string) {
	l.t.Helper()
	for _, id := range []outboard.KeyID{stays, leaves} {
		if got := l.token(k, id); got != "token of "+string(id) {
			l.t.Errorf("%s: %q", when, got)
		}
	}
	row, s, err := k.openNow(l.t.Context(), l.credential)
	if err != nil || s.Value.Reveal() != "the secret" {
		l.t.Fatalf("%s: the credential: %v", when, err)
	}
	r, err := l.store.LoginRenewal(l.t.Context(), stays)
	l.must(err)
	w, err := l.store.Withdrawal(l.t.Context(), leaves)
	l.must(err)
	if r.Sealed.Key != row.Sealed.Key || w.Sealed.Key != row.Sealed.Key {
		l.t.Errorf("%s: sealed under %s, %s and %s", when, row.Sealed.Key, r.Sealed.Key, w.Sealed.Key)
	}
	return row.Sealed.Key
}

// If this fails, a rotation makes what logins are renewed with, or what is on its way back to an identity
// provider, worthless.
func TestRotationSealsLogins(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		l := newLogins(t, cfg)
		running := l.another()
		before := l.opens("before", running)
		got, err := l.RotateKeys(t.Context())
		if err != nil || got.Credentials != 1 || got.Values["login_renewals"] != 1 ||
			got.Values["login_withdrawals"] != 1 || got.Lost != 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		for when, k := range map[string]*Keeper{"the one that rotated": l.Keeper, "one that ran": running,
			"a new one": l.another()} {
			if l.opens(when, k) == before {
				t.Errorf("%s: the key is the old one", when)
			}
		}
		late := l.another()
		l.opens("late", late) // and has the key in memory
		_, err = l.RotateKeys(t.Context())
		l.must(err)
		l.must(l.keep(late, stays, "a newer token")) // which it seals under the key that is gone, at first
		if got := l.token(l.another(), stays); got != "a newer token" {
			t.Errorf("after a renewal beside a rotation: %q", got)
		}
		l.must(l.keep(late, stays, "token of "+string(stays)))
		bad := func(change func(*store.SealedValue)) {
			l.must(l.store.EditVaults(t.Context(), l.org, true, func(st store.VaultState) (store.VaultEdit, error) {
				change(&st.Values[0])
				return store.VaultEdit{Key: st.Key, Values: st.Values[:1]}, nil
			}))
		}
		bad(func(v *store.SealedValue) { v.Sealed.Data[20] ^= 1 })
		if _, err := l.RotateKeys(t.Context()); err == nil || outboard.KindOf(err) != outboard.Denied ||
			!strings.Contains(err.Error(), string(stays)) {
			t.Errorf("with a row that somebody changed: %v", err)
		}
		bad(func(v *store.SealedValue) { v.Sealed.Key = "gone" })
		if got, err := l.RotateKeys(t.Context()); err != nil || got.Lost != 1 || got.Values["login_renewals"] != 0 ||
			got.Values["login_withdrawals"] != 1 {
			t.Errorf("with a row that was lost before: %+v, %v", got, err)
		}
	})
}

// If this fails, a process that is killed at some step of a rotation leaves something sealed under a key that
// nobody has, or half of it sealed anew.
func TestRotationKilledAtEachStep(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		l := newLogins(t, cfg)
		running, key := l.another(), l.opens("before", l.Keeper)
		for _, c := range []struct {
			step    string
			rotated bool
			files   int
		}{{"wrapped", false, 2}, {"sealed", false, 3}, {"stored", true, 4}, {"settled", true, 4}, {"", true, 4}} {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"=rotate once", "VAULT_DIR="+l.dir, "VAULT_DB="+cfg.Path,
				"VAULT_URL="+cfg.URL, "VAULT_STEP="+c.step)
			out, err := cmd.CombinedOutput()
			killed := false
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				status, _ := exit.Sys().(syscall.WaitStatus)
				killed = status.Signaled() && status.Signal() == syscall.SIGKILL
			}
			if killed == (c.step == "") || !killed && err != nil {
				t.Fatalf("killed at %q: %t, %v: %s", c.step, killed, err, out)
			}
			for when, k := range map[string]*Keeper{"one that ran": running, "a new one": l.another()} {
				now := l.opens(fmt.Sprintf("killed at %q, %s", c.step, when), k)
				if now != key != c.rotated && when == "a new one" {
					t.Errorf("killed at %q: rotated is %t", c.step, now != key)
				}
			}
			key = l.opens("after", l.another())
			if files, _ := filepath.Glob(filepath.Join(l.dir, "vault-keys", "*.key")); len(files) != c.files {
				t.Errorf("killed at %q: %d files of keys, want %d", c.step, len(files), c.files)
			}
		}
	})
}

// rotateAndDie rotates the keys of the database in its environment, and kills itself at a step.
func rotateAndDie() {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Config{Path: os.Getenv("VAULT_DB"), URL: os.Getenv("VAULT_URL")})
	if err == nil {
		_, err = rotatingKeeper(s, os.Getenv("VAULT_DIR"), func(step string) {
			if step == os.Getenv("VAULT_STEP") {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}).RotateKeys(ctx)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// If this fails, servers that renew logins while the keys are rotated lose the new tokens, which are the only
// ones that are still good.
func TestRotationBesideRenewals(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		l := newLogins(t, cfg)
		var rotations atomic.Int64
		var wg sync.WaitGroup
		over := make(chan struct{})
		wg.Go(func() {
			k := l.another()
			for {
				select {
				case <-over:
					return
				default:
				}
				if _, err := k.RotateKeys(t.Context()); err != nil {
					t.Error(err)
					return
				}
				rotations.Add(1)
			}
		})
		k := l.another()
		for i := 0; i < 10 || rotations.Load() < 5; i++ {
			want := fmt.Sprintf("token %d", i)
			if err := l.keep(k, stays, want); err != nil {
				t.Error(err)
				break
			}
			if got := l.token(l.another(), stays); got != want {
				t.Errorf("stored %q, read %q", want, got)
			}
			if got := l.token(k, leaves); got != "token of "+string(leaves) {
				t.Errorf("on its way back: %q", got)
			}
		}
		close(over)
		wg.Wait()
	})
}

package vault

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/store"
)

// rig is a keeper on a database of its own, with one vault and one session that has it.
type rig struct {
	*testing.T
	*Keeper
	dir     string
	store   *store.Store
	vault   outboard.VaultID
	session outboard.SessionID
	now     time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, dir: t.TempDir(), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(r.dir, "outboard.db")})
	r.must(err)
	t.Cleanup(func() { s.Close() })
	r.store = s
	r.Keeper = r.another()
	r.vault = r.addVault()
	r.session = r.addSession(r.vault)
	return r
}

// another is a second process on the same database and key directory.
func (r *rig) another() *Keeper {
	return New(Config{Store: r.store, Wrappers: []Wrapper{KeyDir{filepath.Join(r.dir, "vault-keys")}},
		Mark: filepath.Join(r.dir, "vault.seq"),
		HTTP: Client(&outbound.Guard{Private: outbound.Loopback}, nil), Now: func() time.Time { return r.now }})
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) addVault() outboard.VaultID {
	r.Helper()
	v := outboard.Vault{ID: outboard.NewID[outboard.VaultID](outboard.PrefixVault), DisplayName: "v", CreatedAt: r.now}
	r.must(r.store.PutVault(r.Context(), v))
	return v.ID
}

func (r *rig) addSession(vaults ...outboard.VaultID) outboard.SessionID {
	r.Helper()
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_01x"}
	cfg := outboard.SessionConfig{}
	for _, v := range vaults {
		cfg.VaultIDs = append(cfg.VaultIDs, string(v))
	}
	_, err := r.store.CreateSession(r.Context(), h, cfg, outboard.NewEvent("", &outboard.SessionCreated{}))
	r.must(err)
	return h.ID
}

// add stores a credential with a value.
func (r *rig) add(a outboard.Auth, value string) outboard.Credential {
	r.Helper()
	c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: r.vault,
		Auth: a, CreatedAt: r.now}
	r.must(r.Create(r.Context(), c, Secrets{Value: outboard.NewSecret(value)}))
	c.Version = 1
	return c
}

// header is a rule that sets Authorization for one host.
func header(name, host string) outboard.Auth {
	return outboard.Auth{Type: outboard.AuthHeader, Name: name, HeaderName: "Authorization", Format: "Bearer {secret}",
		Rule: outboard.UseRule{Hosts: []string{host}}}
}

// to is a request of the rig's session.
func (r *rig) to(method, host, path string) Request {
	return Request{Session: r.session, Scheme: "https", Method: method, Host: host, Port: 443, Path: path}
}

// bearer is what a request to host would carry.
func (r *rig) bearer(k *Keeper, host string) string {
	r.Helper()
	in, err := k.Use(r.Context(), r.to("GET", host, "/"))
	r.must(err)
	return in.Set["Authorization"].Reveal()
}

// wantKind fails unless err is of the kind and says all words.
func (r *rig) wantKind(err error, kind outboard.Kind, words ...string) {
	r.Helper()
	if err == nil || outboard.KindOf(err) != kind {
		r.Fatalf("got error %v, want kind %s", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.Fatalf("error %q does not say %q", err, w)
		}
	}
}

// crash is an edit that fails where a process would be killed.
var errCrash = errors.New("killed here")

// sql changes the database behind everybody's back.
func (r *rig) sql(query string, args ...any) {
	r.Helper()
	db := openRaw(r.T, filepath.Join(r.dir, "outboard.db"))
	_, err := db.ExecContext(context.Background(), query, args...)
	r.must(err)
}

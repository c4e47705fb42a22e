//go:build linux

package fleet

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// behindPassword is a registry in front of that of an image, which lets in who is "me" with a password. It
// returns the image's name there.
func behindPassword(t *testing.T, ref, password string) string {
	t.Helper()
	host, rest, _ := strings.Cut(ref, "/")
	inner := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, given, _ := r.BasicAuth(); user != "me" || given != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="app"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://") + "/" + rest
}

// credentialFor stores that an organization has a credential for a registry, or, with an archived one, that it had.
func (r *rig) credentialFor(t *testing.T, org outboard.OrgID, c *store.Credential, registry string) {
	t.Helper()
	now := r.store.Now()
	if c.ID == "" {
		c.ID, c.CreatedAt, c.Vault = outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), now, outboard.NewID[outboard.VaultID](outboard.PrefixVault)
		c.Auth.Name, c.Unique = strings.ReplaceAll(registry, ":", "_"), "1"
	}
	v := outboard.Vault{ID: c.Vault, Org: org, DisplayName: RegistryVault, CreatedAt: c.CreatedAt}
	err := r.store.EditVaults(t.Context(), string(org), false, func(store.VaultState) (store.VaultEdit, error) {
		return store.VaultEdit{Key: outboard.VaultKey{ID: "k", Wrapping: outboard.Raw("{}"), Wrapped: []byte{1},
			Tag: []byte{1}}, Vaults: []outboard.Vault{v}, Put: []store.Credential{*c}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If this failed, an environment's image that takes a password could not be had by the organization that has
// stored it, or would be had by another one, or still by one that has it no more.
func TestEnvironmentRegistry(t *testing.T) {
	r := newRig(t)
	r.provider = nativeProvider(t)
	images := images(t)
	f := r.fleet(func(c *Config) {
		c.Images = images
		c.Login = func(_ context.Context, org outboard.OrgID, credential, registry string) (string, outboard.Secret,
			error) {
			if org != "org_has" || credential != RegistryVault+"/"+strings.ReplaceAll(registry, ":", "_") {
				t.Errorf("organization %s asks for %s", org, credential)
			}
			return "me", outboard.NewSecret("right"), nil
		}
	})
	t.Cleanup(f.Stop)
	env := outboard.EnvConfig{Kind: "cloud",
		Image: behindPassword(t, imageServer(t, v1.Config{}, map[string]string{"etc/motd": "secret"}), "right")}
	session := func(org outboard.OrgID) error {
		id := r.sessionIn(t, env)
		q := r.request(t, id)
		q.Config.Owner.Org = org
		b, err := f.Acquire(t.Context(), q)
		if err == nil {
			release(t, f, b)
		}
		return err
	}
	box := func(org outboard.OrgID) error {
		_, err := f.CreateBox(t.Context(), outboard.Box{ID: outboard.NewBoxID(), Org: org, Env: env, EndAt: time.Now().
			Add(time.Hour)}, outboard.BlobRef{})
		return err
	}
	refused := func(when string, org outboard.OrgID) {
		t.Helper()
		for what, try := range map[string]func(outboard.OrgID) error{"a session": session, "a box": box} {
			if err := try(org); outboard.KindOf(err) != outboard.Denied ||
				!strings.Contains(err.Error(), "does not let this server have it") {
				t.Errorf("%s of %s, %s: %v", what, org, when, err)
			}
		}
	}
	refused("before there is a credential", "org_has")
	c := new(store.Credential)
	registry, _, _ := strings.Cut(env.Image, "/")
	r.credentialFor(t, "org_has", c, registry)
	for what, try := range map[string]func(outboard.OrgID) error{"a session": session, "a box": box} {
		if err := try("org_has"); err != nil {
			t.Errorf("%s, with the credential: %v", what, err)
		}
	}
	refused("whose layers are here by another one's credential", "org_other")
	refused("whose layers are here by another one's credential", "")
	c.ArchivedAt = r.store.Now()
	r.credentialFor(t, "org_has", c, registry)
	refused("after it was archived", "org_has")
}

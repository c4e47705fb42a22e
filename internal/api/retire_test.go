package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/vault"
)

// Fails if the tokens of an OAuth credential that is archived or deleted, alone or with its vault, live on at
// their issuer (RFC 7009), or if those of another one are given back with them.
func TestArchivedTokensAreRevoked(t *testing.T) {
	got := make(chan string, 16)
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	defer issuer.Close()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"token_endpoint":%q,"revocation_endpoint":%q}`, issuer.URL+"/token", issuer.URL+"/revoke")
	})
	mux.HandleFunc("POST /revoke", func(_ http.ResponseWriter, r *http.Request) { got <- r.FormValue("token") })
	var keeper *vault.Keeper
	b := newBench(t, func(c *control.Config) { keeper = c.Vault })
	t.Cleanup(keeper.Stop)
	for name, end := range map[string]func(vault, credential string){
		"archived":           func(v, c string) { b.ok("POST", "/v1/vaults/"+v+"/credentials/"+c+"/archive", nil) },
		"deleted":            func(v, c string) { b.ok("DELETE", "/v1/vaults/"+v+"/credentials/"+c, nil) },
		"its vault archived": func(v, _ string) { b.ok("POST", "/v1/vaults/"+v+"/archive", nil) },
		"its vault deleted":  func(v, _ string) { b.ok("DELETE", "/v1/vaults/"+v, nil) },
	} {
		add := func(v, suffix string) string {
			t.Helper()
			c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential),
				Vault: outboard.VaultID(v), CreatedAt: time.Now(),
				Auth: outboard.Auth{Type: outboard.AuthOAuth, MCPServerURL: "https://mcp.example.com/" + suffix,
					ExpiresAt: time.Now().Add(time.Hour),
					Refresh: &outboard.OAuthRefresh{TokenEndpoint: issuer.URL + "/token", ClientID: "client",
						EndpointAuth: "client_secret_basic"}}}
			s := outboard.NewSecret
			if err := keeper.Create(t.Context(), c, vault.Secrets{Value: s("access-" + suffix),
				RefreshToken: s("refresh-" + suffix), ClientSecret: s("client-secret")}); err != nil {
				t.Fatal(err)
			}
			return string(c.ID)
		}
		mine, others := b.vault(), b.vault()
		id := add(mine, name[:3])
		add(others, "other")
		end(mine, id)
		want := map[string]bool{"access-" + name[:3]: true, "refresh-" + name[:3]: true}
		for range 2 {
			select {
			case token := <-got:
				if !want[token] {
					t.Errorf("%s: the issuer took back %s", name, token)
				}
				delete(want, token)
			case <-time.After(30 * time.Second):
				t.Fatalf("%s: the issuer was not given %v", name, want)
			}
		}
	}
	if len(got) != 0 {
		t.Errorf("and %s besides", <-got)
	}
}

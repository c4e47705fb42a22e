package sdk

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// Fails if the Go SDK cannot keep secrets here, an answer departs from its OpenAPI document, or one repeats a secret.
func TestGoVaults(t *testing.T) {
	base, key := serve(t)
	rec := record(t, base)
	c := anthropic.NewClient(option.WithBaseURL(rec.url), option.WithAPIKey(key))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	v, err := c.Beta.Vaults.New(ctx, anthropic.BetaVaultNewParams{DisplayName: "sdk",
		Metadata: map[string]string{"team": "sdk"}})
	must(err)
	_, err = c.Beta.Vaults.Update(ctx, v.ID, anthropic.BetaVaultUpdateParams{DisplayName: anthropic.String("renamed")})
	must(err)
	hosts := anthropic.BetaManagedAgentsCredentialNetworkingParamsUnion{OfLimited: &anthropic.BetaManagedAgentsLimitedCredentialNetworkingParams{
		Type: "limited", AllowedHosts: []string{"api.example.com"}}}
	var ids []string
	for _, auth := range []anthropic.BetaVaultCredentialNewParamsAuthUnion{
		{OfEnvironmentVariable: &anthropic.BetaManagedAgentsEnvironmentVariableCreateParams{Type: "environment_variable", SecretName: "TOKEN", SecretValue: "s3cret-value", Networking: hosts}},
		{OfStaticBearer: &anthropic.BetaManagedAgentsStaticBearerCreateParams{Type: "static_bearer",
			MCPServerURL: "https://mcp.example.com/a", Token: "s3cret-value"}},
		{OfMCPOAuth: &anthropic.BetaManagedAgentsMCPOAuthCreateParams{Type: "mcp_oauth",
			MCPServerURL: "https://127.0.0.1:1/b", AccessToken: "s3cret-value",
			ExpiresAt: anthropic.Time(time.Now().
				Add(time.Hour)), Refresh: anthropic.BetaManagedAgentsMCPOAuthRefreshParams{ClientID: "id", RefreshToken: "s3cret-refresh",
				TokenEndpoint: "https://auth.example.com/token", TokenEndpointAuth: anthropic.BetaManagedAgentsMCPOAuthRefreshParamsTokenEndpointAuthUnion{
					OfClientSecretPost: &anthropic.BetaManagedAgentsTokenEndpointAuthPostParam{Type: "client_secret_post", ClientSecret: "s3cret-client"}}}}},
	} {
		cr, err := c.Beta.Vaults.Credentials.New(ctx, v.ID,
			anthropic.BetaVaultCredentialNewParams{DisplayName: anthropic.String("c"), Auth: auth})
		must(err)
		if strings.Contains(cr.RawJSON(), "s3cret") {
			t.Errorf("a secret is shown: %s", cr.RawJSON())
		}
		ids = append(ids, cr.ID)
	}
	_, err = c.Beta.Vaults.Credentials.Update(ctx, ids[0], anthropic.BetaVaultCredentialUpdateParams{VaultID: v.ID,
		Auth: anthropic.BetaVaultCredentialUpdateParamsAuthUnion{
			OfEnvironmentVariable: &anthropic.BetaManagedAgentsEnvironmentVariableUpdateParams{Type: "environment_variable",
				SecretValue: anthropic.String("s3cret-new")}}})
	must(err)
	n := 0
	for p := c.Beta.Vaults.Credentials.ListAutoPaging(ctx, v.ID,
		anthropic.BetaVaultCredentialListParams{Limit: anthropic.Int(2)}); p.Next(); n++ {
	}
	if n != 3 {
		t.Errorf("%d credentials in the list", n)
	}
	checked, err := c.Beta.Vaults.Credentials.MCPOAuthValidate(ctx, ids[2],
		anthropic.BetaVaultCredentialMCPOAuthValidateParams{VaultID: v.ID})
	must(err)
	if checked.Status != "unknown" || !checked.HasRefreshToken { // an address that nobody may reach from here
		t.Errorf("validated: %s", checked.RawJSON())
	}
	_, err = c.Beta.Vaults.Credentials.Get(ctx, ids[1], anthropic.BetaVaultCredentialGetParams{VaultID: v.ID})
	must(err)
	_, err = c.Beta.Vaults.Credentials.Archive(ctx, ids[1], anthropic.BetaVaultCredentialArchiveParams{VaultID: v.ID})
	must(err)
	_, err = c.Beta.Vaults.Credentials.Delete(ctx, ids[1], anthropic.BetaVaultCredentialDeleteParams{VaultID: v.ID})
	must(err)
	_, err = c.Beta.Vaults.List(ctx, anthropic.BetaVaultListParams{})
	must(err)
	archived, err := c.Beta.Vaults.Archive(ctx, v.ID, anthropic.BetaVaultArchiveParams{})
	must(err)
	if archived.ArchivedAt.IsZero() {
		t.Errorf("archived: %s", archived.RawJSON())
	}
	_, err = c.Beta.Vaults.Delete(ctx, v.ID, anthropic.BetaVaultDeleteParams{})
	must(err)
	if n, _ := rec.validate(t, loadSpec(t, "github.com/anthropics/anthropic-sdk-go")); n != 15 {
		t.Errorf("%d answers were validated", n)
	}
}

package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Vault is a vault.
type Vault struct {
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
}

// Credential is a credential, without its secret.
type Credential struct {
	ID          string          `json:"id"`
	VaultID     string          `json:"vault_id"`
	DisplayName string          `json:"display_name"`
	Auth        json.RawMessage `json:"auth"`
	UpdatedAt   time.Time       `json:"updated_at"`
}

func vaultPath(vault string, more ...string) string {
	var p strings.Builder
	p.WriteString("/v1/vaults/" + url.PathEscape(vault))
	for _, m := range more {
		p.WriteString("/" + url.PathEscape(m))
	}
	return p.String()
}

// Vaults lists the living vaults, newest first.
func (c *Client) Vaults(ctx context.Context) iter.Seq2[Vault, error] {
	return pages[Vault](ctx, c, "/v1/vaults", url.Values{"limit": {"100"}})
}

// CreateVault makes a vault.
func (c *Client) CreateVault(ctx context.Context, name string) (v Vault, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/vaults", nil, map[string]string{"display_name": name}, &v)
}

// Credentials lists the living credentials of a vault, newest first.
func (c *Client) Credentials(ctx context.Context, vault string) iter.Seq2[Credential, error] {
	return pages[Credential](ctx, c, vaultPath(vault, "credentials"), url.Values{"limit": {"100"}})
}

// CreateCredential makes a credential from a body of the wire.
func (c *Client) CreateCredential(ctx context.Context, vault string, body any) (v Credential, err error) {
	return v, c.call(ctx, http.MethodPost, vaultPath(vault, "credentials"), nil, body, &v)
}

// UpdateCredential changes one by a body of the wire.
func (c *Client) UpdateCredential(ctx context.Context, vault, id string, body any) (v Credential, err error) {
	return v, c.call(ctx, http.MethodPost, vaultPath(vault, "credentials", id), nil, body, &v)
}

// ArchiveCredential purges a credential's secret.
func (c *Client) ArchiveCredential(ctx context.Context, vault, id string) error {
	return c.call(ctx, http.MethodPost, vaultPath(vault, "credentials", id, "archive"), nil, struct{}{}, nil)
}

// CredentialTest says whether a credential would be used on a request.
type CredentialTest struct {
	Used   bool   `json:"used"`
	Reason string `json:"reason"`
}

// TestCredential tries a credential on a request that is not sent.
func (c *Client) TestCredential(ctx context.Context, vault, id, method, target string) (t CredentialTest, err error) {
	body := map[string]string{"method": method, "url": target}
	return t, c.call(ctx, http.MethodPost, vaultPath(vault, "credentials", id, "outboard", "test"), nil, body, &t)
}

// KeyRotation is what became of an organization's keys.
type KeyRotation struct {
	Org         string         `json:"organization_id"`
	Credentials int            `json:"credentials"` // sealed anew
	Values      map[string]int `json:"values"`      // what else was: how many, by the table
	Lost        int            `json:"lost"`        // nobody can open these: their key was given up before
	Error       *struct {
		Message string `json:"message"`
	} `json:"error"` // nothing was changed
}

// RotateVaultKeys seals everything with new keys: of all organizations for who runs the server.
func (c *Client) RotateVaultKeys(ctx context.Context) ([]KeyRotation, error) {
	var out struct {
		Orgs []KeyRotation `json:"organizations"`
	}
	err := c.call(ctx, http.MethodPost, "/v1/outboard/vault_keys/rotate", nil, struct{}{}, &out)
	return out.Orgs, err
}

// DeleteVault removes a vault with its credentials.
func (c *Client) DeleteVault(ctx context.Context, vault string) error {
	return c.call(ctx, http.MethodDelete, vaultPath(vault), nil, nil, nil)
}

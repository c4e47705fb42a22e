package control

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault"
)

// CredentialRequest makes a credential.
type CredentialRequest struct {
	DisplayName string
	Metadata    map[string]string
	Auth        outboard.Auth
	Secrets     Secrets
}

// CredentialPatch changes a credential. Nil fields keep their value.
type CredentialPatch struct {
	DisplayName *string            // "" clears it
	Metadata    map[string]*string // nil or "" deletes a key
	Type        string             // of Auth; must be the credential's own
	// Auth, when set, changes a copy of the rule and the secrets; what it leaves alone keeps its value.
	Auth func(*outboard.Auth, *Secrets) error
}

// CreateCredential seals a new credential into a vault.
func (c *Control) CreateCredential(ctx context.Context, by outboard.Caller, id outboard.VaultID,
	r CredentialRequest) (outboard.Credential, error) {
	now := c.clock()
	cr := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: id,
		DisplayName: r.DisplayName,
		Metadata:    r.Metadata, Auth: r.Auth, Version: 1, CreatedAt: now, UpdatedAt: now}
	k, err := c.keeper(by)
	if err != nil {
		return cr, err
	}
	if _, err := c.openVault(ctx, by, id); err != nil {
		return cr, err
	}
	if err := checkCredential(&cr, &r.Secrets); err != nil {
		return cr, err
	}
	if err := c.record(ctx, by, "credential.create", string(cr.ID), credentialRule(&cr)); err != nil {
		return cr, err
	}
	return cr, k.Create(ctx, cr, r.Secrets)
}

// credentialRule is what a record says of a credential: where it goes, never what it is.
func credentialRule(c *outboard.Credential) any {
	return map[string]any{"vault": c.Vault, "type": c.Auth.Type, "name": c.Auth.Name, "rule": c.Auth.Rule}
}

func checkCredential(c *outboard.Credential, s *Secrets) error {
	if err := length("display_name", c.DisplayName, 0, maxVaultName); err != nil {
		return err
	}
	if err := checkMetadata(c.Metadata); err != nil {
		return err
	}
	return checkAuth(&c.Auth, s)
}

// credential returns the row of a credential of a vault.
func (c *Control) credential(ctx context.Context, by outboard.Caller, in outboard.VaultID,
	id outboard.CredentialID) (store.Credential, error) {
	if _, err := c.Vault(ctx, by, in); err != nil {
		return store.Credential{}, err
	}
	if !outboard.ValidID(outboard.PrefixCredential, string(id)) {
		return store.Credential{}, notFound("credential", string(id))
	}
	row, err := c.store.Credential(ctx, id)
	if err == nil && row.Vault != in {
		return store.Credential{}, notFound("credential", string(id))
	}
	return row, wrapLookup("credential", string(id), err)
}

// Credential returns one, without its secrets.
func (c *Control) Credential(ctx context.Context, by outboard.Caller, in outboard.VaultID,
	id outboard.CredentialID) (outboard.Credential, error) {
	row, err := c.credential(ctx, by, in, id)
	return row.Credential, err
}

// Credentials returns one page of a vault's, newest first.
func (c *Control) Credentials(ctx context.Context, by outboard.Caller, in outboard.VaultID, p Page,
	at time.Time) ([]outboard.Credential, error) {
	if _, err := c.Vault(ctx, by, in); err != nil {
		return nil, err
	}
	p.Org = by.In()
	list, err := listAfter(func(p Page) ([]outboard.Credential, error) {
		rows, err := c.store.Credentials(ctx, in, p)
		out := make([]outboard.Credential, len(rows))
		for i := range rows {
			out[i] = rows[i].Credential
		}
		return out, err
	}, p, at, func(v outboard.Credential) (time.Time, string) { return v.CreatedAt, string(v.ID) })
	return list, wrapLookup("credentials", "", err)
}

// UpdateCredential applies a patch. Running sessions have the result within a second.
func (c *Control) UpdateCredential(ctx context.Context, by outboard.Caller, in outboard.VaultID,
	id outboard.CredentialID, p CredentialPatch) (outboard.Credential, error) {
	k, err := c.keeper(by)
	if err != nil {
		return outboard.Credential{}, err
	}
	old, err := c.Credential(ctx, by, in, id)
	if err != nil {
		return old, err
	}
	if p.Auth != nil && p.Type != old.Auth.Type {
		return old, invalid("auth.type of credential %s is %s and cannot change to %s", id, old.Auth.Type,
			quote(p.Type))
	}
	if err := c.record(ctx, by, "credential.update", string(id), credentialRule(&old)); err != nil {
		return old, err
	}
	return k.Update(ctx, id, func(cr *outboard.Credential, s *Secrets) error {
		set(&cr.DisplayName, p.DisplayName)
		if p.Metadata != nil {
			m, err := mergeMetadata(cr.Metadata, p.Metadata, false)
			if err != nil {
				return err
			}
			cr.Metadata = m
		}
		if p.Auth != nil {
			if err := p.Auth(&cr.Auth, s); err != nil {
				return err
			}
		}
		cr.UpdatedAt = c.clock()
		return checkCredential(cr, s)
	})
}

// ArchiveCredential purges a credential's secrets. Archiving twice is the same as once.
func (c *Control) ArchiveCredential(ctx context.Context, by outboard.Caller, in outboard.VaultID,
	id outboard.CredentialID) (outboard.Credential, error) {
	k, err := c.keeper(by)
	if err != nil {
		return outboard.Credential{}, err
	}
	if cr, err := c.Credential(ctx, by, in, id); err != nil || !cr.ArchivedAt.IsZero() {
		store.Unchanged(ctx)
		return cr, err
	}
	if err := c.record(ctx, by, "credential.archive", string(id), nil); err != nil {
		return outboard.Credential{}, err
	}
	c.retire(ctx, k, "archived", id)
	return k.Archive(ctx, id)
}

// retire gives back the tokens of credentials that are about to be purged, as far as they can be read. Their
// issuers are asked beside everything else, with a record of what came of it.
func (c *Control) retire(ctx context.Context, k *vault.Keeper, why string, ids ...outboard.CredentialID) {
	for _, id := range ids {
		if err := k.Retire(ctx, why, id); err != nil {
			c.log.Error("the tokens of a credential are not revoked at their issuer", "credential", id, "err", err)
		}
	}
}

// retireVault is retire for every living credential of a vault.
func (c *Control) retireVault(ctx context.Context, k *vault.Keeper, why string, id outboard.VaultID) error {
	rows, err := c.store.LivingCredentials(ctx, []outboard.VaultID{id})
	if err != nil {
		return wrapLookup("credentials", "", err)
	}
	for i := range rows {
		c.retire(ctx, k, why, rows[i].ID)
	}
	return nil
}

// DeleteCredential removes a credential.
func (c *Control) DeleteCredential(ctx context.Context, by outboard.Caller, in outboard.VaultID,
	id outboard.CredentialID) error {
	k, err := c.keeper(by)
	if err != nil {
		return err
	}
	if _, err := c.Credential(ctx, by, in, id); err != nil {
		return err
	}
	if err := c.record(ctx, by, "credential.delete", string(id), nil); err != nil {
		return err
	}
	c.retire(ctx, k, "deleted", id)
	return k.Delete(ctx, id)
}

// ValidateCredential tries an mcp_oauth credential at its MCP server.
func (c *Control) ValidateCredential(ctx context.Context, by outboard.Caller, in outboard.VaultID,
	id outboard.CredentialID) (Validation, error) {
	k, err := c.keeper(by)
	if err != nil {
		return Validation{}, err
	}
	cr, err := c.Credential(ctx, by, in, id)
	if err != nil {
		return Validation{}, err
	}
	if cr.Auth.Type != outboard.AuthOAuth {
		return Validation{}, invalid("credential %s is %s: only mcp_oauth is validated", id, cr.Auth.Type)
	}
	if !cr.ArchivedAt.IsZero() {
		return Validation{}, invalid("credential %s is archived", id)
	}
	return k.Validate(ctx, string(by.Key), id)
}

// TestCredential says whether a credential would be used on a request, and if not, why. It opens the secret but
// shows nothing of it.
func (c *Control) TestCredential(ctx context.Context, by outboard.Caller, in outboard.VaultID, id outboard.CredentialID,
	method, url string) (why string, err error) {
	k, err := c.keeper(by)
	if err != nil {
		return "", err
	}
	if _, err := c.Credential(ctx, by, in, id); err != nil {
		return "", err
	}
	r, err := vault.RequestFor(method, url)
	if err != nil {
		return "", err
	}
	return k.Test(ctx, string(by.Key), id, r)
}

// Shape returns the public beginning of a secret, which its placeholder has too; see vault.Shape.
func Shape(secret string) string { return vault.Shape(secret) }

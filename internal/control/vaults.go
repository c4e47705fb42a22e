package control

import (
	"context"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault"
)

// maxVaultName bounds a vault's display name. Managed Agents wire: 255.
const maxVaultName = 255

// Secrets is what a credential hides; see vault.Secrets.
type Secrets = vault.Secrets

// Validation says whether an mcp_oauth credential works; see vault.Validation.
type Validation = vault.Validation

// VaultPatch makes or changes a vault. Nil fields keep their value.
type VaultPatch struct {
	DisplayName *string
	Metadata    map[string]*string // nil or "" deletes a key
}

func (p *VaultPatch) apply(v *outboard.Vault) error {
	set(&v.DisplayName, p.DisplayName)
	if p.Metadata != nil {
		m, err := mergeMetadata(v.Metadata, p.Metadata, false)
		if err != nil {
			return err
		}
		v.Metadata = m
	}
	return length("display_name", v.DisplayName, 1, maxVaultName)
}

// keeper returns the keeper of the caller's organization, or says that this server has none.
func (c *Control) keeper(by outboard.Caller) (*vault.Keeper, error) {
	if err := requireDeveloper(by, scopeVaults); err != nil {
		return nil, err
	}
	if c.vault == nil {
		return nil, outboard.Errorf(outboard.Unavailable, "this server keeps no vaults")
	}
	return c.vault.For(by.In()), nil
}

// CreateVault stores a new, empty vault.
func (c *Control) CreateVault(ctx context.Context, by outboard.Caller, p VaultPatch) (outboard.Vault, error) {
	now := c.clock()
	v := outboard.Vault{ID: outboard.NewID[outboard.VaultID](outboard.PrefixVault), CreatedAt: now, UpdatedAt: now,
		Org: by.In()}
	if _, err := c.keeper(by); err != nil {
		return v, err
	}
	if err := p.apply(&v); err != nil {
		return v, err
	}
	if err := c.record(ctx, by, "vault.create", string(v.ID), nil); err != nil {
		return v, err
	}
	if err := c.store.PutVault(ctx, v); err != nil {
		return v, outboard.Errorf(outboard.KindOf(err), "storing the vault: %w", err)
	}
	return v, nil
}

// Vault returns one vault.
func (c *Control) Vault(ctx context.Context, by outboard.Caller, id outboard.VaultID) (outboard.Vault, error) {
	if err := requireReader(by); err != nil {
		return outboard.Vault{}, err
	}
	if !outboard.ValidID(outboard.PrefixVault, string(id)) {
		return outboard.Vault{}, notFound("vault", string(id))
	}
	v, err := c.store.Vault(ctx, id)
	if err := ownedBy(by, v.Org, "vault", string(id), err); err != nil {
		return outboard.Vault{}, err
	}
	return v, nil
}

// Vaults returns one page, newest first. at is when the cursor's row was made: it may be deleted by now.
func (c *Control) Vaults(ctx context.Context, by outboard.Caller, p Page, at time.Time) ([]outboard.Vault, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	p.Org = by.In()
	list, err := listAfter(func(p Page) ([]outboard.Vault, error) { return c.store.Vaults(ctx, p) }, p, at,
		func(v outboard.Vault) (time.Time, string) { return v.CreatedAt, string(v.ID) })
	return list, wrapLookup("vaults", "", err)
}

// openVault returns a vault that is not archived.
func (c *Control) openVault(ctx context.Context, by outboard.Caller, id outboard.VaultID) (outboard.Vault, error) {
	v, err := c.Vault(ctx, by, id)
	if err == nil && !v.ArchivedAt.IsZero() {
		err = invalid("vault %s is archived", id).WithCode("vault_archived")
	}
	return v, err
}

// UpdateVault applies a patch.
func (c *Control) UpdateVault(ctx context.Context, by outboard.Caller, id outboard.VaultID,
	p VaultPatch) (outboard.Vault, error) {
	if err := requireDeveloper(by, scopeVaults); err != nil {
		return outboard.Vault{}, err
	}
	v, err := c.openVault(ctx, by, id)
	if err != nil {
		return v, err
	}
	if err := p.apply(&v); err != nil {
		return v, err
	}
	v.UpdatedAt = c.clock()
	if err := c.record(ctx, by, "vault.update", string(id), nil); err != nil {
		return v, err
	}
	if err := c.store.PutVault(ctx, v); err != nil {
		return v, outboard.Errorf(outboard.KindOf(err), "storing vault %s: %w", id, err)
	}
	return v, nil
}

// ArchiveVault archives a vault and its credentials, and purges their secrets. Archiving twice is the same as once.
func (c *Control) ArchiveVault(ctx context.Context, by outboard.Caller, id outboard.VaultID) (outboard.Vault, error) {
	k, err := c.keeper(by)
	if err != nil {
		return outboard.Vault{}, err
	}
	v, err := c.Vault(ctx, by, id)
	if err != nil || !v.ArchivedAt.IsZero() {
		store.Unchanged(ctx)
		return v, err
	}
	if err := c.record(ctx, by, "vault.archive", string(id), nil); err != nil {
		return v, err
	}
	if err := c.retireVault(ctx, k, "its vault was archived", id); err != nil {
		return v, err
	}
	return k.ArchiveVault(ctx, v)
}

// DeleteVault removes a vault with its credentials.
func (c *Control) DeleteVault(ctx context.Context, by outboard.Caller, id outboard.VaultID) error {
	k, err := c.keeper(by)
	if err != nil {
		return err
	}
	if _, err := c.Vault(ctx, by, id); err != nil {
		return err
	}
	if err := c.record(ctx, by, "vault.delete", string(id), nil); err != nil {
		return err
	}
	if err := c.retireVault(ctx, k, "its vault was deleted", id); err != nil {
		return err
	}
	return k.DeleteVault(ctx, id)
}

// checkVaults refuses vaults that a new session cannot have.
func (c *Control) checkVaults(ctx context.Context, by outboard.Caller, ids []string) error {
	if len(ids) > vault.MaxSessionVaults {
		return invalid("vault_ids must have at most %d entries, not %d", vault.MaxSessionVaults, len(ids))
	}
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			return invalid("vault_ids[%d]: %s is there twice", i, quote(id))
		}
		if _, err := c.openVault(ctx, by, outboard.VaultID(id)); err != nil {
			return err
		}
	}
	return nil
}

// KeyRotation is a rotation of an organization's keys, or why there was none.
type KeyRotation struct {
	Org outboard.OrgID
	vault.Rotation
	Err error
}

// RotateVaultKeys makes new keys and seals everything with them: of all organizations for who runs the server,
// unless they act in one that is not the default, else of the caller's. One that fails does not keep the others
// from theirs; if it is the only one, its error is returned. NotFound if there are no keys yet.
func (c *Control) RotateVaultKeys(ctx context.Context, by outboard.Caller) (done []KeyRotation, err error) {
	if err := requireAdmin(by, scopeVaults); err != nil {
		return nil, err
	}
	if _, err := c.keeper(by); err != nil {
		return nil, err
	}
	orgs := []outboard.Organization{{ID: by.In()}}
	if by.Operator() && by.In() == outboard.DefaultOrg {
		if orgs, err = c.store.Orgs(ctx); err != nil {
			return nil, wrapLookup("organizations", "", err)
		}
	}
	for _, o := range orgs {
		key, err := c.store.VaultKey(ctx, string(o.ID))
		if err == nil && key.ID == "" {
			continue
		}
		r := KeyRotation{Org: o.ID, Err: err}
		if err == nil {
			r.Rotation, r.Err = c.rotateKeys(ctx, by, o.ID)
		}
		done = append(done, r)
	}
	switch {
	case len(done) == 0:
		return nil, outboard.Errorf(outboard.NotFound, "there is no vault key yet: it is made with the first secret")
	case len(done) == 1:
		return done, done[0].Err
	}
	return done, nil
}

func (c *Control) rotateKeys(ctx context.Context, by outboard.Caller,
	org outboard.OrgID) (r vault.Rotation, err error) {
	by.Org = org
	if err = c.record(ctx, by, "vault.rotate_keys", "every vault", nil); err == nil {
		r, err = c.vault.For(org).RotateKeys(ctx)
	}
	if err != nil {
		c.log.Error("the keys of a vault were not rotated", "org", org, "err", err)
	}
	return r, err
}

package fleet

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/store"
)

// RegistryVault is the name of the vault that has an organization's credentials for registries of images, each
// called as its registry.
const RegistryVault = "registries"

// maxRegistries bounds the vaults and credentials that are looked through.
const maxRegistries = 1000

// RegistryCredential finds what an organization has for a registry: the vault for registries, and a credential
// in it, which is called name. Both may be nil.
func (f *Fleet) RegistryCredential(ctx context.Context, org outboard.OrgID,
	registry string) (in *outboard.Vault, c *outboard.Credential, name string, err error) {
	name = strings.ReplaceAll(registry, ":", "_")
	page := store.Page{Org: org, Limit: maxRegistries}
	vaults, err := f.cfg.Store.Vaults(ctx, page)
	if err != nil {
		return nil, nil, name, err
	}
	for _, v := range vaults {
		if v.DisplayName != RegistryVault {
			continue
		}
		rows, err := f.cfg.Store.Credentials(ctx, v.ID, page)
		if err != nil {
			return nil, nil, name, err
		}
		for _, row := range rows {
			if row.Auth.Name == name {
				return &v, &row.Credential, name, nil
			}
		}
		return &v, nil, name, nil
	}
	return nil, nil, name, nil
}

// loginFor is who an organization is at the registry of an environment's image: itself, where it has a
// credential for it, and else the server. What an operator imported from a file comes from no registry.
func (f *Fleet) loginFor(ctx context.Context, org outboard.OrgID, ref string) (image.Login, error) {
	own := f.cfg.Images.Own()
	if imported, err := f.cfg.Images.Imported(ref); err != nil || imported {
		return own, err
	}
	registry, err := image.Registry(ref)
	if err != nil {
		return own, err
	}
	org = cmp.Or(org, outboard.DefaultOrg)
	_, c, name, err := f.RegistryCredential(ctx, org, registry)
	if err != nil {
		return own, fmt.Errorf("looking for the organization's credential for registry %s: %w", registry, err)
	}
	if c == nil {
		return own, nil
	}
	return f.loginAs(org, RegistryVault+"/"+name), nil
}

// loginAs is an organization's own credential, by name. It is another name space of images: what it pulls is
// nobody else's.
func (f *Fleet) loginAs(org outboard.OrgID, credential string) image.Login {
	return image.Login{Scope: string(org) + " " + credential, Credentials: func(ctx context.Context,
		registry string) (string, outboard.Secret, error) {
		if f.cfg.Login == nil {
			return "", outboard.Secret{}, outboard.Errorf(outboard.Unavailable, "this server keeps no vaults")
		}
		return f.cfg.Login(ctx, org, credential, registry)
	}}
}

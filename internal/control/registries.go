package control

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/store"
)

// RegistryVault is the name of the vault that has an organization's credentials for registries of images, each called as its registry.
const RegistryVault = "registries"

// RegistryLogin is who to be at the registry of an image.
type RegistryLogin struct {
	User     string
	Password outboard.Secret
}

// registryLogin names the credential that an image is pulled with, "" for none of the organization's. A new user and password become that
// credential, in the place of what was there: a build has its name and never what is in it.
func (c *Control) registryLogin(ctx context.Context, by outboard.Caller, image string, login *RegistryLogin) (string, error) {
	registry, err := fleet.ImageRegistry(image)
	if err != nil {
		return "", err
	}
	name := strings.ReplaceAll(registry, ":", "_")
	in, old, err := c.registryCredential(ctx, by, name)
	if err != nil {
		return "", err
	}
	if login == nil {
		if old == nil {
			return "", nil
		}
		return RegistryVault + "/" + name, nil
	}
	if login.User == "" || strings.ContainsAny(login.User, ":\x00") {
		return "", invalid("the user at a registry must be there, and have no colon")
	}
	secrets := Secrets{Value: outboard.NewSecret(login.User + ":" + login.Password.Reveal())}
	if err := checkSecret("the password for the registry", login.Password, maxPEM); err != nil {
		return "", err
	}
	if old != nil {
		_, err = c.UpdateCredential(ctx, by, in.ID, old.ID, CredentialPatch{Type: old.Auth.Type, Auth: func(_ *outboard.Auth, s *Secrets) error { *s = secrets; return nil }})
		return RegistryVault + "/" + name, err
	}
	if in == nil {
		v, err := c.CreateVault(ctx, by, VaultPatch{DisplayName: new(RegistryVault)})
		if err != nil {
			return "", err
		}
		in = &v
	}
	_, err = c.CreateCredential(ctx, by, in.ID, CredentialRequest{Auth: registryAuth(name, registry), Secrets: secrets})
	return RegistryVault + "/" + name, err
}

// registryAuth is for requests to one registry and nothing else.
func registryAuth(name, registry string) outboard.Auth {
	a := outboard.Auth{Type: outboard.AuthHeader, Name: name, HeaderName: "Authorization", Format: "Basic {basic}", Rule: outboard.UseRule{Hosts: []string{registry}}}
	if host, text, err := net.SplitHostPort(registry); err == nil {
		a.Rule.Hosts = []string{host}
		if port, err := strconv.Atoi(text); err == nil {
			a.Rule.Ports = []int{port}
		}
	}
	return a
}

// registryCredential finds the vault for registries, and a credential in it. Both may be nil.
func (c *Control) registryCredential(ctx context.Context, by outboard.Caller, name string) (*outboard.Vault, *outboard.Credential, error) {
	page := Page{Org: by.In(), Limit: maxRegistries}
	vaults, err := c.store.Vaults(ctx, page)
	if err != nil {
		return nil, nil, err
	}
	for _, v := range vaults {
		if v.DisplayName != RegistryVault {
			continue
		}
		rows, err := c.store.Credentials(ctx, v.ID, store.Page{Org: by.In(), Limit: maxRegistries})
		if err != nil {
			return nil, nil, err
		}
		for _, row := range rows {
			if row.Auth.Name == name {
				return &v, &row.Credential, nil
			}
		}
		return &v, nil, nil
	}
	return nil, nil, nil
}

// maxRegistries bounds the vaults and credentials that are looked through.
const maxRegistries = 1000

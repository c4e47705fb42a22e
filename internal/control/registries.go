package control

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
)

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
	in, old, name, err := c.fleet.RegistryCredential(ctx, by.In(), registry)
	if err != nil {
		return "", err
	}
	if login == nil {
		if old == nil {
			return "", nil
		}
		return fleet.RegistryVault + "/" + name, nil
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
		return fleet.RegistryVault + "/" + name, err
	}
	if in == nil {
		v, err := c.CreateVault(ctx, by, VaultPatch{DisplayName: new(fleet.RegistryVault)})
		if err != nil {
			return "", err
		}
		in = &v
	}
	_, err = c.CreateCredential(ctx, by, in.ID, CredentialRequest{Auth: registryAuth(name, registry), Secrets: secrets})
	return fleet.RegistryVault + "/" + name, err
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

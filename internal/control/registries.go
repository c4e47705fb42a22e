package control

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/vault"
)

// RegistryLogin is who to be at the registry of an image: a user with a password, or a key for AWS.
type RegistryLogin struct {
	User     string
	Password outboard.Secret
	AWS      *RegistryKey
}

// RegistryKey is a key for AWS, which gives the password of a registry for it.
type RegistryKey struct {
	Region       string
	ID, Key      outboard.Secret
	SessionToken outboard.Secret // of a temporary key
}

// registryLogin names the credential that an image is pulled with, "" for none of the organization's. A new
// login becomes that credential, in the place of what was there: a build has its name and never what is in it.
func (c *Control) registryLogin(ctx context.Context, by outboard.Caller, image string,
	login *RegistryLogin) (string, error) {
	registry, err := fleet.ImageRegistry(image)
	if err != nil {
		return "", err
	}
	in, old, name, err := c.fleet.RegistryCredential(ctx, by.In(), registry)
	if err != nil {
		return "", err
	}
	ref := fleet.RegistryVault + "/" + name
	if login == nil {
		if old == nil {
			return "", nil
		}
		return ref, nil
	}
	auth, secrets, err := login.credential(name, registry)
	if err != nil {
		return "", err
	}
	if old != nil && old.Auth.Type == auth.Type {
		_, err = c.UpdateCredential(ctx, by, in.ID, old.ID, CredentialPatch{Type: auth.Type,
			Auth: func(_ *outboard.Auth, s *Secrets) error { *s = secrets; return nil }})
		return ref, err
	}
	if old != nil { // a name is of one living credential
		if _, err := c.ArchiveCredential(ctx, by, in.ID, old.ID); err != nil {
			return "", err
		}
	}
	if in == nil {
		v, err := c.CreateVault(ctx, by, VaultPatch{DisplayName: new(fleet.RegistryVault)})
		if err != nil {
			return "", err
		}
		in = &v
	}
	_, err = c.CreateCredential(ctx, by, in.ID, CredentialRequest{Auth: auth, Secrets: secrets})
	return ref, err
}

// credential is what a login is kept as, checked: nothing is put away for one that cannot be kept.
func (l *RegistryLogin) credential(name, registry string) (outboard.Auth, Secrets, error) {
	a := registryAuth(name, registry)
	if l.AWS != nil {
		region := vault.ECRRegion(registry)
		switch {
		case region == "":
			return a, Secrets{}, invalid("a key for AWS is for images of ACCOUNT.dkr.ecr.REGION.amazonaws.com, and "+
				"this one is of %s", quote(registry))
		case region != l.AWS.Region:
			return a, Secrets{}, invalid("the registry %s is in the region %s, and the key is for %s", registry, region,
				quote(l.AWS.Region))
		}
		a = outboard.Auth{Type: outboard.AuthAWS, Name: name, Rule: a.Rule,
			AWS: &outboard.AWSScope{Service: vault.ServiceECR, Region: region}}
		s := Secrets{AccessKeyID: l.AWS.ID, Value: l.AWS.Key, SessionToken: l.AWS.SessionToken}
		return a, s, checkAuth(&a, &s)
	}
	if l.User == "" || strings.ContainsAny(l.User, ":\x00") {
		return a, Secrets{}, invalid("the user at a registry must be there, and have no colon")
	}
	return a, Secrets{Value: outboard.NewSecret(l.User + ":" +
		l.Password.Reveal())}, checkSecret("the password for the registry", l.Password, maxPEM)
}

// registryAuth is for requests to one registry and nothing else.
func registryAuth(name, registry string) outboard.Auth {
	a := outboard.Auth{Type: outboard.AuthHeader, Name: name, HeaderName: "Authorization", Format: "Basic {basic}",
		Rule: outboard.UseRule{Hosts: []string{registry}}}
	if host, text, err := net.SplitHostPort(registry); err == nil {
		a.Rule.Hosts = []string{host}
		if port, err := strconv.Atoi(text); err == nil {
			a.Rule.Ports = []int{port}
		}
	}
	return a
}

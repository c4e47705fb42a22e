package server

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/image"
)

// maxPassword bounds a file that holds a registry's password; tokens are some KiB at most.
const maxPassword = 64 << 10

// openImages makes the store of what sandboxes are made from. Registries are dialled by the same rules as
// everything else that somebody else names.
func (s *Server) openImages() (*image.Store, error) {
	guard, err := s.guard()
	if err != nil {
		return nil, err
	}
	roots, err := roots(s.cfg.Config.Egress.CAFiles)
	if err != nil {
		return nil, err
	}
	return image.New(image.Config{Dir: filepath.Join(s.cfg.Data, "images"), Guard: guard, Roots: roots,
		Credentials: s.registryCredential,
		Owners:      os.Geteuid() == 0, Logger: s.log})
}

// registryCredential is who the server is at a registry.
func (s *Server) registryCredential(ctx context.Context,
	host string) (user string, password outboard.Secret, err error) {
	for _, r := range s.cfg.Config.Images.Registries {
		if strings.EqualFold(r.Host, host) || r.Host == "docker.io" && host == "index.docker.io" {
			if r.Credential != "" {
				return s.Vault.Registry(ctx, r.Credential, r.Host, r.Username)
			}
			password, err = s.registryPassword(r)
			return r.Username, password, err
		}
	}
	return "", password, nil
}

// registryLogin opens an organization's own credential for a registry.
func (s *Server) registryLogin(ctx context.Context, org outboard.OrgID, credential,
	registry string) (user string, password outboard.Secret, err error) {
	return s.Vault.For(org).Registry(ctx, credential, registry, "")
}

// registryPassword is one that is not in the vault.
func (s *Server) registryPassword(r config.Registry) (outboard.Secret, error) {
	if r.PasswordEnv != "" {
		value := s.cfg.Env(r.PasswordEnv)
		if value == "" {
			return outboard.Secret{}, outboard.Errorf(outboard.Unavailable,
				"the variable %s, which images.registries names for %s, is not set", r.PasswordEnv, r.Host)
		}
		return outboard.NewSecret(value), nil
	}
	f, err := os.Open(r.PasswordFile)
	if err != nil {
		return outboard.Secret{}, outboard.Errorf(outboard.Unavailable, "reading the password for %s: %w", r.Host, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPassword))
	if err != nil {
		return outboard.Secret{}, fmt.Errorf("reading the password for %s: %w", r.Host, err)
	}
	return outboard.NewSecret(strings.TrimSpace(string(text))), nil
}

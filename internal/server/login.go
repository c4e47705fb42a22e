package server

import (
	"io"
	"os"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/login"
)

// loginConfig is how people sign in at this server.
func (s *Server) loginConfig() (control.LoginConfig, error) {
	if s.cfg.Login != nil {
		return *s.cfg.Login, nil
	}
	cfg := s.cfg.Config.Login
	if cfg.IsZero() {
		return control.LoginConfig{}, nil
	}
	out := control.LoginConfig{Follow: cfg.Follow, Lasts: cfg.Lasts}
	for _, m := range cfg.Members {
		out.Rules = append(out.Rules, control.LoginRule{Email: m.Email, Domain: m.Domain, Claim: m.Claim,
			Value: m.Value, Org: m.Organization, Role: m.Role})
	}
	if err := control.CheckLoginRules(out.Rules); err != nil {
		return out, err
	}
	client, err := serviceClient(cfg.CAFile)
	if err != nil {
		return out, err
	}
	if !cfg.NoRenewal {
		out.Renew = control.MaxLogin
	}
	provider := login.Config{Renewable: !cfg.NoRenewal, Issuer: cfg.Issuer, ClientID: cfg.ClientID, Scopes: cfg.Scopes,
		Device: cfg.Device, HTTP: client, Now: s.Store.Now}
	switch {
	case cfg.ClientSecretFile != "":
		provider.ClientSecret = func() (outboard.Secret, error) { return secretFile(cfg.ClientSecretFile) }
	case cfg.ClientSecretEnv != "":
		secret := outboard.NewSecret(s.cfg.Env(cfg.ClientSecretEnv))
		if secret.IsZero() {
			return out, outboard.Errorf(outboard.Invalid, "configuring login: %s is not set", cfg.ClientSecretEnv)
		}
		provider.ClientSecret = func() (outboard.Secret, error) { return secret, nil }
	}
	if provider.ClientSecret != nil {
		if _, err := provider.ClientSecret(); err != nil {
			return out, err
		}
	}
	out.Provider, err = login.New(provider)
	return out, err
}

// secretFile reads a secret that nobody else may read. It is read for each use, so that it can be replaced.
func secretFile(path string) (outboard.Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return outboard.Secret{}, outboard.Errorf(outboard.Invalid, "reading a secret: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return outboard.Secret{}, outboard.Errorf(outboard.Denied,
			"the secret %s has mode %04o: others may have read it", path, info.Mode().Perm()).
			WithHint("chmod 600 %s, and make a new one if anyone else uses this machine", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecretFile))
	if err != nil {
		return outboard.Secret{}, outboard.Errorf(outboard.Invalid, "reading a secret: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return outboard.Secret{}, outboard.Errorf(outboard.Invalid, "the secret %s is empty", path)
	}
	return outboard.NewSecret(secret), nil
}

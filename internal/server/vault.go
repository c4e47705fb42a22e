package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/vault"
)

// openVault makes the keeper of secrets. It touches no key before a secret is stored or used.
func (s *Server) openVault() error {
	cfg := s.cfg.Config.Vault
	ws, err := s.wrappers(config.Vault{PassphraseEnv: cfg.PassphraseEnv, KeyFile: cfg.KeyFile, Command: cfg.Command,
		Transit: cfg.Transit, AWSKMS: cfg.AWSKMS})
	if err != nil {
		return err
	}
	previous, err := s.wrappers(config.Vault{PassphraseEnv: cfg.PreviousPassphraseEnv, KeyFile: cfg.PreviousKeyFile,
		Command: cfg.PreviousCommand,
		Transit: cfg.PreviousTransit, AWSKMS: cfg.PreviousAWSKMS})
	if err != nil {
		return err
	}
	// The key in the data directory wraps where nothing else is named, and opens what it has wrapped before.
	ws = append(ws, vault.KeyDir{Dir: filepath.Join(s.cfg.Data, "vault-keys")})
	guard, err := s.guard()
	if err != nil {
		return err
	}
	trusted, err := roots(s.cfg.Config.Egress.CAFiles)
	if err != nil {
		return err
	}
	s.Vault = vault.New(vault.Config{Store: s.Store, Wrappers: append(ws, previous...),
		Mark: filepath.Join(s.cfg.Data, "vault.seq"),
		HTTP: vault.Client(&outbound.Guard{}, nil), Registries: vault.Client(&guard,
			trusted), Permit: s.killer.permit, Logger: s.log})
	return nil
}

// boxGone forgets the headers of a box. What cannot be forgotten now is when the server starts the next time;
// nobody can use it meanwhile.
func (s *Server) boxGone(ctx context.Context, b outboard.Box) {
	if err := s.Vault.For(b.Org).ForgetBox(ctx, b.Headers); err != nil {
		s.log.Warn("the sealed headers of a box that is gone stay", "box", b.ID, "err", err)
	}
}

// wrappers returns what a configuration names.
func (s *Server) wrappers(cfg config.Vault) (ws []vault.Wrapper, err error) {
	if name := cfg.PassphraseEnv; name != "" {
		words := s.cfg.Env(name)
		if words == "" {
			return nil, outboard.Errorf(outboard.Invalid, "the vault's passphrase: %s is not set", name)
		}
		ws = append(ws, vault.Passphrase{Words: outboard.NewSecret(words)})
	}
	if cfg.KeyFile != "" {
		ws = append(ws, vault.KeyFile{Path: cfg.KeyFile})
	}
	if len(cfg.Command) > 0 {
		ws = append(ws, vault.Command(cfg.Command...))
	}
	if t := cfg.Transit; !t.IsZero() {
		client, err := serviceClient(t.CAFile)
		if err != nil {
			return nil, err
		}
		ws = append(ws, vault.Transit(vault.TransitConfig{URL: t.URL, Mount: t.Mount, Key: t.Key,
			Namespace: t.Namespace, TokenFile: t.TokenFile, HTTP: client}))
	}
	if a := cfg.AWSKMS; !a.IsZero() {
		client, err := serviceClient("")
		if err != nil {
			return nil, err
		}
		ws = append(ws, vault.AWSKMS(vault.KMSConfig{Region: a.Region, Key: a.Key, URL: a.URL,
			Credentials: s.awsCredentials, HTTP: client}))
	}
	return ws, nil
}

// awsCredentials are who this server is at AWS.
func (s *Server) awsCredentials(context.Context) (vault.Secrets, error) {
	id, key := s.cfg.Env("AWS_ACCESS_KEY_ID"), s.cfg.Env("AWS_SECRET_ACCESS_KEY")
	if id == "" || key == "" {
		return vault.Secrets{}, outboard.Errorf(outboard.Unavailable,
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")
	}
	return vault.Secrets{AccessKeyID: outboard.NewSecret(id), Value: outboard.NewSecret(key),
		SessionToken: outboard.NewSecret(s.cfg.Env("AWS_SESSION_TOKEN"))}, nil
}

// serviceClient reaches an address that the operator chose, wherever it is. It follows no redirects, so that no
// token travels along.
func serviceClient(caFile string) (*http.Client, error) {
	tr := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, MaxIdleConns: 4, IdleConnTimeout: time.Minute}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "reading a file of certificates: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, outboard.Errorf(outboard.Invalid, "%s holds no certificate in PEM", caFile)
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}, nil
}

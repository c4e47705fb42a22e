package main

import (
	"path/filepath"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/vault"
)

// openVault makes the keeper of secrets. It touches no key before a secret is stored or used.
func (s *server) openVault() error {
	cfg := s.cfg.Config.Vault
	var ws []vault.Wrapper
	passphrase := func(name string) error {
		if name == "" {
			return nil
		}
		words := s.cfg.Env(name)
		if words == "" {
			return outboard.Errorf(outboard.Invalid, "the vault's passphrase: %s is not set", name)
		}
		ws = append(ws, vault.Passphrase{Words: outboard.NewSecret(words)})
		return nil
	}
	if err := passphrase(cfg.PassphraseEnv); err != nil {
		return err
	}
	if cfg.KeyFile != "" {
		ws = append(ws, vault.KeyFile{Path: cfg.KeyFile})
	}
	if cfg.PreviousKeyFile != "" {
		if len(ws) == 0 { // the key in the data directory replaces it
			ws = append(ws, vault.KeyDir{Dir: filepath.Join(s.cfg.Data, "vault-keys")})
		}
		ws = append(ws, vault.KeyFile{Path: cfg.PreviousKeyFile})
	}
	dir := vault.KeyDir{Dir: filepath.Join(s.cfg.Data, "vault-keys")}
	if len(ws) == 0 || ws[0] != vault.Wrapper(dir) {
		ws = append(ws, dir)
	}
	if err := passphrase(cfg.PreviousPassphraseEnv); err != nil {
		return err
	}
	s.vault = vault.New(vault.Config{Store: s.store, Wrappers: ws, Mark: filepath.Join(s.cfg.Data, "vault.seq"),
		HTTP: vault.Client(&outbound.Guard{}), Permit: s.killer.permit, Logger: s.log})
	return nil
}

package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/vault"
)

// A server that is started with the wrong passphrase must say so at once, and nothing with the right one.
func TestLockedVaultIsToldAtStart(t *testing.T) {
	data := t.TempDir()
	start := func(passphrase string) (*process, string) {
		t.Helper()
		var log bytes.Buffer
		cfg := &config.Config{}
		cfg.Vault.PassphraseEnv = "PASSPHRASE"
		s, err := startServer(t.Context(), server.Config{Data: data, Config: cfg, Env: func(name string) string {
			return map[string]string{"PASSPHRASE": passphrase}[name]
		}, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		s.checkVault(t.Context())
		return s, log.String()
	}
	s, said := start("right")
	if said != "" {
		t.Errorf("of no vault it is said: %s", said)
	}
	v := outboard.Vault{ID: outboard.NewID[outboard.VaultID](outboard.PrefixVault), DisplayName: "v",
		CreatedAt: time.Now(), Org: outboard.DefaultOrg}
	if err := s.Store.PutVault(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: v.ID,
		Auth: outboard.Auth{Type: outboard.AuthEnv, Name: "A"}, CreatedAt: time.Now()}
	if err := s.Vault.Create(t.Context(), c, vault.Secrets{Value: outboard.NewSecret("sekrit-value")}); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if s, said = start("right"); said != "" {
		t.Errorf("with the right passphrase it is said: %s", said)
	}
	s.Stop()
	if _, said = start("wrong"); !strings.Contains(said, "secrets cannot be used") ||
		!strings.Contains(said, "passphrase is not the one in use") ||
		!strings.Contains(said, "previous_passphrase_env") {
		t.Errorf("with the wrong one: %q", said)
	}
}

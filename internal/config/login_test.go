package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Broken if a way to sign in, or a place of the vault's key, that would send secrets in clear text or means two
// things is taken; or if one that is right is not.
func TestLoginAndServices(t *testing.T) {
	for text, want := range map[string]string{
		"login: {issuer: 'https://id.acme.test', client_id: outboard, client_secret_file: s, members: [{domain: " +
			"acme.test, role: developer}]}": "",
		"login: {issuer: 'http://127.0.0.1:1', client_id: outboard}":                                                   "",
		"login: {issuer: 'http://id.acme.test', client_id: outboard}":                                                  "https",
		"login: {issuer: 'https://id.acme.test'}":                                                                      "client_id",
		"login: {client_id: outboard}":                                                                                 "issuer",
		"login: {issuer: 'https://a.test', client_id: a, client_secret_env: A, client_secret_file: b}":                 "exclude",
		"login: {issuer: 'https://a.test', client_id: a, lasts: 1000h}":                                                "at most",
		"login: {issuer: 'https://a.test', client_id: a, follow: true}":                                                "nobody",
		"login: {issuer: 'https://a.test', client_id: a, client_secret: hunter2}":                                      `no key "client_secret"`,
		"vault: {command: [/usr/bin/kms-wrap, --key, a]}":                                                              "",
		"vault: {command: [kms-wrap]}":                                                                                 "absolute",
		"vault: {command: [/usr/bin/kms-wrap], key_file: a}":                                                           "exclude",
		"vault: {transit: {url: 'https://v.test:8200', key: a, token_file: t}, previous_command: [/usr/bin/kms-wrap]}": "",
		"vault: {transit: {url: 'http://v.test:8200', key: a, token_file: t}}":                                         "https",
		"vault: {transit: {url: 'https://v.test:8200', key: a}}":                                                       "token_file",
		"vault: {aws_kms: {region: eu-west-1, key: alias/outboard}, previous_key_file: a}":                             "",
		"vault: {aws_kms: {key: alias/outboard}}":                                                                      "region",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path, func(string) string { return "" })
		if want == "" != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) ||
			outboard.KindOf(err) != outboard.Invalid || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err == nil && c.Login.ClientSecretFile != "" && c.Login.ClientSecretFile != filepath.Join(dir, "s") {
			t.Errorf("the secret's file is %s", c.Login.ClientSecretFile)
		}
	}
}

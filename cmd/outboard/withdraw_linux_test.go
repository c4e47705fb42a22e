package main

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/login/logintest"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Fails if a provider that hangs delays the removal of a person, or if what their login was renewed with stays
// good there because the server is killed while it gives that back.
func TestWithdrawalKilled(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		provider := logintest.New(t)
		provider.SignsIn(logintest.Claims{"sub": "ann", "email": "ann@acme.test", "email_verified": true})
		data := t.TempDir()
		text := "login:\n  issuer: " + provider.URL + "\n  client_id: outboard\n  client_secret_file: " +
			"client.secret\n  members:\n    - {domain: acme.test, role: developer}\n"
		if cfg.URL != "" {
			text = "db: '" + cfg.URL + "'\n" + text
		} else {
			cfg.Path = filepath.Join(data, "outboard.db")
		}
		for name, text := range map[string]string{"config.yaml": text, "client.secret": provider.Secret} {
			if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := spawn(t, data)
		own := t.TempDir()
		d := &desk{t: t, provider: provider, data: own, vars: map[string]string{"OUTBOARD_URL": c.c.URL(),
			"OUTBOARD_DATA": own, "BROWSER": "true"}}
		if code, out := d.login(d.browser); code != 0 {
			t.Fatalf("login: %d %s", code, out)
		}
		l, err := readLogin(own, c.c.URL())
		if err != nil || len(provider.Tokens()) != 1 {
			t.Fatalf("the control: %v, %d tokens", err, len(provider.Tokens()))
		}

		asked, answer := make(chan struct{}, 4), make(chan struct{})
		provider.Bend(logintest.Bend{Revoke: func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			select {
			case <-answer:
			case <-r.Context().Done():
			}
		}})
		defer close(answer)
		var user string
		for u, err := range c.c.Users(t.Context(), false) {
			if err != nil {
				t.Fatal(err)
			}
			user = u.ID
		}
		if _, err := c.c.RemoveUser(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		<-asked // the provider has not answered yet
		d.wants(4, "not valid", "whoami")
		c.kill9()
		provider.Bend(logintest.Bend{})

		s, err := store.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		w, err := s.Withdrawal(t.Context(), outboard.KeyID(l.Key))
		if err == nil { // as if the lease of the dead server had run out
			err = s.SetWithdrawal(t.Context(), w, s.Now())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil || len(provider.Tokens()) != 1 {
			t.Fatalf("after the kill: %v, %d tokens", err, len(provider.Tokens()))
		}
		c = spawn(t, data)
		c.until(func() bool {
			for e, err := range c.c.Audit(t.Context(), url.Values{"action": {"token.revoked"}}) {
				return err == nil && e.Action == "token.revoked"
			}
			return false
		}, "the token is given back")
		if n := len(provider.Tokens()); n != 0 {
			t.Errorf("%d tokens are good", n)
		}
	})
}

package vault

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// server is an MCP server that takes the issuer's newest access token, and tokens of its own.
func (s *issuer) server(t *testing.T, own ...string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		token := r.Header.Get("Authorization")
		if !slices.Contains(own, token) && (s.valid == "refresh-1" ||
			token != "Bearer access-"+s.valid[len("refresh-"):]) {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// addRefused adds a credential whose access token its server does not take any more.
func (r *rig) addRefused(s *issuer, own ...string) outboard.CredentialID {
	r.Helper()
	c, to := r.addOAuth(s.URL), s.server(r.T, own...)
	_, err := r.Update(r.Context(), c.ID,
		func(c *outboard.Credential, _ *Secrets) error { c.Auth.MCPServerURL = to; return nil })
	r.must(err)
	return c.ID
}

func (r *rig) validates(k *Keeper, id outboard.CredentialID, want string) {
	r.Helper()
	if v, err := k.Validate(r.Context(), "me", id); err != nil || v.Status != want {
		r.Errorf("the credential is %q, want %q: %+v, %v", v.Status, want, v.Refresh, err)
	}
}

// If this fails, people who validate one credential at the same time use its refresh token twice, which issuers
// take for theft.
func TestValidateRenewsOnce(t *testing.T) {
	r, s := newRig(t), newIssuer(t)
	id, there := r.addRefused(s), r.another()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { r.validates([]*Keeper{r.Keeper, there}[i%2], id, "valid") })
	}
	wg.Wait()
	if !slices.Equal(s.asked, []string{"refresh-1"}) {
		t.Errorf("the issuer was asked with %v", s.asked)
	}
}

// during calls fn while the issuer, which has the request of a validation, has not answered it. end ends that
// validation's caller.
func (r *rig) during(s *issuer, id outboard.CredentialID, fn func(end func())) {
	r.Helper()
	s.hold = make(chan struct{})
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = r.Validate(ctx, "me", id)
	}()
	hold := s.hold
	hold <- struct{}{}
	s.hold = nil
	fn(func() { cancel(); <-left })
	hold <- struct{}{}
}

// If this fails, a client that leaves while its credential is validated costs the refresh token: the issuer has
// exchanged it, and nobody has the new one.
func TestValidateIsLeft(t *testing.T) {
	r, s := newRig(t), newIssuer(t)
	id := r.addRefused(s)
	r.during(s, id, func(end func()) { end() })
	r.validates(r.another(), id, "valid")
	if !slices.Equal(s.asked, []string{"refresh-1"}) {
		t.Errorf("the issuer was asked with %v", s.asked)
	}
}

// If this fails, the tokens of somebody who signs in again are overwritten by a renewal of the old ones that was
// under way.
func TestRenewalBesideSigningIn(t *testing.T) {
	r, s := newRig(t), newIssuer(t)
	id := r.addRefused(s, "Bearer mine")
	r.during(s, id, func(func()) {
		_, err := r.Update(t.Context(), id, func(_ *outboard.Credential, now *Secrets) error {
			now.Value, now.RefreshToken = outboard.NewSecret("mine"), outboard.NewSecret("my refresh token")
			return nil
		})
		r.must(err)
	})
	// it is over
	_, _ = r.renewals.do(t.Context(), string(id)+" refused",
		func(context.Context) (refreshed, error) { return refreshed{}, nil })
	r.validates(r.Keeper, id, "valid")
	if _, now, err := r.openNow(t.Context(), id); err != nil || now.Value.Reveal() != "mine" ||
		now.RefreshToken.Reveal() != "my refresh token" {
		t.Errorf("the tokens are %q and %q, %v", now.Value.Reveal(), now.RefreshToken.Reveal(), err)
	}
}

// If this fails, who needs a token waits for half a minute because its issuer has failed once before.
func TestFailedRenewalIsTriedAgain(t *testing.T) {
	r, s := newRig(t), newIssuer(t)
	r.addOAuth(s.URL)
	r.now = r.now.Add(time.Hour)
	s.valid = "nothing"
	_, _, err := r.Bearer(t.Context(), r.session, "https://mcp.example.com/x")
	r.wantKind(err, outboard.Unavailable, "400")
	s.valid = "refresh-1"
	ctx, cancel := context.WithTimeout(t.Context(), renewTTL/3)
	defer cancel()
	if token, _, err := r.another().Bearer(ctx, r.session, "https://mcp.example.com/x"); err != nil ||
		token.Reveal() != "access-3" {
		t.Errorf("after the issuer has come back: %q, %v", token.Reveal(), err)
	}
}

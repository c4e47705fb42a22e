package login

import (
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/outboard-dev/outboard"
)

// Renew asks the provider, with what it gave at the sign-in of a subject, whether somebody is still who they
// were, and what is to be asked with next time: that may be the same. A provider need not send an ID token then
// (OpenID Connect Core 12.2); what it says of the person elsewhere counts instead, and if that is nothing, the
// person is Silent. Unauthenticated when it says no, or names somebody who is not the subject: then they must
// sign in again. Whatever comes of it, the answer holds what is to be asked with next time where the provider
// gave that: the old one may be worth nothing any more.
func (p *Provider) Renew(ctx context.Context, subject string, with outboard.Secret) (Person, error) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.http), timeout)
	defer cancel()
	k, err := p.discover(ctx)
	if err != nil {
		return Person{}, err
	}
	var out tokens
	why, err := p.post(ctx, k, k.endpoint.TokenURL, url.Values{"grant_type": {"refresh_token"},
		"refresh_token": {with.Reveal()}}, &out)
	switch {
	case err != nil:
		return Person{}, err
	case why == "invalid_grant":
		return Person{}, refused("it does not renew this sign-in any more")
	case why != "":
		return Person{}, outboard.Errorf(outboard.Unavailable, "the identity provider does not renew a sign-in: %s",
			why)
	}
	if out.Renew == "" {
		out.Renew = with.Reveal()
	}
	if out.ID == "" {
		return p.renewed(ctx, k, subject, &out)
	}
	var who Person
	token, err := p.holds(ctx, k, k.verifier, "its ID token", out.ID)
	if err == nil {
		err = p.check(token, token.Nonce) // it answers no browser: who sent what it is for is this server
	}
	if err == nil {
		who, err = person(token)
	}
	who.Renew = renewal(out.Renew)
	return who, err
}

// renewed is who a provider says somebody is that has sent no ID token.
func (p *Provider) renewed(ctx context.Context, k *known, subject string, got *tokens) (Person, error) {
	who := Person{Issuer: p.cfg.Issuer, Subject: subject, Silent: true, Renew: renewal(got.Renew)}
	if got.Access == "" {
		return who, refused("it sends no token when it renews a sign-in")
	}
	if k.userinfo == "" {
		return who, nil
	}
	claims, err := p.userinfo(ctx, k, got.Access)
	if err != nil {
		return who, err
	}
	var sub, email, name string
	for claim, to := range map[string]*string{"sub": &sub, "email": &email, "name": &name} {
		if raw, ok := claims[claim]; ok && json.Unmarshal(raw, to) != nil {
			return who, refused("its claims are not readable")
		}
	}
	if sub != subject { // OpenID Connect Core 5.3.2: else the rest is of somebody else
		return who, refused("it names somebody else")
	}
	who.Silent, who.claims, who.Email, who.Name = false, claims, email, name
	who.Verified = who.Claims("email_verified", "true")
	return who, nil
}

// userinfo asks who an access token is of. A provider answers in JSON, or with a signed token, as it knows this client.
func (p *Provider) userinfo(ctx context.Context, k *known, access string) (map[string]json.RawMessage, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.userinfo, nil)
	if err != nil {
		return nil, asking(err)
	}
	r.Header.Set("Authorization", "Bearer "+access)
	r.Header.Set("Accept", "application/json, application/jwt")
	resp, err := p.http.Do(r)
	if err != nil {
		return nil, asking(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body) // which is bounded
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "reading the identity provider's answer: %w", err)
	}
	switch kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return nil, refused("it does not say any more who this is")
	case resp.StatusCode != http.StatusOK:
		return nil, outboard.Errorf(outboard.Unavailable, "the identity provider answered %d", resp.StatusCode)
	case kind == "application/jwt":
		return p.signed(ctx, k, string(text))
	case kind != "application/json":
		return nil, outboard.Errorf(outboard.Unavailable, "the identity provider says who somebody is as %q, and "+
			"only application/json and application/jwt can be read", kind)
	}
	var claims map[string]json.RawMessage
	if json.Unmarshal(text, &claims) != nil {
		return nil, refused("its claims are not readable")
	}
	return claims, nil
}

// signed returns the claims of an answer that the provider has signed (OpenID Connect Core 5.3.2): by its own
// keys, as itself, for this client. It need not say until when it holds: it has just been asked for.
func (p *Provider) signed(ctx context.Context, k *known, text string) (claims map[string]json.RawMessage, err error) {
	if strings.Count(text, ".") == 4 { // a signed one has three parts
		return nil, outboard.Errorf(outboard.Unavailable, "the identity provider encrypts who somebody is, and this "+
			"server has no key to read that").
			WithHint("set up this client there for answers that are signed or plain: " +
				"userinfo_encrypted_response_alg must not be set")
	}
	token, err := p.holds(ctx, k, k.told, "what it signed about who this is", strings.TrimSpace(text))
	if err != nil {
		return nil, err
	}
	now := p.cfg.Now()
	if !token.Expiry.IsZero() && !now.Before(token.Expiry) || token.IssuedAt.Sub(now) > skew {
		return nil, refused("what it signed about who this is does not hold: it is of another time")
	}
	if token.Claims(&claims) != nil {
		return nil, refused("its claims are not readable")
	}
	return claims, nil
}

// Revoke gives back what a sign-in is renewed with (RFC 7009). before is called with the address that is asked,
// and its error ends it. NotFound: the provider takes nothing back. Denied: not this. After anything else it may
// be asked again.
func (p *Provider) Revoke(ctx context.Context, with outboard.Secret, before func(address string) error) error {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.http), timeout)
	defer cancel()
	k, err := p.discover(ctx)
	if err != nil {
		return err
	}
	if k.revoke == "" {
		return outboard.Errorf(outboard.NotFound, "the identity provider names no address that takes tokens back")
	}
	if err := before(k.revoke); err != nil {
		return err
	}
	why, err := p.post(ctx, k, k.revoke, url.Values{"token": {with.Reveal()}, "token_type_hint": {"refresh_token"}},
		nil)
	if err == nil && why == "unsupported_token_type" { // RFC 7009 2.2.1
		return outboard.Errorf(outboard.Denied, "the identity provider takes no tokens of this kind back: %s", why)
	}
	if err == nil && why != "" {
		err = outboard.Errorf(outboard.Unavailable, "the identity provider does not take a token back: %s", why)
	}
	return err
}

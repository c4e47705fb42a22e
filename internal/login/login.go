// Package login asks an identity provider who somebody is, by OpenID Connect's authorization code
// flow with PKCE, or by the device flow.
//
// Invariants:
//   - It keeps nothing of a sign-in. State, nonce and verifier belong to the client that began it,
//     so nobody without an account can make this server remember anything.
//   - It believes the issuer of the configuration and nobody else, over https. Documents are
//     bounded, and redirects are not followed.
//
// It never gives a right: the provider says who a person is, rows say what they can do. A nonce is
// good for one sign-in; package control, which keeps the keys, knows that it was used.
//
// Start reading at Provider.
package login

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/outboard-dev/outboard"
	"golang.org/x/oauth2"
)

const (
	// timeout bounds what one sign-in waits for the provider.
	timeout = 20 * time.Second
	// discoveryLasts is how long the provider's own description counts. Its signing keys are fetched when an
	// unknown one is met.
	discoveryLasts = time.Hour
	// maxDocument bounds anything the provider sends. Key sets of large providers have some 10 KiB.
	maxDocument = 1 << 20
	// maxAge is how long after it was made an ID token is taken: it came straight from the provider, moments ago.
	maxAge = 10 * time.Minute
	// skew is how far the provider's clock may be ahead.
	skew = 2 * time.Minute
	// minRandom and maxRandom bound what a client chose at random: 128 bits in base 64, and the longest verifier
	// of RFC 7636.
	minRandom, maxRandom = 22, 128
	// maxCode bounds an authorization code.
	maxCode = 4096
	// maxClaim bounds a subject and what a claim is compared with.
	maxClaim = 256
	// maxWhy bounds what is repeated of an error.
	maxWhy = 300
)

// Config says which provider, and who this server is there.
type Config struct {
	Issuer   string // exactly as the provider writes it
	ClientID string
	// ClientSecret is asked for each sign-in; nil = the provider knows this client as a public one.
	ClientSecret func() (outboard.Secret, error)
	Scopes       []string         // nil = openid, email, profile
	Renewable    bool             // logins are renewed without a browser: see Provider.Renew
	Device       bool             // people may sign in on another device than their terminal's; see Provider.Device
	HTTP         *http.Client     // reaches the provider; its redirects are not followed
	Now          func() time.Time // nil = time.Now
}

// Provider is safe for concurrent use. It asks nothing before the first sign-in.
type Provider struct {
	cfg  Config
	http *http.Client

	mu    sync.Mutex
	known *known
}

// known is what discovery found.
type known struct {
	verifier *oidc.IDTokenVerifier
	told     *oidc.IDTokenVerifier // of what the userinfo endpoint signs
	endpoint oauth2.Endpoint
	offline  bool   // it knows the scope offline_access
	userinfo string // where it says who somebody is, by an access token; "" = nowhere
	keys     string // where its keys are
	revoke   string // where it takes tokens back (RFC 7009); "" = nowhere
	until    time.Time
}

// New returns a provider, or Invalid for an issuer that is none.
func New(cfg Config) (*Provider, error) {
	if cfg.ClientID == "" || !secure(cfg.Issuer) {
		return nil, outboard.Errorf(outboard.Invalid, "configuring sign-in: it needs a client_id, and an issuer "+
			"with https (or http on this machine)")
	}
	if len(cfg.Scopes) == 0 {
		cfg.Scopes = []string{oidc.ScopeOpenID, "email", "profile"}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	client := http.Client{Transport: bounded{cfg.HTTP.Transport}, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Provider{cfg: cfg, http: &client}, nil
}

// Issuer returns the provider's name.
func (p *Provider) Issuer() string { return p.cfg.Issuer }

// secure reports whether only its server can read what is sent to a URL.
func secure(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && u.User == nil && (u.Scheme == "https" || u.Scheme == "http" &&
		here(u.Hostname()))
}

func here(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// bounded cuts what a provider sends.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	next := b.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxDocument), resp.Body}
	}
	return resp, err
}

// discover returns what the provider says of itself.
func (p *Provider) discover(ctx context.Context) (*known, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.cfg.Now(); p.known != nil && now.Before(p.known.until) {
		return p.known, nil
	}
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), p.http) // the next one wants it too
	op, err := oidc.NewProvider(ctx, p.cfg.Issuer)
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "asking the identity provider %s about itself: %s",
			p.cfg.Issuer, brief(err))
	}
	var doc struct {
		Keys    string   `json:"jwks_uri"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
		Scopes  []string `json:"scopes_supported"`
		Revoke  string   `json:"revocation_endpoint"`
		Told    []string `json:"userinfo_signing_alg_values_supported"`
	}
	if err := op.Claims(&doc); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "the identity provider's description is not readable: %w",
			err)
	}
	k := &known{endpoint: op.Endpoint(), offline: slices.Contains(doc.Scopes, oidc.ScopeOfflineAccess),
		userinfo: op.UserInfoEndpoint(), keys: doc.Keys, revoke: doc.Revoke, until: p.cfg.Now().Add(discoveryLasts)}
	for i, u := range []string{k.endpoint.AuthURL, k.endpoint.TokenURL, k.keys, k.userinfo, k.revoke} {
		if i > 2 && u == "" { // it need not have them
			continue
		}
		if !secure(u) || strings.HasPrefix(p.cfg.Issuer, "https:") && !strings.HasPrefix(u, "https:") {
			return nil, outboard.Errorf(outboard.Unavailable,
				"the identity provider names an address without https: %q", u)
		}
	}
	// Never tried out: a code that is sent twice may count as stolen.
	k.endpoint.AuthStyle = oauth2.AuthStyleInHeader
	if len(doc.Methods) > 0 && !slices.Contains(doc.Methods, "client_secret_basic") || p.cfg.ClientSecret == nil {
		k.endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	k.verifier = op.VerifierContext(ctx, &oidc.Config{ClientID: p.cfg.ClientID, Now: p.cfg.Now})
	// Its times need not be there: see Provider.signed.
	k.told = op.VerifierContext(ctx, &oidc.Config{ClientID: p.cfg.ClientID, Now: p.cfg.Now, SkipExpiryCheck: true,
		SupportedSigningAlgs: signing(doc.Told)})
	p.known = k
	return k, nil
}

// signing are those of a provider's algorithms that sign with a key which is its own alone; nil = it names none,
// and those of its ID tokens count.
func signing(algs []string) []string {
	return slices.DeleteFunc(algs, func(alg string) bool {
		return !slices.Contains([]string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512,
			oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}, alg)
	})
}

// scopes are what is asked for: with what lets a login be renewed, where the provider says that it knows that.
func (p *Provider) scopes(k *known) []string {
	if !p.cfg.Renewable || !k.offline || slices.Contains(p.cfg.Scopes, oidc.ScopeOfflineAccess) {
		return p.cfg.Scopes
	}
	return append(slices.Clone(p.cfg.Scopes), oidc.ScopeOfflineAccess)
}

// Start is what a client that begins a sign-in has chosen.
type Start struct {
	Redirect  string // where the provider sends the browser back: on the machine of the client
	State     string
	Nonce     string
	Challenge string // SHA-256 of the verifier, by RFC 7636
}

// URL returns where the person signs in.
func (p *Provider) URL(ctx context.Context, s Start) (string, error) {
	if err := errors.Join(checkRedirect(s.Redirect), checkRandom("state", s.State), checkRandom("nonce", s.Nonce),
		checkRandom("code_challenge", s.Challenge)); err != nil {
		return "", outboard.Errorf(outboard.Invalid, "%w", err)
	}
	k, err := p.discover(ctx)
	if err != nil {
		return "", err
	}
	cfg := oauth2.Config{ClientID: p.cfg.ClientID, Endpoint: k.endpoint, RedirectURL: s.Redirect, Scopes: p.scopes(k)}
	return cfg.AuthCodeURL(s.State, oidc.Nonce(s.Nonce), oauth2.SetAuthURLParam("code_challenge", s.Challenge),
		oauth2.SetAuthURLParam("code_challenge_method", "S256")), nil
}

// checkRedirect lets a code go to the machine of whoever signs in only, and to no page: anything else would hand
// it to somebody.
func checkRedirect(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" || !here(u.Hostname()) || u.Port() == "" || u.User != nil || u.Opaque != "" ||
		u.RawQuery != "" || u.Fragment != "" ||
		u.Path != "/callback" || strings.ContainsAny(s, "?#\\") {
		return outboard.Errorf(outboard.Invalid, "redirect_uri must be http://127.0.0.1:PORT/callback")
	}
	return nil
}

// checkRandom wants what nobody can guess, in the letters of RFC 7636.
func checkRandom(name, s string) error {
	if len(s) < minRandom || len(s) > maxRandom ||
		strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~") != "" {
		return outboard.Errorf(outboard.Invalid, "%s must be %d to %d random letters, digits, - . _ and ~", name,
			minRandom, maxRandom)
	}
	return nil
}

// Answer is what a client got back, and what it began with.
type Answer struct {
	Code     string
	Redirect string
	Verifier string
	Nonce    string
}

// Person is who the provider says somebody is.
type Person struct {
	Issuer   string
	Subject  string // theirs for good at this issuer
	Email    string
	Verified bool // the provider has checked that the address is theirs
	Name     string
	// Renew is what Provider.Renew wants, where this provider gives it and this server asks for it.
	Renew outboard.Secret
	// Silent says that the provider has confirmed a sign-in and told nothing about its person: Issuer and
	// Subject are those of the sign-in.
	Silent bool

	claims map[string]json.RawMessage
}

// Claims reports whether a claim of the provider is value, or a list that has it.
func (p *Person) Claims(name, value string) bool {
	var one any
	if json.Unmarshal(p.claims[name], &one) != nil {
		return false
	}
	if list, ok := one.([]any); ok {
		return slices.Contains(list, any(value))
	}
	return one == any(value) || one == true && value == "true"
}

// Who exchanges a code for who somebody is. Unauthenticated when the provider refuses it, or its answer does not hold.
func (p *Provider) Who(ctx context.Context, a Answer) (Person, error) {
	if err := errors.Join(checkRedirect(a.Redirect), checkRandom("nonce", a.Nonce),
		checkRandom("code_verifier", a.Verifier)); err != nil {
		return Person{}, outboard.Errorf(outboard.Invalid, "%w", err)
	}
	if a.Code == "" || len(a.Code) > maxCode {
		return Person{}, outboard.Errorf(outboard.Invalid, "code: it is empty or too long")
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.http), timeout)
	defer cancel()
	k, err := p.discover(ctx)
	if err != nil {
		return Person{}, err
	}
	raw, renew, err := p.exchange(ctx, k, a)
	if err != nil {
		return Person{}, err
	}
	token, err := p.holds(ctx, k, k.verifier, "its ID token", raw)
	if err != nil {
		return Person{}, err
	}
	if err := p.check(token, a.Nonce); err != nil {
		return Person{}, err
	}
	return p.person(token, renew)
}

func refused(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Unauthenticated, "the identity provider's answer is refused: "+format, args...).
		WithHint("sign in again: outboard login")
}

// exchange returns the ID token for a code, and what renews it.
func (p *Provider) exchange(ctx context.Context, k *known, a Answer) (id, renew string, err error) {
	cfg := oauth2.Config{ClientID: p.cfg.ClientID, Endpoint: k.endpoint, RedirectURL: a.Redirect}
	if p.cfg.ClientSecret != nil {
		secret, err := p.cfg.ClientSecret()
		if err != nil {
			return "", "", outboard.Errorf(outboard.Unavailable,
				"reading the secret this server has at the identity provider: %w", err)
		}
		cfg.ClientSecret = secret.Reveal()
	}
	token, err := cfg.Exchange(ctx, a.Code, oauth2.VerifierOption(a.Verifier))
	if bad, ok := errors.AsType[*oauth2.RetrieveError](err); ok { // its text may repeat what was sent
		switch {
		case bad.ErrorCode == "invalid_client" || bad.ErrorCode == "unauthorized_client":
			return "", "", outboard.Errorf(outboard.Unavailable,
				"the identity provider does not accept this server: %s", bad.ErrorCode).
				WithHint("check login.client_id and the client's secret in the configuration of the server")
		case bad.Response != nil && bad.Response.StatusCode >= 500:
			return "", "", outboard.Errorf(outboard.Unavailable, "the identity provider answered %d",
				bad.Response.StatusCode)
		}
		return "", "", refused("the code is not valid, was used, or is over")
	}
	if err != nil {
		return "", "", outboard.Errorf(outboard.Unavailable, "exchanging the code at the identity provider: %w",
			plain(err))
	}
	raw, _ := token.Extra("id_token").(string)
	if raw == "" {
		return "", "", refused("there is no ID token in it")
	}
	return raw, token.RefreshToken, nil
}

// plain is an error without the address that was asked.
func plain(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// check is what the library leaves to its caller.
func (p *Provider) check(t *oidc.IDToken, nonce string) error {
	var more struct {
		Party string `json:"azp"`
	}
	if err := t.Claims(&more); err != nil {
		return refused("its claims are not readable")
	}
	now := p.cfg.Now()
	switch {
	case subtle.ConstantTimeCompare([]byte(t.Nonce), []byte(nonce)) != 1:
		return refused("it belongs to another sign-in")
	case more.Party != "" && more.Party != p.cfg.ClientID, len(t.Audience) > 1 && more.Party == "":
		return refused("it was made for another client")
	case now.Sub(t.IssuedAt) > maxAge || t.IssuedAt.Sub(now) > skew:
		return refused("it is of another time")
	case t.Subject == "" || len(t.Subject) > maxClaim || strings.ContainsFunc(t.Subject, unicode.IsControl):
		return refused("it names nobody")
	}
	return nil
}

// holds returns what a token says that the provider has signed. Unavailable: its keys cannot be had, and nothing
// is known of the token.
func (p *Provider) holds(ctx context.Context, k *known, by *oidc.IDTokenVerifier, what,
	raw string) (*oidc.IDToken, error) {
	token, err := by.Verify(ctx, raw)
	if err == nil {
		return token, nil
	}
	if failed := p.reach(ctx, k.keys); failed != nil { // the verifier does not tell this from a signature that is wrong
		return nil, failed
	}
	return nil, refused("%s does not hold: %s", what, brief(err))
}

// brief is an error that may repeat a whole document of the provider: whoever signs in is told, and has no key yet.
func brief(err error) string {
	text := plain(err).Error()
	return strings.ToValidUTF8(text[:min(len(text), maxWhy)], "")
}

// reach asks the provider for a document that is there.
func (p *Provider) reach(ctx context.Context, at string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return asking(err)
	}
	resp, err := p.http.Do(r)
	if err != nil {
		return asking(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return outboard.Errorf(outboard.Unavailable, "the identity provider answered %d for its keys", resp.StatusCode)
	}
	return nil
}

// person is whom a token names, and what renews that.
func (p *Provider) person(t *oidc.IDToken, renew string) (Person, error) {
	who, err := person(t)
	if p.cfg.Renewable {
		who.Renew = renewal(renew)
	}
	return who, err
}

// renewal is what a sign-in is renewed with, unless it is nothing like that.
func renewal(token string) outboard.Secret {
	if len(token) > maxCode {
		return outboard.Secret{}
	}
	return outboard.NewSecret(token)
}

func person(t *oidc.IDToken) (Person, error) {
	p := Person{Issuer: t.Issuer, Subject: t.Subject}
	var known struct {
		Email string `json:"email"`
		Name  string `json:"name"`
	}
	if err := errors.Join(t.Claims(&p.claims), t.Claims(&known)); err != nil {
		return Person{}, refused("its claims are not readable")
	}
	p.Email, p.Name = known.Email, known.Name
	p.Verified = p.Claims("email_verified", "true")
	return p, nil
}

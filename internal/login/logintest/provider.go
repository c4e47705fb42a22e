// Package logintest is an OpenID provider for tests: discovery, keys, authorization code flow with
// PKCE and client authentication, signed ID tokens. It holds to the standards unless a test tells
// it not to. Nothing that ships imports it.
package logintest

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Claims are the claims of an ID token.
type Claims map[string]any

// Provider is a running provider with one client, named "outboard", whose secret is Secret.
type Provider struct {
	*httptest.Server
	Secret string

	mu     sync.Mutex
	key    *rsa.PrivateKey
	codes  map[string]grant
	renew  map[string]grant  // by refresh token, each of which is good once
	typed  map[string]string // by device code: "" = nobody has typed it, else the error, or "ok"
	person Claims
	bend   Bend
	asked  int               // token requests
	access map[string]Claims // by access token
}

// Bend is what a provider does wrong. The zero value does nothing wrong.
type Bend struct {
	Token     func(Claims)               // changes the claims before they are signed
	Sign      func(p *Provider) SignedBy // nil = RS256 by the published key
	Discovery func(doc map[string]any)   // changes the provider's description
	Keys      http.HandlerFunc           // answers for the keys
	Reuse     bool                       // codes are good more than once
	NoPKCE    bool                       // the verifier is not looked at
	Down      bool                       // it answers 500 for tokens
	// it sends no ID token when it renews a sign-in, which it may (OpenID Connect Core 12.2)
	NoID     bool
	UserInfo func(Claims) int           // changes what it says by an access token, and with which status
	Told     func(p *Provider) SignedBy // signs that, which need not be; nil = it is plain JSON
	ToldAs   func(jwt string) string    // changes what is sent for a signed answer
	Revoke   http.HandlerFunc           // answers who gives a token back
}

// SignedBy makes a token of a header's algorithm: the signature of "header.payload".
type SignedBy struct {
	Header map[string]any
	Sign   func(text string) []byte
}

type grant struct {
	redirect, nonce, challenge string
	person                     Claims
	offline                    bool // they asked for offline_access
	silent                     bool // no ID token is sent
}

// New starts a provider.
func New(t testing.TB) *Provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{Secret: "s3cret of the client", key: key, codes: map[string]grant{}, renew: map[string]grant{},
		typed: map[string]string{}, access: map[string]Claims{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /keys", p.keys)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /device", p.device)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /userinfo", p.userinfo)
	mux.HandleFunc("POST /revoke", p.revoke)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// SignsIn says who sits at the browser: sub, email, email_verified and other claims.
func (p *Provider) SignsIn(c Claims) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.person = c
}

// Bend makes it misbehave from now on.
func (p *Provider) Bend(b Bend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bend = b
}

// Forgets takes back what everybody's sign-ins are renewed with, as when they are removed.
func (p *Provider) Forgets() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.renew)
}

// Tokens returns what sign-ins can be renewed with now.
func (p *Provider) Tokens() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.renew))
}

// Asked returns how many token requests there were.
func (p *Provider) Asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// PublicPEM is the published key as text, which a careless verifier takes for the key of an HMAC.
func (p *Provider) PublicPEM() []byte {
	der, err := x509.MarshalPKIXPublicKey(&p.key.PublicKey)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// RS256 signs as the provider should, with its own key or another.
func (p *Provider) RS256(key *rsa.PrivateKey) SignedBy {
	if key == nil {
		key = p.key
	}
	return SignedBy{map[string]any{"alg": "RS256", "kid": "1", "typ": "JWT"}, func(text string) []byte {
		sum := sha256.Sum256([]byte(text))
		sig, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		if err != nil {
			panic(err)
		}
		return sig
	}}
}

// HS256 signs with a shared key.
func HS256(key []byte) SignedBy {
	return SignedBy{map[string]any{"alg": "HS256", "kid": "1", "typ": "JWT"}, func(text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}}
}

// Unsigned signs with nothing.
func Unsigned() SignedBy {
	return SignedBy{map[string]any{"alg": "none", "typ": "JWT"}, func(string) []byte { return nil }}
}

func (p *Provider) discovery(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	doc := map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL +
		"/token",
		"device_authorization_endpoint": p.URL + "/device", "userinfo_endpoint": p.URL +
			"/userinfo", "revocation_endpoint": p.URL + "/revoke",
		"jwks_uri": p.URL + "/keys", "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"}, "code_challenge_methods_supported": []string{"S256"},
		"authorization_response_iss_parameter_supported": true, "scopes_supported": []string{"openid", "email",
			"profile", "offline_access"}}
	if p.bend.Discovery != nil {
		p.bend.Discovery(doc)
	}
	write(w, 200, doc)
}

func (p *Provider) keys(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	own := p.bend.Keys
	p.mu.Unlock()
	if own != nil {
		own(w, r)
		return
	}
	enc := base64.RawURLEncoding.EncodeToString
	write(w, 200, map[string]any{"keys": []any{map[string]any{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1",
		"n": enc(p.key.N.Bytes()), "e": enc(big.NewInt(int64(p.key.E)).Bytes())}}})
}

// authorize lets whoever sits there in at once, as a provider does with whom it has signed in before.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("client_id") != "outboard" || q.Get("response_type") != "code" ||
		q.Get("code_challenge_method") != "S256" {
		write(w, 400, map[string]any{"error": "invalid_request"})
		return
	}
	p.mu.Lock()
	code := rand.Text()
	p.codes[code] = grant{q.Get("redirect_uri"), q.Get("nonce"), q.Get("code_challenge"), maps.Clone(p.person),
		slices.Contains(strings.Fields(q.Get("scope")), "offline_access"), false}
	p.mu.Unlock()
	back := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {p.URL}}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// device begins a sign-in on another device (RFC 8628). The code to type is "CODE-" and the secret one.
func (p *Provider) device(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, secret, ok := r.BasicAuth()
	if plain, err := url.QueryUnescape(secret); !ok || err != nil || id != "outboard" || plain != p.Secret {
		write(w, 401, map[string]any{"error": "invalid_client"})
		return
	}
	code := rand.Text()
	p.typed[code] = "authorization_pending"
	write(w, 200, map[string]any{"device_code": code, "user_code": "CODE-" + code, "verification_uri": p.URL +
		"/activate", "expires_in": 600, "interval": 1})
}

// Types is somebody who types the code that was shown to them. result is "ok", or the error that the terminal gets.
func (p *Provider) Types(user, result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.typed[strings.TrimPrefix(user, "CODE-")] = result
}

// tokenAt answers a terminal that waits for somebody on another device.
func (p *Provider) tokenAt(w http.ResponseWriter, code string) {
	result, ok := p.typed[code]
	if !ok {
		result = "invalid_grant"
	}
	if result != "ok" {
		write(w, 400, map[string]any{"error": result})
		return
	}
	if !p.bend.Reuse {
		delete(p.typed, code)
	}
	p.sign(w, grant{person: maps.Clone(p.person)})
}

func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.bend.Down {
		write(w, 500, map[string]any{})
		return
	}
	id, secret, ok := r.BasicAuth()
	if plain, err := url.QueryUnescape(secret); !ok || err != nil || id != "outboard" || plain != p.Secret {
		write(w, 401, map[string]any{"error": "invalid_client"})
		return
	}
	if r.PostFormValue("grant_type") == "urn:ietf:params:oauth:grant-type:device_code" {
		p.tokenAt(w, r.PostFormValue("device_code"))
		return
	}
	if r.PostFormValue("grant_type") == "refresh_token" {
		g, ok := p.renew[r.PostFormValue("refresh_token")]
		if !ok {
			write(w, 400, map[string]any{"error": "invalid_grant"})
			return
		}
		delete(p.renew, r.PostFormValue("refresh_token"))
		if now := p.person; now["sub"] == g.person["sub"] { // what it knows of them by now
			g.person = maps.Clone(now)
		}
		g.nonce = ""
		g.silent = p.bend.NoID
		p.sign(w, g)
		return
	}
	code := r.PostFormValue("code")
	g, ok := p.codes[code]
	if !p.bend.Reuse {
		delete(p.codes, code)
	}
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	proved := base64.RawURLEncoding.EncodeToString(sum[:]) == g.challenge
	if !ok || !proved && !p.bend.NoPKCE || r.PostFormValue("redirect_uri") != g.redirect {
		write(w, 400, map[string]any{"error": "invalid_grant"})
		return
	}
	p.sign(w, g)
}

// sign answers with an ID token.
func (p *Provider) sign(w http.ResponseWriter, g grant) {
	now := time.Now()
	claims := Claims{"iss": p.URL, "aud": "outboard", "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix()}
	if g.nonce != "" {
		claims["nonce"] = g.nonce
	}
	maps.Copy(claims, g.person)
	if p.bend.Token != nil {
		p.bend.Token(claims)
	}
	by := p.RS256(nil)
	if p.bend.Sign != nil {
		by = p.bend.Sign(p)
	}
	access := rand.Text()
	p.access[access] = maps.Clone(g.person)
	out := map[string]any{"access_token": access, "token_type": "Bearer", "expires_in": 300,
		"id_token": token(by, claims)}
	if g.silent {
		delete(out, "id_token")
	}
	if g.offline {
		renew := rand.Text()
		g.silent = false
		p.renew[renew] = g
		out["refresh_token"] = renew
	}
	write(w, 200, out)
}

// userinfo says who an access token is of.
func (p *Provider) userinfo(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	claims, ok := p.access[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if !ok {
		write(w, 401, map[string]any{"error": "invalid_token"})
		return
	}
	claims, status := maps.Clone(claims), 200
	if p.bend.Told != nil {
		claims["iss"], claims["aud"] = p.URL, "outboard"
	}
	if p.bend.UserInfo != nil {
		status = p.bend.UserInfo(claims)
	}
	if p.bend.Told == nil || status != 200 {
		write(w, status, claims)
		return
	}
	text := token(p.bend.Told(p), claims)
	if p.bend.ToldAs != nil {
		text = p.bend.ToldAs(text)
	}
	w.Header().Set("Content-Type", "application/jwt; charset=utf-8")
	_, _ = w.Write([]byte(text))
}

func (p *Provider) revoke(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	own := p.bend.Revoke
	p.mu.Unlock()
	if own == nil {
		own = p.TakeBack
	}
	own(w, r)
}

// TakeBack answers who gives a token back as it should (RFC 7009).
func (p *Provider) TakeBack(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, secret, ok := r.BasicAuth()
	if plain, err := url.QueryUnescape(secret); !ok || err != nil || id != "outboard" || plain != p.Secret {
		write(w, 401, map[string]any{"error": "invalid_client"})
		return
	}
	delete(p.renew, r.PostFormValue("token")) // one that is not there counts as taken back
}

func token(by SignedBy, c Claims) string {
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := part(by.Header) + "." + part(c)
	return text + "." + base64.RawURLEncoding.EncodeToString(by.Sign(text))
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

// Visit is a browser: it opens an address of the provider and returns where that sends it back to, without going there.
func Visit(t testing.TB, address string) *url.URL {
	t.Helper()
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		t.Fatalf("%s: %d, %v", address, resp.StatusCode, err)
	}
	return to
}

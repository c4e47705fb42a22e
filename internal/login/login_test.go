package login

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/login/logintest"
)

const back = "http://127.0.0.1:4711/callback"

// ann is somebody whose address the provider has checked.
var ann = logintest.Claims{"sub": "ann-1", "email": "Ann@acme.test", "email_verified": true, "name": "Ann",
	"groups": []string{"staff", "admins"}}

func open(t *testing.T, p *logintest.Provider) *Provider {
	t.Helper()
	out, err := New(Config{Issuer: p.URL, ClientID: "outboard", HTTP: p.Client(), Device: true,
		ClientSecret: func() (outboard.Secret, error) { return outboard.NewSecret(p.Secret), nil }})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// begin is what a client chooses, and the verifier that it keeps.
func begin() (Start, string) {
	verifier := rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	return Start{Redirect: back, State: rand.Text(), Nonce: rand.Text(),
		Challenge: base64.RawURLEncoding.EncodeToString(sum[:])}, verifier
}

// signIn goes through the provider and returns what a client then sends.
func signIn(t *testing.T, p *Provider) Answer {
	t.Helper()
	s, verifier := begin()
	address, err := p.URL(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	to := logintest.Visit(t, address)
	if to.Query().Get("state") != s.State {
		t.Fatalf("came back to %s", to)
	}
	return Answer{Code: to.Query().Get("code"), Redirect: back, Verifier: verifier, Nonce: s.Nonce}
}

// If this fails, nobody can sign in, or as somebody else than the provider says.
func TestWho(t *testing.T) {
	provider := logintest.New(t)
	provider.SignsIn(ann)
	p := open(t, provider)
	who, err := p.Who(t.Context(), signIn(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if who.Issuer != provider.URL || who.Subject != "ann-1" || who.Email != "Ann@acme.test" || !who.Verified ||
		who.Name != "Ann" {
		t.Errorf("got %+v", who)
	}
	for _, c := range []struct {
		name, value string
		want        bool
	}{{"groups", "admins", true}, {"groups", "admin", false}, {"email_verified", "true", true}, {"nothing", "",
		false}, {"name", "Ann", true}, {"name", "An", false}} {
		if got := who.Claims(c.name, c.value); got != c.want {
			t.Errorf("claim %s is %s: %v", c.name, c.value, got)
		}
	}
}

// If this fails, a token that the provider did not make for this sign-in lets somebody in. Each case differs
// from the control, which is tried before and after it, in one thing.
func TestHostileTokens(t *testing.T) {
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	claim := func(name string, value any) logintest.Bend {
		return logintest.Bend{Token: func(c logintest.Claims) { c[name] = value }}
	}
	signed := func(by func(p *logintest.Provider) logintest.SignedBy) logintest.Bend {
		return logintest.Bend{Sign: by}
	}
	now := time.Now()
	for name, bend := range map[string]logintest.Bend{
		"another sign-in's nonce":      claim("nonce", rand.Text()),
		"no nonce":                     {Token: func(c logintest.Claims) { delete(c, "nonce") }},
		"another audience":             claim("aud", "somebody-else"),
		"two audiences, no party":      claim("aud", []string{"outboard", "somebody-else"}),
		"another party":                claim("azp", "somebody-else"),
		"another issuer":               claim("iss", "https://issuer.example.com"),
		"an issuer with a slash":       {Token: func(c logintest.Claims) { c["iss"] = c["iss"].(string) + "/" }},
		"expired":                      claim("exp", now.Add(-time.Minute).Unix()),
		"no expiry":                    {Token: func(c logintest.Claims) { delete(c, "exp") }},
		"old":                          claim("iat", now.Add(-time.Hour).Unix()),
		"of the future":                claim("iat", now.Add(time.Hour).Unix()),
		"not yet good":                 claim("nbf", now.Add(time.Hour).Unix()),
		"nobody":                       claim("sub", ""),
		"a subject with a NUL":         claim("sub", "a\x00b"),
		"a subject that is too long":   claim("sub", strings.Repeat("x", 300)),
		"claims of the wrong type":     claim("email", map[string]any{}),
		"alg none":                     signed(func(*logintest.Provider) logintest.SignedBy { return logintest.Unsigned() }),
		"HS256 with the public key":    signed(func(p *logintest.Provider) logintest.SignedBy { return logintest.HS256(p.PublicPEM()) }),
		"HS256 with the client secret": signed(func(p *logintest.Provider) logintest.SignedBy { return logintest.HS256([]byte(p.Secret)) }),
		"another key":                  signed(func(p *logintest.Provider) logintest.SignedBy { return p.RS256(other) }),
		"no signature": signed(func(p *logintest.Provider) logintest.SignedBy {
			by := p.RS256(nil)
			by.Sign = func(string) []byte { return nil }
			return by
		}),
		"a discovery that offers none and HS256": {
			Discovery: func(doc map[string]any) {
				doc["id_token_signing_alg_values_supported"] = []string{"none", "HS256", "RS256"}
			},
			Sign: func(*logintest.Provider) logintest.SignedBy { return logintest.Unsigned() }},
	} {
		t.Run(name, func(t *testing.T) {
			provider := logintest.New(t)
			provider.SignsIn(ann)
			if _, err := open(t, provider).Who(t.Context(), signIn(t, open(t, provider))); err != nil {
				t.Fatalf("the control: %v", err)
			}
			provider.Bend(bend)
			p := open(t, provider)
			who, err := p.Who(t.Context(), signIn(t, p))
			if outboard.KindOf(err) != outboard.Unauthenticated || err == nil || who.Subject != "" {
				t.Errorf("%+v, %v", who, err)
			}
			provider.Bend(logintest.Bend{})
			if _, err := p.Who(t.Context(), signIn(t, p)); err != nil {
				t.Errorf("the control afterwards: %v", err)
			}
		})
	}
}

// If this fails, a code that somebody saw is good for them: without the verifier, twice, or for another address
// to come back to.
func TestCodes(t *testing.T) {
	provider := logintest.New(t)
	provider.SignsIn(ann)
	p := open(t, provider)
	for name, change := range map[string]func(a *Answer){
		"another verifier": func(a *Answer) { a.Verifier = rand.Text() },
		"another nonce":    func(a *Answer) { a.Nonce = rand.Text() },
		"another redirect": func(a *Answer) { a.Redirect = "http://127.0.0.1:4712/callback" },
		"another code":     func(a *Answer) { a.Code = rand.Text() },
	} {
		a := signIn(t, p)
		change(&a)
		if _, err := p.Who(t.Context(), a); outboard.KindOf(err) != outboard.Unauthenticated || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := signIn(t, p)
	if _, err := p.Who(t.Context(), a); err != nil {
		t.Fatalf("the control: %v", err)
	}
	if _, err := p.Who(t.Context(), a); outboard.KindOf(err) != outboard.Unauthenticated || err == nil {
		t.Errorf("a code twice: %v", err)
	}
	asked := provider.Asked()
	for name, change := range map[string]func(a *Answer){
		"no code":            func(a *Answer) { a.Code = "" },
		"a long code":        func(a *Answer) { a.Code = strings.Repeat("x", 5000) },
		"a short verifier":   func(a *Answer) { a.Verifier = "x" },
		"a guessable nonce":  func(a *Answer) { a.Nonce = "1" },
		"a page to go on to": func(a *Answer) { a.Redirect = "https://evil.example.com/callback" },
	} {
		a := Answer{Code: "c", Redirect: back, Verifier: strings.Repeat("v", 43), Nonce: strings.Repeat("n", 26)}
		change(&a)
		if _, err := p.Who(t.Context(), a); outboard.KindOf(err) != outboard.Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if provider.Asked() != asked {
		t.Error("the provider was asked with what cannot be right")
	}
}

// If this fails, a provider that tells no groups, but where they are, lets somebody in by one, or has this
// server ask an address of its choice.
func TestGroupOverage(t *testing.T) {
	provider := logintest.New(t)
	provider.SignsIn(ann)
	p := open(t, provider)
	var fetched atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		_, _ = io.WriteString(w, `{"groups":["ops"]}`)
	}))
	defer inside.Close()
	for name, c := range map[string]struct {
		claims logintest.Claims
		member bool
	}{
		"the groups themselves": {logintest.Claims{"groups": []string{"dev", "ops"}}, true},
		"where they can be had": {logintest.Claims{"_claim_names": map[string]string{"groups": "src1"},
			"_claim_sources": map[string]any{"src1": map[string]string{"endpoint": inside.URL,
				"access_token": "x"}}}, false},
		"that there are many": {logintest.Claims{"hasgroups": true}, false},
	} {
		provider.Bend(logintest.Bend{Token: func(to logintest.Claims) { maps.Copy(to, c.claims) }})
		who, err := p.Who(t.Context(), signIn(t, p))
		if err != nil || who.Claims("groups", "ops") != c.member {
			t.Errorf("%s: of the group: %v, %v", name, who.Claims("groups", "ops"), err)
		}
	}
	if n := fetched.Load(); n != 0 {
		t.Errorf("%d requests to an address out of a token", n)
	}
}

// If this fails, a link that this server made takes a code, and with it somebody's login, to a page.
func TestRedirects(t *testing.T) {
	p := open(t, logintest.New(t))
	try := func(redirect string) error {
		s, _ := begin()
		s.Redirect = redirect
		_, err := p.URL(t.Context(), s)
		return err
	}
	for _, good := range []string{back, "http://localhost:1/callback", "http://[::1]:65535/callback"} {
		if err := try(good); err != nil {
			t.Errorf("the control %s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "https://evil.example.com/callback", "http://evil.example.com:80/callback",
		"http://127.0.0.1/callback",
		"http://127.0.0.1:80@evil.example.com/callback", "http://127.0.0.1:80/callback?next=https://evil.example.com", "http://127.0.0.1:80/callback#x",
		"http://127.0.0.1:80/../callback", "http://127.0.0.1:80//evil.example.com", "//evil.example.com:80/callback", "http://127.0.0.1.evil.example.com:80/callback",
		"http://localhost.evil.example.com:80/callback", "javascript:alert(1)", "http://127.0.0.1:80\\@evil.example.com/callback", "http://10.0.0.1:80/callback",
		"http://0.0.0.0:80/callback", "urn:ietf:wg:oauth:2.0:oob"} {
		if err := try(bad); outboard.KindOf(err) != outboard.Invalid || err == nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// If this fails, a provider that is broken, taken over or not the one that was named makes this server believe
// it, read for ever, or follow it to other addresses.
func TestHostileProvider(t *testing.T) {
	var inside int
	internal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { inside++ }))
	t.Cleanup(internal.Close)
	for name, bend := range map[string]logintest.Bend{
		"calls itself another":         {Discovery: func(doc map[string]any) { doc["issuer"] = "https://issuer.example.com" }},
		"signs in without https":       {Discovery: func(doc map[string]any) { doc["authorization_endpoint"] = "http://evil.example.com/a" }},
		"a javascript address":         {Discovery: func(doc map[string]any) { doc["authorization_endpoint"] = "javascript:alert(1)" }},
		"takes codes without https":    {Discovery: func(doc map[string]any) { doc["token_endpoint"] = "http://evil.example.com/t" }},
		"keys at a metadata service":   {Discovery: func(doc map[string]any) { doc["jwks_uri"] = "http://169.254.169.254/keys" }},
		"says who without https":       {Discovery: func(doc map[string]any) { doc["userinfo_endpoint"] = "http://evil.example.com/u" }},
		"takes back without https":     {Discovery: func(doc map[string]any) { doc["revocation_endpoint"] = "http://169.254.169.254/r" }},
		"no keys":                      {Discovery: func(doc map[string]any) { delete(doc, "jwks_uri") }},
		"a description without an end": {Discovery: func(doc map[string]any) { doc["x"] = strings.Repeat("x", 2<<20) }},
	} {
		provider := logintest.New(t)
		provider.Bend(bend)
		s, _ := begin()
		if address, err := open(t, provider).URL(t.Context(), s); outboard.KindOf(err) != outboard.Unavailable ||
			err == nil || len(err.Error()) > 1000 {
			t.Errorf("%s: %q, %.1000v", name, address, err)
		}
		provider.Bend(logintest.Bend{})
		if _, err := open(t, provider).URL(t.Context(), s); err != nil {
			t.Errorf("%s, the control: %v", name, err)
		}
	}
	for name, keys := range map[string]http.HandlerFunc{
		"keys that are elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, internal.URL, http.StatusFound)
		},
		"keys without an end": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"keys":[`)
			for range 3 << 20 / 64 {
				io.WriteString(w, strings.Repeat(" ", 64))
			}
		},
		"no keys at all": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"keys":[]}`) },
	} {
		provider := logintest.New(t)
		provider.SignsIn(ann)
		provider.Bend(logintest.Bend{Keys: keys})
		p, kind := open(t, provider), outboard.Unauthenticated
		if strings.Contains(name, "elsewhere") { // nothing is known of the token
			kind = outboard.Unavailable
		}
		if _, err := p.Who(t.Context(), signIn(t, p)); outboard.KindOf(err) != kind || err == nil ||
			len(err.Error()) > 1000 {
			t.Errorf("%s: %.1000v", name, err)
		}
	}
	if inside != 0 {
		t.Error("a redirect was followed")
	}
}

// If this fails, a wrong secret is told to whoever signs in, or taken for their mistake.
func TestClientSecret(t *testing.T) {
	provider := logintest.New(t)
	provider.SignsIn(ann)
	p := open(t, provider)
	a := signIn(t, p)
	provider.Secret = "another"
	p.cfg.ClientSecret = func() (outboard.Secret, error) { return outboard.NewSecret("hunter2"), nil }
	_, err := p.Who(t.Context(), a)
	if outboard.KindOf(err) != outboard.Unavailable || err == nil || !strings.Contains(err.Error(), "invalid_client") ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	for _, issuer := range []string{"http://issuer.example.com", "", "https://", "https://user:pw@issuer.example.com",
		"ftp://issuer.example.com"} {
		if _, err := New(Config{Issuer: issuer, ClientID: "outboard",
			HTTP: provider.Client()}); outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("issuer %q: %v", issuer, err)
		}
	}
}

package login

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/login/logintest"
)

// renewSilently signs ann in, and renews that at a provider which sends no ID token then but answers at its
// userinfo endpoint.
func renewSilently(t *testing.T, provider *logintest.Provider, bend logintest.Bend) (Person, error) {
	t.Helper()
	p, err := New(Config{Issuer: provider.URL, ClientID: "outboard", HTTP: provider.Client(), Renewable: true,
		ClientSecret: func() (outboard.Secret, error) { return outboard.NewSecret(provider.Secret), nil }})
	if err != nil {
		t.Fatal(err)
	}
	provider.Bend(logintest.Bend{Discovery: bend.Discovery})
	who, err := p.Who(t.Context(), signIn(t, p))
	if err != nil {
		t.Fatal(err)
	}
	bend.NoID = true
	provider.Bend(bend)
	return p.Renew(t.Context(), who.Subject, who.Renew)
}

// If this fails, somebody whose provider signs its answers cannot stay signed in, or does so by an answer that
// the provider has not given: about somebody else, to another client, of another provider, or of nobody at all.
func TestSignedUserInfo(t *testing.T) {
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := func(p *logintest.Provider) logintest.SignedBy { return p.RS256(nil) }
	says := func(change func(logintest.Claims)) logintest.Bend {
		return logintest.Bend{Told: good, UserInfo: func(c logintest.Claims) int { change(c); return 200 }}
	}
	claim := func(name string, v any) logintest.Bend { return says(func(c logintest.Claims) { c[name] = v }) }
	by := func(sign func(p *logintest.Provider) logintest.SignedBy) logintest.Bend {
		return logintest.Bend{Told: sign}
	}
	offers := func(algs ...string) func(map[string]any) {
		return func(doc map[string]any) { doc["userinfo_signing_alg_values_supported"] = algs }
	}
	for name, c := range map[string]struct {
		bend logintest.Bend
		kind outboard.Kind // "" = it holds
		word string
	}{
		"signed":               {bend: by(good)},
		"signed, and it lasts": {bend: claim("exp", time.Now().Add(time.Minute).Unix())},
		"for others too":       {bend: claim("aud", []string{"other", "outboard"})},
		"offered":              {bend: logintest.Bend{Told: good, Discovery: offers("none", "HS256", "RS256")}},
		// then as for ID tokens
		"none and HS256 offered": {bend: logintest.Bend{Told: good, Discovery: offers("none", "HS256")}},
		"another one offered": {logintest.Bend{Told: good, Discovery: offers("ES256")}, outboard.Unauthenticated,
			"does not hold"},
		"another key": {by(func(p *logintest.Provider) logintest.SignedBy { return p.RS256(other) }),
			outboard.Unauthenticated, "does not hold"},
		"alg none": {by(func(*logintest.Provider) logintest.SignedBy { return logintest.Unsigned() }),
			outboard.Unauthenticated, "does not hold"},
		"alg none, offered":     {logintest.Bend{Told: func(*logintest.Provider) logintest.SignedBy { return logintest.Unsigned() }, Discovery: offers("none", "RS256")}, outboard.Unauthenticated, "does not hold"},
		"HS256, the public key": {by(func(p *logintest.Provider) logintest.SignedBy { return logintest.HS256(p.PublicPEM()) }), outboard.Unauthenticated, "does not hold"},
		"HS256, the secret":     {by(func(p *logintest.Provider) logintest.SignedBy { return logintest.HS256([]byte(p.Secret)) }), outboard.Unauthenticated, "does not hold"},
		"changed on its way": {logintest.Bend{Told: good, ToldAs: swapped}, outboard.Unauthenticated,
			"does not hold"},
		"another issuer": {claim("iss", "https://other.test"), outboard.Unauthenticated, "does not hold"},
		"no issuer": {says(func(c logintest.Claims) { delete(c, "iss") }), outboard.Unauthenticated,
			"does not hold"},
		"another client": {claim("aud", "other"), outboard.Unauthenticated, "does not hold"},
		"no client": {says(func(c logintest.Claims) { delete(c, "aud") }), outboard.Unauthenticated,
			"does not hold"},
		"somebody else": {claim("sub", "eve"), outboard.Unauthenticated, "names somebody else"},
		"nobody": {says(func(c logintest.Claims) { delete(c, "sub") }), outboard.Unauthenticated,
			"names somebody else"},
		"over": {claim("exp", time.Now().Add(-time.Minute).Unix()), outboard.Unauthenticated,
			"of another time"},
		"of the future": {claim("iat", time.Now().Add(time.Hour).Unix()), outboard.Unauthenticated,
			"of another time"},
		"no token": {logintest.Bend{Told: good, ToldAs: func(string) string { return "{}" }},
			outboard.Unauthenticated, "does not hold"},
		"encrypted": {logintest.Bend{Told: good, ToldAs: encrypted}, outboard.Unavailable, "encrypts"},
		"its keys cannot be had": {logintest.Bend{Told: unknownKey, Keys: func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(503)
		}}, outboard.Unavailable, "503 for its keys"},
		"a key that is not there": {by(unknownKey), outboard.Unauthenticated, "does not hold"},
	} {
		t.Run(name, func(t *testing.T) {
			provider := logintest.New(t)
			provider.SignsIn(ann)
			who, err := renewSilently(t, provider, c.bend)
			if who.Renew.IsZero() {
				t.Error("what it is renewed with next is lost")
			}
			if c.kind == "" {
				if err != nil || who.Silent || who.Subject != "ann-1" || who.Email != "Ann@acme.test" ||
					!who.Verified || who.Name != "Ann" || !who.Claims("groups", "admins") {
					t.Errorf("%+v, %v", who, err)
				}
				return
			}
			if err == nil || outboard.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.word) ||
				who.Email != "" || who.Verified || who.Claims("groups", "admins") {
				t.Errorf("%+v, %v", who, err)
			}
			if who, err := renewSilently(t, provider, by(good)); err != nil || who.Email != "Ann@acme.test" {
				t.Errorf("the control: %+v, %v", who, err)
			}
		})
	}
}

// unknownKey signs with a key that the provider has not told yet.
func unknownKey(p *logintest.Provider) logintest.SignedBy {
	by := p.RS256(nil)
	by.Header["kid"] = "new"
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	by.Sign = p.RS256(other).Sign
	return by
}

// swapped leaves the signature, and changes a claim.
func swapped(jwt string) string {
	parts := strings.Split(jwt, ".")
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		panic(err)
	}
	parts[1] = base64.RawURLEncoding.EncodeToString(bytes.ReplaceAll(text, []byte("Ann@"), []byte("Eve@")))
	return strings.Join(parts, ".")
}

// encrypted has the shape of a JWE, whose parts are five.
func encrypted(string) string {
	return "eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ.a2V5.aXY.dGV4dA.dGFn"
}

// If this fails, a provider that gives a new token with each renewal has one that nobody here knows of, when the
// ID token beside it is refused.
func TestRenewalOfARefusedToken(t *testing.T) {
	provider := logintest.New(t)
	provider.SignsIn(ann)
	p, err := New(Config{Issuer: provider.URL, ClientID: "outboard", HTTP: provider.Client(), Renewable: true,
		ClientSecret: func() (outboard.Secret, error) { return outboard.NewSecret(provider.Secret), nil }})
	if err != nil {
		t.Fatal(err)
	}
	first, err := p.Who(t.Context(), signIn(t, p))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(logintest.Claims){
		"another client": func(c logintest.Claims) { c["aud"] = "other" },
		"another time":   func(c logintest.Claims) { c["iat"] = time.Now().Add(-time.Hour).Unix() },
		"the control":    func(logintest.Claims) {},
	} {
		provider.Bend(logintest.Bend{Token: change})
		who, err := p.Renew(t.Context(), first.Subject, first.Renew)
		if (err == nil) != (name == "the control") || who.Renew.Reveal() != provider.Tokens()[0] {
			t.Errorf("%s: %v, and the token is another one", name, err)
		}
		first.Renew = who.Renew
	}
}

package login

import (
	"errors"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/login/logintest"
)

// If this fails, nobody can sign in on another device, or a terminal gets in before somebody has, after they
// refused, twice, with a code that it guessed, or with a token of another sign-in.
func TestDevice(t *testing.T) {
	provider := logintest.New(t)
	provider.SignsIn(ann)
	p := open(t, provider)
	begin := func() Device {
		t.Helper()
		d, err := p.Device(t.Context())
		if err != nil || d.Code == "" || d.User == "" || d.URL != provider.URL+"/activate" || d.Every <= 0 ||
			d.Lasts <= 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		return d
	}
	d := begin()
	if _, err := p.WhoAt(t.Context(), d.Code); !errors.Is(err, ErrPending) {
		t.Errorf("before anybody has: %v", err)
	}
	provider.Types(d.User, "slow_down")
	if _, err := p.WhoAt(t.Context(), d.Code); !errors.Is(err, ErrSlowDown) {
		t.Errorf("too often: %v", err)
	}
	provider.Types(d.User, "ok")
	if who, err := p.WhoAt(t.Context(), d.Code); err != nil || who.Subject != "ann-1" || !who.Verified {
		t.Errorf("%+v, %v", who, err)
	}
	for name, c := range map[string]struct {
		code string
		kind outboard.Kind
	}{"twice": {d.Code, outboard.Unauthenticated}, "guessed": {"x", outboard.Unauthenticated}, "empty": {"",
		outboard.Invalid}} {
		if _, err := p.WhoAt(t.Context(), c.code); outboard.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	for result, kind := range map[string]outboard.Kind{"access_denied": outboard.Denied,
		"expired_token": outboard.Unauthenticated} {
		d := begin()
		provider.Types(d.User, result)
		if _, err := p.WhoAt(t.Context(), d.Code); outboard.KindOf(err) != kind {
			t.Errorf("%s: %v", result, err)
		}
	}
	for name, change := range map[string]func(logintest.Claims){
		"of another sign-in":     func(c logintest.Claims) { c["nonce"] = "0123456789012345678901" },
		"for another client":     func(c logintest.Claims) { c["aud"] = "another" },
		"of another issuer":      func(c logintest.Claims) { c["iss"] = "https://evil.test" },
		"that names nobody":      func(c logintest.Claims) { c["sub"] = "" },
		"that is over (expired)": func(c logintest.Claims) { c["exp"] = 1000 },
	} {
		provider.Bend(logintest.Bend{Token: change})
		d := begin()
		provider.Types(d.User, "ok")
		if _, err := p.WhoAt(t.Context(), d.Code); outboard.KindOf(err) != outboard.Unauthenticated {
			t.Errorf("a token %s: %v", name, err)
		}
	}
	provider.Bend(logintest.Bend{})
	p.cfg.Device = false // as a server is that says nothing of it
	if _, err := p.Device(t.Context()); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("without login.device: %v", err)
	}
	if _, err := p.WhoAt(t.Context(), granted(t, provider)); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("without login.device, a code: %v", err)
	}
}

// granted is a code that the provider would answer.
func granted(t *testing.T, provider *logintest.Provider) string {
	t.Helper()
	d, err := open(t, provider).Device(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	provider.Types(d.User, "ok")
	return d.Code
}

// If this fails, a provider that was taken over sends people to a page that others can read or change.
func TestDeviceAtAHostileProvider(t *testing.T) {
	provider := logintest.New(t)
	provider.Bend(logintest.Bend{Discovery: func(doc map[string]any) { doc["device_authorization_endpoint"] = "http://evil.test/device" }})
	if _, err := open(t, provider).Device(t.Context()); outboard.KindOf(err) != outboard.Unavailable {
		t.Errorf("without https: %v", err)
	}
	provider.Bend(logintest.Bend{Discovery: func(doc map[string]any) { delete(doc, "device_authorization_endpoint") }})
	if _, err := open(t, provider).Device(t.Context()); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("without one: %v", err)
	}
}

package api_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/login/logintest"
	"github.com/outboard-dev/outboard/internal/store"
)

// staying is a server where people stay signed in.
func staying(t *testing.T, follow bool, rules ...control.LoginRule) *signing {
	return signingInWith(t, control.LoginConfig{Rules: rules, Follow: follow, Lasts: time.Hour, Renew: 24 * time.Hour})
}

// ends moves the end of a login to a time from now: as if it had been made earlier.
func (s *signing) ends(key string, in time.Duration) {
	s.t.Helper()
	if _, err := s.store.ExtendLogin(s.t.Context(), outboard.KeyID(key), s.store.Now().Add(in)); err != nil {
		s.t.Fatal(err)
	}
}

const renewPath = "/v1/outboard/login/renew"

// renewed renews the login of a bench.
func renewed(b *bench) reply {
	b.t.Helper()
	r := b.do("POST", renewPath, `{}`, asJSON)
	if r.status != 200 {
		b.t.Errorf("renewing: %d %s", r.status, r.body)
	}
	return r
}

// asJSON says what a body is, as routes want it that take no key.
func asJSON(r *http.Request) { r.Header.Set("Content-Type", "application/json") }

// Fails if somebody whom the provider still knows must go through the browser again, if a login is renewed too
// often or for longer than it may be, or if what it is renewed with can be read by anybody.
func TestLoginRenewal(t *testing.T) {
	s := staying(t, false, control.LoginRule{Domain: "acme.test", Role: outboard.RoleDeveloper})
	got, ann := s.in(person("ann", "ann@acme.test"))
	id := got.str("key.id")
	if got.str("key.renew_after") == "" {
		t.Fatalf("it cannot be renewed: %s", got.body)
	}
	asked := s.provider.Asked()
	if early := renewed(ann); early.str("key.expires_at") != got.str("key.expires_at") || s.provider.Asked() != asked {
		t.Errorf("early: %s, %d questions", early.body, s.provider.Asked()-asked)
	}
	// near its end, over, and long over
	for _, in := range []time.Duration{time.Minute, -time.Minute, -20 * time.Hour} {
		s.ends(id, in)
		if in < 0 {
			ann.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil)
		}
		before := s.provider.Tokens()
		var all sync.WaitGroup
		asked := s.provider.Asked()
		for range 4 {
			all.Go(func() {
				if r := ann.do("POST", renewPath, `{}`, asJSON); r.status != 200 || r.str("key.secret") != "" ||
					r.str("key.id") != id {
					t.Errorf("renewal: %d %s", r.status, r.body)
				}
			})
		}
		all.Wait()
		if n := s.provider.Asked() - asked; n != 1 || s.provider.Tokens()[0] == before[0] {
			t.Errorf("%d questions for one renewal", n)
		}
		ann.ok("GET", "/v1/outboard/whoami", nil)
	}
	row, err := s.store.LoginRenewal(t.Context(), outboard.KeyID(id))
	if tokens := s.provider.Tokens(); err != nil || len(tokens) != 1 || len(row.Sealed.Data) == 0 ||
		bytes.Contains(row.Sealed.Data, []byte(tokens[0])) {
		t.Errorf("what it is renewed with: %d tokens, %v", len(tokens), err)
	}
	if n, err := s.store.CountAudit(t.Context(), "login", "login.renew", outboard.Allowed, time.Time{}); err != nil ||
		n != 3 {
		t.Errorf("%d records of 3 renewals, %v", n, err)
	}

	short := signingInWith(t,
		control.LoginConfig{Rules: []control.LoginRule{{Domain: "acme.test", Role: outboard.RoleDeveloper}},
			Lasts: time.Hour, Renew: time.Hour})
	got, ann = short.in(person("ann", "ann@acme.test"))
	short.ends(got.str("key.id"), time.Minute)
	if last := renewed(ann); last.get("key.renew_after") != nil || last.str("key.expires_at") > short.store.Now().
		Add(time.Hour).UTC().Format(time.RFC3339) {
		t.Errorf("beyond its last day: %s", last.body)
	}
	over := outboard.Key{Name: "login", Role: outboard.RoleDeveloper, Kind: outboard.KeyLogin, Org: outboard.DefaultOrg,
		User: outboard.UserID(got.str("user.id")), ExpiresAt: short.longAgo()}
	ann.key = "obk_over"
	r := store.LoginRenewal{Key: outboard.KeyID(putKey(short.bench, over, ann.key)), Until: short.longAgo(),
		Sealed: outboard.Sealed{Data: []byte("x")}}
	key, err := short.store.VaultKey(t.Context(), string(outboard.DefaultOrg))
	if r.Sealed.Key = key.ID; err != nil {
		t.Fatal(err)
	}
	ann.refused(401, "cannot be renewed any more", "POST", renewPath, `{}`, asJSON) // nothing to renew it with
	if err := short.store.PutLoginRenewal(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	ann.refused(401, "cannot be renewed any more", "POST", renewPath, `{}`, asJSON) // and its last day is over
}

// Fails if somebody whom the provider, an administrator or a rule has taken out stays signed in, or if a
// provider that is away for a moment ends a login.
func TestLoginRenewalRefused(t *testing.T) {
	s := staying(t, true, control.LoginRule{Claim: "group", Value: "dev", Role: outboard.RoleDeveloper},
		control.LoginRule{Claim: "group", Value: "look", Role: outboard.RoleViewer})
	who := func(sub, group string) logintest.Claims {
		c := person(sub, sub+"@acme.test")
		c["group"] = group
		return c
	}
	bob, _ := s.in(who("bob", "dev"))
	other := bob.str("key.id")
	for name, c := range map[string]struct {
		do     func(id, user string)
		status int
		word   string
		lives  bool
	}{
		"control":           {func(string, string) {}, 200, "", true},
		"the provider's no": {func(string, string) { s.provider.Forgets() }, 401, "has ended", false},
		"of no group":       {func(string, string) { s.provider.SignsIn(who("ann", "none")) }, 401, "no rule", false},
		"somebody else": {func(string, string) {
			s.provider.Bend(logintest.Bend{Token: func(c logintest.Claims) { c["sub"] = "eve" }})
		}, 401, "somebody else", false},
		"the keys are away": {func(string, string) {
			s.provider.Bend(logintest.Bend{Sign: func(p *logintest.Provider) logintest.SignedBy {
				by := p.RS256(nil)
				by.Header["kid"] = "new"
				return by
			}, Keys: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }})
		}, 503, "503 for its keys", true},
		"a broken token": {func(string, string) {
			s.provider.Bend(logintest.Bend{Token: func(c logintest.Claims) { c["aud"] = "other" }})
		}, 401, "does not hold", false},
		"logged out": {func(id, _ string) { s.ok("DELETE", "/v1/outboard/keys/"+id, nil) }, 401, "ended",
			false},
		"removed": {func(_, user string) { s.ok("DELETE", "/v1/outboard/users/"+user, nil) }, 401, "ended",
			false},
		"another key": {func(id, _ string) { s.underAnotherKey(id) }, 401, "does not have any more", false},
		"another's": {func(id,
			_ string) {
			s.sealed(id,
				func(r *store.LoginRenewal) { r.Sealed = s.renewal(other).Sealed })
		}, 401, "opened", false},
		"the provider's off": {func(string, string) { s.provider.Bend(logintest.Bend{Down: true}) }, 503, "500", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, ann := s.in(who("ann", "dev"))
			id, user := got.str("key.id"), got.str("user.id")
			s.ends(id, time.Minute)
			c.do(id, user)
			defer func() {
				s.provider.Bend(logintest.Bend{})
				if strings.Contains(name, "removed") {
					s.ok("POST", "/v1/outboard/users/"+user+"/restore", nil)
				}
			}()
			if c.status == 200 {
				renewed(ann)
			} else {
				ann.refused(c.status, c.word, "POST", renewPath, `{}`, asJSON)
			}
			if c.lives {
				ann.ok("GET", "/v1/outboard/whoami", nil)
			} else {
				ann.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil)
			}
		})
	}
	s.refused(401, "no login", "POST", renewPath, `{}`, asJSON) // the operator's key
	s.refused(401, "not valid", "POST", renewPath, `{}`, keyless)
}

// renewal is what a login is renewed with.
func (s *signing) renewal(id string) store.LoginRenewal {
	s.t.Helper()
	r, err := s.store.LoginRenewal(s.t.Context(), outboard.KeyID(id))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// sealed changes what a login is renewed with.
func (s *signing) sealed(id string, change func(*store.LoginRenewal)) {
	s.t.Helper()
	r := s.renewal(id)
	change(&r)
	if err := s.store.PutLoginRenewal(s.t.Context(), r); err != nil {
		s.t.Fatal(err)
	}
}

// underAnotherKey makes what a login is renewed with one of a key that is not there.
func (s *signing) underAnotherKey(id string) {
	s.t.Helper()
	err := s.store.EditVaults(s.t.Context(), string(outboard.DefaultOrg), true,
		func(st store.VaultState) (store.VaultEdit, error) {
			e := store.VaultEdit{Key: st.Key}
			for _, v := range st.Values {
				if v.Row == id {
					v.Sealed.Key = "x"
					e.Values = append(e.Values, v)
				}
			}
			return e, nil
		})
	if err != nil {
		s.t.Fatal(err)
	}
}

// revocations returns what the audit says of tokens that were given back.
func (s *signing) revocations() (actions []string) {
	s.t.Helper()
	for _, action := range []string{"token.revoke", "token.revoked", "token.revoke_failed", "token.revoke_dropped"} {
		rows, err := s.store.AuditRecords(s.t.Context(), store.AuditQuery{Action: action})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, row := range rows {
			actions = append(actions, action)
			if bytes.Contains(row.Detail, []byte(s.provider.Secret)) ||
				!bytes.Contains(row.Detail, []byte("refresh_token")) {
				s.t.Errorf("%s: %s", action, row.Detail)
			}
		}
	}
	return actions
}

// Fails if what a login was renewed with is worth something at the provider after its person has logged out, if
// it is sent anywhere else, or if a provider that does not take it back keeps anybody from logging out.
func TestLogoutRevokesAtTheProvider(t *testing.T) {
	rule := control.LoginRule{Domain: "acme.test", Role: outboard.RoleDeveloper}
	logout := func(s *signing, got reply, who *bench) {
		t.Helper()
		s.t.Helper()
		who.ok("DELETE", "/v1/outboard/keys/"+got.str("key.id"), nil)
		who.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil)
	}
	s := staying(t, false, rule)
	got, ann := s.in(person("ann", "ann@acme.test"))
	stays, bob := s.in(person("bob", "bob@acme.test"))
	if n := len(s.provider.Tokens()); n != 2 {
		t.Fatalf("the control: %d tokens", n)
	}
	logout(s, got, ann)
	if n := len(s.provider.Tokens()); n != 1 {
		t.Errorf("%d tokens are good, and one person is signed in", n)
	}
	s.ok("DELETE", "/v1/outboard/keys/"+got.str("key.id"), nil) // once more: nothing is left to give back
	if list := s.revocations(); !slices.Equal(list, []string{"token.revoke", "token.revoked"}) {
		t.Errorf("on record is %v", list)
	}
	s.ends(stays.str("key.id"), time.Minute)
	renewed(bob) // the other one is as it was

	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for name, c := range map[string]struct {
		revoke http.HandlerFunc
		want   []string
	}{
		"down": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
			[]string{"token.revoke", "token.revoke_failed"}},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, []string{"token.revoke", "token.revoke_failed"}},
		"refuses": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			_, _ = w.Write([]byte(`{"error":"unsupported_token_type"}`))
		}, []string{"token.revoke", "token.revoke_dropped"}},
		"says nothing": {func(http.ResponseWriter, *http.Request) {}, []string{"token.revoke", "token.revoked"}},
	} {
		s := staying(t, false, rule)
		got, ann := s.in(person("ann", "ann@acme.test"))
		s.provider.Bend(logintest.Bend{Revoke: c.revoke})
		logout(s, got, ann)
		if list := s.revocations(); !slices.Equal(list, c.want) {
			t.Errorf("%s: on record is %v", name, list)
		}
	}
	s = staying(t, false, rule)
	s.provider.Bend(logintest.Bend{Discovery: func(doc map[string]any) { delete(doc, "revocation_endpoint") }})
	got, ann = s.in(person("ann", "ann@acme.test"))
	logout(s, got, ann)
	if list := s.revocations(); len(list) != 0 {
		t.Errorf("nobody takes it back: on record is %v", list)
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

// Fails if a provider that sends no ID token when it renews a sign-in, which it need not, ends every login; or
// if somebody stays signed in by it whom it says elsewhere to be somebody else, gone, or of no group that the
// rules ask for.
func TestLoginRenewalWithoutAnIDToken(t *testing.T) {
	domain := control.LoginRule{Domain: "acme.test", Role: outboard.RoleDeveloper}
	group := control.LoginRule{Claim: "group", Value: "dev", Role: outboard.RoleDeveloper}
	nowhere := func(doc map[string]any) { delete(doc, "userinfo_endpoint") }
	says := func(status int, change func(logintest.Claims)) func(logintest.Claims) int {
		return func(c logintest.Claims) int { change(c); return status }
	}
	signs := func(p *logintest.Provider) logintest.SignedBy { return p.RS256(nil) }
	for name, c := range map[string]struct {
		bend   logintest.Bend
		rule   control.LoginRule
		follow bool
		status int
		word   string
		lives  bool
	}{
		"userinfo":              {logintest.Bend{}, group, true, 200, "", true},
		"no userinfo":           {logintest.Bend{Discovery: nowhere}, domain, false, 200, "", true},
		"no userinfo, a domain": {logintest.Bend{Discovery: nowhere}, domain, true, 200, "", true},
		"no userinfo, a claim": {logintest.Bend{Discovery: nowhere}, group, true, 401, "asks for a claim",
			false},
		"no userinfo, a claim at first": {logintest.Bend{Discovery: nowhere}, group, false, 200, "", true},
		"somebody else": {logintest.Bend{UserInfo: says(200,
			func(c logintest.Claims) { c["sub"] = "eve" })}, domain, false, 401, "somebody else", false},
		"nobody": {logintest.Bend{UserInfo: says(200,
			func(c logintest.Claims) { delete(c, "sub") })}, domain, false, 401, "somebody else", false},
		"an odd subject": {logintest.Bend{UserInfo: says(200,
			func(c logintest.Claims) { c["sub"] = 7 })}, domain, false, 401, "not readable", false},
		"of no group any more": {logintest.Bend{UserInfo: says(200,
			func(c logintest.Claims) { c["group"] = "none" })}, group, true, 401, "no rule", false},
		"no group told": {logintest.Bend{UserInfo: says(200,
			func(c logintest.Claims) { delete(c, "group") })}, group, true, 401, "no rule", false},
		"another domain": {logintest.Bend{UserInfo: says(200,
			func(c logintest.Claims) { c["email"] = "ann@other.test" })}, domain, true, 401, "no rule", false},
		"not verified any more": {logintest.Bend{UserInfo: says(200,
			func(c logintest.Claims) { c["email_verified"] = false })}, domain, true, 401, "no rule", false},
		"signed": {logintest.Bend{Told: signs}, group, true, 200, "", true},
		"signed, of no group any more": {logintest.Bend{Told: signs,
			UserInfo: says(200, func(c logintest.Claims) { c["group"] = "none" })}, group, true, 401, "no rule", false},
		"signed by nobody": {logintest.Bend{Told: func(*logintest.Provider) logintest.SignedBy { return logintest.Unsigned() }}, group, true, 401, "does not hold", false},
		"encrypted": {logintest.Bend{Told: signs,
			ToldAs: func(string) string { return "a.b.c.d.e" }}, group, true, 503, "encrypts", true},
		"gone": {logintest.Bend{UserInfo: says(401, func(logintest.Claims) {})}, domain, false,
			401, "any more", false},
		"off": {logintest.Bend{UserInfo: says(503, func(logintest.Claims) {})}, domain, false,
			503, "503", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := staying(t, c.follow, c.rule)
			s.provider.Bend(logintest.Bend{Discovery: c.bend.Discovery}) // which is read at the sign-in
			ann := person("ann", "ann@acme.test")
			ann["group"] = "dev"
			got, as := s.in(ann)
			c.bend.NoID = true
			s.provider.Bend(c.bend)
			for range 2 { // the second time with what the first one gave
				s.ends(got.str("key.id"), time.Minute)
				if c.status == 200 {
					renewed(as)
				} else {
					as.refused(c.status, c.word, "POST", renewPath, `{}`, asJSON)
				}
				if !c.lives {
					break
				}
				as.ok("GET", "/v1/outboard/whoami", nil)
			}
			if c.status == 503 { // what it is renewed with has changed all the same, and is not lost
				s.provider.Bend(logintest.Bend{NoID: true})
				renewed(as)
			}
			if !c.lives {
				as.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil)
			}
		})
	}
}

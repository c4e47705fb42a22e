package api_test

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/login"
	"github.com/outboard-dev/outboard/internal/login/logintest"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

const loginBack = "http://127.0.0.1:4711/callback"

// person is somebody at the provider, whose address it has checked.
func person(sub, email string) logintest.Claims {
	return logintest.Claims{"sub": sub, "email": email, "email_verified": true, "name": "N " + sub}
}

// signing is a server where people sign in.
type signing struct {
	*bench
	provider *logintest.Provider
}

func signingIn(t *testing.T, follow bool, rules ...control.LoginRule) *signing {
	t.Helper()
	return signingInWith(t, control.LoginConfig{Rules: rules, Follow: follow, Lasts: time.Hour})
}

func signingInWith(t *testing.T, cfg control.LoginConfig) *signing {
	t.Helper()
	provider := logintest.New(t)
	p, err := login.New(login.Config{Issuer: provider.URL, ClientID: "outboard", HTTP: provider.Client(), Device: true,
		Renewable:    cfg.Renew > 0,
		ClientSecret: func() (outboard.Secret, error) { return outboard.NewSecret(provider.Secret), nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := control.CheckLoginRules(cfg.Rules); err != nil {
		t.Fatal(err)
	}
	cfg.Provider = p
	b := whole(t, outboardtest.Options{NoRunner: true, Login: cfg})
	return &signing{b, provider}
}

// keyless is a request that carries no key.
func keyless(r *http.Request) {
	r.Header.Del("X-Api-Key")
	r.Header.Del("Authorization")
	r.Header.Set("Content-Type", "application/json")
}

// visit lets somebody sign in at the provider, and returns what their client sends to the server then.
func (s *signing) visit(who logintest.Claims) map[string]any {
	s.t.Helper()
	s.provider.SignsIn(who)
	verifier, nonce, state := rand.Text()+rand.Text(), rand.Text(), rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	start := s.do("POST", "/v1/outboard/login/start", map[string]any{"redirect_uri": loginBack, "state": state,
		"nonce":          nonce,
		"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:])}, keyless)
	if start.status != 200 || start.str("issuer") != s.provider.URL {
		s.t.Fatalf("start: %d %s", start.status, start.body)
	}
	to := logintest.Visit(s.t, start.str("url"))
	if to.Query().Get("state") != state {
		s.t.Fatalf("came back to %s", to)
	}
	return map[string]any{"code": to.Query().Get("code"), "redirect_uri": loginBack, "code_verifier": verifier,
		"nonce": nonce}
}

// in signs somebody in, and returns the answer and a bench with their key.
func (s *signing) in(who logintest.Claims) (reply, *bench) {
	s.t.Helper()
	got := s.do("POST", "/v1/outboard/login", s.visit(who), keyless)
	if got.status != 200 {
		s.t.Fatalf("login of %v: %d %s", who["sub"], got.status, got.body)
	}
	theirs := *s.bench
	theirs.key = got.str("key.secret")
	return got, &theirs
}

// out expects that somebody is turned away.
func (s *signing) out(status int, word string, who logintest.Claims) {
	s.t.Helper()
	s.refused(status, word, "POST", "/v1/outboard/login", s.visit(who), keyless)
}

// Fails if somebody who was added cannot sign in, has more or less than their row says, or keeps what they had
// after they were removed.
func TestLogin(t *testing.T) {
	s := signingIn(t, false)
	s.out(403, "nobody has added", person("ann", "ann@acme.test"))
	id := s.ok("POST", "/v1/outboard/users", `{"email":"ann@acme.test","role":"viewer"}`).str("id")
	boss := person("ann", "Ann@Acme.test")
	// of the token, and nothing here
	boss["role"], boss["groups"], boss["organization"] = "admin", []string{"admin"}, "org_other"
	got, ann := s.in(boss)
	if got.str("user.id") != id || got.str("key.kind") != "login" || got.str("key.role") != "viewer" ||
		got.str("key.expires_at") == "" {
		t.Fatalf("login: %s", got.body)
	}
	if me := ann.ok("GET", "/v1/outboard/whoami", nil); me.str("user.id") != id || me.str("role") != "viewer" {
		t.Fatalf("whoami: %s", me.body)
	}
	ann.refused(403, "developer", "POST", "/v1/agents", `{"name":"a","model":"script/steps"}`)

	moved := person("ann", "ann.new@acme.test") // the identity counts from now on, and not the address
	moved["email_verified"] = false
	if got, _ := s.in(moved); got.str("user.id") != id {
		t.Errorf("after the address changed: %s", got.body)
	}
	s.out(403, "another account", person("somebody-else", "ann@acme.test"))

	s.ok("POST", "/v1/outboard/users/"+id, `{"role":"developer"}`)
	_, again := s.in(boss)
	again.ok("POST", "/v1/agents", `{"name":"a","model":"script/steps"}`)

	s.ok("DELETE", "/v1/outboard/users/"+id, nil)
	again.refused(401, "not valid", "GET", "/v1/agents", nil)
	s.out(403, "removed", boss)
	s.ok("POST", "/v1/outboard/users/"+id+"/restore", nil)
	again.refused(401, "not valid", "GET", "/v1/agents", nil) // what ended stays ended
	if got, _ := s.in(person("made-anew", "ann@acme.test")); got.str("user.id") != id {
		t.Errorf("after restore: %s", got.body)
	}
	s.out(403, "another account", boss)
}

// Fails if a login can be used twice, by another, after its end, or after logout.
func TestLoginOnce(t *testing.T) {
	s := signingIn(t, false)
	s.ok("POST", "/v1/outboard/users", `{"email":"ann@acme.test","role":"developer"}`)
	s.provider.Bend(logintest.Bend{Reuse: true}) // a provider that takes codes again is no reason to do so
	answer := s.visit(person("ann", "ann@acme.test"))
	first := s.do("POST", "/v1/outboard/login", answer, keyless)
	if first.status != 200 {
		t.Fatalf("the control: %d %s", first.status, first.body)
	}
	s.refused(401, "used already", "POST", "/v1/outboard/login", answer, keyless)
	s.provider.Bend(logintest.Bend{})
	var wins int
	var mu sync.Mutex
	var all sync.WaitGroup
	s.provider.Bend(logintest.Bend{Reuse: true})
	race := s.visit(person("ann", "ann@acme.test"))
	for range 4 {
		all.Go(func() {
			if r := s.do("POST", "/v1/outboard/login", race, keyless); r.status == 200 {
				mu.Lock()
				wins++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if wins != 1 {
		t.Errorf("one sign-in gave %d keys", wins)
	}
	s.provider.Bend(logintest.Bend{})

	theirs := *s.bench
	theirs.key = first.str("key.secret")
	theirs.ok("DELETE", "/v1/outboard/keys/"+first.str("key.id"), nil) // logout
	theirs.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil)

	over := putKey(s.bench, outboard.Key{Name: "login", Role: outboard.RoleDeveloper, Kind: outboard.KeyLogin,
		Org:  outboard.DefaultOrg,
		User: outboard.UserID(first.str("user.id")), ExpiresAt: s.longAgo()}, "obk_over")
	theirs.key = "obk_over"
	theirs.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil)
	if over == "" {
		t.Fatal("no key")
	}
}

// Fails if a token that does not hold, an address that is not verified, or a client that sends something odd
// makes a key.
func TestLoginRefusals(t *testing.T) {
	s := signingIn(t, false, control.LoginRule{Domain: "acme.test", Role: outboard.RoleDeveloper})
	keys := len(s.ok("GET", "/v1/outboard/keys", nil).get("data").([]any))
	unverified := person("eve", "eve@acme.test")
	unverified["email_verified"] = false
	s.out(403, "not verified", unverified)
	delete(unverified, "email_verified")
	s.out(403, "not verified", unverified)
	s.out(403, "no address", logintest.Claims{"sub": "eve", "email_verified": true})
	for _, email := range []string{"eve@evil.test", "eve@acme.test.evil.test", "eve@sub.acme.test",
		`"eve@acme.test"@evil.test`, "acme.test", "eve@evil.test@acme.test",
		"eve@acme.test\n", "Eve <eve@acme.test>", "eve@аcme.test"} {
		s.out(403, "", person("eve", email))
	}
	s.provider.Bend(logintest.Bend{Sign: func(*logintest.Provider) logintest.SignedBy { return logintest.Unsigned() }})
	s.out(401, "does not hold", person("eve", "eve@acme.test"))
	s.provider.Bend(logintest.Bend{})
	bad := s.visit(person("eve", "eve@acme.test"))
	bad["nonce"] = rand.Text()
	s.refused(401, "another sign-in", "POST", "/v1/outboard/login", bad, keyless)
	for word, change := range map[string]map[string]any{"redirect_uri": {"redirect_uri": "https://evil.test/callback"},
		"code_verifier": {"code_verifier": "x"},
		"role":          {"role": "admin"}, "organization": {"organization": "nowhere"}} {
		bad := s.visit(person("eve", "eve@acme.test"))
		maps.Copy(bad, change)
		status := 400
		if word == "organization" {
			status = 403
		}
		s.refused(status, word, "POST", "/v1/outboard/login", bad, keyless)
	}
	if n := len(s.ok("GET", "/v1/outboard/keys", nil).get("data").([]any)); n != keys {
		t.Errorf("%d keys were made", n-keys)
	}
	got, _ := s.in(person("ann", "ann@acme.test")) // the control
	if got.str("user.role") != "developer" {
		t.Errorf("the control: %s", got.body)
	}
	if audit := s.ok("GET", "/v1/outboard/audit?limit=100", nil); !strings.Contains(string(audit.body),
		"not verified") || !strings.Contains(string(audit.body), `"user.add"`) {
		t.Error("the audit does not tell who was turned away and who came in")
	}
}

// Fails if a rule lets somebody into another organization, gives another role than its own, or comes before a
// person's row.
func TestLoginRules(t *testing.T) {
	s := signingIn(t, false, control.LoginRule{Email: "boss@acme.test", Org: "acme", Role: outboard.RoleAdmin},
		control.LoginRule{Claim: "groups", Value: "ops",
			Role: outboard.RoleAdmin}, control.LoginRule{Domain: "acme.test", Org: "acme", Role: outboard.RoleViewer})
	s.out(503, "acme", person("boss", "boss@acme.test")) // the organization is not there yet
	acme := s.ok("POST", "/v1/outboard/organizations", `{"name":"acme"}`).str("id")
	got, boss := s.in(person("boss", "boss@acme.test")) // the first user
	if got.str("user.organization_id") != acme || got.str("user.role") != "admin" {
		t.Fatalf("the first user: %s", got.body)
	}
	boss.ok("POST", "/v1/outboard/users", `{"email":"dev@acme.test","role":"developer"}`)
	if got, _ := s.in(person("dev", "dev@acme.test")); got.str("user.role") != "developer" {
		t.Errorf("a rule came before a row: %s", got.body)
	}
	if got, _ := s.in(person("any", "any@acme.test")); got.str("user.role") != "viewer" ||
		got.str("user.organization_id") != acme {
		t.Errorf("by domain: %s", got.body)
	}
	ops := person("ops", "ops@other.test")
	ops["groups"] = []string{"staff", "ops"}
	if got, _ := s.in(ops); got.str("user.role") != "admin" ||
		got.str("user.organization_id") != string(outboard.DefaultOrg) {
		t.Errorf("by claim: %s", got.body)
	}
	ops["groups"] = []string{}
	if got, _ := s.in(ops); got.str("user.role") != "admin" { // rules are for newcomers: the row counts
		t.Errorf("without the claim: %s", got.body)
	}
	s.ok("DELETE", "/v1/outboard/organizations/"+acme, nil)
	s.out(403, "has ended", person("any", "any@acme.test"))
	s.out(403, "has ended", person("new", "new@acme.test"))
}

// Fails if rules that are to hold at every sign-in leave somebody what the provider took from them.
func TestLoginRulesFollow(t *testing.T) {
	s := signingIn(t, true, control.LoginRule{Claim: "groups", Value: "admins", Role: outboard.RoleAdmin},
		control.LoginRule{Claim: "groups", Value: "staff", Role: outboard.RoleViewer})
	ann := person("ann", "ann@acme.test")
	ann["groups"] = []string{"staff", "admins"}
	got, before := s.in(ann)
	if got.str("user.role") != "admin" {
		t.Fatalf("the control: %s", got.body)
	}
	ann["groups"] = []string{"staff"}
	if got, _ := s.in(ann); got.str("user.role") != "viewer" || got.str("key.role") != "viewer" {
		t.Errorf("lowered: %s", got.body)
	}
	before.refused(401, "not valid", "GET", "/v1/outboard/users", nil)
	ann["groups"] = "admins"
	if got, _ := s.in(ann); got.str("user.role") != "admin" {
		t.Errorf("raised: %s", got.body)
	}
	ann["groups"] = []string{"visitors"}
	s.out(403, "no rule", ann)
}

// Fails if a server without a provider says anything else than that.
func TestNoLogin(t *testing.T) {
	b := newBench(t)
	start := map[string]any{"redirect_uri": loginBack, "state": rand.Text(), "nonce": rand.Text(),
		"code_challenge": rand.Text()}
	b.refused(404, "cannot sign in", "POST", "/v1/outboard/login/start", start, keyless)
	b.refused(404, "cannot sign in", "POST", "/v1/outboard/login", map[string]any{"code": "c",
		"redirect_uri": loginBack, "code_verifier": rand.Text(), "nonce": rand.Text()}, keyless)
}

// Fails if a code of another device's sign-in gives two keys, whatever the provider allows, or lets in whom
// nobody has added.
func TestLoginDeviceOnce(t *testing.T) {
	s := signingIn(t, false)
	s.provider.Bend(logintest.Bend{Reuse: true})
	begin := func() string {
		t.Helper()
		d := s.do("POST", "/v1/outboard/login/device", `{}`, keyless)
		if d.status != 200 || d.str("verification_uri") == "" || d.str("issuer") != s.provider.URL {
			t.Fatalf("start: %d %s", d.status, d.body)
		}
		if got := s.do("POST", "/v1/outboard/login/device/token", map[string]any{"device_code": d.str("device_code")},
			keyless); got.status != 200 || got.str("type") != "login_pending" {
			t.Fatalf("before: %d %s", got.status, got.body)
		}
		s.provider.Types(d.str("user_code"), "ok")
		return d.str("device_code")
	}
	s.provider.SignsIn(person("ann", "ann@acme.test"))
	s.refused(403, "nobody has added", "POST", "/v1/outboard/login/device/token",
		map[string]any{"device_code": begin()}, keyless)
	s.ok("POST", "/v1/outboard/users", `{"email":"ann@acme.test","role":"viewer"}`)
	code := begin()
	if got := s.do("POST", "/v1/outboard/login/device/token", map[string]any{"device_code": code},
		keyless); got.status != 200 || got.str("key.kind") != "login" || got.str("key.role") != "viewer" {
		t.Fatalf("login: %d %s", got.status, got.body)
	}
	s.refused(401, "used already", "POST", "/v1/outboard/login/device/token", map[string]any{"device_code": code},
		keyless)
}

// Fails if an organization that adds somebody's address gets them without their word, keeps them from where the
// server's rules let them in, or if somebody of several organizations cannot choose.
func TestLoginOrganizations(t *testing.T) {
	s := signingIn(t, false, control.LoginRule{Email: "ann@acme.test", Role: outboard.RoleDeveloper},
		control.LoginRule{Email: "boss@evil.test", Org: "evil", Role: outboard.RoleAdmin})
	evil := s.ok("POST", "/v1/outboard/organizations", `{"name":"evil"}`).str("id")
	_, boss := s.in(person("boss", "boss@evil.test"))
	for _, email := range []string{"ann@acme.test", "bob@acme.test"} {
		boss.ok("POST", "/v1/outboard/users", `{"email":"`+email+`","role":"viewer"}`)
	}
	at := func(who logintest.Claims, org string) reply {
		t.Helper()
		answer := s.visit(who)
		if org != "" {
			answer["organization"] = org
		}
		return s.do("POST", "/v1/outboard/login", answer, keyless)
	}
	ann, bob := person("ann", "ann@acme.test"), person("bob", "bob@acme.test")
	if got, _ := s.in(ann); got.str("user.organization_id") != string(outboard.DefaultOrg) ||
		got.str("user.role") != "developer" {
		t.Errorf("whom a rule lets into default: %s", got.body)
	}
	s.out(400, "you are invited to", bob)
	if got := at(bob, "evil"); got.status != 200 || got.str("user.organization_id") != evil {
		t.Errorf("who accepts: %d %s", got.status, got.body)
	}
	if got, _ := s.in(bob); got.str("user.organization_id") != evil {
		t.Errorf("who has accepted, and is of one: %s", got.body)
	}
	if got := at(ann, "evil"); got.status != 200 || got.str("user.organization_id") != evil ||
		got.str("user.role") != "viewer" {
		t.Errorf("who accepts besides: %d %s", got.status, got.body)
	}
	s.out(400, "you are of 2 organizations", ann)
	if got := at(ann, "default"); got.status != 200 || got.str("user.organization_id") != string(outboard.DefaultOrg) {
		t.Errorf("who chooses: %d %s", got.status, got.body)
	}
	if got := at(bob, "default"); got.status != 403 {
		t.Errorf("where nobody has added them: %d %s", got.status, got.body)
	}
}

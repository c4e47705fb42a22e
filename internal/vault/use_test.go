package vault

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// If this fails, a credential reaches a host, port, method or path that its rule does not name, or does not
// reach one it names.
func TestRules(t *testing.T) {
	rule := outboard.UseRule{Hosts: []string{"api.example.com", "*.wild.example.com", "192.0.2.7"},
		Methods: []string{"GET", "PUT"},
		Paths:   []string{"/v1/*", "/deep/**", "/repos/*/x.git/**", "/a/**/z", "/p*q"}}
	for _, c := range []struct {
		method, url string
		want        bool
	}{
		{"GET", "https://api.example.com/v1/a", true},
		{"PUT", "https://a.wild.example.com/v1/a", true},
		{"GET", "https://a.b.wild.example.com/v1/a", true},
		{"GET", "https://192.0.2.7/v1/a", true},
		{"GET", "https://api.example.com/deep/a/b/c", true},
		{"GET", "https://api.example.com/deep", false},
		{"GET", "https://api.example.com/repos/me/x.git/info/refs", true},
		{"GET", "https://api.example.com/a/b/c/z", true},
		{"GET", "https://api.example.com/a/z", true},
		{"GET", "https://api.example.com/pq", true},
		{"GET", "https://api.example.com/p-middle-q", true},
		{"GET", "https://api.example.com/p-middle", false},
		{"POST", "https://api.example.com/v1/a", false},
		{"GET", "https://api.example.com/v1/a/b", false},
		{"GET", "https://api.example.com/v1/", true}, // * may be empty
		{"GET", "https://api.example.com/v1", false},
		{"GET", "https://api.example.com/V1/a", false},
		{"GET", "https://api.example.com/v1/../deep/a", false},
		{"GET", "https://api.example.com/deep/../v1/a", false},
		{"GET", "https://api.example.com//v1/a", false},
		{"GET", "https://api.example.com/deep/%2e%2e/admin", false},
		{"GET", "https://api.example.com/deep/a;b/c", false},
		{"GET", "https://api.example.com/deep/a%5cb", false},
		{"GET", "https://api.example.com/deep/a%00b", false},
		{"GET", "https://api.example.com:8443/v1/a", false},
		{"GET", "http://api.example.com/v1/a", false},
		{"GET", "http://api.example.com:443/v1/a", false},
		{"GET", "https://wild.example.com/v1/a", false},
		{"GET", "https://evilwild.example.com/v1/a", false},
		{"GET", "https://api.example.com.evil.com/v1/a", false},
		{"GET", "https://evil-api.example.com/v1/a", false},
		{"GET", "https://192.0.2.70/v1/a", false},
	} {
		r, err := RequestFor(c.method, c.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := matches(&rule, &r); got != c.want {
			t.Errorf("%s %s: %v, %s", c.method, c.url, got, mismatch(&rule, &r))
		}
	}
	r, _ := RequestFor("GET", "https://anything.example.org/")
	if matches(&outboard.UseRule{}, &r) {
		t.Error("an empty rule covers a host")
	}
	r, _ = RequestFor("GET", "http://h.example.com:4010/")
	if !matches(&outboard.UseRule{Hosts: []string{"h.example.com"}, Ports: []int{4010}}, &r) {
		t.Error("a rule that names the port does not cover it")
	}
}

// If this fails, a placeholder is worth something outside its session or host, changes while a sandbox holds it,
// or is not refused where it has no business.
func TestPlaceholders(t *testing.T) {
	r := newRig(t)
	c := r.add(outboard.Auth{Type: outboard.AuthEnv, Name: "API_KEY", InHeader: true, InBody: true, Shape: "sk-ant-",
		Rule: outboard.UseRule{Hosts: []string{"api.example.com"}}}, "sk-ant-the-real-one")
	env, err := r.Environment(t.Context(), r.session)
	r.must(err)
	p := env["API_KEY"]
	if !strings.HasPrefix(p, "sk-ant-outboard") || len(p) < len("sk-ant-outboard")+32 || strings.Contains(p, "real") {
		t.Fatalf("the placeholder is %q", p)
	}
	other := r.addSession(r.vault)
	if env, err := r.Environment(t.Context(), other); err != nil || env["API_KEY"] == p || env["API_KEY"] == "" {
		t.Errorf("another session's is %q, %v", env["API_KEY"], err)
	}
	if env, err := r.Environment(t.Context(), r.addSession()); err != nil || len(env) != 0 {
		t.Errorf("a session without vaults has %v, %v", env, err)
	}
	in, err := r.Use(t.Context(), r.to("POST", "api.example.com", "/v1/messages"))
	r.must(err)
	if len(in.Replace) != 1 || in.Replace[0].Text != p || in.Replace[0].Value.Reveal() != "sk-ant-the-real-one" ||
		!in.Replace[0].Header || !in.Replace[0].Body || len(in.Refuse) != 0 {
		t.Errorf("at its own host: %+v", in)
	}
	if !slices.Contains(in.RefuseBody, "api_key") {
		t.Errorf("somebody else's key passes in a body: %v", in.RefuseBody)
	}
	if !slices.Contains(in.RefuseShapes, "sk-ant-") || !slices.Contains(in.RefuseShapes, "ghp_") {
		t.Errorf("somebody else's key passes in a body without names: %v", in.RefuseShapes)
	}
	if !slices.Contains(in.Strip, "X-Api-Key") || !slices.Contains(in.Strip, "Cookie") ||
		!slices.Contains(in.Strip, "Deploy-Token") || !slices.Contains(in.StripQuery, "access_token") {
		t.Errorf("somebody else's key stays at its own host: %v %v", in.Strip, in.StripQuery)
	}
	r.add(outboard.Auth{Type: outboard.AuthEnv, Name: "ANYWHERE", InHeader: true,
		Rule: outboard.UseRule{AnyHost: true}}, "for-every-host")
	if in, err := r.Use(t.Context(), r.to("GET", "other.example.com", "/")); err != nil || len(in.Replace) != 1 ||
		len(in.Strip) != 0 || len(in.RefuseShapes) != 0 {
		t.Errorf("with one for every host: %+v, %v", in, err)
	}
	in, err = r.Use(t.Context(), r.to("POST", "evil.example.com", "/v1/messages"))
	r.must(err)
	if len(in.Replace) != 1 || len(in.Refuse) != 1 || in.Refuse[0] != p {
		t.Errorf("at another host: %+v", in)
	}
	if _, err := r.Update(t.Context(), c.ID,
		func(_ *outboard.Credential,
			s *Secrets) error {
			s.Value = outboard.NewSecret("new")
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	in, err = r.Use(t.Context(), r.to("POST", "api.example.com", "/v1/messages"))
	r.must(err)
	if !slices.ContainsFunc(in.Replace, func(x Placeholder) bool { return x.Text == p && x.Value.Reveal() == "new" }) {
		t.Errorf("after a rotation: %+v", in)
	}
}

// If this fails, a credential is used without a durable record of it, or the record holds the secret.
func TestUseIsAudited(t *testing.T) {
	r := newRig(t)
	c := r.add(header("gh", "api.example.com"), "s3cret-value")
	if got := r.bearer(r.Keeper, "api.example.com"); got != "Bearer s3cret-value" {
		t.Fatal(got)
	}
	r.bearer(r.Keeper, "other.example.com")
	rows, err := r.store.AuditRecords(t.Context(), auditOf(AuditUse))
	r.must(err)
	if len(rows) != 1 || rows[0].Actor != string(r.session) || !strings.Contains(rows[0].Rule, string(c.ID)) ||
		rows[0].Resource != "GET https://api.example.com:443/" {
		t.Fatalf("audit: %+v", rows)
	}
	if strings.Contains(string(rows[0].Detail)+rows[0].Rule, "s3cret") {
		t.Error("the record holds the secret")
	}
	st, h, err := r.view(t.Context(), r.session)
	r.must(err)
	if st.keys == nil || len(h.rows) != 1 {
		t.Fatal("nothing is cached")
	}
	r.must(r.store.Close()) // the audit cannot be written any more
	in, err := r.Use(t.Context(), r.to("GET", "api.example.com", "/"))
	r.wantKind(err, outboard.Unavailable, "recorded")
	if len(in.Set) != 0 || len(in.Scrub) != 0 {
		t.Errorf("and the secret was opened: %v", in)
	}
}

// If this fails, a client's own credential survives beside the injected one, or the wrong one of two vaults is used.
func TestInjection(t *testing.T) {
	r := newRig(t)
	second := r.addVault()
	r.add(header("a", "api.example.com"), "first")
	r.must(r.Create(t.Context(), outboard.Credential{ID: "vcrd_01b", Vault: second, CreatedAt: r.now,
		Auth: header("b", "api.example.com")}, Secrets{Value: outboard.NewSecret("second")}))
	r.must(r.Create(t.Context(), outboard.Credential{ID: "vcrd_01c", Vault: second, CreatedAt: r.now,
		Auth: outboard.Auth{Type: outboard.AuthHeader, Name: "c",
			HeaderName: "x-api-key", Format: "Basic {basic}", Rule: outboard.UseRule{Hosts: []string{"api.example.com"}}}}, Secrets{Value: outboard.NewSecret("user:pw")}))
	for _, c := range []struct {
		vaults []outboard.VaultID
		want   string
	}{{[]outboard.VaultID{r.vault, second}, "Bearer first"}, {[]outboard.VaultID{second, r.vault},
		"Bearer second"}, {[]outboard.VaultID{second}, "Bearer second"}} {
		r.session = r.addSession(c.vaults...)
		in, err := r.Use(t.Context(), r.to("GET", "api.example.com", "/"))
		r.must(err)
		if in.Set["Authorization"].Reveal() != c.want {
			t.Errorf("vaults %v: %q", c.vaults, in.Set["Authorization"].Reveal())
		}
		if got := in.Set["X-Api-Key"].Reveal(); got != "Basic "+base64.StdEncoding.EncodeToString([]byte("user:pw")) {
			t.Errorf("x-api-key is %q", got)
		}
		if !strings.Contains(strings.Join(in.Strip, " "), "Cookie") ||
			!strings.Contains(strings.Join(in.StripQuery, " "), "access_token") {
			t.Errorf("a client's credential stays: %v %v", in.Strip, in.StripQuery)
		}
	}
	if in, err := r.Use(t.Context(), Request{Host: "api.example.com", Port: 443, Scheme: "https",
		Path: "/"}); err != nil || len(in.Names) != 0 {
		t.Errorf("without a session: %v, %v", in.Names, err)
	}
}

// If this fails, a client may use an account of its own at a server that a credential of its session is for,
// where the credential's rule says no: at another path, or by another method. Or it may not elsewhere.
func TestServerOfACredential(t *testing.T) {
	r := newRig(t)
	a := header("forge", "forge.example.com")
	a.Rule.Paths, a.Rule.Methods = []string{"/ours/**"}, []string{"GET"}
	r.add(a, "first")
	b := header("other", "other.example.com")
	b.Rule.Ports = []int{8443}
	r.add(b, "second")
	r.add(outboard.Auth{Type: outboard.AuthEnv, Name: "KEY", InHeader: true,
		Rule: outboard.UseRule{Hosts: []string{"*.api.example.com"}, Paths: []string{"/v1/**"}}}, "sk-third")
	r.add(outboard.Auth{Type: outboard.AuthEnv, Name: "ANYWHERE", InBody: true,
		Rule: outboard.UseRule{AnyHost: true, Methods: []string{"POST"}}}, "for-every-host")
	for _, c := range []struct {
		method, url string
		set, strips bool
	}{
		{"GET", "https://forge.example.com/ours/x", true, true}, // the control
		{"GET", "https://forge.example.com/theirs/x", false, true},
		{"PUT", "https://forge.example.com/ours/x", false, true},
		{"GET", "http://forge.example.com/ours/x", false, true},
		{"GET", "https://forge.example.com:8080/ours/x", false, true},
		{"GET", "https://eu.api.example.com/v2/x", false, true},
		{"GET", "https://other.example.com:8443/", true, true},
		{"GET", "https://other.example.com/", false, false}, // its rule names a port, and this is another one
		{"GET", "https://forge.example.com.evil.com/ours/x", false, false},
		{"GET", "https://example.com/", false, false},
	} {
		q, err := RequestFor(c.method, c.url)
		r.must(err)
		q.Session = r.session
		in, err := r.Use(t.Context(), q)
		r.must(err)
		if (len(in.Set) > 0) != c.set || (len(in.Strip) > 0 && len(in.StripQuery) > 0) != c.strips {
			t.Errorf("%s %s: sets %v, strips %v", c.method, c.url, len(in.Set), in.Strip)
		}
	}
}

// FuzzPaths: if it fails, a path that servers read in two ways gets a credential.
func FuzzPaths(f *testing.F) {
	f.Add("/v1/**", "/v1/../admin")
	f.Add("/a*b/**/c", "/axb/x/y/c")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if strings.Count(pattern, "*") > 8 || len(pattern)+len(path) > 200 {
			return
		}
		u := outboard.UseRule{AnyHost: true, Ports: []int{1}, Paths: []string{pattern}}
		if matches(&u, &Request{Port: 1, Path: path}) && (strings.Contains(path+"/", "/../") ||
			strings.Contains(path, "//") || !strings.HasPrefix(path, "/")) {
			t.Errorf("%q covers %q", pattern, path)
		}
	})
}

func auditOf(action string) store.AuditQuery { return store.AuditQuery{Action: action} }

// If this fails, a model provider's key is sent to a server it is not for, is used off the record, or does not
// change when it is rotated.
func TestModelKey(t *testing.T) {
	r := newRig(t)
	v := outboard.Vault{ID: outboard.NewID[outboard.VaultID](outboard.PrefixVault), DisplayName: "default",
		CreatedAt: r.now}
	r.must(r.store.PutVault(t.Context(), v))
	r.vault = v.ID
	c := r.add(header("anthropic", "api.anthropic.com"), "first")
	key := func(ref, url string) (string, error) {
		s, err := r.Key(t.Context(), ref, "POST", url)
		return s.Reveal(), err
	}
	for _, ref := range []string{"anthropic", "default/anthropic", string(c.ID), string(v.ID) + "/anthropic"} {
		if got, err := key(ref, "https://api.anthropic.com/v1/messages"); got != "first" || err != nil {
			t.Errorf("%s: %q, %v", ref, got, err)
		}
	}
	rows, err := r.store.AuditRecords(t.Context(), auditOf(AuditUse))
	if r.must(err); len(rows) != 4 || rows[0].Actor != "server" {
		t.Errorf("audit: %+v", rows)
	}
	_, err = key("anthropic", "https://evil.example.com/v1/messages")
	r.wantKind(err, outboard.Denied, "host")
	_, err = key("nosuch", "https://api.anthropic.com/")
	r.wantKind(err, outboard.NotFound, "nosuch")
	if _, err := r.Update(t.Context(), c.ID,
		func(_ *outboard.Credential,
			s *Secrets) error {
			s.Value = outboard.NewSecret("second")
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	if got, err := key("anthropic", "https://api.anthropic.com/"); got != "second" || err != nil {
		t.Errorf("rotated: %q, %v", got, err)
	}
	if _, err := r.Archive(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	_, err = key("anthropic", "https://api.anthropic.com/")
	r.wantKind(err, outboard.NotFound, "anthropic")
	_, err = key(string(c.ID), "https://api.anthropic.com/")
	r.wantKind(err, outboard.Denied, "archived")
}

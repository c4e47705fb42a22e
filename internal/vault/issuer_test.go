package vault

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// forge is a local stand-in for GitHub's token endpoint: it checks the app's claim as GitHub does.
type forge struct {
	*httptest.Server
	key    *rsa.PrivateKey
	asked  atomic.Int64
	answer func(repositories []string, permissions map[string]string) any
}

func newForge(t *testing.T) *forge {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	f := &forge{key: key}
	f.answer = func(repos []string, perms map[string]string) any {
		list := []map[string]string{}
		for _, r := range repos {
			list = append(list, map[string]string{"full_name": "me/" + r})
		}
		all := maps.Clone(perms)
		all["metadata"] = "read"
		return map[string]any{"token": fmt.Sprintf("ghs_minted-%d", f.asked.Load()),
			"expires_at":  time.Date(2026, 3, 1, 13, 0, 0, 0, time.UTC),
			"permissions": all, "repository_selection": "selected", "repositories": list}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /app/installations/42/access_tokens", func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if err := f.check(r.Header.Get("Authorization")); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		var in struct {
			Repositories []string          `json:"repositories"`
			Permissions  map[string]string `json:"permissions"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(f.answer(in.Repositories, in.Permissions))
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

// check verifies an RS256 claim.
func (f *forge) check(auth string) error {
	parts := strings.Split(strings.TrimPrefix(auth, "Bearer "), ".")
	if len(parts) != 3 {
		return fmt.Errorf("no claim")
	}
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(&f.key.PublicKey, crypto.SHA256, sum[:], sig); err != nil {
		return err
	}
	head, _ := base64.RawURLEncoding.DecodeString(parts[0])
	body, _ := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Iat, Exp int64
		Iss      string
	}
	if err := json.Unmarshal(body, &claims); err != nil || !strings.Contains(string(head), `"RS256"`) ||
		claims.Iss != "7" || claims.Exp-claims.Iat > 600 {
		return fmt.Errorf("the claim is %s.%s, %v", head, body, err)
	}
	return nil
}

func (r *rig) addApp(f *forge) outboard.Credential {
	r.Helper()
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(f.key)})
	return r.add(outboard.Auth{Type: outboard.AuthGitHub, Name: "app",
		Rule: outboard.UseRule{Hosts: []string{"127.0.0.1", "github.com"}, Ports: []int{443, 80}},
		GitHub: &outboard.GitHubScope{AppID: 7, InstallationID: 42, APIURL: f.URL, Repositories: []string{"me/one"},
			Permissions: map[string]string{"contents": "write"}}}, string(block))
}

// If this fails, tokens are minted for more than the credential's scope, once per request, or reach git and the
// API in the wrong form.
func TestGitHubApp(t *testing.T) {
	r, f := newRig(t), newForge(t)
	c := r.addApp(f)
	var wg sync.WaitGroup
	got := make([]string, 16)
	for i := range got {
		wg.Go(func() {
			in, err := r.Use(t.Context(), r.to("GET", "github.com", "/me/one.git/info/refs"))
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = in.Set["Authorization"].Reveal()
		})
	}
	wg.Wait()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:ghs_minted-1"))
	for _, g := range got {
		if g != want {
			t.Errorf("git is sent %q, want %q", g, want)
		}
	}
	if n := f.asked.Load(); n != 1 {
		t.Errorf("%d tokens were minted", n)
	}
	if h := gitHubHeader(c.Auth.GitHub, "127.0.0.1", outboard.NewSecret("t")); h.Reveal() != "Bearer t" {
		t.Errorf("the API is sent %q", h.Reveal())
	}
	r.now = time.Date(2026, 3, 1, 12, 59, 30, 0, time.UTC) // it is about to end
	if in, err := r.Use(t.Context(), r.to("GET", "github.com", "/")); err != nil ||
		!strings.Contains(base64Of(in), "ghs_minted-2") {
		t.Errorf("after its end: %v, %v", base64Of(in), err)
	}
	if _, err := r.Archive(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if in, err := r.Use(t.Context(), r.to("GET", "github.com", "/")); err != nil || len(in.Set) != 0 {
		t.Errorf("a minted token outlives its credential: %v, %v", in.Names, err)
	}
}

// If this fails, clients of GitHub refuse to start though the gateway has a credential for them, see something
// of it, lose variables that a person has set, or what they send with the made-up token leaves as it is.
func TestMadeUpGitHubToken(t *testing.T) {
	r, f := newRig(t), newForge(t)
	if env, err := r.Environment(t.Context(), r.session); err != nil || env["GH_TOKEN"]+env["GITHUB_TOKEN"] != "" {
		t.Errorf("without a credential: %v, %v", env, err)
	}
	r.addApp(f)
	env, err := r.Environment(t.Context(), r.session)
	r.must(err)
	token := env["GITHUB_TOKEN"]
	if !regexp.MustCompile(`^ghs_[0-9a-f]{36}$`).MatchString(token) || env["GH_TOKEN"] != token || f.asked.Load() != 0 {
		t.Errorf("%v, and %d tokens were minted", env, f.asked.Load())
	}
	if other, err := r.Environment(t.Context(), r.addSession(r.vault)); err != nil || other["GITHUB_TOKEN"] == token ||
		other["GITHUB_TOKEN"] == "" {
		t.Errorf("another session has the same: %v, %v", other, err)
	}
	req := r.to("GET", "github.com", "/me/one.git/info/refs")
	in, err := r.Use(t.Context(), req)
	r.must(err)
	if got := base64Of(in); got != "x-access-token:ghs_minted-1" {
		t.Errorf("a request with it leaves with %q", got)
	}
	r.add(outboard.Auth{Type: outboard.AuthEnv, Name: "GH_TOKEN", InHeader: true,
		Rule: outboard.UseRule{Hosts: []string{"github.com"}}}, "a-persons-own-token")
	if env, err := r.Environment(t.Context(), r.session); err != nil || env["GH_TOKEN"] == "" ||
		env["GH_TOKEN"] == token || env["GITHUB_TOKEN"] != "" {
		t.Errorf("beside a variable of the same name: %v, %v", env, err)
	}
}

func base64Of(in Injection) string {
	b, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(in.Set["Authorization"].Reveal(), "Basic "))
	return string(b)
}

// If this fails, an issuer that answers with a wider token widens what the sandbox may do.
func TestGitHubWiderToken(t *testing.T) {
	for name, widen := range map[string]func(m map[string]any){
		"more permissions": func(m map[string]any) {
			m["permissions"] = map[string]string{"contents": "write", "administration": "write"}
		},
		"a higher permission": func(m map[string]any) { m["permissions"] = map[string]string{"contents": "admin"} },
		"another repository":  func(m map[string]any) { m["repositories"] = []map[string]string{{"full_name": "you/one"}} },
		"every repository":    func(m map[string]any) { m["repository_selection"] = "all" },
	} {
		t.Run(name, func(t *testing.T) {
			r, f := newRig(t), newForge(t)
			plain := f.answer
			r.addApp(f)
			if in, err := r.Use(t.Context(), r.to("GET", "github.com", "/")); err != nil || len(in.Set) != 1 {
				t.Fatalf("the control: %v, %v", in.Names, err)
			}
			f.answer = func(repos []string, perms map[string]string) any {
				m := plain(repos, perms).(map[string]any)
				widen(m)
				return m
			}
			clear(r.minted)
			in, err := r.Use(t.Context(), r.to("GET", "github.com", "/"))
			r.wantKind(err, outboard.Denied, "its credential names", "token")
			if len(in.Set) != 0 {
				t.Error("and it is used")
			}
		})
	}
}

// If this fails, a program that asks in a loop has the server ask the issuer in one, or a credential that was
// mended is not asked for at once.
func TestGitHubIsNotAskedInALoop(t *testing.T) {
	r, f := newRig(t), newForge(t)
	right := f.key
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	r.addApp(f)
	f.key = other // which the issuer wants now
	for range 5 {
		_, err := r.Use(t.Context(), r.to("GET", "github.com", "/"))
		r.wantKind(err, outboard.Unavailable, "it answered 401")
	}
	if n := f.asked.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	f.key = right
	r.now = r.now.Add(askAgain)
	if in, err := r.Use(t.Context(), r.to("GET", "github.com", "/")); err != nil ||
		base64Of(in) != "x-access-token:ghs_minted-2" {
		t.Errorf("a while later: %q, %v", base64Of(in), err)
	}
}

// If this fails, a token that GitHub has ended is sent for the rest of its hour; or a program that provokes
// refusals has tokens made in a loop, or one forgotten that a kill would have given back.
func TestGitHubRefusesItsToken(t *testing.T) {
	r, f := newRig(t), newForge(t)
	revoked := f.takesBack(t)
	t.Cleanup(r.Keeper.Stop)
	r.addApp(f)
	use := func(want string) Injection {
		t.Helper()
		in, err := r.Use(t.Context(), r.to("GET", "github.com", "/"))
		if err != nil || base64Of(in) != "x-access-token:"+want {
			t.Errorf("it is sent %q, %v; want %s", base64Of(in), err, want)
		}
		return in
	}
	first := use("ghs_minted-1")
	first.Refused()
	use("ghs_minted-1") // it is new
	r.now = r.now.Add(refusedAfter)
	use("ghs_minted-1") // the control: nobody has refused it
	first.Refused()
	second := use("ghs_minted-2")
	first.Refused() // of a request that was under way
	second.Refused()
	use("ghs_minted-2")
	if n := f.asked.Load(); n != 2 {
		t.Errorf("%d tokens were made", n)
	}
	r.Withdraw("kill kill_1", func(_ outboard.CredentialID, s outboard.SessionID) bool { return s == r.session })
	r.withdrawn(2)
	got := revoked()
	slices.Sort(got)
	if !slices.Equal(got, []string{"ghs_minted-1", "ghs_minted-2"}) {
		t.Errorf("the issuer took back %v", got)
	}
}

// If this fails, an issuer that renews no token is asked once for each use, or not at once after the credential
// was mended.
func TestOAuthIsNotAskedInALoop(t *testing.T) {
	r, s := newRig(t), newIssuer(t)
	c := r.addOAuth(s.URL)
	s.valid = "another"
	r.now = r.now.Add(time.Hour)
	for range 5 {
		_, _, err := r.Bearer(t.Context(), r.session, "https://mcp.example.com/x")
		r.wantKind(err, outboard.Unavailable, "the issuer answered 400")
	}
	if len(s.asked) != 1 {
		t.Errorf("it was asked %d times", len(s.asked))
	}
	r.now = r.now.Add(askAgain)
	_, _, err := r.Bearer(t.Context(), r.session, "https://mcp.example.com/x")
	r.wantKind(err, outboard.Unavailable, "the issuer answered 400")
	if len(s.asked) != 2 {
		t.Errorf("a while later it was asked %d times", len(s.asked))
	}
	_, err = r.Update(t.Context(), c.ID, func(_ *outboard.Credential, now *Secrets) error {
		now.RefreshToken = outboard.NewSecret("another")
		return nil
	})
	r.must(err)
	if token, ok, err := r.Bearer(t.Context(), r.session, "https://mcp.example.com/x"); !ok || err != nil ||
		token.Reveal() == "access-1" {
		t.Errorf("mended: %v, %v", ok, err)
	}
}

// issuer is a token endpoint whose refresh tokens work once, as OAuth 2.1 wants it.
type issuer struct {
	*httptest.Server
	mu    sync.Mutex
	valid string
	asked []string
	hold  chan struct{} // when set, a request is received from it as it comes, and once more before it is answered
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	s := &issuer{valid: "refresh-1"}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hold := s.hold; hold != nil {
			<-hold
			<-hold
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		token := r.FormValue("refresh_token")
		s.asked = append(s.asked, token)
		id, secret, ok := r.BasicAuth()
		if token != s.valid || !ok || id != "client" || secret != "client-secret" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		s.valid = fmt.Sprintf("refresh-%d", len(s.asked)+1)
		fmt.Fprintf(w, `{"access_token":"access-%d","refresh_token":%q,"expires_in":3600}`, len(s.asked)+1, s.valid)
	}))
	t.Cleanup(s.Close)
	return s
}

func (r *rig) addOAuth(endpoint string) outboard.Credential {
	r.Helper()
	c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: r.vault,
		CreatedAt: r.now, Auth: outboard.Auth{Type: outboard.AuthOAuth,
			MCPServerURL: "https://MCP.example.com:443/x/", ExpiresAt: r.now.Add(time.Hour), Refresh: &outboard.OAuthRefresh{TokenEndpoint: endpoint, ClientID: "client", EndpointAuth: "client_secret_basic"}}}
	s := outboard.NewSecret
	r.must(r.Create(r.Context(), c, Secrets{Value: s("access-1"), RefreshToken: s("refresh-1"),
		ClientSecret: s("client-secret")}))
	return c
}

// If this fails, a token is renewed too late, twice at once (which issuers take for theft), or forgotten.
func TestOAuthRenewal(t *testing.T) {
	r, s := newRig(t), newIssuer(t)
	r.addOAuth(s.URL)
	bearer := func(k *Keeper) string {
		t.Helper()
		token, ok, err := k.Bearer(t.Context(), r.session, "https://mcp.example.com/x")
		if err != nil || !ok {
			t.Errorf("%v, %v", ok, err)
		}
		return token.Reveal()
	}
	if got := bearer(r.Keeper); got != "access-1" || len(s.asked) != 0 {
		t.Fatalf("a fresh token: %q after %v", got, s.asked)
	}
	if _, ok, err := r.Bearer(t.Context(), r.session, "https://mcp.example.com/other"); ok || err != nil {
		t.Errorf("a token for another server: %v, %v", ok, err)
	}
	r.now = r.now.Add(time.Hour)
	var wg sync.WaitGroup
	there := r.another()
	for i := range 12 {
		wg.Go(func() {
			if got := bearer([]*Keeper{r.Keeper, there}[i%2]); got != "access-2" {
				t.Errorf("renewed: %q", got)
			}
		})
	}
	wg.Wait()
	if !slices.Equal(s.asked, []string{"refresh-1"}) {
		t.Errorf("the issuer was asked %v", s.asked)
	}
	r.now = r.now.Add(time.Hour)
	if got := bearer(r.another()); got != "access-3" || !slices.Equal(s.asked, []string{"refresh-1", "refresh-2"}) {
		t.Errorf("the next renewal: %q after %v", got, s.asked)
	}
	s.mu.Lock()
	s.valid = "revoked"
	s.mu.Unlock()
	r.now = r.now.Add(time.Hour)
	_, _, err := r.Bearer(t.Context(), r.session, "https://mcp.example.com/x")
	r.wantKind(err, outboard.Unavailable, "400")
	if strings.Contains(err.Error(), "refresh-") || strings.Contains(err.Error(), "access-") {
		t.Errorf("the error holds a token: %v", err)
	}
}

// If this fails, a token endpoint chosen by somebody else makes the server reach into its own network, or send
// tokens where it is redirected.
func TestIssuerAddresses(t *testing.T) {
	r, s := newRig(t), newIssuer(t)
	r.addOAuth(s.URL)
	r.now = r.now.Add(time.Hour)
	guarded := New(r.cfg)
	guarded.cfg.HTTP = Client(&outbound.Guard{}, nil)
	_, _, err := guarded.Bearer(t.Context(), r.session, "https://mcp.example.com/x")
	r.wantKind(err, outboard.Unavailable, "not on the public internet")
	if len(s.asked) != 0 {
		t.Error("the issuer inside was reached")
	}
	away := httptest.NewServer(http.RedirectHandler(s.URL, http.StatusTemporaryRedirect))
	defer away.Close()
	r.vault = r.addVault()
	r.session = r.addSession(r.vault)
	c := r.addOAuth(away.URL)
	_, err = r.Update(t.Context(), c.ID,
		func(c *outboard.Credential, _ *Secrets) error { c.Auth.ExpiresAt = r.now; return nil })
	r.must(err)
	_, _, err = r.Bearer(t.Context(), r.session, "https://mcp.example.com/x")
	r.wantKind(err, outboard.Unavailable, "307")
	if len(s.asked) != 0 {
		t.Error("a redirect was followed with the refresh token")
	}
}

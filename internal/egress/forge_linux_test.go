package egress_test

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/vault"
)

// vaulted are the credentials of a real vault.
type vaulted struct{ keeper *vault.Keeper }

func (v vaulted) For(ctx context.Context, q egress.Request) (egress.Injection, error) {
	in, err := v.keeper.Use(ctx, vault.Request{Session: q.Subject.Session, Scheme: q.Scheme, Method: q.Method,
		Host: q.Host, Port: q.Port, Path: q.Path, Query: q.Query})
	out := egress.Injection{Names: in.Names, Strip: in.Strip, StripQuery: in.StripQuery, Refuse: in.Refuse,
		Set: map[string]string{}}
	for name, value := range in.Set {
		out.Set[name] = value.Reveal()
	}
	return out, err
}

// withVault gives the rig's session a vault with one credential.
func (r *rig) withVault(t *testing.T, a outboard.Auth, value string) option {
	t.Helper()
	dir, now := t.TempDir(), time.Now()
	k := vault.New(vault.Config{Store: r.store,
		Wrappers: []vault.Wrapper{vault.KeyDir{Dir: filepath.Join(dir, "keys")}}, Mark: filepath.Join(dir,
			"seq"), Now: time.Now})
	v := outboard.Vault{ID: outboard.NewID[outboard.VaultID](outboard.PrefixVault), DisplayName: "v", CreatedAt: now}
	if err := r.store.PutVault(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: v.ID, Auth: a,
		CreatedAt: now}
	if err := k.Create(t.Context(), c, vault.Secrets{Value: outboard.NewSecret(value)}); err != nil {
		t.Fatal(err)
	}
	session := outboard.SessionConfig{VaultIDs: []string{string(v.ID)}}
	if _, err := r.store.CreateSession(t.Context(), outboard.Header{ID: r.session, Thread: "sthr_01x"}, session,
		outboard.NewEvent("", &outboard.SessionCreated{})); err != nil {
		t.Fatal(err)
	}
	return func(c *egress.Config, _ *outboard.SessionConfig) { c.Credentials = vaulted{k} }
}

// Broken if a tool pushes to a namespace that its credential is not for: with that credential, or with one of
// somebody else's that it has brought along. An allowed forge would be a way out for a whole workspace.
func TestForeignNamespace(t *testing.T) {
	const ourToken, theirToken = "our-token-0123456789", "their-token-0123456789"
	r, root := newRig(t), t.TempDir()
	port := portOf(r.secure)
	options := r.withVault(t, outboard.Auth{Type: outboard.AuthHeader, Name: "forge", HeaderName: "Authorization",
		Format: "Basic {basic}",
		Rule: outboard.UseRule{Hosts: []string{"a.test", "c.test"}, Ports: []int{port},
			Paths: []string{"/git/ours/**"}}}, "us:"+ourToken)
	cfg := &outboard.SessionConfig{Env: outboard.EnvConfig{Networking: outboard.Networking{Mode: "limited",
		Rules: []outboard.NetRule{
			anyPort("a.test"), anyPort("b.test"), {Host: "c.test", Port: -1, Path: "/git/ours/**"}}}}}
	b := realBox(t, r, cfg, options)
	b.has(t, "git")
	repos := gitServer(t, root, "ours/repo.git", "theirs/repo.git")
	var mu sync.Mutex
	var outside []string // what came with a credential beyond ours
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		_, token, _ := q.BasicAuth()
		known := token == ourToken || token == theirToken // ours could push anywhere: only the rule keeps it
		if said := q.Header.Get("Authorization") + q.Header.Get("Cookie") + q.Header.Get("Private-Token"); said != "" &&
			!strings.HasPrefix(q.URL.Path, "/git/ours/") && !strings.HasPrefix(q.Host, "b.test") {
			mu.Lock()
			outside = append(outside, q.Host+q.URL.Path)
			mu.Unlock()
		}
		if rest, moved := strings.CutPrefix(q.URL.Path, "/git/ours/moved.git"); moved {
			http.Redirect(w, q, "/git/theirs/repo.git"+rest+"?"+q.URL.RawQuery, http.StatusFound)
			return
		}
		if !known {
			w.Header().Set("WWW-Authenticate", `Basic realm="forge"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		repos.ServeHTTP(w, q)
	})
	refs := func(repo string) string {
		out, err := exec.Command("git", "-c", "safe.directory=*", "-C", filepath.Join(root, repo), "for-each-ref").
			CombinedOutput()
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
		return string(out)
	}
	if out, code := b.sh(t,
		`cd /workspace && git init -q w && cd w && git config user.email a@b && git config user.name a && git commit -q --allow-empty -m x`); code != 0 {
		t.Fatal(out)
	}
	push := func(flags, url, branch string) (string, int) {
		return b.sh(t, fmt.Sprintf("cd /workspace/w && GIT_TERMINAL_PROMPT=0 git %s push -q '%s' HEAD:refs/heads/%s",
			flags, url, branch))
	}
	for i, host := range []string{"a.test", "c.test"} { // the control: where it belongs, without any token inside
		if out, code := push("", r.https(host, "/git/ours/repo.git"), fmt.Sprint("good", i)); code != 0 ||
			!strings.Contains(refs("ours/repo.git"), fmt.Sprint("refs/heads/good", i)) {
			t.Fatalf("%s: %d %s", host, code, out)
		}
	}
	theirs := r.https("a.test", "/git/theirs/repo.git")
	for name, c := range map[string]struct{ flags, url string }{
		"with ours":   {"", theirs},
		"with theirs": {"", strings.Replace(theirs, "https://", "https://them:"+theirToken+"@", 1)},
		"with theirs in a header": {`-c http.extraHeader="Authorization: Basic $(printf them:` + theirToken +
			` | base64)"`, theirs},
		"with others": {`-c http.extraHeader="Cookie: session=` + theirToken +
			`" -c http.extraHeader="Private-Token: ` + theirToken + `"`, theirs},
		"by a redirect":   {"-c http.followRedirects=true", r.https("a.test", "/git/ours/moved.git")},
		"by another path": {"", r.https("a.test", "/git/ours/%2e%2e/theirs/repo.git")},
		"by two slashes":  {"", r.https("a.test", "//git/theirs/repo.git")},
		"past a rule of paths": {"", strings.Replace(r.https("c.test", "/git/theirs/repo.git"), "https://",
			"https://them:"+theirToken+"@", 1)},
	} {
		if out, code := push(c.flags, c.url, "bad"); code == 0 || refs("theirs/repo.git") != "" {
			t.Errorf("%s: %d %s", name, code, out)
		}
	}
	if len(outside) != 0 {
		t.Errorf("credentials came to %q", outside)
	}
	// The control: the token is good, and a host that the session has no credential for is sent it.
	if out, code := push("", strings.Replace(r.https("b.test", "/git/theirs/repo.git"), "https://",
		"https://them:"+theirToken+"@", 1), "theirs"); code != 0 ||
		!strings.Contains(refs("theirs/repo.git"), "refs/heads/theirs") {
		t.Errorf("the control: %d %s", code, out)
	}
}

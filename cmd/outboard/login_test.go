package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/login/logintest"
	"github.com/outboard-dev/outboard/internal/server"
)

// desk is a machine of somebody's own, and a server elsewhere at which people sign in.
type desk struct {
	t        *testing.T
	provider *logintest.Provider
	server   *process
	data     string
	vars     map[string]string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	provider := logintest.New(t)
	provider.SignsIn(logintest.Claims{"sub": "ann", "email": "ann@acme.test", "email_verified": true})
	dir := t.TempDir()
	secret, file := filepath.Join(dir, "client.secret"), filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(secret, []byte(provider.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := "login:\n  issuer: " + provider.URL + "\n  client_id: outboard\n  client_secret_file: client.secret\n  " +
		"device: true\n  lasts: 1h\n  members:\n    - {domain: acme.test, role: developer}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(string) string { return "" }
	cfg, err := config.Load(file, none)
	if err != nil {
		t.Fatal(err)
	}
	s, err := startServer(t.Context(), server.Config{Data: filepath.Join(dir, "server"), Config: cfg, Env: none,
		Serve: true, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return &desk{t, provider, s, filepath.Join(dir, "own"), map[string]string{"OUTBOARD_URL": s.URL,
		"OUTBOARD_DATA": filepath.Join(dir, "own"), "BROWSER": "true"}}
}

// do runs one command.
func (d *desk) do(in io.Reader, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(args, in, &o, &e, func(name string) string { return d.vars[name] })
	return code, o.String(), e.String()
}

// wants fails unless a command ends as it should, with the words.
func (d *desk) wants(code int, word string, args ...string) {
	d.t.Helper()
	if got, out, errs := d.do(strings.NewReader(""), args...); got != code || !strings.Contains(out+errs, word) {
		d.t.Fatalf("%v: %d\n%s%s\nwant %d with %q", args, got, out, errs, code, word)
	}
}

// login runs a command that waits for somebody to sign in, gives them the page's address, and returns how it
// ended. What they return is pasted.
func (d *desk) login(at func(page *url.URL) (paste string), args ...string) (code int, out string) {
	d.t.Helper()
	in, hand := io.Pipe()
	errs, say := io.Pipe()
	var o bytes.Buffer
	var ending sync.WaitGroup
	ending.Go(func() {
		code = run(append([]string{"login"}, args...), in, &o, say, func(name string) string { return d.vars[name] })
		in.CloseWithError(io.EOF) // nobody reads what else is pasted
		say.Close()
	})
	lines := bufio.NewScanner(errs)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		if _, address, ok := strings.Cut(lines.Text(), "sign in at: "); ok {
			page, err := url.Parse(address)
			if err != nil {
				d.t.Error(err)
			}
			if paste := at(page); paste != "" {
				go io.WriteString(hand, paste+"\n") // until it is read, or the command has ended
			}
			break
		}
	}
	rest, _ := io.ReadAll(errs)
	ending.Wait()
	return code, o.String() + lines.Text() + string(rest)
}

// browser visits a page and goes where it is sent.
func (d *desk) browser(page *url.URL) string {
	resp, err := http.Get(page.String())
	if err != nil {
		d.t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 ||
		!strings.Contains(string(body), "close this page") {
		d.t.Errorf("the browser saw %d %s %v", resp.StatusCode, body, err)
	}
	return ""
}

// Fails if somebody cannot sign in from a terminal, with a browser here or elsewhere; if what is kept can be
// read by others; or if a logout leaves a key that works.
func TestLoginCommand(t *testing.T) {
	d := newDesk(t)
	d.wants(4, "not signed in", "whoami")
	if code, out := d.login(d.browser); code != 0 || !strings.Contains(out, "as ann@acme.test, developer, until ") {
		t.Fatalf("login: %d %s", code, out)
	}
	d.wants(0, "ann@acme.test, developer in default", "whoami")
	d.wants(4, "role admin", "user", "create", "eve@acme.test")
	l, err := readLogin(d.data, d.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.server.Store.RevokeKey(t.Context(), outboard.KeyID(l.Key), time.Now()); err != nil {
		t.Fatal(err)
	}
	d.wants(4, "hint: your login there has ended; sign in again: outboard login "+d.server.URL, "whoami")
	d.vars["OUTBOARD_API_KEY"] = "obk_guessed"
	d.wants(4, "hint: the server wrote its admin key", "whoami")
	d.vars["OUTBOARD_API_KEY"] = ""
	d.vars["OUTBOARD_URL"] = ""
	d.wants(2, "which server", "login")
}

// Fails if somebody must sign in again though the provider still knows them, if a command goes on with a login
// that it does not renew, or if a server that is away ends one which still lasts.
func TestLoginRenewedByCommands(t *testing.T) {
	d := newDesk(t)
	if code, out := d.login(d.browser); code != 0 || !strings.Contains(out, "renewed when it is used") {
		t.Fatalf("login: %d %s", code, out)
	}
	passed := func(by time.Duration) *savedLogin { // as if it had been made earlier
		t.Helper()
		l, err := readLogin(d.data, d.server.URL)
		if err != nil || l == nil || l.Renew.IsZero() {
			t.Fatalf("%+v, %v", l, err)
		}
		end := time.Now().Add(time.Hour - by)
		if _, err := d.server.Store.ExtendLogin(t.Context(), outboard.KeyID(l.Key), end); err != nil {
			t.Fatal(err)
		}
		if err := saveLogin(d.data, d.server.URL, client.Login{User: client.User{Email: l.Email},
			Key: client.Key{ID: l.Key, Secret: l.Secret, ExpiresAt: &end,
				RenewAfter: new(end.Add(-30 * time.Minute))}}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, by := range []time.Duration{40 * time.Minute, 3 * time.Hour} { // past its half, and over
		was := passed(by)
		d.wants(0, "ann@acme.test, developer in default", "whoami")
		if l, err := readLogin(d.data, d.server.URL); err != nil || l.Secret != was.Secret ||
			time.Until(l.Until) < 50*time.Minute {
			t.Errorf("%v later: until %v, %v", by, l.Until, err)
		}
	}
	d.provider.Bend(logintest.Bend{Down: true})
	passed(40 * time.Minute)
	d.wants(0, "ann@acme.test", "whoami")
	passed(2 * time.Hour)
	d.wants(1, "renewing your login", "whoami")
	d.provider.Bend(logintest.Bend{})
	d.provider.Forgets() // they left the company
	passed(40 * time.Minute)
	d.wants(4, "your login has ended", "whoami")
}

// Fails if an answer of another sign-in, another provider or another page ends a sign-in, or is taken for one.
func TestLoginCallback(t *testing.T) {
	d := newDesk(t)
	code, out := d.login(func(page *url.URL) string {
		back, err := url.Parse(page.Query().Get("redirect_uri"))
		if err != nil || back.Hostname() != "127.0.0.1" {
			t.Fatalf("redirect to %s", back)
		}
		good := logintest.Visit(t, page.String())
		for name, bad := range map[string]func(q url.Values, r *http.Request){
			"another state": func(q url.Values, _ *http.Request) { q.Set("state", "x") },
			"no state":      func(q url.Values, _ *http.Request) { q.Del("state") },
			"another host":  func(_ url.Values, r *http.Request) { r.Host = "evil.test" },
			"a post":        func(_ url.Values, r *http.Request) { r.Method = "POST" },
			"another path":  func(_ url.Values, r *http.Request) { r.URL.Path = "/x" },
		} {
			u := *good
			r, err := http.NewRequest("GET", u.String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			bad(q, r)
			r.URL.RawQuery = q.Encode()
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 400 || strings.Contains(string(body), "<") || resp.Header.Get("Location") != "" {
				t.Errorf("%s: %d %s", name, resp.StatusCode, body)
			}
		}
		resp, err := http.Get(good.String())
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return ""
	})
	if code != 0 {
		t.Fatalf("the control: %d %s", code, out)
	}
	for word, change := range map[string]func(url.Values){
		"comes from https://evil.test": func(q url.Values) { q.Set("iss", "https://evil.test") },
		"access_denied":                func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") },
		"no code":                      func(q url.Values) { q.Del("code") },
		"not valid":                    func(q url.Values) { q.Set("code", "guessed") },
	} {
		code, out := d.login(func(page *url.URL) string {
			back := logintest.Visit(t, page.String())
			q := back.Query()
			change(q)
			back.RawQuery = q.Encode()
			return back.String()
		}, "--no-browser")
		if code == 0 || !strings.Contains(out, word) {
			t.Errorf("%s: %d %s", word, code, out)
		}
	}
	for word, paste := range map[string]string{"not the address": "hello",
		"another sign-in": "http://127.0.0.1:1/callback?state=x&code=y", "no address": " "} {
		if code, out := d.login(func(*url.URL) string { return paste }, "--no-browser"); code == 0 ||
			!strings.Contains(out, word) {
			t.Errorf("pasting %q: %d %s", paste, code, out)
		}
	}
}

// Fails if a login that is over is used, or looks like something else.
func TestLoginIsOver(t *testing.T) {
	d := newDesk(t)
	if code, out := d.login(func(page *url.URL) string { return logintest.Visit(t, page.String()).String() },
		"--no-browser"); code != 0 {
		t.Fatalf("login: %d %s", code, out)
	}
	path := loginPath(d.data, d.server.URL)
	l, err := readLogin(d.data, d.server.URL)
	if err != nil || l == nil || time.Until(l.Until) > time.Hour || time.Until(l.Until) < 50*time.Minute {
		t.Fatalf("kept %+v, %v", l, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	d.wants(0, "ann@acme.test", "whoami")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	over := strings.Replace(string(text), l.Until.Format("2006-01-02T"), "2020-01-01T", 1)
	if err := os.WriteFile(path, []byte(over), 0o600); err != nil {
		t.Fatal(err)
	}
	d.wants(4, "was over", "whoami")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	d.wants(0, "signed out", "logout")
	d.wants(4, "not signed in", "whoami")
	d.wants(3, "not signed in", "logout")
	d.vars["OUTBOARD_API_KEY"] = l.Secret // somebody kept a copy
	d.wants(4, "not valid", "whoami")
}

// Fails if somebody cannot sign in on another device, a code lets two terminals in, or a refusal there is not told.
func TestLoginDevice(t *testing.T) {
	d := newDesk(t)
	device := func(result string) (code int, out string) {
		t.Helper()
		errs, say := io.Pipe()
		var o bytes.Buffer
		var ending sync.WaitGroup
		ending.Go(func() {
			code = run([]string{"login", "--device"}, strings.NewReader(""), &o, say,
				func(name string) string { return d.vars[name] })
			say.Close()
		})
		lines := bufio.NewScanner(errs)
		for lines.Scan() {
			if _, rest, ok := strings.Cut(lines.Text(), "with the code "); ok {
				user, _, _ := strings.Cut(rest, ",")
				d.provider.Types(user, result)
				break
			}
		}
		rest, _ := io.ReadAll(errs)
		ending.Wait()
		return code, o.String() + string(rest)
	}
	if code, out := device("access_denied"); code == 0 || !strings.Contains(out, "refused at the identity provider") {
		t.Errorf("refused: %d %s", code, out)
	}
	d.wants(4, "not signed in", "whoami")
	if code, out := device("ok"); code != 0 || !strings.Contains(out, "as ann@acme.test, developer, until ") {
		t.Fatalf("login: %d %s", code, out)
	}
	d.wants(0, "ann@acme.test, developer in default", "whoami")
	d.wants(2, "exclude", "login", "--device", "--no-browser")
}

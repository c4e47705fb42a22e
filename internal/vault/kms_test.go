package vault

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// childEnv makes this test binary another program: a key management program, or a process that rotates keys
// until it is killed.
const childEnv = "OUTBOARD_VAULT_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "kms":
		kmsProgram(os.Args[1:])
	case "rotate":
		rotateForEver()
	case "rotate once":
		rotateAndDie()
	}
	os.Exit(m.Run())
}

// kmsProgram speaks the protocol of Command with a key from a file, which is its only argument.
func kmsProgram(args []string) {
	fail := func(why string) {
		fmt.Printf(`{"error":%q}`, why)
		os.Exit(3)
	}
	key, err := os.ReadFile(args[0])
	if err != nil {
		fail("the key is not there")
	}
	var in commandRequest
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fail(err.Error())
	}
	var out commandAnswer
	switch in.Op {
	case "encrypt":
		b, err := sealWith(key, in.Plaintext, []byte("kms"))
		if err != nil {
			fail(err.Error())
		}
		out.Key, out.Ciphertext = filepath.Base(args[0]), string(fmt.Appendf(nil, "%x", b))
	case "decrypt":
		var b []byte
		if _, err := fmt.Sscanf(in.Ciphertext, "%x", &b); err != nil || in.Key != filepath.Base(args[0]) {
			fail("no such ciphertext")
		}
		if out.Plaintext, err = openWith(key, b, []byte("kms")); err != nil {
			fail("access denied")
		}
	}
	json.NewEncoder(os.Stdout).Encode(out)
	os.Exit(0)
}

// kmsKey writes a key for kmsProgram.
func kmsKey(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(strings.Repeat(name[:1], keySize)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// program is a Command wrapper whose program is this binary.
func program(t *testing.T, key string) External {
	t.Helper()
	t.Setenv(childEnv, "kms") // of children; this process has looked already
	return Command(os.Args[0], key)
}

// fakeTransit is a transit engine with one key and one token, which seals under the newest of its versions.
type fakeTransit struct {
	*httptest.Server
	version  atomic.Int64
	down     atomic.Bool // answers 503
	requests atomic.Int64
}

func newTransit(t *testing.T) *fakeTransit {
	f := &fakeTransit{}
	f.version.Store(1)
	key := func(v int64) []byte { return []byte(strings.Repeat(strconv.FormatInt(v%10, 10), keySize)) }
	answer := func(w http.ResponseWriter, status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(body)
	}
	refuse := func(w http.ResponseWriter, status int, why string) {
		answer(w, status, map[string]any{"errors": []string{why}})
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.requests.Add(1)
		var in struct{ Plaintext, Ciphertext []byte }
		var raw struct{ Plaintext, Ciphertext string }
		b, _ := io.ReadAll(r.Body)
		json.Unmarshal(b, &raw)
		json.Unmarshal(b, &in)
		switch {
		case f.down.Load():
			refuse(w, 503, "Vault is sealed")
		case r.Method != "POST" || r.Header.Get("X-Vault-Token") != "s.token" ||
			r.Header.Get("X-Vault-Namespace") != "team":
			refuse(w, 403, "permission denied")
		case r.URL.Path == "/v1/keys/transit/encrypt/outboard":
			v := f.version.Load()
			sealed, _ := sealWith(key(v), in.Plaintext, nil)
			answer(w, 200, map[string]any{"data": map[string]any{"ciphertext": fmt.Sprintf("vault:v%d:%x", v, sealed),
				"key_version": v}})
		case r.URL.Path == "/v1/keys/transit/decrypt/outboard":
			var v int64
			var sealed []byte
			fmt.Sscanf(raw.Ciphertext, "vault:v%d:%x", &v, &sealed)
			plain, err := openWith(key(v), sealed, nil)
			if err != nil {
				refuse(w, 400, "invalid ciphertext")
				return
			}
			answer(w, 200, map[string]any{"data": map[string]any{"plaintext": plain}})
		default:
			refuse(w, 404, "no handler for route")
		}
	}))
	t.Cleanup(f.Close)
	return f
}

// wrapper reaches it with a token.
func (f *fakeTransit) wrapper(t *testing.T, token string) External {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Transit(TransitConfig{URL: f.URL, Mount: "keys/transit", Key: "outboard", Namespace: "team", TokenFile: path,
		HTTP: f.Client()})
}

// fakeKMS answers as AWS KMS does, for one key.
func fakeKMS(t *testing.T) (KMSConfig, *atomic.Bool) {
	key, id := []byte(strings.Repeat("k", keySize)), "arn:aws:kms:eu-west-1:1:key/a"
	var denied atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in kmsMessage
		json.NewDecoder(r.Body).Decode(&in)
		fail := func(kind string) {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"__type":"com.amazonaws#%s","message":"not today"}`, kind)
		}
		aad := []byte(in.Context["outboard"])
		switch auth := r.Header.Get("Authorization"); {
		case denied.Load():
			fail("AccessDeniedException")
		case !strings.Contains(auth, "Credential=AKID/") || !strings.Contains(auth, "/eu-west-1/kms/aws4_request") ||
			!strings.Contains(auth, "x-amz-target"):
			fail("IncompleteSignatureException")
		case r.Header.Get("X-Amz-Target") == "TrentService.Encrypt" && in.KeyID == "alias/outboard":
			b, _ := sealWith(key, in.Plaintext, aad)
			json.NewEncoder(w).Encode(kmsMessage{KeyID: id, Ciphertext: b})
		case r.Header.Get("X-Amz-Target") == "TrentService.Decrypt" && in.KeyID == id:
			b, err := openWith(key, in.Ciphertext, aad)
			if err != nil {
				fail("InvalidCiphertextException")
				return
			}
			json.NewEncoder(w).Encode(kmsMessage{KeyID: id, Plaintext: b})
		default:
			fail("NotFoundException")
		}
	}))
	t.Cleanup(srv.Close)
	return KMSConfig{Region: "eu-west-1", Key: "alias/outboard", URL: srv.URL, HTTP: srv.Client(),
		Credentials: func(context.Context) (Secrets, error) {
			return Secrets{Value: outboard.NewSecret("secret"), AccessKeyID: outboard.NewSecret("AKID")}, nil
		}}, &denied
}

// services are the wrappers whose key is elsewhere, each with what takes that key away.
func services(t *testing.T) map[string]struct {
	External
	takeAway func()
} {
	t.Helper()
	key := kmsKey(t, "one")
	transit := newTransit(t)
	kms, denied := fakeKMS(t)
	return map[string]struct {
		External
		takeAway func()
	}{
		"command": {program(t, key), func() { os.Remove(key) }},
		"transit": {transit.wrapper(t, "s.token"), func() { transit.down.Store(true) }},
		"aws-kms": {AWSKMS(kms), func() { denied.Store(true) }},
	}
}

// If this fails, a vault whose key is in a key management service does not open with it, opens without it, or
// says not why; or a wrapping that was moved to another organization opens.
func TestServices(t *testing.T) {
	for name, s := range services(t) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			with := func(ws ...Wrapper) *Keeper { return New(Config{Store: r.store, Wrappers: ws, Now: r.cfg.Now}) }
			r.Keeper = with(s.External)
			c := r.add(header("a", "api.example.com"), "s3cret-value")
			if got := r.bearer(with(s.External), "api.example.com"); got != "Bearer s3cret-value" {
				t.Fatal(got)
			}
			row, err := r.store.VaultKey(t.Context(), r.org)
			r.must(err)
			if w, err := parseWrapping(row.Wrapping); err != nil || w.Kind != name || w.Sealed == "" || w.ID == "" {
				t.Fatalf("wrapping %s, %v", row.Wrapping, err)
			}
			if _, err := s.Unwrap(t.Context(), row.Wrapping, row.Wrapped,
				keyAAD("org_other", row.ID)); outboard.KindOf(err) != outboard.Denied {
				t.Errorf("a wrapping of another organization: %v", err)
			}
			_, err = with(KeyDir{t.TempDir()}).Use(t.Context(), r.to("GET", "api.example.com", "/"))
			r.wantKind(err, outboard.Unavailable, "locked", "not configured")

			s.takeAway()
			_, err = with(s.External).Use(t.Context(), r.to("GET", "api.example.com", "/"))
			r.wantKind(err, outboard.Unavailable, "locked", name)
			if outboard.HintOf(err) == "" {
				t.Error("no hint")
			}
			running := r.Keeper // has the data key, and goes on until it ends or the keys are rotated
			if got := r.bearer(running, "api.example.com"); got != "Bearer s3cret-value" {
				t.Error(got)
			}
			if _, err := running.RotateKeys(t.Context()); outboard.KindOf(err) != outboard.Unavailable {
				t.Errorf("a rotation without the service: %v", err)
			}
			if after, err := r.store.Credential(t.Context(), c.ID); err != nil || after.Sealed.Key != row.ID {
				t.Errorf("a rotation that failed changed something: %v", err)
			}
		})
	}
}

// If this fails, a vault cannot move from one kind of key to another, or still opens with the one it left.
func TestRotationBetweenKinds(t *testing.T) {
	r := newRig(t)
	with := func(ws ...Wrapper) *Keeper { return New(Config{Store: r.store, Wrappers: ws, Now: r.cfg.Now}) }
	dir := r.cfg.Wrappers[0]
	r.add(header("a", "api.example.com"), "s3cret-value")
	way := []Wrapper{dir}
	for _, s := range services(t) {
		way = append(way, s.External)
	}
	way = append(way, Passphrase{outboard.NewSecret("words")}, dir)
	for i := 1; i < len(way); i++ {
		from, to := way[i-1], way[i]
		if n, err := with(to, from).RotateKeys(t.Context()); err != nil || n.Credentials != 1 {
			t.Fatalf("%s to %s: %+v, %v", from.Kind(), to.Kind(), n, err)
		}
		if got := r.bearer(with(to), "api.example.com"); got != "Bearer s3cret-value" {
			t.Fatalf("with %s: %q", to.Kind(), got)
		}
		_, err := with(from).Use(t.Context(), r.to("GET", "api.example.com", "/"))
		r.wantKind(err, outboard.Unavailable, "locked")
	}
	if keys, _ := filepath.Glob(filepath.Join(r.dir, "vault-keys", "*.key")); len(keys) != 1 {
		t.Errorf("key files: %v", keys)
	}
}

// If this fails, a key management program that hangs, floods, lies or dies makes the server wait, grow or lose the key.
func TestBadPrograms(t *testing.T) {
	sh := func(script string) External { return Command("/bin/sh", "-c", script) }
	if _, _, _, err := program(t, kmsKey(t, "one")).Wrap(t.Context(), []byte("plain"), nil); err != nil {
		t.Fatalf("the control: %v", err)
	}
	for why, w := range map[string]External{
		"no such file":            Command(filepath.Join(t.TempDir(), "none")),
		"exit status 7: the end":  sh("echo the end >&2; exit 7"),
		"JSON":                    sh("yes | head -c 10000000"),
		"without a ciphertext":    sh("cat >/dev/null; echo {}"),
		"opened another key":      sh(`cat >/dev/null; echo '{"key":"k","ciphertext":"c","plaintext":"AAAA"}'`),
		"no rights to the key":    sh(`echo '{"error":"no rights to the key"}'; exit 1`),
		"took too long":           sh("sleep 60"),
		"opening what it encrypt": sh(`grep -q '"op":"encrypt"' && echo '{"key":"k","ciphertext":"c"}' || { echo denied >&2; exit 1; }`),
	} {
		ctx := t.Context()
		if why == "took too long" { // the wrapper's own limit is longer
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			ctx = short
		}
		_, _, _, err := w.Wrap(ctx, []byte("plain"), nil)
		if outboard.KindOf(err) != outboard.Unavailable || err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q, got %v", why, err)
		}
	}
}

// If this fails, others may read the token of the service and it is used all the same, a wrong one is not
// refused, or one that an agent renewed is not taken up; or a service's own rotation locks the vault.
func TestTransitToken(t *testing.T) {
	f := newTransit(t)
	w := f.wrapper(t, "s.token")
	raw, wrapped, _, err := w.Wrap(t.Context(), []byte("plain"), []byte("aad"))
	if err != nil {
		t.Fatal(err)
	}
	f.version.Add(1) // the service's own rotation: older versions still open
	open := func(w External) error {
		got, err := w.Unwrap(t.Context(), raw, wrapped, []byte("aad"))
		if err == nil && string(got) != "plain" {
			t.Errorf("opened %q", got)
		}
		return err
	}
	if err := open(w); err != nil {
		t.Fatal(err)
	}
	path := w.service.(transit).TokenFile
	for _, c := range []struct {
		token string
		mode  os.FileMode
		kind  outboard.Kind
	}{
		{"s.old", 0o600, outboard.Unavailable}, {"s.token", 0o644, outboard.Denied}, {"s.token", 0o600, ""},
	} {
		if err := os.WriteFile(path, []byte(c.token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		before := f.requests.Load()
		err := open(w)
		if c.kind == "" != (err == nil) || err != nil && outboard.KindOf(err) != c.kind {
			t.Errorf("%s %o: %v", c.token, c.mode, err)
		}
		if err != nil && strings.Contains(err.Error(), c.token) {
			t.Errorf("the error tells the token: %v", err)
		}
		if c.kind == outboard.Denied && f.requests.Load() != before {
			t.Error("a token that others may read was sent")
		}
	}
}

// rotateForEver rotates the vault of the directory in its environment, from one kind of key to the next, and
// says where it is.
func rotateForEver() {
	ctx := context.Background()
	dir := os.Getenv("VAULT_DIR")
	os.Setenv(childEnv, "kms") // of its own children
	s, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "outboard.db")})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	way := rotationWay(dir)
	for i := 0; ; i++ {
		ws := append([]Wrapper{way[i%len(way)]}, way...)
		fmt.Println("begin")
		if _, err := New(Config{Store: s, Wrappers: ws, Mark: filepath.Join(dir, "vault.seq")}).
			RotateKeys(ctx); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("done")
	}
}

// rotationWay are the kinds of keys that rotateForEver goes through.
func rotationWay(dir string) []Wrapper {
	return []Wrapper{KeyDir{filepath.Join(dir, "vault-keys")}, KeyDir{filepath.Join(dir, "vault-keys")},
		Command(os.Args[0], filepath.Join(dir, "outside")), KeyFile{filepath.Join(dir, "file.key")}}
}

// If this fails, a server that is killed with SIGKILL while it rotates the keys of the vault leaves secrets that
// do not open.
func TestRotationKilled(t *testing.T) {
	r := newRig(t)
	outside := kmsKey(t, "one")
	r.must(os.Rename(outside, filepath.Join(r.dir, "outside")))
	r.must(os.WriteFile(filepath.Join(r.dir, "file.key"), []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
		0o600))
	hosts := []string{}
	for i := range 15 {
		host := fmt.Sprintf("h%d.example.com", i)
		hosts = append(hosts, host)
		r.add(header(host, host), "value of "+host)
	}
	before, err := r.Environment(t.Context(), r.session)
	r.must(err)
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	during, kinds := 0, map[string]bool{}
	span := rotationSpan(t, r.dir)
	for round := range rounds {
		if killRotation(t, r.dir, mrand.N(span)) {
			during++
		}
		t.Setenv(childEnv, "kms")
		k := New(Config{Store: r.store, Wrappers: rotationWay(r.dir), Mark: r.cfg.Mark, Now: r.cfg.Now})
		for _, host := range hosts {
			if got := r.bearer(k, host); got != "Bearer value of "+host {
				t.Fatalf("after kill %d: %q", round, got)
			}
		}
		if after, err := k.Environment(t.Context(), r.session); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("after kill %d: %v, %v", round, after, err)
		}
		row, err := r.store.VaultKey(t.Context(), r.org)
		r.must(err)
		w, err := parseWrapping(row.Wrapping)
		r.must(err)
		kinds[w.Kind] = true
	}
	if during == 0 || !testing.Short() && len(kinds) < 2 { // else nothing was tried
		t.Errorf("%d kills met a rotation, of kinds %v", during, kinds)
	}
	t.Logf("%d of %d kills met a rotation; kinds met: %v", during, rounds, kinds)
}

// startRotations starts a process that rotates keys until it is killed, and returns once it has begun. Its lines
// say where it is.
func startRotations(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=rotate", "VAULT_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	return cmd, lines
}

// rotationSpan is how long a rotation to each kind of key takes on this machine, one after the other.
func rotationSpan(t *testing.T, dir string) time.Duration {
	t.Helper()
	cmd, lines := startRotations(t, dir)
	defer cmd.Wait()
	defer cmd.Process.Kill()
	begin := time.Now()
	for left := len(rotationWay(dir)); left > 0; {
		if !lines.Scan() {
			t.Fatalf("the process ended with %d rotations left: %q", left, lines.Text())
		}
		if lines.Text() == "done" {
			left--
		}
	}
	return time.Since(begin)
}

// killRotation lets a process rotate keys, kills it a while after it has begun, and reports whether it was in a
// rotation.
func killRotation(t *testing.T, dir string, after time.Duration) bool {
	t.Helper()
	cmd, lines := startRotations(t, dir)
	last := lines.Text()
	kill := time.AfterFunc(after, func() { cmd.Process.Kill() })
	defer kill.Stop()
	for lines.Scan() {
		last = lines.Text()
	}
	cmd.Wait() // it was killed
	if last != "begin" && last != "done" {
		t.Fatalf("the process said %q", last)
	}
	return last == "begin"
}

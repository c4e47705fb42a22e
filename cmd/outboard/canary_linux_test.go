package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/server"
)

// forms are the ways in which a secret may lie about: as it is, in base64 at each of its three alignments, in
// hex, and as a URL or JSON has it.
func forms(secret string) map[string]string {
	out := map[string]string{"raw": secret, "hex": hex.EncodeToString([]byte(secret)),
		"HEX":   strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"query": url.QueryEscape(secret), "path": url.PathEscape(secret)}
	if j, err := json.Marshal(secret); err == nil {
		out["json"] = strings.Trim(string(j), `"`)
	}
	for shift := range 3 {
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + secret))
		// The characters that depend on what stands around the secret are left out.
		b = strings.TrimRight(b, "=")
		b = b[(shift*8+5)/6 : len(b)-2]
		out["base64 at "+strconv.Itoa(shift)] = b
		out["base64url at "+strconv.Itoa(shift)] = strings.NewReplacer("+", "-", "/", "_").Replace(b)
	}
	return out
}

// hunt looks for secrets in everything a run leaves behind.
type hunt struct {
	needles map[string]map[string]string // secret's name -> form -> text
	found   map[string][]string          // "name in form" -> places
	places  int
}

func newHunt(secrets map[string]string) *hunt {
	h := &hunt{needles: map[string]map[string]string{}, found: map[string][]string{}}
	for name, s := range secrets {
		h.needles[name] = forms(s)
	}
	return h
}

// look searches one artefact, and what is compressed in it.
func (h *hunt) look(place string, data []byte) {
	h.places++
	all := [][]byte{data}
	if i := bytes.Index(data[:min(len(data), 64)], []byte{0x28, 0xb5, 0x2f, 0xfd}); i >= 0 {
		if z, err := zstd.NewReader(bytes.NewReader(data[i:])); err == nil {
			plain, _ := io.ReadAll(io.LimitReader(z, 64<<20)) // as far as it goes
			z.Close()
			all = append(all, plain)
		}
	}
	for name, fs := range h.needles {
		for form, text := range fs {
			for _, d := range all {
				if bytes.Contains(d, []byte(text)) {
					h.found[name+" in "+form] = append(h.found[name+" in "+form], place)
				}
			}
		}
	}
}

// dir searches every regular file below a directory.
func (h *hunt) dir(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // a sandbox may be going away
		}
		if data, err := os.ReadFile(path); err == nil {
			h.look(path, data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// lockedBuffer is a log that is written while it is read.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

// canaryModel is a model that demands its key, makes one tool call and answers; for a user who asks for trouble
// it repeats the key in an error.
type canaryModel struct {
	*httptest.Server
	mu      sync.Mutex
	prompts bytes.Buffer
	keys    map[string]int
}

func newCanaryModel(t *testing.T, command string) *canaryModel {
	m := &canaryModel{keys: map[string]int{}}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m.mu.Lock()
		m.prompts.Write(body)
		m.keys[r.Header.Get("Authorization")]++
		m.mu.Unlock()
		if bytes.Contains(body, []byte("trouble")) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":{"message":"no use for %s","type":"invalid_request_error"}}`,
				r.Header.Get("Authorization"))
			return
		}
		delta := `{"content":"done"}`
		finish := "stop"
		if !bytes.Contains(body, []byte(`"role":"tool"`)) {
			args, _ := json.Marshal(map[string]string{"command": command})
			quoted, _ := json.Marshal(string(args))
			delta = `{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"bash","arguments":` +
				string(quoted) + `}}]}`
			finish = "tool_calls"
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":%s}]}\n\n", delta)
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":%q}]}\n\n", finish)
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(m.Close)
	return m
}

// If this fails, a secret of the vault lies somewhere a run leaves things: in the sandbox, the log, the blobs, a
// model's prompt, an error, the server's log or what the API answers.
func TestCanaries(t *testing.T) {
	secrets := map[string]string{}
	for _, name := range []string{"model", "variable", "header", "bearer", "access", "refresh", "client", "aws",
		"session"} {
		secrets[name] = "cnry-" + name + "+/=" + rand.Text()
	}
	planted := "plnt+/=" + rand.Text() // the control: what must be found
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pemText := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	secrets["key"] = strings.Split(pemText, "\n")[3]

	model := newCanaryModel(t,
		`env; cat /proc/self/environ /proc/1/environ 2>&1; echo "$TOKEN" > /workspace/token; tr '\0' '\n' < /proc/$PPID/environ; cat /proc/*/cmdline; echo; echo "live TOKEN=$TOKEN"; sleep 0.5`)
	at, err := url.Parse(model.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(at.Port())
	data := t.TempDir()
	if err := os.Chmod(data, 0o755); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	cfg := &config.Config{LLM: llm.Config{Providers: []llm.Provider{{Name: "mock", Type: llm.TypeChat,
		BaseURL: model.URL + "/v1", APIKey: llm.Key{Credential: "model"},
		Models: []llm.ModelInfo{{Name: "m"}}}}}}
	env := func(name string) string {
		if name == "OUTBOARD_GUEST" {
			return guestPath
		}
		return os.Getenv(name)
	}
	s, err := startServer(t.Context(), server.Config{Data: data, Config: cfg, Env: env, Serve: true, Work: true,
		Listen: "127.0.0.1:0",
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if s.Problem != nil {
		noSandbox(t, s.Problem)
	}
	adminKey, err := readKey(data)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{URL: s.URL, Key: adminKey})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	run := canaryRun{T: t, c: c, url: s.URL, key: adminKey}
	vault := run.post("/v1/vaults", map[string]any{"display_name": "default"})["id"].(string)
	host := []string{"127.0.0.1"}
	for _, auth := range []map[string]any{
		{"type": "outboard_header", "name": "model", "value": secrets["model"], "hosts": host, "ports": []int{port}},
		{"type": "outboard_header", "name": "header", "value": secrets["header"], "hosts": host},
		{"type": "environment_variable", "secret_name": "TOKEN", "secret_value": secrets["variable"],
			"networking": map[string]any{"type": "limited", "allowed_hosts": host}},
		{"type": "static_bearer", "mcp_server_url": "https://mcp.example.com/a", "token": secrets["bearer"]},
		{"type": "mcp_oauth", "mcp_server_url": "https://mcp.example.com/b", "access_token": secrets["access"],
			"refresh": map[string]any{"refresh_token": secrets["refresh"],
				"token_endpoint": "https://mcp.example.com/t", "client_id": "id", "token_endpoint_auth": map[string]any{"type": "client_secret_post", "client_secret": secrets["client"]}}},
		{"type": "outboard_aws", "name": "aws", "access_key_id": "AKIA", "secret_access_key": secrets["aws"],
			"session_token": secrets["session"], "service": "s3", "region": "eu-central-1", "hosts": host},
		{"type": "outboard_github_app", "name": "app", "app_id": 1, "installation_id": 1, "private_key": pemText,
			"repositories": []string{"o/r"}, "permissions": map[string]string{"contents": "read"}},
	} {
		run.post("/v1/vaults/"+vault+"/credentials", map[string]any{"auth": auth})
	}
	agent := run.post("/v1/agents", map[string]any{"name": "a", "model": "mock/m",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401",
			"default_config": map[string]any{"enabled": true,
				"permission_policy": map[string]any{"type": "always_allow"}}}}})["id"].(string)
	environment := run.post("/v1/environments", map[string]any{"name": "e",
		"config": map[string]any{"type": "cloud"}})["id"].(string)
	texts := slices.Sorted(maps.Values(forms(planted)))
	session := func(text string) string {
		id := run.post("/v1/sessions", map[string]any{"agent": agent, "environment_id": environment,
			"vault_ids": []string{vault},
			"initial_events": []any{map[string]any{"type": "user.message",
				"content": []any{map[string]any{"type": "text", "text": text}}}}})["id"].(string)
		run.rest(id)
		return id
	}
	good := session("look around: " + strings.Join(texts, " "))
	session("trouble")
	big := session(planted + strings.Repeat(" filler", 20_000)) // over what a row holds: it is a blob
	run.post("/v1/outboard/vault_keys/rotate", nil)

	control := newHunt(map[string]string{"planted": planted})
	h := newHunt(secrets)
	for _, x := range []*hunt{h, control} {
		x.look("prompts", model.prompts.Bytes())
		x.look("server log", log.Bytes())
		x.look("live lines", []byte(strings.Join(run.lines, "\n")))
		for _, path := range []string{"/v1/sessions", "/v1/agents", "/v1/environments", "/v1/vaults", "/v1/vaults/" +
			vault, "/v1/vaults/" + vault + "/credentials",
			"/v1/sessions/" + good + "/events?include[]=outboard", "/v1/sessions/" + big +
				"/events?include[]=outboard", "/v1/sessions/" + good, "/v1/files",
			"/v1/sessions/" + good + "/outboard/export"} {
			x.look(path, run.get(path))
		}
		x.dir(t, data) // the sandboxes, alive
	}
	events := string(run.get("/v1/sessions/" + good + "/events?include[]=outboard"))
	s.Stop()
	h.dir(t, data)
	if n := model.keys["Bearer "+secrets["model"]]; n < 3 || len(model.keys) != 1 {
		t.Errorf("the model was sent %d keys, the right one %d times", len(model.keys), n)
	}
	for what, where := range h.found {
		t.Errorf("%s is in %v", what, where)
	}
	for _, form := range slices.Sorted(maps.Keys(forms(planted))) {
		if len(control.found["planted in "+form]) == 0 {
			t.Errorf("the control: what was planted in %s was not found in any of %d places", form, control.places)
		}
	}
	if where := strings.Join(control.found["planted in raw"], " "); !strings.Contains(where, "outboard.db") ||
		!strings.Contains(where, "blobs") || !strings.Contains(where, "prompts") {
		t.Errorf("the control: found only in %s", where)
	}
	if !slices.ContainsFunc(run.lines, func(l string) bool { return strings.HasPrefix(l, "live TOKEN=outboard") }) {
		t.Errorf("the control: no live line had the placeholder: %q", run.lines)
	}
	if !strings.Contains(events, "TOKEN=outboard") {
		t.Errorf("the control: the sandbox had no placeholder: %s", events)
	}
}

// canaryRun drives a server over its API.
type canaryRun struct {
	*testing.T
	c        *client.Client
	url, key string
	lines    []string // of commands while they ran
}

func (r *canaryRun) do(method, path string, body any) []byte {
	r.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		r.Fatal(err)
	}
	if body == nil {
		b = nil
	}
	req, err := http.NewRequestWithContext(r.Context(), method, r.url+path, bytes.NewReader(b))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("X-Api-Key", r.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, out, err)
	}
	return out
}

func (r *canaryRun) get(path string) []byte { r.Helper(); return r.do("GET", path, nil) }

func (r *canaryRun) post(path string, body any) (out map[string]any) {
	r.Helper()
	if err := json.Unmarshal(r.do("POST", path, body), &out); err != nil {
		r.Fatal(err)
	}
	return out
}

// rest follows a session until it comes to rest.
func (r *canaryRun) rest(id string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	for e, err := range r.c.Follow(ctx, id, client.FollowOptions{Past: true, Own: true,
		Line: func(l client.Line) { r.lines = append(r.lines, l.Text) }}) {
		if err != nil {
			r.Fatalf("following %s: %v", id, err)
		}
		if e.Type == "session.status_idle" || e.Type == "session.status_terminated" {
			return
		}
	}
}

package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault"
)

// bench is the API over a real store, without a runner: the test itself appends what a runner would.
type bench struct {
	t       *testing.T
	url     string
	key     string
	store   *store.Store
	live    *live.Hub
	ctl     *control.Control
	witness *audit.Witness // of whole servers
}

// newBench starts one on loopback. An option changes the configuration of the API or of control.
func newBench(t *testing.T, opts ...any) *bench {
	t.Helper()
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "outboard.db")})
	if err != nil {
		t.Fatal(err)
	}
	bl, err := blob.NewDir(filepath.Join(dir, "blob"))
	if err != nil {
		t.Fatal(err)
	}
	models, err := llm.NewRegistry(llm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: st, live: new(live.Hub)}
	ctl := control.Config{Store: st, Blob: bl, Models: models, Live: b.live, Vault: vault.New(vault.Config{Store: st,
		Wrappers: []vault.Wrapper{vault.KeyDir{Dir: filepath.Join(dir,
			"keys")}}, HTTP: vault.Client(&outbound.Guard{Private: outbound.Loopback}, nil)})}
	for _, o := range opts {
		if f, ok := o.(func(*control.Config)); ok {
			f(&ctl)
		}
	}
	b.ctl = control.New(ctl)
	made, err := b.ctl.EnsureAdminKey(t.Context(), func(secret string) error { b.key = secret; return nil })
	if err != nil || !made {
		t.Fatalf("EnsureAdminKey: %v, %v", made, err)
	}
	cfg := api.Config{Control: b.ctl, Unrecorded: func(route string) {
		t.Errorf("%s changed something and left no "+
			"record in the audit", route)
	}}
	for _, o := range opts {
		if f, ok := o.(func(*api.Config)); ok {
			f(&cfg)
		}
	}
	base, cancel := context.WithCancel(context.Background())
	srv := httptest.NewUnstartedServer(api.New(cfg))
	srv.Config.BaseContext = func(net.Listener) context.Context { return base }
	srv.Start()
	b.url = srv.URL
	t.Cleanup(func() { cancel(); srv.Close(); st.Close() })
	return b
}

// reply is one answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// get returns a value of the JSON body by a dotted path; "" when absent.
func (r reply) get(path string) any {
	var v any
	if json.Unmarshal(r.body, &v) != nil {
		return ""
	}
	for part := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			i := 0
			for _, c := range part {
				i = i*10 + int(c-'0')
			}
			if i >= len(x) {
				return ""
			}
			v = x[i]
		default:
			return ""
		}
	}
	return v
}

func (r reply) str(path string) string {
	s, _ := r.get(path).(string)
	return s
}

// do sends a request; body may be nil, a string (sent as it is) or a value (sent as JSON).
func (b *bench) do(method, path string, body any, edit ...func(*http.Request)) reply {
	b.t.Helper()
	var rd io.Reader
	switch v := body.(type) {
	case nil:
	case string:
		rd = strings.NewReader(v)
	case io.Reader:
		rd = v
	default:
		buf, err := json.Marshal(v)
		if err != nil {
			b.t.Fatal(err)
		}
		rd = bytes.NewReader(buf)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, rd)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", b.key)
	for _, e := range edit {
		e(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, out}
}

// ok sends a request that must succeed.
func (b *bench) ok(method, path string, body any) reply {
	b.t.Helper()
	r := b.do(method, path, body)
	if r.status != http.StatusOK {
		b.t.Fatalf("%s %s: %d %s", method, path, r.status, r.body)
	}
	return r
}

// refused sends a request that must be refused, in the error shape, with a text that holds word.
func (b *bench) refused(status int, word, method, path string, body any, edit ...func(*http.Request)) reply {
	b.t.Helper()
	r := b.do(method, path, body, edit...)
	if r.status != status || r.str("type") != "error" || r.str("error.type") == "" ||
		!strings.Contains(r.str("error.message"), word) {
		b.t.Errorf("%s %s: got %d %s, want %d with %q", method, path, r.status, r.body, status, word)
	}
	if id := r.header.Get("request-id"); id == "" || r.str("request_id") != id {
		b.t.Errorf("%s %s: request-id header %q, body %q", method, path, id, r.str("request_id"))
	}
	return r
}

func (b *bench) agent() string {
	return b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}}).str("id")
}

func (b *bench) environment() string {
	return b.ok("POST", "/v1/environments",
		map[string]any{"name": outboard.NewID[string](outboard.PrefixEnvironment)}).str("id")
}

func (b *bench) session() string {
	return b.ok("POST", "/v1/sessions", map[string]any{"agent": b.agent(), "environment_id": b.environment()}).str("id")
}

func message(text string) map[string]any {
	return map[string]any{"type": "user.message", "content": []any{map[string]any{"type": "text", "text": text}}}
}

func send(events ...any) map[string]any { return map[string]any{"events": events} }

// append does what a runner does: it claims nothing and appends with the session's own epoch.
func (b *bench) append(session string, ps ...outboard.Payload) []outboard.Event {
	b.t.Helper()
	h, err := b.store.Session(b.t.Context(), outboard.SessionID(session))
	if err != nil {
		b.t.Fatal(err)
	}
	var evs []outboard.Event
	for _, p := range ps {
		evs = append(evs, outboard.NewEvent(h.Thread, p))
	}
	out, err := b.store.Append(b.t.Context(), h.ID, 0, store.Any, evs...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

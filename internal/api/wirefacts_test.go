package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// largest are the parts of an agent, each as large as the wire lets it be.
func largest() map[string]any {
	var tools []any
	for i := range 255 {
		tool := customTool(fmt.Sprintf("t%d", i), map[string]any{"type": "object"})
		tool["description"] = strings.Repeat("d<&", 4000)
		tools = append(tools, tool)
	}
	return map[string]any{"name": "a", "model": "script/steps", "system": strings.Repeat("漢", 100_000), "tools": tools}
}

// Fails if an agent, an environment or a file that one route accepts is too large for the session that is to have it.
func TestWhatIsAcceptedCanBeUsed(t *testing.T) {
	b := newBench(t)
	few := map[string]any{"name": "a", "model": "script/steps", "system": strings.Repeat("漢", 100_000)}
	over := largest()
	over["tools"] = over["tools"].([]any)[:60]
	var hosts []any
	for i := range 1000 {
		hosts = append(hosts, strings.Repeat(strings.Repeat("h", 60)+".", 3)+fmt.Sprintf("n%d.example", i))
	}
	env := b.ok("POST", "/v1/environments", map[string]any{"name": "wide", "config": map[string]any{"type": "cloud",
		"networking": map[string]any{"type": "limited", "allowed_hosts": hosts}}}).str("id")
	file := b.upload("file", "f:x").str("id")
	var resources []any
	for i := range 500 {
		resources = append(resources, map[string]any{"type": "file", "file_id": file,
			"mount_path": strings.Repeat("&", 700) + fmt.Sprint(i)})
	}
	for name, agent := range map[string]map[string]any{"a long prompt": few, "many tools": over} {
		id := b.ok("POST", "/v1/agents", agent).str("id")
		session := b.ok("POST", "/v1/sessions", map[string]any{"agent": id, "environment_id": env,
			"resources": resources})
		if got := session.str("agent.system"); got != agent["system"] {
			t.Errorf("%s: the session has a prompt of %d bytes", name, len(got))
		}
		path := "/v1/sessions/" + session.str("id")
		b.ok("POST", path, map[string]any{"agent": map[string]any{"tools": over["tools"]}})
		b.ok("POST", path+"/fork", map[string]any{})
		if got := b.ok("GET", path+"/events?types[]=session.updated", nil); name == "a long prompt" &&
			len(got.body) < 500_000 {
			t.Errorf("%s: the update is shown with %d bytes", name, len(got.body))
		}
		override := map[string]any{"type": "agent_with_overrides", "id": b.agent(), "system": agent["system"],
			"tools": over["tools"]}
		b.ok("POST", "/v1/sessions", map[string]any{"agent": override, "environment_id": env})
	}
	r := b.refused(413, "must have at most 4194304 bytes", "POST", "/v1/agents", largest())
	if r.str("error.details.hint") == "" {
		t.Errorf("the refusal says not what helps: %s", r.body)
	}
}

// Fails if a list of events that are large takes them into memory all at once, or loses one where it ends a page early.
func TestListOfLargeUpdates(t *testing.T) {
	b := newBench(t)
	id := b.session()
	tools := largest()["tools"].([]any)[:60]
	const updates = 14
	for i := range updates {
		tools[0].(map[string]any)["description"] = fmt.Sprint("edition ", i)
		b.ok("POST", "/v1/sessions/"+id, map[string]any{"agent": map[string]any{"tools": tools}})
	}
	page, seen := b.ok("GET", "/v1/sessions/"+id+"/events?limit=1000", nil), 0
	for pages := 1; ; pages++ {
		seen += len(page.get("data").([]any))
		next := page.str("next_page")
		if next == "" {
			if seen != updates || pages < 2 {
				t.Errorf("%d updates on %d pages", seen, pages)
			}
			return
		}
		page = b.ok("GET", "/v1/sessions/"+id+"/events?limit=1000&page="+next, nil)
	}
}

// Fails if an update that changes a number by less than a float64 can tell is answered 200 and not made, or one that
// changes only how a number is written makes a version.
func TestUpdatesCompareNumbersExactly(t *testing.T) {
	b := newBench(t)
	body := func(n string) string {
		return `{"tools":[{"type":"custom","name":"t","description":"d","input_schema":{"type":"object","properties":{"x":{"maximum":` + n + `}}}}]}`
	}
	agent := b.agent()
	session := "/v1/sessions/" + b.session()
	version := 1.0
	for _, c := range []struct {
		number string
		same   bool
	}{{"9007199254740992", false}, {"9007199254740993", false}, {"9007199254740993.0", true}, {"100", false}, {"1e2",
		true}, {"1000.0E-1", true},
		{"0.1", false}, {"0.10000000000000000000000000000001", false}, {"1e300", false}, {"10e299",
			true}, {"1.00000000000000000001e300", false}, {"0", false}, {"-0.0e5", true}} {
		r := b.ok("POST", "/v1/agents/"+agent, body(c.number))
		if !c.same {
			version++
		}
		if r.get("version") != version || !c.same && !strings.Contains(string(r.body), `"maximum":`+c.number+`}`) {
			t.Errorf("%s: version %v, want %v: %s", c.number, r.get("version"), version, r.body)
		}
		before := len(b.ok("GET", session+"/events?types[]=session.updated&limit=1000", nil).get("data").([]any))
		b.ok("POST", session, `{"agent":`+body(c.number)+`}`)
		if after := len(b.ok("GET", session+"/events?types[]=session.updated&limit=1000",
			nil).get("data").([]any)); (after == before) != c.same {
			t.Errorf("%s on a session: %d events, were %d", c.number, after, before)
		}
	}
}

// Fails if an empty value of metadata is lost where only null deletes, or stays where it deletes as well.
func TestEmptyMetadata(t *testing.T) {
	b := newBench(t)
	vault := b.ok("POST", "/v1/vaults", `{"display_name":"v","metadata":{"a":"","b":"x"}}`)
	credential := b.ok("POST", "/v1/vaults/"+vault.str("id")+"/credentials",
		`{"auth":{"type":"static_bearer","mcp_server_url":"https://a.test","token":"t"},"metadata":{"a":"","b":"x"}}`)
	for path, made := range map[string]reply{
		"/v1/agents/": b.ok("POST", "/v1/agents", `{"name":"a","model":"m","metadata":{"a":"","b":"x"}}`),
		"/v1/vaults/": vault,
		"/v1/sessions/": b.ok("POST", "/v1/sessions",
			fmt.Sprintf(`{"agent":%q,"environment_id":%q,"metadata":{"a":"","b":"x"}}`, b.agent(), b.environment())),
		"/v1/vaults/" + vault.str("id") + "/credentials/": credential,
	} {
		if got := fmt.Sprint(made.get("metadata")); got != "map[a: b:x]" {
			t.Errorf("%s made with %s", path, got)
		}
		got := b.ok("POST", path+made.str("id"), `{"metadata":{"b":"","c":"","a":null}}`)
		if s := fmt.Sprint(got.get("metadata")); s != "map[b: c:]" {
			t.Errorf("%s has %s", path, s)
		}
	}
	env := b.environment()
	b.ok("POST", "/v1/environments/"+env, `{"metadata":{"a":"x","b":"y"}}`)
	if got := fmt.Sprint(b.ok("POST", "/v1/environments/"+env,
		`{"metadata":{"a":"","b":null}}`).get("metadata")); got != "map[]" {
		t.Errorf("an environment has %s", got)
	}
}

// Fails if a message is taken while the session waits for answers, or if one is refused that the answers before it make
// room for.
func TestMessageWhileParked(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_ask")
	k.say("- parallel:", "  - bash: echo one", "  - bash: echo two", "- say: end")
	_, _, asked := k.rest()
	const text = "Invalid user.message event at events[0]: waiting on responses to events [%s]; only " +
		"user.tool_confirmation, " +
		"user.custom_tool_result, user.tool_result, or user.interrupt may be sent"
	k.refused(400, fmt.Sprintf(text, strings.Join(asked, ", ")), "POST", k.events, send(message("- say: no")))
	allow := func(call string) map[string]any {
		return map[string]any{"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"}
	}
	k.refused(400, "events[1]: waiting on responses to events ["+asked[1]+"]", "POST", k.events,
		send(allow(asked[0]), message("- say: no")))
	k.ok("POST", k.events, send(allow(asked[0])))
	k.rest()
	k.refused(400, fmt.Sprintf(text, asked[1]), "POST", k.events, send(message("- say: no")))
	k.ok("POST", k.events, send(allow(asked[1]), message("- say: both")))
	evs, stop, _ := k.rest()
	if got := texts(evs, "agent.message"); stop != "end_turn" || !slices.Equal(got, []string{"end", "both"}) {
		t.Errorf("after the answers: %s %q", stop, got)
	}

	k.say("- bash: echo three", "- say: never")
	k.rest()
	k.ok("POST", k.events, send(map[string]any{"type": "user.interrupt"}, message("- say: instead")))
	evs, _, _ = k.rest()
	if len(of(evs, "agent.message")) == 0 {
		evs, _, _ = k.rest()
	}
	if got := texts(evs, "agent.message"); !slices.Equal(got, []string{"instead"}) {
		t.Errorf("after the interrupt: %q", got)
	}
}

// Fails if an environment that sessions name can be deleted, or two have one name, or a name stays taken when it need
// not.
func TestEnvironmentNames(t *testing.T) {
	b := newBench(t)
	one := b.ok("POST", "/v1/environments", `{"name":"n"}`).str("id")
	b.refused(409, `the name "n"`, "POST", "/v1/environments", `{"name":"n"}`)
	two := b.ok("POST", "/v1/environments", `{"name":"m"}`).str("id")
	b.refused(409, `the name "n"`, "POST", "/v1/environments/"+two, `{"name":"n"}`)
	b.ok("POST", "/v1/environments/"+one, `{"name":"n","description":"the same name again"}`)
	b.ok("POST", "/v1/environments/"+one+"/archive", nil)
	three := b.ok("POST", "/v1/environments", `{"name":"n"}`).str("id")
	b.ok("DELETE", "/v1/environments/"+three, nil)
	b.ok("POST", "/v1/environments/"+two, `{"name":"n"}`)
	b.ok("POST", "/v1/environments", `{"name":"m"}`)
	org := b.ok("POST", "/v1/outboard/organizations", `{"name":"other"}`).str("id")
	if r := b.do("POST", "/v1/environments", `{"name":"n"}`,
		func(r *http.Request) { r.Header.Set("Outboard-Organization", org) }); r.status != 200 {
		t.Errorf("the same name in another organization: %d %s", r.status, r.body)
	}

	session := b.ok("POST", "/v1/sessions", map[string]any{"agent": b.agent(), "environment_id": two}).str("id")
	r := b.refused(409, session, "DELETE", "/v1/environments/"+two, nil)
	if r.header.Get("x-should-retry") != "false" {
		t.Errorf("SDKs send it again: %v", r.header)
	}
	b.ok("POST", "/v1/sessions/"+session+"/archive", nil)
	b.refused(409, session, "DELETE", "/v1/environments/"+two, nil)
	b.ok("DELETE", "/v1/sessions/"+session, nil)
	b.ok("DELETE", "/v1/environments/"+two, nil)
}

// Fails if a model that an agent may name is not one that can be asked for, or an alias is in no list.
func TestModelAliases(t *testing.T) {
	models, err := llm.NewRegistry(llm.Config{Aliases: map[string]string{"best": "script/steps",
		"gone": "nowhere/model"},
		Providers: []llm.Provider{{Name: "keyless", Type: llm.TypeAnthropic, Models: []llm.ModelInfo{{Name: "m"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(c *control.Config) { c.Models = models })
	b.ok("POST", "/v1/agents", `{"name":"a","model":"best"}`)
	for _, id := range []string{"best", "script/steps"} {
		if got := b.ok("GET", "/v1/models/"+id, nil); got.str("id") != "script/steps" || got.str("type") != "model" {
			t.Errorf("%s: %s", id, got.body)
		}
	}
	b.refused(404, `no model "gone"`, "GET", "/v1/models/gone", nil)
	b.refused(404, `no model "nowhere"`, "GET", "/v1/models/nowhere", nil)
	list := b.ok("GET", "/v1/models?limit=0", nil)
	for _, m := range list.get("data").([]any) {
		b.ok("GET", "/v1/models/"+m.(map[string]any)["id"].(string), nil)
	}
	if list.str("data.0.id") != "best" || list.str("data.1.id") != "keyless/m" ||
		list.str("data.2.id") != "script/steps" || strings.Contains(string(list.body), "gone") {
		t.Errorf("the list: %s", list.body)
	}
	if got := b.ok("GET", "/v1/models?after_id=best", nil); got.str("first_id") != "keyless/m" {
		t.Errorf("behind the alias: %s", got.body)
	}
	var beta struct {
		Data []map[string]json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b.ok("GET", "/v1/models?beta=true", nil).body, &beta); err != nil ||
		string(beta.Data[0]["allowed_fallback_models"]) != "null" {
		t.Errorf("the beta's list: %v %s", err, beta.Data[0]["allowed_fallback_models"])
	}
	if strings.Contains(string(list.body), "allowed_fallback_models") {
		t.Errorf("the plain list: %s", list.body)
	}
}

// Fails if 0 is not as good as no number where the wire has no least one, or what the wire always shows is left out.
func TestZerosAndDefaults(t *testing.T) {
	b := newBench(t)
	agent, id := b.agent(), b.session()
	vault := b.ok("POST", "/v1/vaults", `{"display_name":"v"}`).str("id")
	for _, path := range []string{"/v1/agents?limit=0", "/v1/agents/" + agent + "?version=0", "/v1/agents/" + agent +
		"/versions?limit=0", "/v1/sessions?limit=0&agent_version=0",
		"/v1/sessions?agent_id=" + agent + "&agent_version=0", "/v1/sessions/" + id +
			"/events?limit=0", "/v1/sessions/" + id + "/threads?limit=0",
		"/v1/sessions/" + id + "/resources?limit=0", "/v1/vaults?limit=0", "/v1/vaults/" + vault +
			"/credentials?limit=0"} {
		b.ok("GET", path, nil)
		b.refused(400, "", "GET", strings.ReplaceAll(path, "=0", "=-1"), nil)
	}
	b.refused(400, "1 to 100", "GET", "/v1/vaults?limit=101", nil)
	b.refused(400, "1 to 100", "GET", "/v1/vaults/"+vault+"/credentials?limit=101", nil)
	s := b.ok("POST", "/v1/sessions",
		map[string]any{"agent": map[string]any{"type": "agent", "id": agent, "version": 0},
			"environment_id": b.environment()})
	for path, want := range map[string]any{"agent.model.speed": "standard", "agent.model.effort.type": "high",
		"usage.server_tool_use.web_fetch_requests": 0.0, "usage.server_tool_use.web_search_requests": 0.0} {
		if got := s.get(path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// Fails if a credential takes null for a boolean, a member that is not known, or a wildcard over an address.
func TestCredentialPlaces(t *testing.T) {
	b := newBench(t)
	path := "/v1/vaults/" + b.ok("POST", "/v1/vaults", `{"display_name":"v"}`).str("id") + "/credentials"
	variable := func(more string) string {
		return `{"auth":{"type":"environment_variable","secret_name":"A","secret_value":"v",` + more + `}}`
	}
	const open = `"networking":{"type":"unrestricted"}`
	for _, c := range []struct{ word, more string }{
		{"injection_location.body: must not be null", open + `,"injection_location":{"body":null}`},
		{"injection_location.header: must not be null", open + `,"injection_location":{"header":null,"body":true}`},
		{"injection_location", open + `,"injection_location":null`},
		{"unknown field", open + `,"injection_location":{"header":true,"cookie":true}`},
		{"unknown field", open + `,"outboard":{"port":1}`},
		{"*.10.0.0.1", `"networking":{"type":"limited","allowed_hosts":["*.10.0.0.1"]}`},
		{"*.0x7f.1", `"networking":{"type":"limited","allowed_hosts":["*.0x7f.1"]}`},
		{"2130706433", `"networking":{"type":"limited","allowed_hosts":["2130706433"]}`},
	} {
		b.refused(400, c.word, "POST", path, variable(c.more))
	}
	b.refused(400, "*.10.0.0.1", "POST", "/v1/environments",
		`{"name":"e","config":{"type":"cloud","networking":{"type":"limited","allowed_hosts":["*.10.0.0.1"]}}}`)
	made := b.ok("POST", path,
		variable(`"networking":{"type":"limited","allowed_hosts":["*.Example.com","10.0.0.1"]},"injection_location":{"body":true}`))
	if made.get("auth.injection_location.header") != false || made.get("auth.injection_location.body") != true {
		t.Errorf("made %s", made.body)
	}
}

// Fails if nobody learns from the API whose a session is, in a list above all, or when a message came that waits.
func TestOwnOfSessions(t *testing.T) {
	b := newBench(t)
	id := b.session()
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("hello")))
	forked := b.ok("POST", "/v1/sessions/"+id+"/fork", `{"seq":1}`).str("data.0.id")
	me := b.ok("GET", "/v1/outboard/whoami", nil)
	list := b.ok("GET", "/v1/sessions?include[]=outboard", nil)
	for i, want := range []string{forked, id} {
		at := fmt.Sprintf("data.%d.", i)
		if list.str(at+"id") != want || list.str(at+"outboard.owner.name") != me.str("key.name") ||
			list.str(at+"outboard.owner.key_id") != me.str("key.id") ||
			list.get(at+"outboard.owner.user_id") != nil {
			t.Errorf("listed %s: %s, I am %s", want, list.body, me.body)
		}
	}
	if list.str("data.0.outboard.parent_id") != id {
		t.Errorf("the fork: %s", list.body)
	}
	if one := b.ok("GET", "/v1/sessions/"+id+"?include[]=outboard",
		nil); one.str("outboard.owner.name") != me.str("key.name") {
		t.Errorf("alone: %s", one.body)
	}
	if plain := b.ok("GET", "/v1/sessions", nil); strings.Contains(string(plain.body), `"outboard"`) {
		t.Errorf("nobody asked: %s", plain.body)
	}
	queued := b.ok("GET", "/v1/sessions/"+id+"/events?types[]=user.message&include[]=outboard", nil)
	if queued.get("data.0.processed_at") != nil || queued.str("data.0.received_at") < "2020" {
		t.Errorf("queued: %s", queued.body)
	}
	if plain := b.ok("GET", "/v1/sessions/"+id+"/events?types[]=user.message",
		nil); strings.Contains(string(plain.body), "received_at") {
		t.Errorf("nobody asked: %s", plain.body)
	}
}

// Fails if a page of large agents or sessions is made in memory whatever its size, or loses one where it ends early.
func TestListsOfLargeRows(t *testing.T) {
	b := newBench(t)
	body := largest()
	tools := body["tools"].([]any)[:70]
	for _, tool := range tools {
		tool.(map[string]any)["description"] = strings.Repeat("d", 45_000)
	}
	body["tools"] = tools
	env := b.environment()
	var agents, sessions []string
	for range 12 {
		id := b.ok("POST", "/v1/agents", body).str("id")
		agents = append(agents, id)
		sessions = append(sessions, b.ok("POST", "/v1/sessions",
			map[string]any{"agent": id, "environment_id": env}).str("id"))
	}
	slices.Reverse(agents)
	slices.Reverse(sessions)
	for path, want := range map[string][]string{"/v1/agents": agents, "/v1/sessions": sessions} {
		first := b.ok("GET", path+"?limit=100", nil)
		if n := len(first.get("data").([]any)); n == 0 || n == len(want) || first.str("next_page") == "" {
			t.Errorf("%s: the first page has %d of %d, and %d bytes", path, n, len(want), len(first.body))
		}
		if got := b.walk(path, url.Values{"limit": {"100"}}); !slices.Equal(got, want) {
			t.Errorf("%s: %d of %d, or in another order", path, len(got), len(want))
		}
	}
}

package api_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/api"
)

// writers says for every route that is not just read who may use it at least, and the scope that a limited key
// needs. A route that changes something and is not here fails the test. docs/guide/people.md has the same table
// by noun.
var writers = map[string][2]string{
	"POST /v1/agents": dev("agents"), "POST /v1/agents/{agent}": dev("agents"), "POST /v1/agents/{agent}/archive": dev("agents"),
	"POST /v1/environments": dev("environments"), "POST /v1/environments/{environment}": dev("environments"),
	"DELETE /v1/environments/{environment}": dev("environments"), "POST /v1/environments/{environment}/archive": dev("environments"),
	"POST /v1/sessions": dev("sessions"), "POST /v1/sessions/{session}": dev("sessions"), "DELETE /v1/sessions/{session}": dev("sessions"),
	"POST /v1/sessions/{session}/archive": dev("sessions"), "POST /v1/sessions/{session}/fork": dev("sessions"),
	"POST /v1/sessions/{session}/rewind": dev("sessions"), "POST /v1/outboard/import": dev("sessions"),
	"POST /v1/sessions/{session}/outboard/network/allow": dev("approvals"), "DELETE /v1/sessions/{session}/outboard/network/allow": dev("approvals"), "POST /v1/sessions/{session}/events": dev("sessions"),
	"POST /v1/sessions/{session}/resources": dev("sessions"), "DELETE /v1/sessions/{session}/resources/{resource}": dev("sessions"),
	"POST /v1/boxes": dev("sandboxes"), "DELETE /v1/boxes/{box}": dev("sandboxes"), "POST /v1/boxes/{box}/pause": dev("sandboxes"),
	"POST /v1/boxes/{box}/resume": dev("sandboxes"), "POST /v1/boxes/{box}/timeout": dev("sandboxes"),
	"POST /v1/boxes/{box}/processes": dev("sandboxes"), "GET /v1/boxes/{box}/processes/{pid}/stream": dev("sandboxes"),
	"POST /v1/boxes/{box}/processes/{pid}/input": dev("sandboxes"), "POST /v1/boxes/{box}/processes/{pid}/resize": dev("sandboxes"),
	"POST /v1/boxes/{box}/processes/{pid}/signal": dev("sandboxes"), "GET /v1/boxes/{box}/files": dev("sandboxes"),
	"DELETE /v1/boxes/{box}/files": dev("sandboxes"), "GET /v1/boxes/{box}/files/content": dev("sandboxes"),
	"PUT /v1/boxes/{box}/files/content": dev("sandboxes"), "PUT /v1/boxes/{box}/network": dev("sandboxes"),
	"POST /v1/templates": dev("sandboxes"), "DELETE /v1/templates/{template}": dev("sandboxes"),
	"POST /v1/files": dev("files"), "DELETE /v1/files/{file}": dev("files"),
	"POST /v1/vaults": dev("vaults"), "POST /v1/vaults/{vault}": dev("vaults"), "DELETE /v1/vaults/{vault}": dev("vaults"),
	"POST /v1/vaults/{vault}/archive": dev("vaults"), "POST /v1/vaults/{vault}/credentials": dev("vaults"),
	"POST /v1/vaults/{vault}/credentials/{credential}": dev("vaults"), "DELETE /v1/vaults/{vault}/credentials/{credential}": dev("vaults"),
	"POST /v1/vaults/{vault}/credentials/{credential}/archive":            dev("vaults"),
	"POST /v1/vaults/{vault}/credentials/{credential}/mcp_oauth_validate": dev("vaults"),
	"POST /v1/vaults/{vault}/credentials/{credential}/outboard/test":      dev("vaults"),
	"POST /v1/outboard/vault_keys/rotate":                                 adm("vaults"),
	"POST /v1/policies":                                                   adm("policies"),
	"POST /v1/approvals/{approval}":                                       dev("approvals"), "POST /v1/grants": dev("approvals"), "DELETE /v1/grants/{grant}": dev("approvals"),
	"POST /v1/outboard/audit/checkpoint": {"operator"}, "POST /v1/outboard/audit/redact": {"operator"},
	"POST /v1/outboard/sandboxes/{sandbox}/stop": dev("sandboxes"), "DELETE /v1/outboard/sandboxes/{sandbox}": dev("sandboxes"),
	"GET /v1/outboard/images": {"operator"}, "DELETE /v1/outboard/images": {"operator"}, "POST /v1/outboard/images/pull": {"operator"},
	"POST /v1/outboard/images/import": {"operator"}, "POST /v1/outboard/images/prune": {"operator"}, "POST /v1/outboard/blobs/prune": {"operator"},
	"POST /v1/ssh_keys": dev("sandboxes"),
	"POST /v1/kills":    adm("policies"), "DELETE /v1/kills/{kill}": adm("policies"),
	"POST /v1/budgets": dev("approvals"), "DELETE /v1/budgets/{budget}": dev("approvals"),
	"POST /v1/outboard/organizations": {"operator"}, "DELETE /v1/outboard/organizations/{organization}": {"operator"},
	"POST /v1/outboard/users": adm("people"), "POST /v1/outboard/users/{user}": adm("people"), "DELETE /v1/outboard/users/{user}": adm("people"),
	"POST /v1/outboard/users/{user}/restore": adm("people"), "POST /v1/outboard/keys": adm("people"),
}

// readers are routes with a method that changes something elsewhere, but not here, or only what is the caller's own.
var readers = []string{"POST /v1/policies/test", "DELETE /v1/outboard/keys/{key}", "DELETE /v1/ssh_keys/{ssh_key}",
	"POST /v1/sessions/{session}/resources/{resource}",
	"POST /v1/sessions/{session}/threads/{thread}/archive"}

// roleBodies are bodies that are read before control is asked.
var roleBodies = map[string]string{"POST /v1/agents": `{"name":"a","model":"m"}`,
	"POST /v1/environments": `{"name":"e"}`,
	"POST /v1/sessions":     `{"agent":"agent_01x","environment_id":"env_01x"}`, "POST /v1/vaults": `{"display_name":"v"}`,
	"POST /v1/grants":               `{"actions":["bash"],"resources":["*"],"expires_at":"2040-01-01T00:00:00Z","why":"w"}`,
	"POST /v1/outboard/images/pull": `{"name":"a:b"}`, "POST /v1/outboard/images/prune": `{"unused_seconds":1}`, "POST /v1/outboard/blobs/prune": `{"unused_seconds":86400}`,
	"POST /v1/ssh_keys": `{"public_key":"no key"}`, "POST /v1/templates": `{"name":"t"}`,
	"POST /v1/kills": `{"scope":"session","target_id":"sesn_01x"}`, "POST /v1/budgets": `{"scope":"session","target_id":"sesn_01x","limit":{"steps":9}}`, "POST /v1/policies": `{"level":"organization","text":""}`, "POST /v1/boxes": `{}`, "POST /v1/outboard/organizations": `{"name":"o"}`,
	"POST /v1/outboard/users": `{"email":"b@b.test","role":"viewer"}`, "POST /v1/outboard/keys": `{"name":"k","scopes":["people"]}`}

func dev(scope string) [2]string { return [2]string{outboard.RoleDeveloper, scope} }
func adm(scope string) [2]string { return [2]string{outboard.RoleAdmin, scope} }

// Fails if somebody may change what their role or the scopes of their key do not allow, or may not read what it
// does; or if a route that changes something was added and nobody said who may use it.
func TestRoles(t *testing.T) {
	b := newBench(t)
	for name, k := range map[string]outboard.Key{"viewer": {Role: outboard.RoleViewer},
		"developer": {Role: outboard.RoleDeveloper}, "admin": {Role: outboard.RoleAdmin},
		"reader": {Role: outboard.RoleAdmin, Scopes: []string{"read"}}, "nobody": {Role: "made-up"}} {
		k.Name = name
		putKey(b, k, "obk_"+name)
	}
	for _, scope := range outboard.KeyScopes {
		putKey(b, outboard.Key{Name: scope, Role: outboard.RoleAdmin, Scopes: []string{scope}}, "obk_only_"+scope)
	}
	refused := func(key, route string) bool {
		method, path, _ := strings.Cut(route, " ")
		path = filled(path)
		if strings.HasPrefix(route, "GET /v1/boxes/{box}/files") || strings.Contains(route, "{box}/files") {
			path += "?path=f"
		}
		body := roleBodies[route]
		if body == "" {
			body = strings.NewReplacer("{file}", "file_01x", "{checkpoint}", "ckpt_01x").Replace(foreignBody[route])
		}
		r := b.do(method, path, body, func(q *http.Request) { q.Header.Set("X-Api-Key", key) })
		return r.status == http.StatusForbidden
	}
	for _, route := range api.Routes() {
		least, writes := writers[route]
		if method, _, _ := strings.Cut(route, " "); method != "GET" && !writes && !contains(readers, route) {
			t.Errorf("%s may change something, and this test does not know who may use it", route)
			continue
		}
		if route == "POST /v1/files" || route == "POST /v1/outboard/import" ||
			route == "POST /v1/outboard/audit/redact" {
			continue // bodies of their own; below
		}
		if !refused("obk_nobody", route) {
			t.Errorf("a key with a role that is none may %s", route)
		}
		if route == "GET /v1/outboard/audit" { // who did what is for administrators, though it changes nothing
			if !refused("obk_developer", route) || refused("obk_reader", route) {
				t.Errorf("%s is not for administrators", route)
			}
			continue
		}
		if !writes {
			if refused("obk_viewer", route) || refused("obk_reader", route) {
				t.Errorf("a viewer, or a key that may only read, is refused at %s", route)
			}
			continue
		}
		for _, role := range outboard.Roles {
			if got, want := refused("obk_"+role, route), !outboard.AtLeast(role, least[0]); got != want {
				t.Errorf("%s by a %s: refused %v, want %v", route, role, got, want)
			}
		}
		if least[0] == "operator" {
			if refused(b.key, route) {
				t.Errorf("%s by the operator is refused", route)
			}
			continue
		}
		for _, scope := range outboard.KeyScopes {
			if got, want := refused("obk_only_"+scope, route), scope != least[1]; got != want {
				t.Errorf("%s by a key with the scope %s: refused %v, want %v", route, scope, got, want)
			}
		}
	}
	operator := b.key
	b.key = "obk_viewer"
	if r := b.upload("file", "f:x"); r.status != http.StatusForbidden {
		t.Errorf("a viewer uploads: %d", r.status)
	}
	if r := b.do("POST", "/v1/outboard/import", "x"); r.status != http.StatusForbidden {
		t.Errorf("a viewer imports: %d", r.status)
	}
	b.refused(403, "operator", "POST", "/v1/outboard/audit/redact", `{"records":[1],"fields":["detail"],"why":"w"}`)
	b.key = operator
	records := b.refusals()
	for route := range writers {
		if !slices.ContainsFunc(records, func(r string) bool { return strings.HasPrefix(r, route+" /v1/") }) {
			t.Errorf("who was refused %s has no record", route)
		}
	}
	b.key = "obk_developer"
	if r := b.upload("file", "f:x"); r.status != http.StatusOK {
		t.Errorf("a developer uploads: %d", r.status)
	}
	if r := b.do("POST", "/v1/outboard/import", "x"); r.status != http.StatusBadRequest {
		t.Errorf("a developer imports: %d", r.status)
	}
}

func contains(list []string, s string) bool {
	return slices.Contains(list, s)
}

// foreignBody has bodies of routes with ids.
var foreignBody = map[string]string{"POST /v1/agents/{agent}": `{"name":"b"}`,
	"POST /v1/environments/{environment}": `{"name":"b"}`,
	"POST /v1/sessions/{session}":         `{"title":"b"}`, "POST /v1/sessions/{session}/fork": `{}`,
	"POST /v1/sessions/{session}/rewind":                 `{"seq":1,"conversation":true}`,
	"POST /v1/sessions/{session}/outboard/network/allow": `{"host":"a.test","scope":"session"}`,
	"POST /v1/sessions/{session}/events":                 `{"events":[{"type":"user.interrupt"}]}`,
	"POST /v1/sessions/{session}/resources":              `{"type":"file","file_id":"{file}"}`,
	"POST /v1/sessions/{session}/resources/{resource}":   `{"authorization_token":"x"}`,
	"POST /v1/boxes/{box}/resume":                        `{"timeout_seconds":60}`, "POST /v1/boxes/{box}/timeout": `{"timeout_seconds":60}`,
	"POST /v1/boxes/{box}/processes":                                 `{"argv":["true"]}`,
	"PUT /v1/boxes/{box}/network":                                    `{}`,
	"POST /v1/boxes/{box}/processes/{pid}/resize":                    `{"cols":80,"rows":24}`,
	"POST /v1/boxes/{box}/processes/{pid}/signal":                    `{"signal":0}`,
	"POST /v1/vaults/{vault}":                                        `{"display_name":"b"}`,
	"POST /v1/vaults/{vault}/credentials":                            `{"auth":{"type":"static_bearer","mcp_server_url":"https://b.test","token":"t"}}`,
	"POST /v1/vaults/{vault}/credentials/{credential}":               `{"display_name":"b"}`,
	"POST /v1/vaults/{vault}/credentials/{credential}/outboard/test": `{"method":"GET","url":"https://a.test/"}`,
	"POST /v1/policies/test":                                         `{"tool":"bash","input":{}}`,
	"POST /v1/approvals/{approval}":                                  `{"result":"deny"}`, "POST /v1/outboard/users/{user}": `{"name":"b"}`}

// Fails if a key outlives its end, if a limited key makes one that may more or lasts longer, or if a secret can
// be read again.
func TestKeys(t *testing.T) {
	b := newBench(t)
	made := b.ok("POST", "/v1/outboard/keys",
		`{"name":"ci","role":"developer","scopes":["sessions"],"expires_in_seconds":3600}`)
	secret, id := made.str("secret"), made.str("id")
	if secret == "" || made.str("expires_at") == "" || made.str("kind") != "api" {
		t.Fatalf("made %s", made.body)
	}
	if got := b.ok("GET", "/v1/outboard/keys/"+id, nil); strings.Contains(string(got.body), secret) ||
		strings.Contains(string(got.body), "hash") {
		t.Errorf("a key shows its secret: %s", got.body)
	}
	as := func(key string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("X-Api-Key", key) } }
	if r := b.do("GET", "/v1/outboard/whoami", nil, as(secret)); r.status != 200 || r.str("role") != "developer" ||
		r.str("organization.id") != "default" {
		t.Errorf("whoami: %d %s", r.status, r.body)
	}
	b.refused(400, "at most", "POST", "/v1/outboard/keys", `{"name":"x","expires_in_seconds":99999999999}`)
	b.refused(400, "scopes", "POST", "/v1/outboard/keys", `{"name":"x","scopes":["everything"]}`)
	b.refused(400, "role", "POST", "/v1/outboard/keys", `{"name":"x","role":"root"}`)
	putKey(b, outboard.Key{Name: "people", Role: outboard.RoleAdmin, Scopes: []string{"people"}}, "obk_people")
	b.refused(403, "limited key", "POST", "/v1/outboard/keys", `{"name":"x"}`, as("obk_people"))
	b.refused(403, "limited key", "POST", "/v1/outboard/keys", `{"name":"x","scopes":["vaults"]}`, as("obk_people"))
	if r := b.do("POST", "/v1/outboard/keys", `{"name":"x","scopes":["people"]}`, as("obk_people")); r.status != 200 {
		t.Errorf("a key with the same scope: %d %s", r.status, r.body)
	}
	hour := outboard.Key{Name: "hour", Role: outboard.RoleAdmin, ExpiresAt: time.Now().Add(time.Hour)}
	putKey(b, hour, "obk_hour")
	b.refused(403, "end no later", "POST", "/v1/outboard/keys", `{"name":"x"}`, as("obk_hour"))
	b.refused(403, "end no later", "POST", "/v1/outboard/keys", `{"name":"x","expires_in_seconds":7200}`,
		as("obk_hour"))
	if r := b.do("POST", "/v1/outboard/keys", `{"name":"x","expires_in_seconds":60}`, as("obk_hour")); r.status != 200 {
		t.Errorf("a key that ends before its maker: %d %s", r.status, r.body)
	}
	hour.Name, hour.Kind = "ann", outboard.KeyLogin
	putKey(b, hour, "obk_login")
	if r := b.do("POST", "/v1/outboard/keys", `{"name":"x"}`, as("obk_login")); r.status != 200 {
		t.Errorf("a key that a person made who is signed in: %d %s", r.status, r.body)
	}
	over := outboard.Key{Name: "over", Role: outboard.RoleAdmin, ExpiresAt: b.longAgo()}
	putKey(b, over, "obk_over")
	b.refused(401, "not valid", "GET", "/v1/agents", nil, as("obk_over"))
	b.ok("DELETE", "/v1/outboard/keys/"+id, nil)
	b.refused(401, "not valid", "GET", "/v1/agents", nil, as(secret))
	if got := b.ok("GET", "/v1/outboard/keys?include_archived=true", nil); !strings.Contains(string(got.body), id) {
		t.Errorf("a revoked key is not listed: %s", got.body)
	}
	b.refused(400, "last key", "DELETE", "/v1/outboard/keys/"+b.operatorKey(), nil)
}

// Fails if a worker's key can do anything but a worker's work, or if work that is not built is pretended.
func TestEnvironmentKey(t *testing.T) {
	b := newBench(t)
	env := b.ok("POST", "/v1/environments", `{"name":"s","config":{"type":"self_hosted"}}`).str("id")
	b.refused(400, "self_hosted", "POST", "/v1/outboard/keys", `{"name":"w","environment_id":"`+b.environment()+`"}`)
	secret := b.ok("POST", "/v1/outboard/keys", `{"name":"w","environment_id":"`+env+`"}`).str("secret")
	worker := func(r *http.Request) { r.Header.Del("X-Api-Key"); r.Header.Set("Authorization", "Bearer "+secret) }
	work := []string{"GET /work/poll", "GET /work", "GET /work/stats", "GET /work/w_1", "POST /work/w_1",
		"POST /work/w_1/ack", "POST /work/w_1/heartbeat", "POST /work/w_1/stop"}
	other := b.ok("POST", "/v1/environments", `{"name":"o","config":{"type":"self_hosted"}}`).str("id")
	for _, route := range work {
		method, path, _ := strings.Cut(route, " ")
		b.refused(400, "not built", method, "/v1/environments/"+env+path, nil, worker)
		foreign := b.do(method, "/v1/environments/"+other+path, nil, worker)
		none := b.do(method, "/v1/environments/env_01nowhere"+path, nil, worker)
		if foreign.status != 404 || strings.ReplaceAll(foreign.str("error.message"), other,
			"env_01nowhere") != none.str("error.message") {
			t.Errorf("%s of another environment: %d %s", route, foreign.status, foreign.body)
		}
		b.refused(401, "API key", method, "/v1/environments/"+env+path, nil,
			func(r *http.Request) { r.Header.Del("X-Api-Key") })
	}
	for _, route := range api.Routes() { // everything else refuses it
		method, path, _ := strings.Cut(route, " ")
		if strings.Contains(path, "{environment}/work") {
			continue
		}
		path = strings.NewReplacer("{environment}", env, "...}", "}").Replace(path)
		for strings.Contains(path, "{") {
			path = path[:strings.Index(path, "{")] + "x" + path[strings.Index(path, "}")+1:]
		}
		if got := b.do(method, path, "{}", worker); got.status/100 == 2 || got.status == 501 {
			t.Errorf("%s: %d %s", route, got.status, got.body)
		}
	}
	for _, path := range []string{"/v1/agents", "/v1/environments/" + env, "/v1/sessions", "/v1/outboard/whoami",
		"/v1/files", "/v1/vaults", "/v1/skills"} {
		b.refused(403, "environment key", "GET", path, nil, worker)
	}
	b.refused(403, "environment key", "POST", "/v1/agents", `{"name":"a","model":"m"}`, worker)

	putKey(b, outboard.Key{Name: "w", Role: outboard.RoleViewer, Kind: outboard.KeyEnvironment,
		Org: outboard.DefaultOrg, Environment: outboard.EnvironmentID(env),
		ExpiresAt: b.longAgo()}, "obk_over")
	b.refused(401, "not valid", "GET", "/v1/environments/"+env+"/work/poll", nil,
		func(r *http.Request) { r.Header.Set("X-Api-Key", "obk_over") })
	b.ok("POST", "/v1/environments/"+env+"/archive", nil)
	b.refused(403, "archived", "GET", "/v1/environments/"+env+"/work/poll", nil, worker)
}

// Fails if the work of a request that nobody has authenticated grows with what the server has, or is much at all.
func TestStrangersCostTheSame(t *testing.T) {
	b := newBench(t)
	cost := func(route, key string) int64 {
		method, path, _ := strings.Cut(route, " ")
		before := b.store.Reads()
		r := b.do(method, path, "{}", func(q *http.Request) {
			q.Header.Del("X-Api-Key")
			if key != "" {
				q.Header.Set("X-Api-Key", key)
			}
		})
		if r.status/100 == 2 && path != "/healthz" {
			t.Errorf("%s lets a stranger in: %d", route, r.status)
		}
		return b.store.Reads() - before
	}
	routes := append(api.Routes(), "GET /healthz", "POST /v1/outboard/login", "POST /v1/outboard/login/start",
		"POST /v1/outboard/login/device", "GET /nothing")
	for range 200 {
		putKey(b, outboard.Key{Name: "k", Role: outboard.RoleViewer},
			string(outboard.NewID[outboard.KeyID](outboard.PrefixKey)))
	}
	const most = 5
	for _, route := range routes {
		for _, key := range []string{"", "obk_wrong"} {
			if n := cost(route, key); n > most {
				t.Errorf("%s with the key %q: %d reads of the store", route, key, n)
			}
		}
	}
}

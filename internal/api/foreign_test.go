//go:build linux

package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// foreignCase is how a route is asked for things of another organization. {name} in it stands for an id.
type foreignCase struct {
	query string
	body  string
}

// foreignCases has a case for every route with an id in its path: one that is missing fails the test. "-" is for
// those without a body.
var foreignCases = map[string]foreignCase{
	"GET /v1/agents/{agent}": {}, "POST /v1/agents/{agent}": {body: `{"name":"b"}`}, "GET /v1/agents/{agent}/versions": {},
	"POST /v1/agents/{agent}/archive": {},

	"GET /v1/environments/{environment}": {}, "POST /v1/environments/{environment}": {body: `{"name":"b"}`},
	"DELETE /v1/environments/{environment}": {}, "POST /v1/environments/{environment}/archive": {},
	"GET /v1/environments/{environment}/outboard/network": {},

	"GET /v1/sessions/{session}": {}, "POST /v1/sessions/{session}": {body: `{"title":"b"}`}, "DELETE /v1/sessions/{session}": {},
	"POST /v1/sessions/{session}/archive": {}, "POST /v1/sessions/{session}/fork": {body: `{}`},
	"POST /v1/sessions/{session}/rewind": {body: `{"seq":1,"conversation":true}`}, "GET /v1/sessions/{session}/outboard/workspace": {},
	"GET /v1/sessions/{session}/outboard/workspace/sent": {},
	"GET /v1/sessions/{session}/outboard/export":         {}, "GET /v1/sessions/{session}/outboard/checkpoints": {},
	"GET /v1/sessions/{session}/outboard/checkpoints/diff": {query: "?from={checkpoint}&to={checkpoint}"},
	"GET /v1/sessions/{session}/outboard/network":          {}, "GET /v1/sessions/{session}/outboard/network/log": {},
	"POST /v1/sessions/{session}/outboard/network/allow": {body: `{"host":"a.test","scope":"session"}`}, "DELETE /v1/sessions/{session}/outboard/network/allow": {query: "?host=a.test"},
	"POST /v1/sessions/{session}/events": {body: `{"events":[{"type":"user.interrupt"}]}`},
	"GET /v1/sessions/{session}/events":  {}, "GET /v1/sessions/{session}/events/stream": {query: "?include[]=outboard&after_seq=0"},
	"GET /v1/sessions/{session}/threads": {}, "GET /v1/sessions/{session}/threads/{thread}": {},
	"POST /v1/sessions/{session}/threads/{thread}/archive": {},
	"GET /v1/sessions/{session}/threads/{thread}/events":   {}, "GET /v1/sessions/{session}/threads/{thread}/stream": {},
	"GET /v1/sessions/{session}/resources": {}, "POST /v1/sessions/{session}/resources": {body: `{"type":"file","file_id":"{file}"}`},
	"GET /v1/sessions/{session}/resources/{resource}": {}, "DELETE /v1/sessions/{session}/resources/{resource}": {},
	"POST /v1/sessions/{session}/resources/{resource}": {body: `{"authorization_token":"x"}`},
	"GET /v1/sessions/{session}/outboard/why/{event}":  {},

	"GET /v1/boxes/{box}": {}, "DELETE /v1/boxes/{box}": {}, "POST /v1/boxes/{box}/pause": {},
	"POST /v1/boxes/{box}/resume": {body: `{"timeout_seconds":60}`}, "POST /v1/boxes/{box}/timeout": {body: `{"timeout_seconds":60}`},
	"POST /v1/boxes/{box}/processes":             {body: `{"argv":["true"]}`},
	"GET /v1/boxes/{box}/processes/{pid}/stream": {}, "POST /v1/boxes/{box}/processes/{pid}/input": {body: "x"},
	"POST /v1/boxes/{box}/processes/{pid}/resize": {body: `{"cols":80,"rows":24}`},
	"POST /v1/boxes/{box}/processes/{pid}/signal": {body: `{"signal":0}`},
	"GET /v1/boxes/{box}/network":                 {}, "PUT /v1/boxes/{box}/network": {body: `{}`}, "GET /v1/boxes/{box}/network/log": {},
	"GET /v1/boxes/{box}/files": {query: "?path=f"}, "GET /v1/boxes/{box}/files/content": {query: "?path=f"},
	"PUT /v1/boxes/{box}/files/content": {query: "?path=f",
		body: "x"}, "DELETE /v1/boxes/{box}/files": {query: "?path=f"},

	"GET /v1/templates/{template}": {}, "DELETE /v1/templates/{template}": {}, "GET /v1/templates/{template}/builds": {},
	"GET /v1/templates/{template}/builds/{build}": {}, "GET /v1/templates/{template}/builds/{build}/log": {},

	"GET /v1/files/{file}": {}, "DELETE /v1/files/{file}": {}, "GET /v1/files/{file}/content": {},

	"GET /v1/vaults/{vault}": {}, "POST /v1/vaults/{vault}": {body: `{"display_name":"b"}`}, "DELETE /v1/vaults/{vault}": {},
	"POST /v1/vaults/{vault}/archive":     {},
	"POST /v1/vaults/{vault}/credentials": {body: `{"auth":{"type":"static_bearer","mcp_server_url":"https://b.test","token":"t"}}`},
	"GET /v1/vaults/{vault}/credentials":  {}, "GET /v1/vaults/{vault}/credentials/{credential}": {},
	"POST /v1/vaults/{vault}/credentials/{credential}":                    {body: `{"display_name":"b"}`},
	"DELETE /v1/vaults/{vault}/credentials/{credential}":                  {},
	"POST /v1/vaults/{vault}/credentials/{credential}/archive":            {},
	"POST /v1/vaults/{vault}/credentials/{credential}/mcp_oauth_validate": {},
	"POST /v1/vaults/{vault}/credentials/{credential}/outboard/test":      {body: `{"method":"GET","url":"https://a.test/"}`},

	"GET /v1/policies/{policy}": {}, "GET /v1/policies/{policy}/versions": {},
	"GET /v1/approvals/{approval}": {}, "POST /v1/approvals/{approval}": {body: `{"result":"deny"}`},
	"GET /v1/grants/{grant}": {}, "DELETE /v1/grants/{grant}": {},
	"DELETE /v1/budgets/{budget}": {}, "DELETE /v1/kills/{kill}": {},
	"POST /v1/outboard/sandboxes/{sandbox}/stop": {}, "DELETE /v1/outboard/sandboxes/{sandbox}": {},
	"GET /v1/outboard/users/{user}": {}, "POST /v1/outboard/users/{user}": {body: `{"name":"b"}`}, "DELETE /v1/outboard/users/{user}": {},
	"POST /v1/outboard/users/{user}/restore": {}, "GET /v1/outboard/keys/{key}": {}, "DELETE /v1/outboard/keys/{key}": {},
	"GET /v1/ssh_keys/{ssh_key}": {}, "DELETE /v1/ssh_keys/{ssh_key}": {},
}

// ownless are routes whose path names nothing that belongs to anybody.
var ownless = []string{"GET /v1/models/{model...}",
	"DELETE /v1/outboard/organizations/{organization}" /* of who runs the server */}

// foreignBodies are requests that name things elsewhere than in the path. Each must fail for a stranger as for
// an id that never was.
var foreignBodies = []struct{ method, path, body string }{
	{"POST", "/v1/sessions", `{"agent":"{agent}","environment_id":"{own environment}"}`},
	{"POST", "/v1/sessions",
		`{"agent":{"type":"agent","id":"{agent}","version":1},"environment_id":"{own environment}"}`},
	{"POST", "/v1/sessions", `{"agent":"{own agent}","environment_id":"{environment}"}`},
	{"POST", "/v1/sessions", `{"agent":"{own agent}","environment_id":"{own environment}","vault_ids":["{vault}"]}`},
	{"POST", "/v1/sessions",
		`{"agent":"{own agent}","environment_id":"{own environment}","resources":[{"type":"file","file_id":"{file}"}]}`},
	{"POST", "/v1/sessions/{own session}/resources", `{"type":"file","file_id":"{file}"}`},
	{"POST", "/v1/sessions/{own session}/fork", `{"vault_ids":["{vault}"]}`},
	{"POST", "/v1/sessions/{own session}/events",
		`{"events":[{"type":"user.tool_confirmation","tool_use_id":"{event}","result":"allow"}]}`},
	{"POST", "/v1/boxes", `{"template":"{snapshot}"}`},
	{"POST", "/v1/boxes", `{"template":"{template}"}`},
	{"POST", "/v1/boxes", `{"template":"{template name}"}`},
	{"POST", "/v1/environments", `{"name":"e","config":{"type":"cloud","outboard":{"template":"{template name}"}}}`},
	{"POST", "/v1/templates", `{"name":"mine","from":"{template}"}`},
	{"POST", "/v1/templates", `{"name":"mine","from":"{template name}"}`},
	{"POST", "/v1/templates",
		`{"name":"mine","steps":[{"type":"copy","file_id":"{file}","source":".","target":"/opt"}]}`},
	{"GET", "/v1/templates/{template name}", ""},
	{"GET", "/v1/templates?page={templates after template}", ""},
	{"GET", "/v1/templates/{own template}/builds?page={template_builds after build}", ""},
	{"POST", "/v1/grants",
		`{"session_id":"{session}","actions":["bash"],"resources":["*"],"expires_at":"{soon}","why":"w"}`},
	{"POST", "/v1/grants",
		`{"agent_id":"{agent}","actions":["bash"],"resources":["*"],"expires_at":"{soon}","why":"w"}`},
	{"POST", "/v1/grants", `{"human_id":"{key}","actions":["bash"],"resources":["*"],"expires_at":"{soon}","why":"w"}`},
	{"POST", "/v1/policies", `{"level":"agent","target_id":"{agent}","text":""}`},
	{"POST", "/v1/policies", `{"level":"session","target_id":"{session}","text":""}`},
	{"POST", "/v1/policies/test", `{"session_id":"{session}","tool":"bash","input":{}}`},
	{"POST", "/v1/policies/test", `{"agent_id":"{agent}","tool":"bash","input":{}}`},
	{"POST", "/v1/budgets", `{"scope":"agent","target_id":"{agent}","limit":{"steps":9}}`},
	{"POST", "/v1/budgets", `{"scope":"session","target_id":"{session}","limit":{"steps":9}}`},
	{"POST", "/v1/budgets", `{"scope":"owner","target_id":"{key}","limit":{"steps":9}}`},
	{"POST", "/v1/budgets", `{"scope":"owner","target_id":"{user}","limit":{"steps":9}}`},
	{"DELETE", "/v1/budgets/owner:{key}", ""},
	{"DELETE", "/v1/budgets/owner:{user}", ""},
	{"DELETE", "/v1/budgets/session:{session}", ""},
	{"GET", "/v1/budgets?session_id={session}", ""},
	{"POST", "/v1/kills", `{"scope":"session","target_id":"{session}"}`},
	{"POST", "/v1/kills", `{"scope":"agent","target_id":"{agent}"}`},
	{"POST", "/v1/kills", `{"scope":"owner","target_id":"{key}"}`},
	{"POST", "/v1/kills", `{"scope":"environment","target_id":"{environment}"}`},
	{"POST", "/v1/kills", `{"scope":"credential","target_id":"{credential}"}`},
	{"POST", "/v1/outboard/keys", `{"name":"n","user_id":"{user}"}`},
	{"POST", "/v1/outboard/keys", `{"name":"n","environment_id":"{environment}"}`},
	{"GET", "/v1/outboard/users?page={users after user}", ""},
	{"GET", "/v1/outboard/keys?page={keys after key}", ""},
	{"GET", "/v1/ssh_keys?page={ssh_keys after ssh_key}", ""},
	{"GET", "/v1/sessions?agent_id={agent}", ""},
	{"GET", "/v1/sessions?page={sessions after session}", ""},
	{"GET", "/v1/environments?page={environments after environment}", ""},
	{"GET", "/v1/vaults?page={vaults after vault}", ""},
	{"GET", "/v1/vaults/{own vault}/credentials?page={credentials after credential}", ""},
	{"GET", "/v1/policies?page={policies after policy}", ""},
	{"GET", "/v1/budgets?page={budgets after budget}", ""},
	{"GET", "/v1/sessions/{own session}/events?page={events after event}", ""},
	{"GET", "/v1/sessions/{own session}/outboard/checkpoints/diff?from={checkpoint}&to={checkpoint}", ""},
	{"GET", "/v1/outboard/audit?actor={session}", ""},
	{"GET", "/v1/approvals?session_id={session}", ""},
	{"GET", "/v1/files?scope_id={session}", ""},
	{"GET", "/v1/files?ids[]={file}", ""},
	{"GET", "/v1/files?after_id={file}", ""},
	{"GET", "/v1/files?before_id={file}", ""},
	{"GET", "/v1/agents?page={agents after agent}", ""},
	{"GET", "/v1/approvals?page={approvals after approval}", ""},
	{"GET", "/v1/grants?page={grants after grant}", ""},
}

// tenants is a server with two organizations that each have one of everything.
type tenants struct {
	*bench
	ids    map[string]string // of the first
	own    map[string]string // of the second
	random map[string]string // of nobody, in the shape of the first's
	second string            // a key of the second
}

// Fails if an id of another organization gives anything else than an id that never was, to the byte, at any
// route; or if a route was added that nobody thought about.
func TestForeignOrganization(t *testing.T) {
	w := newTenants(t)
	for _, route := range api.Routes() {
		method, path, _ := strings.Cut(route, " ")
		c, known := foreignCases[route]
		if !strings.Contains(path, "{") || slices.Contains(ownless, route) {
			continue
		}
		if !known {
			t.Errorf("%s names something by id and has no case here: add one, and see that control asks whose it is",
				route)
			continue
		}
		w.same(method, path+c.query, c.body, http.StatusNotFound)
		if strings.Count(path, "{") > 1 && !strings.Contains(path, "{pid}") { // what is below the stranger's own
			first, rest, _ := strings.Cut(path, "}")
			w.same(method, strings.Replace(first, "{", "{own ", 1)+"}"+rest+c.query, c.body, 0)
		}
	}
	for _, pattern := range api.Unbuilt() {
		method, path, _ := strings.Cut(pattern, " ")
		w.same(method, path, "", http.StatusNotImplemented)
	}
	for _, c := range foreignBodies {
		w.same(c.method, c.path, c.body, 0)
	}
	w.controls()
}

// controls asks as the owner: a case whose request is wrong in itself would prove nothing.
func (w *tenants) controls() {
	w.t.Helper()
	routes := slices.Sorted(maps.Keys(foreignCases))
	last := func(r string) bool {
		return strings.HasPrefix(r, "DELETE") || strings.HasSuffix(r, "/archive") || strings.HasSuffix(r, "/pause")
	}
	slices.SortStableFunc(routes, func(a, b string) int { // what ends something comes last, the innermost first
		if last(a) != last(b) {
			return map[bool]int{true: 1, false: -1}[last(a)]
		}
		return strings.Count(b, "/") - strings.Count(a, "/")
	})
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		c := foreignCases[route]
		status, body := w.ask(w.key, method, fill(path+c.query, w.ids, w.ids), fill(c.body, w.ids, w.ids))
		if status == http.StatusNotFound || status == http.StatusForbidden || status == http.StatusUnauthorized ||
			status >= 500 {
			w.t.Errorf("%s by its owner: %d %s", route, status, body)
		}
	}
}

// same sends one request as the second organization with ids of the first, and with ids of nobody. want 0 is any
// status.
func (w *tenants) same(method, path, body string, want int) {
	w.t.Helper()
	status, got := w.ask(w.second, method, fill(path, w.ids, w.own), fill(body, w.ids, w.own))
	rstatus, rgot := w.ask(w.second, method, fill(path, w.random, w.own), fill(body, w.random, w.own))
	for name, id := range w.ids { // the answer may repeat what it was asked for
		got = strings.ReplaceAll(got, id, w.random[name])
	}
	got, rgot = requestIDs.ReplaceAllString(got, "req"), requestIDs.ReplaceAllString(rgot, "req")
	if status != rstatus || got != rgot {
		w.t.Errorf("%s %s %s:\na foreign id: %d %s\na random id:  %d %s", method, path, body, status, got, rstatus,
			rgot)
	}
	if want != 0 && status != want {
		w.t.Errorf("%s %s: %d %s, want %d", method, path, status, got, want)
	}
}

var requestIDs = regexp.MustCompile(`req_[0-9A-Za-z]+`)

var placeholderName = regexp.MustCompile(`\{([a-z_ ]+)(\.\.\.)?\}`)

// fill puts ids in: {x} from ids, {own x} from own.
func fill(text string, ids, own map[string]string) string {
	return placeholderName.ReplaceAllStringFunc(text, func(m string) string {
		name := strings.TrimSuffix(strings.Trim(m, "{}"), "...")
		if own, ok := own[strings.TrimPrefix(name, "own ")]; ok && strings.HasPrefix(name, "own ") {
			return own
		}
		if list, of, ok := strings.Cut(name, " after "); ok {
			return "page_" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"l":%q,"a":%q}`, list, ids[of]))
		}
		if id, ok := ids[name]; ok {
			return id
		}
		return "x_01" + name
	})
}

// ask sends one request and returns the answer; of a stream only that it began.
func (w *tenants) ask(key, method, path, body string) (int, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	req.Header.Set("Last-Event-ID", w.ids["event"]) // of the first organization, always
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return res.StatusCode, "a stream"
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, string(b)
}

func newTenants(t *testing.T) *tenants {
	t.Helper()
	b := whole(t, outboardtest.Options{})
	org := outboard.Organization{ID: outboard.NewID[outboard.OrgID](outboard.PrefixOrg), Name: "second",
		CreatedAt: time.Now()}
	if err := b.store.AddOrg(t.Context(), org); err != nil {
		t.Fatal(err)
	}
	w := &tenants{bench: b, second: "obk_second"}
	putKey(b, outboard.Key{Name: "second", Org: org.ID, Role: outboard.RoleAdmin}, w.second)
	w.ids = w.everything(b, outboard.DefaultOrg)
	other := *b
	other.key = w.second
	w.own = w.everything(&other, org.ID)
	w.random = map[string]string{}
	for name, id := range w.ids {
		if name != "pid" && name != "soon" {
			id = strange(id)
		}
		w.random[name] = id
	}
	return w
}

// strange returns an id of the same shape that nothing has: letters and digits are moved within what an id may
// consist of.
func strange(id string) string {
	b := []byte(id)
	start := strings.IndexByte(id, '_') + 1
	if start == 0 {
		start = len(id) - 10 // boxes and snapshots have no underscore
	}
	for i := max(start, len(b)-6); i < len(b); i++ {
		if b[i]++; bytes.IndexByte([]byte("abcdefghijklmnopqrstuvwxyz234567ABCDEFGHJKLMNPQRSTUVWXYZ189"), b[i]) < 0 ||
			b[i] == '8' {
			b[i] = 'a'
		}
	}
	return string(b)
}

// process starts a process in a sandbox and leaves it running.
func (b *bench) process(box, body string) int {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/boxes/"+box+"/processes", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", b.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			return boxEvents(b.t, "data: "+data)[0].Pid
		}
	}
	b.t.Fatal("no process was started")
	return 0
}

// everything makes one of each.
func (w *tenants) everything(b *bench, org outboard.OrgID) map[string]string {
	b.t.Helper()
	ids := map[string]string{"soon": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
	id, f := b.asking("always_ask")
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo one\n- say: end\n")))
	f.until("session.status_idle")
	call := b.pending(id)[0]
	ids["approval"] = call["id"].(string)
	b.ok("POST", "/v1/approvals/"+ids["approval"], map[string]any{"result": "allow"})
	f.until("session.status_idle") // the call has run, and left a checkpoint
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo two\n- say: end\n")))
	f.until("session.status_idle")
	ids["session"], ids["event"], ids["approval"] = id, b.pending(id)[0]["event_id"].(string), b.pending(id)[0]["id"].(string)
	s := b.ok("GET", "/v1/sessions/"+id, nil)
	ids["agent"], ids["environment"] = s.str("agent.id"), s.str("environment_id")
	ids["thread"] = b.ok("GET", "/v1/sessions/"+id+"/threads", nil).str("data.0.id")
	ids["checkpoint"] = b.ok("GET", "/v1/sessions/"+id+"/outboard/checkpoints", nil).str("data.0.id")
	for _, m := range b.ok("GET", "/v1/outboard/sandboxes", nil).get("data").([]any) {
		if m := m.(map[string]any); m["session_id"] == id {
			ids["sandbox"] = m["id"].(string)
		}
	}
	if ids["sandbox"] == "" {
		b.t.Fatal("the session's sandbox is not in the list")
	}
	ids["file"] = b.upload("file", "f:content").str("id")
	ids["resource"] = b.ok("POST", "/v1/sessions/"+id+"/resources", map[string]any{"type": "file",
		"file_id": ids["file"]}).str("id")
	b.ok("POST", "/v1/sessions/"+id,
		map[string]any{"metadata": map[string]string{"outboard.workspace": ids["file"] + ":tar"}})
	ids["vault"] = b.ok("POST", "/v1/vaults", `{"display_name":"v"}`).str("id")
	ids["credential"] = b.ok("POST", "/v1/vaults/"+ids["vault"]+"/credentials",
		`{"auth":{"type":"static_bearer","mcp_server_url":"https://a.test","token":"t"}}`).str("id")
	ids["policy"] = b.ok("POST", "/v1/policies",
		`{"level":"organization","text":"permit (principal, action, resource);"}`).str("id")
	ids["grant"] = b.ok("POST", "/v1/grants", map[string]any{"actions": []string{"bash"}, "resources": []string{"*"},
		"expires_at": ids["soon"], "why": "w"}).str("id")
	ids["budget"] = b.ok("POST", "/v1/budgets", map[string]any{"scope": "agent", "target_id": ids["agent"],
		"limit": map[string]any{"steps": 9}}).str("id")
	spare := b.ok("POST", "/v1/agents", `{"name":"spare","model":"script/steps"}`).str("id")
	ids["kill"] = b.ok("POST", "/v1/kills", map[string]any{"scope": "agent", "target_id": spare,
		"level": "pause"}).str("kill.id")
	ids["box"] = b.ok("POST", "/v1/boxes", `{"timeout_seconds":600}`).str("id")
	snap := outboard.BoxSnapshot{ID: outboard.NewSnapshotID(), Org: org, Name: "snapshot-" +
		strings.ToLower(string(org[max(0, len(org)-5):])), CreatedAt: time.Now()}
	if err := b.store.PutSnapshot(b.t.Context(), snap); err != nil {
		b.t.Fatal(err)
	}
	ids["snapshot"] = string(snap.ID)
	tpl, err := b.store.AddTemplateBuild(b.t.Context(), outboard.Template{ID: outboard.NewTemplateID(), Name: "t" +
		snap.Name, Org: org, CreatedAt: time.Now()},
		outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), Org: org, State: outboard.TemplateWaiting,
			CreatedAt: time.Now()})
	if err != nil {
		b.t.Fatal(err)
	}
	builds, err := b.store.TemplateBuilds(b.t.Context(), tpl.ID, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	ids["template"], ids["template name"], ids["build"] = string(tpl.ID), tpl.Name, string(builds[0].ID)
	ids["key"] = string(putKey(b, outboard.Key{Name: "k", Org: org, Role: outboard.RoleDeveloper}, "obk_k"+string(org)))
	ids["ssh_key"] = b.ok("POST", "/v1/ssh_keys",
		map[string]any{"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE a@b"}).str("id")
	ids["user"] = b.ok("POST", "/v1/outboard/users", `{"email":"a@a.test","role":"viewer"}`).str("id")
	b.ok("PUT", "/v1/boxes/"+ids["box"]+"/files/content?path=f", "x")
	ids["pid"] = fmt.Sprint(b.process(ids["box"], `{"argv":["sleep","600"],"stdin":true}`))
	for name, id := range ids {
		if id == "" {
			b.t.Fatalf("there is no %s", name)
		}
	}
	return ids
}

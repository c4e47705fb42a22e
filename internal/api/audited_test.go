package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// records returns the audit's records of an action, oldest first.
func (b *bench) records(action string) (out []map[string]any) {
	b.t.Helper()
	q := url.Values{"action": {action}, "limit": {"100"}, "order": {"asc"}}
	for {
		page := b.ok("GET", "/v1/outboard/audit?"+q.Encode(), nil)
		for _, r := range page.get("data").([]any) {
			out = append(out, r.(map[string]any))
		}
		if page.str("next_page") == "" {
			return out
		}
		q.Set("page", page.str("next_page"))
	}
}

// refusals returns what was refused, as the records name it.
func (b *bench) refusals() (out []string) {
	b.t.Helper()
	for _, r := range b.records("api.refused") {
		if r["decision"] != outboard.Refused {
			b.t.Errorf("a refusal is recorded as %v", r)
		}
		out = append(out, r["resource"].(string))
	}
	return out
}

// Fails if files, resources or the host's images change without a record, which is written whatever becomes of the
// change.
func TestChangesAreRecorded(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	file := b.upload("file", "f:x").str("id")
	session := b.session()
	resource := b.ok("POST", "/v1/sessions/"+session+"/resources", map[string]any{"type": "file",
		"file_id": file}).str("id")
	b.ok("DELETE", "/v1/sessions/"+session+"/resources/"+resource, nil)
	b.ok("DELETE", "/v1/files/"+file, nil)
	b.do("POST", "/v1/outboard/images/pull", `{"name":"127.0.0.1:1/none:1"}`)
	b.do("POST", "/v1/outboard/images/import?name=a:1", "no archive")
	b.do("DELETE", "/v1/outboard/images?name=a:1", nil)
	b.do("POST", "/v1/outboard/images/prune", `{"unused_seconds":86400}`)
	for action, resource := range map[string]string{"file.create": file, "file.delete": file,
		"session.add_resource": session + " " + resource,
		"session.delete_resource": session + " " +
			resource, "image.pull": "127.0.0.1:1/none:1", "image.import": "a:1", "image.rm": "a:1", "image.prune": ""} {
		if got := b.records(action); len(got) != 1 || got[0]["resource"] != resource ||
			got[0]["decision"] != outboard.Allowed {
			t.Errorf("%s: %v", action, got)
		}
	}
}

// Fails if who is refused leaves no record, or can fill the disk with records by asking again, from one address or from
// many.
func TestRefusalsAreRecorded(t *testing.T) {
	var mu sync.Mutex
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	later := func(d time.Duration) { mu.Lock(); now = now.Add(d); mu.Unlock() }
	b := newBench(t, func(c *control.Config) {
		c.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	})
	none := func(r *http.Request) { r.Header.Del("X-Api-Key") }
	wrong := func(r *http.Request) { r.Header.Set("X-Api-Key", "obk_wrong") }
	foreign := func(r *http.Request) { r.Header.Set("Origin", "https://evil.test") }
	for range 50 {
		b.refused(401, "", "GET", "/v1/agents", nil, none)
		b.refused(401, "", "POST", "/v1/files", nil, wrong)
		b.refused(401, "", "GET", "/v1//agents", nil, none)
		b.refused(403, "", "GET", "/v1/agents", nil, foreign)
	}
	if got := b.records("api.refused"); len(got) != 1 || got[0]["resource"] != "GET /v1/agents" ||
		got[0]["actor"] != "stranger" || got[0]["rule"] != "no valid key" {
		t.Errorf("in the first minute: %v", got)
	}
	later(time.Minute)
	b.refused(401, "", "GET", "/v1/agents", nil, none)
	if got := b.records("api.refused"); len(got) != 2 || !strings.Contains(fmt.Sprint(got), "left_out:199") {
		t.Errorf("in the second minute: %v", got)
	}
	for i := range 1000 {
		b.ctl.Refused(t.Context(), outboard.Caller{}, control.RefusedRequest{Route: "GET /v1/agents",
			From: fmt.Sprintf("[2001:db8:%x::1]:1", i), Why: outboard.Errorf(outboard.Unauthenticated, "x")})
		b.ctl.Refused(t.Context(), outboard.Caller{}, control.RefusedRequest{Route: "GET /v1/agents",
			From: fmt.Sprintf("[2001:db8::%x]:1", i), Why: outboard.Errorf(outboard.Unauthenticated, "x")})
	}
	if n := len(b.records("api.refused")); n > 2+11 {
		t.Errorf("1000 networks have %d records", n-2)
	}
	later(time.Minute)
	b.ctl.Refused(t.Context(), outboard.Caller{}, control.RefusedRequest{Route: "GET /v1/agents", From: "192.0.2.1:1",
		Why: outboard.Errorf(outboard.Unauthenticated, "x")})
	if got := b.records("api.refused"); len(got) > 2+11+1 {
		t.Errorf("a minute later: %d", len(got))
	}

	putKey(b, outboard.Key{Name: "viewer", Role: outboard.RoleViewer}, "obk_viewer")
	before := len(b.refusals())
	viewer := func(r *http.Request) { r.Header.Set("X-Api-Key", "obk_viewer") }
	for i := range 20 {
		b.refused(403, "role developer", "DELETE", fmt.Sprintf("/v1/files/file_%d", i), nil, viewer)
		b.refused(403, "role developer", "POST", "/v1/agents", `{"name":"a","model":"m"}`, viewer)
	}
	if got := b.refusals()[before:]; !slices.Equal(got, []string{"DELETE /v1/files/{file} /v1/files/file_0",
		"POST /v1/agents /v1/agents"}) {
		t.Errorf("a viewer: %q", got)
	}
}

// Fails if what is done twice, and changes nothing the second time, is taken for a change without a record.
func TestTwiceIsOnce(t *testing.T) {
	b := newBench(t)
	vault := b.ok("POST", "/v1/vaults", `{"display_name":"v"}`).str("id")
	credential := b.ok("POST", "/v1/vaults/"+vault+"/credentials",
		`{"auth":{"type":"static_bearer","mcp_server_url":"https://a.test","token":"t"}}`).str("id")
	for _, path := range []string{"/v1/agents/" + b.agent(), "/v1/environments/" + b.environment(), "/v1/sessions/" +
		b.session(),
		"/v1/vaults/" + vault + "/credentials/" + credential, "/v1/vaults/" + vault} {
		b.ok("POST", path+"/archive", nil)
		b.ok("POST", path+"/archive", nil) // the bench watches
	}
	agent := b.agent()
	b.ok("POST", "/v1/agents/"+agent, `{"name":"a"}`)
	user := b.ok("POST", "/v1/outboard/users", `{"email":"b@b.test","role":"viewer"}`).str("id")
	b.ok("POST", "/v1/outboard/users/"+user+"/restore", nil)
	b.ok("DELETE", "/v1/outboard/users/"+user, nil)
	b.ok("DELETE", "/v1/outboard/users/"+user, nil)
}

//go:build linux

package bridge_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/bridge"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// door is the bridge of a server, with one box.
type door struct {
	t   *testing.T
	srv *outboardtest.Server
	url string
	key string
	box string
}

func open(t *testing.T) *door {
	t.Helper()
	srv := outboardtest.Start(t, outboardtest.Options{NoRunner: true})
	h := httptest.NewServer(bridge.New(bridge.Config{Control: srv.Control}))
	t.Cleanup(func() { h.CloseClientConnections(); h.Close() })
	d := &door{t: t, srv: srv, url: h.URL + bridge.Prefix + "/v1/sandbox", key: srv.Key}
	d.box = d.create()
	t.Cleanup(func() { d.ask("DELETE", "/"+d.box, "") })
	return d
}

func (d *door) create() string {
	d.t.Helper()
	var made struct{ ID string }
	if status, body := d.ask("POST", "", ""); status != 200 || json.Unmarshal([]byte(body), &made) != nil ||
		made.ID == "" {
		d.t.Fatalf("making a box: %d %s", status, body)
	}
	return made.ID
}

// ask makes a request with the door's key, and returns the answer.
func (d *door) ask(method, path, body string, headers ...string) (int, string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(d.t.Context()), // a box is removed after the test
		method, d.url+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	if d.key != "" {
		req.Header.Set("Authorization", "Bearer "+d.key)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// refused makes a request that must be refused so, in the shape of the protocol.
func (d *door) refused(status int, word, method, path, body string, headers ...string) {
	d.t.Helper()
	got, text := d.ask(method, path, body, headers...)
	var e struct{ Error, Code string }
	if err := json.Unmarshal([]byte(text), &e); err != nil || got != status || e.Code == "" ||
		!strings.Contains(e.Error, word) {
		d.t.Errorf("%s %s: %d %s, want %d with %q", method, path, got, text, status, word)
	}
}

// ran is the positive control: the same request, by who may make it.
func (d *door) ran() {
	d.t.Helper()
	if status, body := d.ask("POST", "/"+d.box+"/exec", `{"argv":["true"],"later":1}`); status != 200 ||
		!strings.Contains(body, `"exit_code":0`) {
		d.t.Errorf("control: %d %s", status, body)
	}
}

func (d *door) put(k outboard.Key, secret string) outboard.KeyID {
	d.t.Helper()
	k.ID, k.Hash, k.CreatedAt = outboard.NewID[outboard.KeyID](outboard.PrefixKey), control.HashSecret(secret), time.Now()
	if err := d.srv.Store.PutKey(d.t.Context(), k); err != nil {
		d.t.Fatal(err)
	}
	return k.ID
}

// Each thing that the bridge does to a box, as somebody asks for it who may not.
var verbs = []struct{ method, path, body string }{
	{"DELETE", "", ""}, {"GET", "/running", ""}, {"POST", "/exec", `{"argv":["true"]}`}, {"GET", "/file/workspace/x",
		""}, {"PUT", "/file/workspace/x", "x"},
	{"POST", "/persist", ""}, {"POST", "/hydrate", ""}, {"GET", "/pty", ""}, {"POST", "/session", "{}"}, {"DELETE",
		"/session/s", ""},
	{"POST", "/tunnel/8000", "{}"}, {"DELETE", "/tunnel/8000", ""},
}

// Broken if the bridge lets in who has no key, one that is wrong, revoked or over, or one that may not use
// boxes; or reaches a box of another organization, or tells such a box from one that never was.
func TestWhoIsRefused(t *testing.T) {
	d := open(t)
	d.ran()
	everywhere := func(status int, word, key, box string) {
		t.Helper()
		as := *d
		as.key = key
		for _, v := range verbs {
			as.refused(status, word, v.method, "/"+box+v.path, v.body)
		}
	}
	everywhere(401, "", "", d.box)
	everywhere(401, "", "obk_wrong", d.box)
	revoked := d.put(outboard.Key{Name: "r", Org: outboard.DefaultOrg, Role: outboard.RoleDeveloper}, "obk_revoked")
	as := *d
	as.key = "obk_revoked"
	as.ran() // while it is good
	if _, err := d.srv.Store.RevokeKey(t.Context(), revoked, time.Now()); err != nil {
		t.Fatal(err)
	}
	everywhere(401, "", "obk_revoked", d.box)
	d.put(outboard.Key{Name: "o", Org: outboard.DefaultOrg, Role: outboard.RoleDeveloper, ExpiresAt: time.Now().
		Add(-time.Hour)}, "obk_over")
	everywhere(401, "", "obk_over", d.box)
	d.put(outboard.Key{Name: "v", Org: outboard.DefaultOrg, Role: outboard.RoleViewer}, "obk_viewer")
	as.key = "obk_viewer"
	as.refused(403, "", "POST", "", "")
	as.refused(403, "", "POST", "/"+d.box+"/exec", `{"argv":["true"]}`)

	org := outboard.Organization{ID: outboard.NewID[outboard.OrgID](outboard.PrefixOrg), Name: "second",
		CreatedAt: time.Now()}
	if err := d.srv.Store.AddOrg(t.Context(), org); err != nil {
		t.Fatal(err)
	}
	d.put(outboard.Key{Name: "s", Org: org.ID, Role: outboard.RoleAdmin}, "obk_second")
	as.key = "obk_second"
	never := string(outboard.NewBoxID())
	for _, v := range verbs {
		status, theirs := as.ask(v.method, "/"+d.box+v.path, v.body)
		other, none := as.ask(v.method, "/"+never+v.path, v.body)
		if status != 404 || other != 404 || strings.ReplaceAll(theirs, d.box, "") != strings.ReplaceAll(none, never,
			"") {
			t.Errorf("%s %s of another organization: %d %s; of nobody: %d %s", v.method, v.path, status, theirs, other,
				none)
		}
	}
	d.ran()
}

// Broken if the bridge takes what is too large, broken or ambiguous, a session or a box that is over, or a path that it
// does not have.
func TestWhatIsRefused(t *testing.T) {
	d := open(t)
	box := "/" + d.box
	for body, word := range map[string]string{`{"argv":["true"],"argv":["false"]}`: "given twice",
		`{"argv":["true"]} {}`: "malformed", `["true"]`: "must be a JSON object",
		`{"argv":["true"],"Argv":["false"]}`: "it is called argv", "{\"argv\":[\"\xff\"]}": "UTF-8", `{"argv":["\ud800"]}`: "surrogate", `{"argv":`: "too early",
		`{"argv":"ls"}`: "argv: expected an array, got string", `{"argv":[]}`: "argv must name a program", `{}`: "argv must name", "": "argv must name",
		`{"argv":["true"],"timeout_ms":-1}`: "timeout_ms must not be negative"} {
		d.refused(400, word, "POST", box+"/exec", body)
	}
	for _, path := range []string{"/session", "/tunnel/8000"} {
		d.refused(400, "given twice", "POST", box+path, `{"x":1,"x":2}`)
		d.refused(400, "must be a JSON object", "POST", box+path, `[]`)
	}
	d.refused(413, "larger than", "POST", box+"/exec", `{"argv":["`+strings.Repeat("x", 1<<20)+`"]}`)
	d.refused(413, "larger than", "POST", box+"/session", `{"cwd":"`+strings.Repeat("x", 1<<20)+`"}`)
	d.refused(400, "at most", "POST", box+"/session", `{"env":{"A":"`+strings.Repeat("x", 1<<17)+`"}}`)
	d.refused(400, "name of a variable", "POST", box+"/session", `{"env":{"A-B":"x"}}`)
	d.refused(400, "a session is called by", "POST", box+"/session", `{"id":"../x"}`)
	d.refused(404, "", "POST", box+"/fly", "{}")
	d.refused(405, "not allowed", "GET", box+"/exec", "")
	d.refused(501, "", "POST", box+"/mount", "{}")
	d.refused(501, "", "POST", box+"/unmount", "{}")
	d.refused(400, "", "POST", box+"/tunnel/0", "{}")

	if status, body := d.ask("POST", box+"/session", `{"id":"mine","cwd":"/tmp"}`); status != 200 {
		t.Fatalf("making a session: %d %s", status, body)
	}
	in := []string{"Session-Id", "mine"}
	if status, body := d.ask("POST", box+"/exec", `{"argv":["true"]}`, in...); status != 200 ||
		!strings.Contains(body, `"exit_code":0`) {
		t.Fatalf("control: in the session: %d %s", status, body)
	}
	d.refused(409, `there is a session "mine" already`, "POST", box+"/session", `{"id":"mine"}`)
	d.refused(404, "there is no session", "POST", box+"/exec", `{"argv":["true"]}`, "Session-Id", "other")
	d.refused(400, "not the name of a session", "POST", box+"/exec", `{"argv":["true"]}`, "Session-Id", "../x")
	if status, body := d.ask("DELETE", box+"/session/mine", ""); status != 200 {
		t.Fatalf("ending the session: %d %s", status, body)
	}
	d.refused(404, "there is no session", "POST", box+"/exec", `{"argv":["true"]}`, in...)
	d.refused(404, "there is no session", "DELETE", box+"/session/mine", "")

	d.ran()
	gone := d.create()
	if status, body := d.ask("DELETE", "/"+gone, ""); status != 204 {
		t.Fatalf("removing a box: %d %s", status, body)
	}
	for _, v := range verbs {
		d.refused(404, "", v.method, "/"+gone+v.path, v.body)
	}
}

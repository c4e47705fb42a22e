//go:build linux

package e2b

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// foreignBodies has the body of every route of the control plane that names a sandbox or a template in its path.
var foreignBodies = map[string]string{
	"GET /sandboxes/{}": "", "DELETE /sandboxes/{}": "", "POST /sandboxes/{}/connect": `{"timeout":60}`, "POST /v2/sandboxes/{}/connect": `{"timeout":60}`,
	"POST /sandboxes/{}/resume": `{"timeout":60}`, "POST /sandboxes/{}/pause": "", "POST /sandboxes/{}/timeout": `{"timeout":60}`,
	"POST /sandboxes/{}/refreshes": `{"duration":60}`, "POST /sandboxes/{}/snapshots": `{}`, "POST /sandboxes/{}/fork": `{}`,
	"PUT /sandboxes/{}/network": `{}`, "GET /sandboxes/{}/metrics": "", "GET /sandboxes/{}/logs": "", "GET /v2/sandboxes/{}/logs": "",
	"GET /templates/aliases/{}": "", "DELETE /templates/{}": "", "GET /templates/{}": "", "GET /templates/{}/tags": "",
	"GET /templates/{}/files/{}": "", "POST /v2/templates/{}/builds/{}": `{"fromTemplate":"base"}`, "GET /templates/{}/builds/{}/status": "",
	"GET /templates/{}/builds/{}/logs": "",
}

// Fails if a sandbox or template of another organization gives anything else than one that never was, at any
// route of the control plane; or if a route was added that nobody thought about.
func TestForeignOrganization(t *testing.T) {
	srv := outboardtest.Start(t, outboardtest.Options{NoRunner: true})
	s := New(Config{Control: srv.Control})
	h := httptest.NewServer(s)
	t.Cleanup(func() { h.CloseClientConnections(); h.Close(); s.Close() })
	const stranger = "obk_stranger"
	if err := srv.Store.AddOrg(t.Context(), outboard.Organization{ID: "org_second", Name: "second",
		CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := srv.Store.PutKey(t.Context(), outboard.Key{ID: "apikey_second", Hash: control.HashSecret(stranger),
		Org:  "org_second",
		Role: outboard.RoleAdmin, CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	ask := func(key, method, path, body string) (int, string) {
		t.Helper()
		return askAs(t, key, method, h.URL+path, body)
	}
	r := &rig{t: t, url: h.URL, key: APIKey(srv.Key)}
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","timeout":600}`,
		&r.box); status != http.StatusCreated {
		t.Fatalf("creating a sandbox: %d", status)
	}
	snap := outboard.BoxSnapshot{ID: outboard.NewSnapshotID(), Name: "mine", CreatedAt: time.Now()}
	if err := srv.Store.PutSnapshot(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	tpl, build, err := srv.Control.RequestTemplateBuild(t.Context(), outboard.Caller{Key: "apikey_x",
		Role: outboard.RoleAdmin, Org: outboard.DefaultOrg}, "theirs", nil, outboard.SandboxLimits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, rt := range s.controlPlane() {
		path := "/" + strings.Join(rt.path, "/")
		if !strings.Contains(path, "{}") {
			continue
		}
		body, known := foreignBodies[rt.method+" "+path]
		if !known {
			t.Errorf("%s %s names something by id and has no case here: add one, and see that control asks whose it is",
				rt.method, path)
			continue
		}
		id, none := r.box.SandboxID, string(outboard.NewBoxID())
		if strings.HasPrefix(path, "/templates") {
			id, none = string(snap.ID), string(outboard.NewSnapshotID())
		}
		if len(rt.path) > 2 && rt.path[1] != "aliases" && strings.Contains(path, "templates/{}/") {
			id, none = string(tpl.ID), string(outboard.NewTemplateID())
			path = strings.Replace(path, "/builds/{}", "/builds/"+string(build.ID), 1)
			path = strings.Replace(path, "/files/{}", "/files/abc", 1)
		}
		status, got := ask(stranger, rt.method, strings.Replace(path, "{}", id, 1), body)
		rstatus, rgot := ask(stranger, rt.method, strings.Replace(path, "{}", none, 1), body)
		if got = strings.ReplaceAll(got, id, none); status != http.StatusNotFound || status != rstatus || got != rgot {
			t.Errorf("%s %s:\na foreign id: %d %s\na random id:  %d %s", rt.method, path, status, got, rstatus, rgot)
		}
	}
	for _, path := range []string{"/sandboxes", "/v2/sandboxes", "/snapshots", "/sandboxes/metrics?sandbox_ids=" +
		r.box.SandboxID} {
		if status, got := ask(stranger, "GET", path, ""); status != http.StatusOK ||
			strings.Contains(got, r.box.SandboxID) || strings.Contains(got, string(snap.ID)) {
			t.Errorf("%s shows a stranger %d %s", path, status, got)
		}
	}
	if status, got := ask(stranger, "POST", "/sandboxes", `{"templateID":"mine"}`); status != http.StatusNotFound {
		t.Errorf("a sandbox from another's template: %d %s", status, got)
	}
	for _, ref := range []string{string(tpl.ID), "theirs"} {
		if status, got := ask(stranger, "POST", "/sandboxes",
			`{"templateID":"`+ref+`"}`); status != http.StatusNotFound {
			t.Errorf("a sandbox from another's template: %d %s", status, got)
		}
		if status, got := ask(stranger, "POST", "/templates/tags",
			`{"target":"`+ref+`","tags":["x"]}`); status != http.StatusNotFound {
			t.Errorf("a tag of another's template: %d %s", status, got)
		}
	}
	if status, got := ask(stranger, "GET", "/templates", ""); status != http.StatusOK ||
		strings.Contains(got, string(tpl.ID)) {
		t.Errorf("/templates shows a stranger %d %s", status, got)
	}
	link := func(path string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "PUT", path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	status, got := ask(r.key, "GET", "/templates/"+string(tpl.ID)+"/files/abc", "")
	var up struct{ URL string }
	if err := json.Unmarshal([]byte(got), &up); err != nil || status != http.StatusCreated {
		t.Fatalf("a link for an upload: %d %s", status, got)
	}
	for what, bad := range map[string]string{"of another file": strings.Replace(up.URL, "/abc?", "/abd?", 1),
		"for longer": strings.Replace(up.URL, "expires=1", "expires=2", 1),
		"of another template": strings.Replace(up.URL, string(tpl.ID), string(outboard.NewTemplateID()),
			1), "of nobody": h.URL + "/templates/" + string(tpl.ID) + "/files/abc?signature="} {
		if status := link(bad); status != http.StatusUnauthorized {
			t.Errorf("an upload with a link %s: %d", what, status)
		}
	}
	if status := link(up.URL); status != http.StatusOK {
		t.Errorf("an upload with a good link: %d", status)
	}
	// the owner finds them
	for _, path := range []string{"/sandboxes/" + r.box.SandboxID, "/templates/aliases/mine",
		"/templates/aliases/theirs"} {
		if status, got := ask(r.key, "GET", path, ""); status != http.StatusOK {
			t.Errorf("%s by its owner: %d %s", path, status, got)
		}
	}
	if status, _ := ask(r.key, "DELETE", "/sandboxes/"+r.box.SandboxID, ""); status != http.StatusNoContent {
		t.Errorf("the owner's sandbox was not there any more: %d", status)
	}
}

// askAs makes a request with an API key.
func askAs(t *testing.T, key, method, url, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

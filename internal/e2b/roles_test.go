//go:build linux

package e2b

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/store"
)

// readable are the routes of the control plane that a viewer may use. All others want a developer, and the scope
// sandboxes of a limited key.
var readable = []string{"GET /sandboxes", "GET /v2/sandboxes", "GET /sandboxes/{}", "GET /snapshots", "GET /templates",
	"GET /v2/templates",
	"GET /templates/aliases/{}", "GET /templates/{}", "GET /templates/{}/tags", "GET /templates/{}/builds/{}/status", "GET /templates/{}/builds/{}/logs"}

// roleBodies are the bodies of routes that name nothing in their path.
var roleBodies = map[string]string{"POST /sandboxes": `{"templateID":"base"}`,
	"POST /v2/sandboxes": `{"templateID":"base"}`, "POST /v3/templates": `{"name":"n"}`,
	"POST /templates/tags": `{"target":"theirs","tags":["x"]}`, "DELETE /templates/tags": `{"name":"theirs","tags":["x"]}`}

// Fails if somebody who may only read changes something at any route of the control plane, touches a box, or is
// shown what opens one; or if a route was added that nobody thought about.
func TestReadersReadOnly(t *testing.T) {
	srv := outboardtest.Start(t, outboardtest.Options{NoRunner: true})
	s := New(Config{Control: srv.Control})
	h := httptest.NewServer(s)
	t.Cleanup(func() { h.CloseClientConnections(); h.Close(); s.Close() })
	for secret, k := range map[string]outboard.Key{"obk_viewer": {ID: "apikey_viewer", Role: outboard.RoleViewer},
		"obk_reader": {ID: "apikey_reader", Role: outboard.RoleAdmin, Scopes: []string{"read"}},
		"obk_other": {ID: "apikey_other", Role: outboard.RoleAdmin, Scopes: []string{"sessions", "vaults", "approvals",
			"policies", "people"}}} {
		k.Hash, k.Org, k.CreatedAt = control.HashSecret(secret), outboard.DefaultOrg, time.Now()
		if err := srv.Store.PutKey(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{t: t, url: h.URL, key: APIKey(srv.Key)}
	if status := r.api("POST", "/sandboxes",
		`{"templateID":"base","timeout":600,"network":{"allowPublicTraffic":false}}`, &r.box); status != http.StatusCreated || r.box.EnvdAccessToken == "" || r.box.TrafficAccessToken == nil {
		t.Fatalf("creating a sandbox: %d %+v", status, r.box)
	}
	t.Cleanup(func() { r.api("DELETE", "/sandboxes/"+r.box.SandboxID, "", nil) })
	tpl, build, err := srv.Control.RequestTemplateBuild(t.Context(), outboard.Caller{Key: "apikey_x",
		Role: outboard.RoleAdmin, Org: outboard.DefaultOrg}, "theirs", nil, outboard.SandboxLimits{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(key string, rt route) (int, string) {
		t.Helper()
		path := "/" + strings.Join(rt.path, "/")
		body := cmp.Or(foreignBodies[rt.method+" "+path], roleBodies[rt.method+" "+path])
		path = strings.NewReplacer("sandboxes/{}", "sandboxes/"+r.box.SandboxID, "aliases/{}", "aliases/theirs",
			"files/{}", "files/abc", "builds/{}", "builds/"+string(build.ID)).Replace(path)
		path = strings.Replace(path, "templates/{}", "templates/"+string(tpl.ID), 1)
		if strings.HasSuffix(path, "/metrics") && len(rt.path) == 2 {
			path += "?sandbox_ids=" + r.box.SandboxID
		}
		return askAs(t, key, rt.method, h.URL+path, body)
	}
	known := 0
	refused := func(name string) bool {
		list, err := srv.Store.AuditRecords(t.Context(), store.AuditQuery{Action: "api.refused", Actor: "apikey_viewer",
			Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(r outboard.AuditRecord) bool {
			return strings.HasPrefix(r.Resource, "e2b "+name+" ") && r.Decision == outboard.Refused
		})
	}
	for _, rt := range s.controlPlane() {
		name := rt.method + " /" + strings.Join(rt.path, "/")
		reads := slices.Contains(readable, name)
		if reads {
			known++
		}
		for _, key := range []string{"obk_viewer", "obk_reader", "obk_other"} {
			want := http.StatusForbidden
			switch {
			case reads:
				want = http.StatusOK
			case strings.HasSuffix(name, "/resume"):
				want = http.StatusConflict // that it runs is no secret
			}
			status, got := ask(key, rt)
			if status != want {
				t.Errorf("%s with %s: %d %s, want %d", name, key, status, got, want)
			}
			if strings.Contains(got, r.box.EnvdAccessToken) || strings.Contains(got, *r.box.TrafficAccessToken) {
				t.Errorf("%s shows %s a token: %s", name, key, got)
			}
		}
		if want := !reads && !strings.HasSuffix(name, "/resume"); refused(name) != want {
			t.Errorf("that a viewer was refused %s is recorded: %v, want %v", name, !want, want)
		}
		if rt.method == "DELETE" || strings.HasSuffix(name, "/pause") {
			continue // the owner's below
		}
		none := strings.HasSuffix(name, "/tags") && rt.method == "POST" // no build of the template is ready
		if status, got := ask(r.key, rt); status == http.StatusForbidden || status == http.StatusUnauthorized ||
			status == http.StatusNotFound && !none {
			t.Errorf("%s by its owner: %d %s", name, status, got)
		}
	}
	if known != len(readable) {
		t.Errorf("%d of the %d routes that a viewer may use are there", known, len(readable))
	}
	if status, got := ask(r.key, at("GET", "/sandboxes/{}", nil)); status != http.StatusOK ||
		!strings.Contains(got, r.box.EnvdAccessToken) {
		t.Errorf("its owner is not shown the token: %d %s", status, got)
	}
	if status, _ := ask(r.key, at("DELETE", "/sandboxes/{}", nil)); status != http.StatusNoContent {
		t.Errorf("the sandbox was not there any more: %d", status)
	}
}

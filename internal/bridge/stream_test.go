//go:build linux

package bridge

import (
	"context"
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

// If this fails, a character that two events share is garbled by clients that decode each by itself, or bytes are lost.
func TestWhole(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "é": 2, "a\xc3": 1, "a\xe2\x82": 1, "a\xf0\x9f\x98": 1,
		"\xf0\x9f\x98\x80": 4, "\xff": 1, "\x80\x80\x80\x80": 4, "a\xff": 2} {
		if got := whole([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// If this fails, a path of the protocol reaches beyond the workspace.
func TestPaths(t *testing.T) {
	for p, ok := range map[string]bool{"workspace/a": true, "workspace/a/..b": true, "workspace": false,
		"workspace/": false, "workspace/../etc/passwd": false,
		"etc/passwd": false, "": false, "workspacex/a": false, "workspace//a": false, "workspace/./a": false, "workspace/a\x00": false, "/workspace/a": false} {
		r := &request{Request: httptest.NewRequest("GET", "/", nil)}
		r.SetPathValue("path", p)
		if _, err := r.ref(); (err == nil) != ok || err != nil && outboard.KindOf(err) != outboard.Denied {
			t.Errorf("%q: %v", p, err)
		}
	}
}

// bodies has what each route is asked with.
var bodies = map[string]string{"POST /bridge/v1/sandbox/{id}/exec": `{"argv":["true"]}`}

// If this fails, a route answers who has no key, or a key that may not use sandboxes, or tells a box of another
// organization from one that never was; or what is not built seems to be.
func TestWhoMay(t *testing.T) {
	srv := outboardtest.Start(t, outboardtest.Options{NoRunner: true})
	s := New(Config{Control: srv.Control})
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	keys := map[string]outboard.Key{
		"obk_stranger": {ID: "apikey_stranger", Org: "org_second", Role: outboard.RoleAdmin},
		"obk_viewer":   {ID: "apikey_viewer", Org: outboard.DefaultOrg, Role: outboard.RoleViewer},
	}
	if err := srv.Store.AddOrg(t.Context(), outboard.Organization{ID: "org_second", Name: "second",
		CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for secret, k := range keys {
		k.Hash, k.CreatedAt = control.HashSecret(secret), time.Now()
		if err := srv.Store.PutKey(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(key, method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, h.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
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
	by, err := srv.Control.Authenticate(t.Context(), srv.Key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := srv.Control.CreateBox(t.Context(), by, control.BoxSpec{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Control.KillBox(context.Background(), by, b.ID) })
	for route := range s.routes() {
		method, pattern, _ := strings.Cut(route, " ")
		at := func(id outboard.BoxID) string {
			return strings.NewReplacer("{id}", string(id), "{path...}", "workspace/a", "{port}", "80", "{sid}", "s").
				Replace(pattern)
		}
		unbuilt := strings.Contains(pattern, "mount")
		for key, want := range map[string]int{"": 401, "obk_wrong": 401, "obk_viewer": 403, "obk_stranger": 404,
			srv.Key: 200} {
			if method == "DELETE" && key == srv.Key && !unbuilt || pattern == Prefix+"/v1/sandbox" &&
				key == "obk_stranger" {
				continue // the one would end the box, the other may
			}
			got, text := ask(key, method, at(b.ID), bodies[route])
			switch {
			case unbuilt && want != 401:
				if got != 501 || !strings.Contains(text, `"code":"unimplemented"`) ||
					!strings.Contains(text, "POST .../hydrate a whole tar") {
					t.Errorf("%s: %d %s", route, got, text)
				}
			case want == 200: // as far as the machine of this test, which is none, lets it
				// there is no such file, no such session
				none := strings.Contains(pattern, "path") || strings.Contains(pattern, "sid")
				if got == 401 || got == 403 || got == 501 && !strings.Contains(pattern, "tunnel") || got == 404 &&
					!none {
					t.Errorf("%s, as the owner: %d %s", route, got, text)
				}
			case got != want || !strings.Contains(text, `"error":`) || !strings.Contains(text, `"code":`):
				t.Errorf("%s with key %q: %d %s, want %d", route, key, got, text, want)
			}
			if want == 404 && !unbuilt {
				_, never := ask(key, method, at("boxaaaaaaaaaaaaaaaaaaaa"), bodies[route])
				if strings.ReplaceAll(text, string(b.ID), "X") != strings.ReplaceAll(never, "boxaaaaaaaaaaaaaaaaaaaa",
					"X") {
					t.Errorf("%s tells a foreign box from none: %s, %s", route, text, never)
				}
			}
		}
	}
	for what, c := range map[string]struct {
		method, path, body string
		want               int
	}{
		"another path": {"GET", "/bridge/v1/nothing", "", 404},
		"no JSON":      {"POST", "/bridge/v1/sandbox/" + string(b.ID) + "/exec", "{", 400},
		"no program":   {"POST", "/bridge/v1/sandbox/" + string(b.ID) + "/exec", `{"argv":[]}`, 400},
		"a huge command": {"POST", "/bridge/v1/sandbox/" + string(b.ID) + "/exec", `{"argv":["` +
			strings.Repeat("x", maxJSON) + `"]}`, 413},
		"a path out": {"GET", "/bridge/v1/sandbox/" + string(b.ID) + "/file/etc/passwd", "", 403},
		"a path out, escaped": {"GET", "/bridge/v1/sandbox/" + string(b.ID) + "/file/workspace/%2e%2e/etc/passwd", "",
			403},
		"an exclude out": {"POST", "/bridge/v1/sandbox/" + string(b.ID) + "/persist?excludes=../x", "", 400},
	} {
		if got, text := ask(srv.Key, c.method, c.path, c.body); got != c.want {
			t.Errorf("%s: %d %s, want %d", what, got, text, c.want)
		}
	}
}

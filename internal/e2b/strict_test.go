//go:build linux

package e2b

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// Broken if a body that two readers read in two ways is taken, or one of a client that knows more than this
// server is not.
func TestAmbiguousJSON(t *testing.T) {
	r := newRig(t)
	box := "/sandboxes/" + r.box.SandboxID
	bodies := map[string]string{`{"x":1,"x":2}`: "given twice", `{"x":{"y":1,"\u0079":2}}`: "given twice",
		`{"x":"\ud800"}`:   "surrogate",
		"{\"x\":\"\xff\"}": "UTF-8", `{} {}`: "malformed", `{"x":1`: "too early", `[]`: "must be a JSON object", `"x"`: "must be a JSON object",
		`null`: "must be a JSON object"}
	controls := []string{"POST /sandboxes", "PUT " + box + "/network", "POST " + box + "/timeout", "POST /v3/templates",
		"POST /templates/tags"}
	for body, word := range bodies {
		for _, route := range controls {
			method, path, _ := strings.Cut(route, " ")
			r.refused(method, path, body, 400, word)
		}
		r.rpcRefused("/filesystem.Filesystem/Stat", body, word)
		r.rpcRefused("/process.Process/Start", body, word)
	}
	r.refused("POST", "/sandboxes", `{"templateID":"base","templateid":"other"}`, 400, "templateid",
		"it is called templateID")
	r.refused("POST", "/sandboxes", `{"templateID":"base","network":{"AllowOut":["a.test"]}}`, 400, "network.AllowOut",
		"it is called allowOut")
	r.rpcRefused("/filesystem.Filesystem/Stat", `{"path":"/","Path":"/etc"}`, "it is called path")
	r.rpcRefused("/process.Process/Start", `{"process":{"cmd":"true","CMD":"false"}}`,
		"process.CMD: unknown field; it is called cmd")

	var made sandboxOut // the controls: what later versions add, and names that are the client's own
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","later":{"a":[1]},"metadata":{"k":"1","K":"2"}}`,
		&made); status != 201 {
		t.Fatalf("a client that knows more: %d", status)
	}
	r.api("DELETE", "/sandboxes/"+made.SandboxID, "", nil)
	if status := r.do(r.envd("/filesystem.Filesystem/Stat", "application/json", []byte(`{"path":"/","later":1}`)),
		nil); status != 200 {
		t.Errorf("a call that knows more: %d", status)
	}
}

// rpcRefused makes a call, unary or a stream, and expects it to be an invalid argument.
func (r *rig) rpcRefused(path, body, word string) {
	r.t.Helper()
	kind, message := "application/json", []byte(body)
	if strings.HasPrefix(path, "/process") {
		kind, message = "application/connect+json", envelope(body)
	}
	res, err := http.DefaultClient.Do(r.envd(path, kind, message))
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || !bytes.Contains(b, []byte(`"invalid_argument"`)) || !bytes.Contains(b, []byte(word)) {
		r.t.Errorf("%s with %s: %d %q, %v, want %q", path, body, res.StatusCode, b, err, word)
	}
}

// Broken if who has a wrong token or signature for a box is refused without a record, one that is right or a box
// that is not there has one, or the records have no bound.
func TestStrangersAreOnRecord(t *testing.T) {
	r := rigOf(t, Config{}) // ports ask for the traffic token
	ask := func(n int, method, target string, headers ...string) int {
		t.Helper()
		req := httptest.NewRequest(method, target, nil)
		req.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", n)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		r.srv.ServeHTTP(w, req)
		return w.Code
	}
	id := r.box.SandboxID
	at := func(port string, more ...string) []string {
		return append([]string{"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", port}, more...)
	}
	for n, c := range []struct {
		method, target string
		headers        []string
		status         int
		record         string // "" = none
	}{
		// of a directory without a name
		{"POST", "/filesystem.Filesystem/ListDir", at("49983", "X-Access-Token", r.box.EnvdAccessToken), 404, ""},
		{"POST", "/process.Process/List", at("49983", "X-Access-Token", "wrong"), 401, "e2b agent"},
		{"GET", "/files?path=a&signature=v1_wrong", at("49983"), 401, "e2b agent"},
		{"GET", "/files?path=a&signature=v1_wrong", nil, 401, "e2b signed file"},
		{"GET", "/", at("8000"), 403, "e2b port"},
		{"GET", "/", at("8000", trafficHeader, "wrong"), 403, "e2b port"},
		{"PUT", "/templates/tplaaaaaaaaaaaaaaaaaaaa/files/" + strings.Repeat("0", 64) + "?expires=1&signature=x", nil,
			401, "e2b signed upload"},
		{"POST", "/process.Process/List", []string{"E2b-Sandbox-Id", "boxaaaaaaaaaaaaaaaaaaaa", "E2b-Sandbox-Port",
			"49983"}, 502, ""},
	} {
		before := r.records()
		if status := ask(n+1, c.method, c.target, c.headers...); c.record != "" && status != c.status {
			t.Errorf("%s %s: %d, want %d", c.method, c.target, status, c.status)
		}
		var more []string
		for _, rec := range r.records()[len(before):] {
			more = append(more, rec["resource"].(string))
			if from := fmt.Sprintf("192.0.2.%d:1", n+1); rec["actor"] != "stranger" ||
				!strings.Contains(fmt.Sprint(rec["detail"]), from) {
				t.Errorf("the record is %v, and the request was from %s", rec, from)
			}
		}
		if want := slices.DeleteFunc([]string{c.record}, func(s string) bool { return s == "" }); !slices.Equal(more,
			want) {
			t.Errorf("%s %s is on record as %q, want %q", c.method, c.target, more, want)
		}
	}
	before := len(r.records())
	for range 50 {
		ask(2, "POST", "/process.Process/List", at("49983", "X-Access-Token", "wrong")...)
	}
	for n := range 100 {
		ask(100+n, "POST", "/process.Process/List", at("49983", "X-Access-Token", "wrong")...)
	}
	if n := len(r.records()) - before; n > 11 {
		t.Errorf("%d records of 150 refusals", n)
	}
}

// records are the audit's records of refusals, oldest first.
func (r *rig) records() (out []map[string]any) {
	r.t.Helper()
	q := url.Values{"action": {"api.refused"}, "limit": {"100"}, "order": {"asc"}}
	req, err := http.NewRequest("GET", r.back.URL+"/v1/outboard/audit?"+q.Encode(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", r.back.Key)
	var page struct{ Data []map[string]any }
	if status := r.do(req, &page); status != 200 {
		r.t.Fatalf("reading the audit: %d", status)
	}
	return page.Data
}

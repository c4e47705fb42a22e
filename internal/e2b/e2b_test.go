//go:build linux

package e2b

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// If this fails, addresses that an SDK signed do not admit anybody, or one signature admits to another file.
func TestSignature(t *testing.T) {
	const secret = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0" // the vector of E2B's own documentation
	sign := func(query string) *http.Request { return httptest.NewRequest("GET", "/files?"+query, nil) }
	const want = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := signature(sign("path=hello.txt&username=user"), secret); got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
	b := &outboard.Box{Secret: secret}
	if err := checkSignature(sign("path=hello.txt&username=user&signature="+url.QueryEscape(want)), b,
		time.Now()); err != nil {
		t.Errorf("a good signature: %v", err)
	}
	for what, query := range map[string]string{
		"none": "path=hello.txt&username=user", "of another file": "path=other&username=user&signature=" +
			url.QueryEscape(want),
		"of another user": "path=hello.txt&username=root&signature=" + url.QueryEscape(want),
		"with an expiry": "path=hello.txt&username=user&signature_expiration=99999999999&signature=" +
			url.QueryEscape(want),
	} {
		if err := checkSignature(sign(query), b, time.Now()); outboard.KindOf(err) != outboard.Unauthenticated {
			t.Errorf("a signature %s: %v", what, err)
		}
	}
	late := sign("path=a&signature_expiration=1")
	q := late.URL.Query()
	q.Set("signature", signature(late, secret))
	late.URL.RawQuery = q.Encode()
	if err := checkSignature(late, b, time.Now()); err == nil || !strings.Contains(err.Error(), "already expired") {
		t.Errorf("a signature that is over: %v", err)
	}
}

// If this fails, a request reaches another box or port than the one it names, or a box instead of the control plane.
func TestTarget(t *testing.T) {
	for _, c := range []struct {
		host, box, port string
		want            string
	}{
		{"127.0.0.1:7170", "boxa", "49983", "boxa:49983"},
		{"8000-boxb.localhost:7170", "boxa", "49983", "boxa:49983"}, // the headers come first
		{"8000-boxb.localhost:7170", "", "", "boxb:8000"},
		{"8000-BOXB-client.sbx.example.com", "", "", "boxb:8000"},
		{"api.example.com", "", "", ""}, {"my-server.example.com", "", "", ""}, {"8000-boxb", "", "", ""}, {"[::1]:80",
			"", "", ""},
		{"localhost", "boxa", "", "refused"}, {"localhost", "", "80", "refused"}, {"localhost", "boxa", "99999",
			"refused"},
		{"0-boxb.localhost", "", "", "refused"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = c.host
		if c.box != "" {
			r.Header.Set("E2b-Sandbox-Id", c.box)
		}
		if c.port != "" {
			r.Header.Set("E2b-Sandbox-Port", c.port)
		}
		id, port, ok, err := target(r)
		got := ""
		if ok {
			got = string(id) + ":" + string(json.RawMessage(jsonOf(port)))
		}
		if err != nil {
			got = "refused"
		}
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		if program := c.want != "" && c.want != "refused" && port != envdPort; ForProgram(r) != program {
			t.Errorf("%+v: for a program: %v", c, !program)
		}
	}
}

func jsonOf(v any) string { b, _ := json.Marshal(v); return string(b) }

// If this fails, a list leaves boxes out or shows them twice when it is read in pages.
func TestPages(t *testing.T) {
	start := time.Unix(1000, 0).UTC()
	all := make([]listedOut, 25)
	for i := range all { // several of one moment
		all[i] = listedOut{SandboxID: string(rune('a' + i)), StartedAt: start.Add(time.Duration(i/7) * time.Second)}
	}
	for _, ascending := range []bool{false, true} {
		var got []string
		token := ""
		for range 10 {
			w := httptest.NewRecorder()
			r := &request{Request: httptest.NewRequest("GET", "/v2/sandboxes?limit=4&nextToken="+token, nil), w: w}
			rows, err := page(r, slices.Clone(all),
				func(b listedOut) pageKey { return pageKey{b.StartedAt, b.SandboxID} }, ascending)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range rows {
				got = append(got, b.SandboxID)
			}
			if token = w.Header().Get("X-Next-Token"); token == "" {
				break
			}
		}
		if !slices.IsSortedFunc(got, func(a, b string) int {
			if ascending {
				return strings.Compare(a, b)
			}
			return strings.Compare(b, a)
		}) || len(slices.Compact(got)) != len(all) {
			t.Errorf("ascending %v: %v", ascending, got)
		}
	}
	r := &request{Request: httptest.NewRequest("GET", "/v2/sandboxes?nextToken=forged", nil), w: httptest.NewRecorder()}
	if _, err := page(r, all, func(b listedOut) pageKey { return pageKey{} },
		false); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("a forged token: %v", err)
	}
	if m, err := metadataFilter("a%253Db=c%2526d&e=f"); err != nil || m["a=b"] != "c&d" || m["e"] != "f" {
		t.Errorf("a metadata filter: %v, %v", m, err)
	}
}

// rig is a server with one box.
type rig struct {
	t    *testing.T
	srv  *Server
	back *outboardtest.Server
	url  string
	key  string
	box  sandboxOut
}

func newRig(t *testing.T) *rig { return rigOf(t, Config{PublicPorts: true}) }

func rigOf(t *testing.T, cfg Config) *rig {
	srv := outboardtest.Start(t, outboardtest.Options{NoRunner: true})
	cfg.Control = srv.Control
	s := New(cfg)
	h := httptest.NewServer(s)
	t.Cleanup(func() { h.CloseClientConnections(); h.Close(); s.Close() })
	r := &rig{t: t, srv: s, back: srv, url: h.URL, key: APIKey(srv.Key)}
	if status := r.api("POST", "/sandboxes", `{"templateID":"base"}`, &r.box); status != http.StatusCreated {
		t.Fatalf("creating a sandbox: %d", status)
	}
	t.Cleanup(func() { r.api("DELETE", "/sandboxes/"+r.box.SandboxID, "", nil) })
	return r
}

func (r *rig) api(method, path, body string, out any) int {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", r.key)
	return r.do(req, out)
}

func (r *rig) do(req *http.Request, out any) int {
	r.t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			r.t.Fatalf("%s %s answers %q: %v", req.Method, req.URL, b, err)
		}
	}
	return res.StatusCode
}

// envd makes a request to the box's agent.
func (r *rig) envd(path, kind string, body []byte) *http.Request {
	req, err := http.NewRequest("POST", r.url+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", r.box.SandboxID)
	req.Header.Set("E2b-Sandbox-Port", "49983")
	req.Header.Set("X-Access-Token", r.box.EnvdAccessToken)
	req.Header.Set("Content-Type", kind)
	return req
}

func envelope(body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// If this fails, hostile or broken requests are believed, crash something, or are answered in a way that an SDK
// cannot read.
func TestHostileRequests(t *testing.T) {
	r := newRig(t)
	for what, c := range map[string]struct {
		method, path, body string
		status             int
	}{
		"not JSON":         {"POST", "/sandboxes", "{", 400},
		"the wrong type":   {"POST", "/sandboxes", `{"templateID":5}`, 400},
		"no template":      {"POST", "/sandboxes", `{}`, 400},
		"no such template": {"POST", "/sandboxes", `{"templateID":"none"}`, 404},
		"an endless time":  {"POST", "/sandboxes", `{"templateID":"base","timeout":9223372036854775807}`, 400},
		"a negative time":  {"POST", "/sandboxes", `{"templateID":"base","timeout":-1}`, 400},
		"what is not built": {"POST", "/sandboxes",
			`{"templateID":"base","network":{"rules":{"a.test":[{"transform":{"body":{}}}]}}}`, 501},
		"a proxy beyond": {"POST", "/sandboxes",
			`{"templateID":"base","network":{"egressProxy":{"address":"a.test:1080"}}}`, 403},
		"a proxy to nowhere": {"POST", "/sandboxes",
			`{"templateID":"base","allow_internet_access":false,"network":{"egressProxy":{"address":"a.test:1080"}}}`, 400},
		"a proxy without a port": {"POST", "/sandboxes",
			`{"templateID":"base","network":{"egressProxy":{"address":"a.test"}}}`, 400},
		"a proxy of a password": {"POST", "/sandboxes",
			`{"templateID":"base","network":{"egressProxy":{"address":"a.test:1080","password":"p"}}}`, 400},
		"a network beyond": {"POST", "/sandboxes",
			`{"templateID":"base","network":{"allowOut":["a.test"],"denyOut":["0.0.0.0/0"]}}`, 403},
		"a network that is none": {"POST", "/sandboxes",
			`{"templateID":"base","network":{"allowOut":["a.test:80"],"denyOut":["0.0.0.0/0"]}}`, 400},
		"names beside the rest": {"PUT", "/sandboxes/" + r.box.SandboxID + "/network", `{"allowOut":["a.test"]}`,
			400},
		"more than the server has": {"PUT", "/sandboxes/" + r.box.SandboxID + "/network",
			`{"allowOut":["a.test"],"denyOut":["0.0.0.0/0"]}`, 403},
		"a volume":                {"GET", "/volumes", "", 501},
		"a template of no name":   {"POST", "/v3/templates", "{}", 400},
		"a template off its path": {"POST", "/v3/templates", `{"name":"../x"}`, 400},
		"a tag like a build": {"POST", "/v3/templates",
			`{"name":"x","tags":["00000000-0000-4000-8000-000000000000"]}`, 400},
		"a secret":                 {"GET", "/secrets", "", 501},
		"a template's publication": {"PATCH", "/v2/templates/x", `{"public":true}`, 501},
		"a build of old":           {"POST", "/templates", `{"dockerfile":""}`, 501},
		"what nobody has":          {"GET", "/sandboxes/" + r.box.SandboxID + "/nothing", "", 404},
		"a template's other path":  {"GET", "/templates/x/y", "", 404},
		"a query that is broken":   {"GET", "/v2/sandboxes?metadata=%zz", "", 400},
		"a host that is none": {"POST", "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"a b"}}`,
			400},
		"a host with a line more": {"POST", "/sandboxes",
			`{"templateID":"base","network":{"maskRequestHost":"a\r\nX: y"}}`, 400},
		"a path that is not there": {"GET", "/nowhere", "", 404},
		"another method":           {"PATCH", "/sandboxes", "", 405},
		"an id that is a path":     {"GET", "/sandboxes/..%2f..%2fetc", "", 404},
		"an id with a NUL":         {"GET", "/sandboxes/box%00", "", 404},
		"somebody else's id":       {"DELETE", "/sandboxes/" + string(outboard.NewBoxID()), "", 404},
		"a huge body": {"POST", "/sandboxes", `{"templateID":"` + strings.Repeat("x", maxJSON) + `"}`,
			413},
	} {
		var e errorBody
		if status := r.api(c.method, c.path, c.body, &e); status != c.status || e.Code != c.status || e.Message == "" {
			t.Errorf("%s: %d %+v, want %d", what, status, e, c.status)
		}
	}
	good := envelope(`{"process":{"cmd":"true"},"unknown":1}`)
	for what, c := range map[string]struct {
		path, kind string
		body       []byte
		change     func(*http.Request)
		status     int
	}{
		"the positive control": {"/process.Process/Start", "application/connect+json", good, nil, 200},
		"no token": {"/process.Process/Start", "application/connect+json", good,
			func(q *http.Request) { q.Header.Del("X-Access-Token") }, 401},
		"a token that is wrong": {"/process.Process/List", "application/json", nil,
			func(q *http.Request) { q.Header.Set("X-Access-Token", r.key) }, 401},
		"no such box": {"/process.Process/List", "application/json", nil,
			func(q *http.Request) { q.Header.Set("E2b-Sandbox-Id", "boxnone") }, 502},
		"a cut envelope": {"/process.Process/Start", "application/connect+json", good[:7], nil, 415},
		"a compressed one": {"/process.Process/Start", "application/connect+json", append([]byte{1}, good[1:]...),
			nil, 415},
		"a length that lies": {"/process.Process/Start", "application/connect+json",
			[]byte{0, 255, 255, 255, 255, '{'}, nil, 415},
		"a binary message": {"/process.Process/Start", "application/connect+proto", good, nil, 415},
		"no such call":     {"/process.Process/Fly", "application/json", []byte("{}"), nil, 501},
		"no such process": {"/process.Process/SendSignal", "application/json",
			[]byte(`{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}`), nil, 404},
		"an odd signal": {"/process.Process/SendSignal", "application/json",
			[]byte(`{"process":{"pid":1},"signal":"SIGNAL_SIGHUP"}`), nil, 501},
		"no such user": {"/filesystem.Filesystem/Stat", "application/json", []byte(`{"path":"/"}`),
			func(q *http.Request) { q.SetBasicAuth("mallory", "") }, 401},
		"the agent's inside": {"/init", "application/json", []byte("{}"), nil, 404},
		"metadata of control": {"/files?path=x", "application/octet-stream", nil,
			func(q *http.Request) { q.Header["X-Metadata-A"] = []string{"caf\xe9"} }, 400},
		"no file name":         {"/files", "application/octet-stream", nil, nil, 400},
		"a form without parts": {"/files", "multipart/form-data; boundary=b", []byte("--b\r\n"), nil, 400},
		"a form without an end": {"/files", "multipart/form-data; boundary=b",
			[]byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nabc"), nil, 400},
	} {
		req := r.envd(c.path, c.kind, c.body)
		if c.change != nil {
			c.change(req)
		}
		if status := r.do(req, nil); status != c.status {
			t.Errorf("%s: %d, want %d", what, status, c.status)
		}
	}
}

// If this fails, a range of a file, or an upload with directories, is not what was asked for, or a file runs as
// a page under a box's name.
func TestFiles(t *testing.T) {
	r := newRig(t)
	form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d/e/one.txt\"\r\n\r\n0123456789\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"two.txt\"\r\n\r\n\r\n--b--\r\n"
	var out []writtenOut
	if status := r.do(r.envd("/files", "multipart/form-data; boundary=b", []byte(form)), &out); status != 200 ||
		len(out) != 2 ||
		!strings.HasSuffix(out[0].Path, "/d/e/one.txt") || out[1].Name != "two.txt" {
		t.Fatalf("uploading: %d %+v", status, out)
	}
	for what, c := range map[string]struct {
		path, ask, want string
		status          int
	}{
		"all": {"d/e/one.txt", "", "0123456789", 200}, "a part": {"d/e/one.txt", "bytes=3-5", "345",
			206}, "the end": {"d/e/one.txt", "bytes=-2", "89", 206},
		"several parts": {"d/e/one.txt", "bytes=0-1,3-4", "0123456789", 200},
		"beyond":        {"d/e/one.txt", "bytes=20-", "", 416}, "nothing": {"two.txt", "", "",
			200}, "a directory": {"d", "", "", 400},
		"none": {"none", "", "", 404},
	} {
		req := r.envd("/files?path="+c.path, "", nil)
		req.Method, req.Body, req.ContentLength = "GET", nil, 0
		if c.ask != "" {
			req.Header.Set("Range", c.ask)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != c.status || res.StatusCode < 300 &&
			(string(b) != c.want || res.ContentLength != int64(len(c.want))) {
			t.Errorf("%s: %d, %d bytes announced, %q, %v", what, res.StatusCode, res.ContentLength, b, err)
		}
		if h := res.Header; res.StatusCode < 300 && (h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Content-Security-Policy") != "sandbox") {
			t.Errorf("%s: a browser may take it for a page: %v", what, h)
		}
	}
	var joined entryInfo
	if status := r.do(r.envd("/files/compose", "application/json",
		[]byte(`{"source_paths":["d/e/one.txt","two.txt","d/e/one.txt"],"destination":"all"}`)), &joined); status != 200 || joined.Size != "20" {
		t.Errorf("composing: %d %+v", status, joined)
	}
}

// If this fails, a box whose ports are closed to strangers serves them.
func TestTraffic(t *testing.T) {
	r := newRig(t)
	var box sandboxOut
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`,
		&box); status != 201 || box.TrafficAccessToken == nil {
		t.Fatalf("a private box: %d %+v", status, box)
	}
	defer r.api("DELETE", "/sandboxes/"+box.SandboxID, "", nil)
	for what, c := range map[string]struct {
		id, token string
		status    int
	}{
		"no token": {box.SandboxID, "", 403}, "a wrong one": {box.SandboxID, "x", 403}, "its secret": {box.SandboxID,
			box.EnvdAccessToken, 403},
		"the token":   {box.SandboxID, *box.TrafficAccessToken, 502}, // nothing listens: it was let in
		"an open box": {r.box.SandboxID, "", 502},
	} {
		req, _ := http.NewRequest("GET", r.url, nil)
		req.Host = "1025-" + c.id + ".localhost"
		req.Header.Set(trafficHeader, c.token)
		if status := r.do(req, nil); status != c.status {
			t.Errorf("%s: %d, want %d", what, status, c.status)
		}
	}
}

// If this fails, a stranger visits ports that nobody opened, or somebody reaches a port of Outboard's own inside
// a box, and so acts as the box.
func TestPortsAreTheirOwners(t *testing.T) {
	r := rigOf(t, Config{})
	make := func(network string) (b sandboxOut) {
		if status := r.api("POST", "/sandboxes", `{"templateID":"base"`+network+`}`, &b); status != 201 {
			t.Fatalf("creating a sandbox: %d", status)
		}
		t.Cleanup(func() { r.api("DELETE", "/sandboxes/"+b.SandboxID, "", nil) })
		return b
	}
	plain, public := make(""), make(`,"network":{"allowPublicTraffic":true}`)
	if plain.TrafficAccessToken == nil || public.TrafficAccessToken != nil {
		t.Fatalf("tokens: %v, %v", plain.TrafficAccessToken, public.TrafficAccessToken)
	}
	token := *plain.TrafficAccessToken
	const shut, let = http.StatusForbidden, http.StatusBadGateway // let in: nothing listens
	for _, c := range []struct {
		what, box, port, token string
		want                   int
	}{
		{"nobody said anything", plain.SandboxID, "1025", "", shut},
		{"with the token", plain.SandboxID, "1025", token, let},
		{"a port of the system, with the token", plain.SandboxID, "1", token, let},
		{"a public box", public.SandboxID, "1025", "", let},
		{"a port of the system of a public box", public.SandboxID, "1", "", shut},
		{"the gateway's", public.SandboxID, "3128", "", shut},
		{"the gateway's, written otherwise", public.SandboxID, "03128", "", shut},
		{"the gateway's, with the token", plain.SandboxID, "3128", token, shut},
		{"the name server's, with the token", plain.SandboxID, "53", token, shut},
	} {
		for _, named := range []bool{true, false} {
			req, _ := http.NewRequest("GET", r.url, nil)
			req.Header.Set(trafficHeader, c.token)
			if named {
				req.Host = c.port + "-" + c.box + ".localhost"
			} else {
				req.Header.Set("E2b-Sandbox-Id", c.box)
				req.Header.Set("E2b-Sandbox-Port", c.port)
			}
			if status := r.do(req, nil); status != c.want {
				t.Errorf("%s, by host name %v: %d, want %d", c.what, named, status, c.want)
			}
		}
	}
}

// If this fails, a stranger makes the server read every box, or a signed address works no longer, or one
// organization's boxes push out another's.
func TestSignedAddressesOfNoBox(t *testing.T) {
	r := newRig(t)
	get := func(secret string) int {
		req, _ := http.NewRequest("GET", r.url+"/files?path=none", nil)
		q := req.URL.Query()
		q.Set("signature", signature(req, secret))
		req.URL.RawQuery = q.Encode()
		return r.do(req, nil)
	}
	if got := get(r.box.EnvdAccessToken); got != http.StatusNotFound { // let in: there is no such file
		t.Errorf("a good signature: %d", got)
	}
	reads := r.back.Store.Reads()
	if got := get("x"); got != http.StatusUnauthorized {
		t.Errorf("a wrong signature: %d", got)
	}
	if n := r.back.Store.Reads() - reads; n != 0 {
		t.Errorf("a wrong signature costs %d reads of the store", n)
	}
	var h handed
	h.add(&outboard.Box{ID: "theirs", Org: "a", Secret: "theirs"})
	for i := range 2 * maxHanded {
		h.add(&outboard.Box{ID: outboard.BoxID(fmt.Sprint(i)), Org: outboard.OrgID(fmt.Sprint("b", i/maxHandedOrg%20)),
			Secret: fmt.Sprint(i)})
	}
	if len(h.list) > maxHanded || h.list[0].id != "theirs" {
		t.Errorf("%d secrets are kept, the oldest of %s", len(h.list), h.list[0].id)
	}
}

// If this fails, somebody who was removed goes on in a box that they made, with its tokens: by new requests, or
// in one that is under way.
func TestBoxOfSomebodyWhoWasRemoved(t *testing.T) {
	srv := outboardtest.Start(t, outboardtest.Options{NoRunner: true})
	s := New(Config{Control: srv.Control, PublicPorts: true})
	h := httptest.NewServer(s)
	t.Cleanup(func() { h.CloseClientConnections(); h.Close(); s.Close() })
	admin, err := srv.Control.Authenticate(t.Context(), srv.Key)
	if err != nil {
		t.Fatal(err)
	}
	ann, err := srv.Control.AddUser(t.Context(), admin, "ann@a.test", "", outboard.RoleAdmin)
	if err != nil {
		t.Fatal(err)
	}
	_, hers, err := srv.Control.CreateKey(t.Context(), admin, control.KeyRequest{Name: "ann", Role: outboard.RoleAdmin,
		User: ann.ID})
	if err != nil {
		t.Fatal(err)
	}
	her, err := srv.Control.Authenticate(t.Context(), hers)
	if err != nil {
		t.Fatal(err)
	}
	_, program, err := srv.Control.CreateKey(t.Context(), her, control.KeyRequest{Name: "program"})
	if err != nil {
		t.Fatal(err)
	}
	list := func(r *rig) int { return r.do(r.envd("/process.Process/List", "application/json", []byte("{}")), nil) }
	port := func(r *rig) int {
		req, _ := http.NewRequest("GET", r.url, nil)
		req.Host = "1025-" + r.box.SandboxID + ".localhost"
		return r.do(req, nil)
	}
	rigs := map[string]*rig{}
	for what, key := range map[string]string{"hers": hers, "her program's": program, "another's": srv.Key} {
		r := &rig{t: t, srv: s, url: h.URL, key: APIKey(key)}
		if status := r.api("POST", "/sandboxes", `{"templateID":"base","timeout":600}`,
			&r.box); status != http.StatusCreated {
			t.Fatalf("creating a sandbox: %d", status)
		}
		end := &rig{t: t, url: h.URL, key: APIKey(srv.Key)}
		t.Cleanup(func() { end.api("DELETE", "/sandboxes/"+r.box.SandboxID, "", nil) })
		if got := list(r); got != 200 {
			t.Errorf("%s, before: %d", what, got)
		}
		rigs[what] = r
	}
	res, err := http.DefaultClient.Do(rigs["hers"].envd("/process.Process/Start", "application/connect+json",
		envelope(`{"process":{"cmd":"sleep","args":["600"]}}`)))
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("a stream: %v", err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Control.RemoveUser(t.Context(), admin, ann.ID); err != nil {
		t.Fatal(err)
	}
	// 502: nothing listens
	for what, want := range map[string][2]int{"hers": {403, 403}, "her program's": {403, 403},
		"another's": {200, 502}} {
		if got := [2]int{list(rigs[what]), port(rigs[what])}; got != want {
			t.Errorf("%s, after: %d, want %d", what, got, want)
		}
	}
	org, err := srv.Control.CreateOrg(t.Context(), admin, "acme")
	if err != nil {
		t.Fatal(err)
	}
	inside := admin
	inside.Org = org.ID
	_, tenant, err := srv.Control.CreateKey(t.Context(), inside, control.KeyRequest{Name: "tenant"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, srv: s, url: h.URL, key: APIKey(tenant)}
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","timeout":600}`,
		&r.box); status != http.StatusCreated || list(r) != 200 {
		t.Fatalf("a sandbox of another organization: %d", status)
	}
	t.Cleanup(func() { _ = srv.Control.KillBox(context.Background(), inside, outboard.BoxID(r.box.SandboxID)) })
	if _, err := srv.Control.ArchiveOrg(t.Context(), admin, "acme"); err != nil {
		t.Fatal(err)
	}
	if got := list(r); got != 403 {
		t.Errorf("of an organization that has ended: %d", got)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); io.Copy(io.Discard, res.Body) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("her stream goes on")
	}
}

// If this fails, a port whose program speaks TLS itself is not reached, one that does not is asked for it, or a
// box does not show which is which.
func TestTLSPorts(t *testing.T) {
	r := newRig(t)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, r.TLS != nil, r.Header.Get("X-Forwarded-Host"))
	})
	// the box's programs are plain processes here
	secure, plain := httptest.NewTLSServer(answer), httptest.NewServer(answer)
	defer secure.Close()
	defer plain.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	port := func(s *httptest.Server) int { return s.Listener.Addr().(*net.TCPAddr).Port }
	var box sandboxOut
	if status := r.api("POST", "/sandboxes", fmt.Sprintf(`{"templateID":"base","network":{"httpsPorts":[%d]}}`,
		port(secure)), &box); status != 201 {
		t.Fatalf("a box with a TLS port: %d", status)
	}
	defer r.api("DELETE", "/sandboxes/"+box.SandboxID, "", nil)
	for what, c := range map[string]struct {
		box    string
		at     *httptest.Server
		status int
	}{
		"TLS":                  {box.SandboxID, secure, http.StatusTeapot},
		"plain":                {box.SandboxID, plain, http.StatusTeapot},
		"TLS, and not said so": {r.box.SandboxID, secure, http.StatusBadRequest},
	} {
		req, _ := http.NewRequest("GET", r.url, nil)
		req.Host = fmt.Sprintf("%d-%s.localhost", port(c.at), c.box)
		if status := r.do(req, nil); status != c.status {
			t.Errorf("%s: %d, want %d", what, status, c.status)
		}
	}
	var shown struct {
		Network struct{ HTTPSPorts []int }
	}
	if r.api("GET", "/sandboxes/"+box.SandboxID, "", &shown); !slices.Equal(shown.Network.HTTPSPorts,
		[]int{port(secure)}) {
		t.Errorf("shown are %v", shown.Network.HTTPSPorts)
	}
	for _, bad := range []string{`[0]`, `[65536]`, `[49983]`, `[3128]`} {
		if status := r.api("POST", "/sandboxes", `{"templateID":"base","network":{"httpsPorts":`+bad+`}}`,
			nil); status != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, status)
		}
	}
	if status := r.api("PUT", "/sandboxes/"+box.SandboxID+"/network", `{"httpsPorts":[1]}`,
		nil); status != http.StatusBadRequest {
		t.Errorf("set later: %d", status)
	}
}

// A message that no SDK sends would end the server.
func FuzzEnvelope(f *testing.F) {
	f.Add(envelope(`{"process":{"cmd":"x","args":["a"]},"pty":{"size":{"cols":1,"rows":2}},"stdin":false}`))
	f.Add([]byte{0, 0, 0, 0, 1})
	f.Add([]byte{2, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		body, err := readEnvelope(bytes.NewReader(data))
		if err != nil {
			return
		}
		if len(body) > len(data) {
			t.Fatalf("%d bytes out of %d", len(body), len(data))
		}
		var in startIn
		_ = message(body, &in)
		var p pathIn
		_ = message(body, &p)
	})
}

// If this fails, a page of one box sets cookies that browsers send to every other box.
func TestCookiesAreOfOneName(t *testing.T) {
	r := newRig(t)
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Set-Cookie"] = []string{"early=1; Domain=localhost"}
		w.WriteHeader(http.StatusEarlyHints)
		w.Header()["Set-Cookie"] = []string{"a=1; Domain=localhost; Path=/", "b=2;domain = .localhost ; HttpOnly",
			"c=domain; Path=/; DOMAIN", "Domain=x; Secure"}
	}))
	defer program.Close()
	req, _ := http.NewRequest("GET", r.url, nil)
	req.Host = fmt.Sprintf("%d-%s.localhost", program.Listener.Addr().(*net.TCPAddr).Port, r.box.SandboxID)
	var early []string
	res, err := http.DefaultClient.Do(req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			early = append(early,
				h["Set-Cookie"]...)
			return nil
		}})))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if !slices.Equal(early, []string{"early=1"}) {
		t.Errorf("before the answer: %q", early)
	}
	if got, want := res.Header["Set-Cookie"], []string{"a=1; Path=/", "b=2; HttpOnly", "c=domain; Path=/",
		"Domain=x; Secure"}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// If this fails, the work of a request that nobody has authenticated grows with what the server has.
func TestStrangersCostTheSame(t *testing.T) {
	r := newRig(t)
	tpl := outboard.NewTemplateID()
	to := func(method, path, host, key string) func() *http.Request {
		return func() *http.Request {
			req, _ := http.NewRequest(method, r.url+path, nil)
			req.Host = host
			req.Header.Set("X-Api-Key", key)
			return req
		}
	}
	box, none := r.box.SandboxID, string(outboard.NewBoxID())
	strangers := map[string]func() *http.Request{
		"a signature of no box":        to("GET", "/files?path=/a&signature=x", "", ""),
		"a signature of a box":         to("GET", "/files?path=/a&signature=x", "49983-"+box+".localhost", ""),
		"a signature of no such box":   to("GET", "/files?path=/a&signature=x", "49983-"+none+".localhost", ""),
		"the agent without a token":    to("POST", "/process.Process/List", "49983-"+box+".localhost", ""),
		"a port without a token":       to("GET", "/", "80-"+box+".localhost", ""),
		"a port of no such box":        to("GET", "/", "8000-"+none+".localhost", ""),
		"an upload of no template":     to("PUT", "/templates/"+string(tpl)+"/files/x?signature=x&expires=1", "", ""),
		"no key":                       to("GET", "/sandboxes", "", ""),
		"a wrong key":                  to("GET", "/v2/sandboxes", "", "e2b_00ff"),
		"nothing that there is":        to("GET", "/nothing", "", ""),
		"the health of the server":     to("GET", "/health", "", ""),
		"the health of no such box":    to("GET", "/health", "49983-"+none+".localhost", ""),
		"a wrong key at a port's name": to("GET", "/", "80-"+box+".localhost", "e2b_00ff"),
	}
	cost := func(make func() *http.Request) int64 {
		before := r.back.Store.Reads()
		if status := r.do(make(), nil); status/100 == 2 && !strings.Contains(make().URL.Path, "health") {
			t.Fatalf("%s lets a stranger in: %d", make().URL, status)
		}
		return r.back.Store.Reads() - before
	}
	few := map[string]int64{}
	for what, make := range strangers {
		few[what] = cost(make)
	}
	for range 300 {
		b := outboard.Box{ID: outboard.NewBoxID(), State: outboard.BoxPaused, Secret: "s", CreatedAt: time.Now(),
			EndAt: time.Now().Add(time.Hour)}
		if err := r.back.Store.AddBox(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	const most, slack = 8, 3 // others look at the store meanwhile
	for what, make := range strangers {
		if n := cost(make); n > few[what]+slack || n > most {
			t.Errorf("%s: %d reads, and %d with 300 boxes more", what, few[what], n)
		}
	}
}

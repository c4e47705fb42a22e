package api_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// upload posts a form: pairs of field name and value; "file" takes "name:content".
func (b *bench) upload(fields ...string) reply {
	b.t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for i := 0; i < len(fields); i += 2 {
		if fields[i] != "file" {
			w.WriteField(fields[i], fields[i+1])
			continue
		}
		name, content, _ := strings.Cut(fields[i+1], ":")
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", multipart.FileContentDisposition("file", name))
		p, err := w.CreatePart(h)
		if err != nil {
			b.t.Fatal(err)
		}
		io.WriteString(p, content)
	}
	w.Close()
	return b.do("POST", "/v1/files", io.Reader(&buf),
		func(r *http.Request) { r.Header.Set("Content-Type", w.FormDataContentType()) })
}

// Fails if a file cannot be stored, listed in both generations' shapes, and deleted, or an upload is given back.
func TestFiles(t *testing.T) {
	b := newBench(t)
	var ids []string
	for _, name := range []string{"a.txt", "b.csv", "c.bin"} {
		r := b.upload("file", name+":hello "+name, "expires_in_seconds", "3600")
		if r.status != 200 || r.str("filename") != name || r.get("size_bytes") != float64(len("hello "+name)) ||
			r.get("downloadable") != false || r.str("expires_at") == "" {
			t.Fatalf("upload: %d %s", r.status, r.body)
		}
		ids = append(ids, r.str("id"))
	}
	slices.Reverse(ids)
	if m := b.ok("GET", "/v1/files/"+ids[2], nil).str("mime_type"); m != "text/plain" {
		t.Errorf("media type %q", m)
	}
	if got := b.walk("/v1/files", url.Values{"limit": {"2"}}); !slices.Equal(got, ids) {
		t.Errorf("list: %v, want %v", got, ids)
	}
	if got := b.walk("/v1/files", url.Values{"ids[]": {ids[1], "file_01nope"}}); !slices.Equal(got, ids[1:2]) {
		t.Errorf("by ids: %v", got)
	}
	legacy := func(q string) reply {
		return b.do("GET", "/v1/files?"+q, nil,
			func(r *http.Request) { r.Header.Set("anthropic-beta", "files-api-2025-04-14,x") })
	}
	if r := legacy("limit=2"); r.get("has_more") != true || r.str("first_id") != ids[0] || r.str("last_id") != ids[1] ||
		strings.Contains(string(r.body), "next_page") {
		t.Errorf("legacy list: %s", r.body)
	}
	if r := legacy("limit=2&after_id=" + ids[1]); r.get("has_more") != false || r.str("first_id") != ids[2] {
		t.Errorf("legacy after: %s", r.body)
	}
	if r := legacy("after_id=file_01nope"); r.status != 400 ||
		r.str("error.message") != `after_id: there is no file "file_01nope" in this list` {
		t.Errorf("legacy after nothing: %d %s", r.status, r.body)
	}
	if r := legacy("limit=1&before_id=" + ids[2]); r.get("has_more") != true || r.str("first_id") != ids[1] {
		t.Errorf("legacy before: %s", r.body)
	}
	if r := b.refused(400, "cannot be downloaded", "GET", "/v1/files/"+ids[0]+"/content",
		nil); r.str("error.details.error_code") != "file_not_downloadable" {
		t.Errorf("code: %s", r.body)
	}
	if r := b.ok("DELETE", "/v1/files/"+ids[0], nil); r.str("type") != "file_deleted" {
		t.Errorf("delete: %s", r.body)
	}
	b.refused(404, "no file", "GET", "/v1/files/"+ids[0], nil)
	if r := b.upload("file", ":b"); r.status != 200 || r.str("filename") != "unnamed" || r.get("size_bytes") != 1.0 {
		t.Errorf("a file without a name: %d %s", r.status, r.body)
	}

	for _, bad := range [][]string{{"expires_in_seconds", "3600"}, {"file", "a:b", "expires_in_seconds", "12"},
		{"file", "a:b", "expires_in_seconds", "soon"},
		{"file", "a:b", "file", "c:d"}, {"file", "a:b", "purpose", "x"}, {"file", strings.Repeat("n", 501) +
			":b"}, {"file", "a\tb:c"}} {
		if r := b.upload(bad...); r.status != 400 || r.str("type") != "error" {
			t.Errorf("%.80q: %d %s", bad, r.status, r.body)
		}
	}
}

// Fails if a file's bytes are wrong, come back as a page of ours, or an expired file is still there.
func TestFileContent(t *testing.T) {
	b := newBench(t)
	id := b.session()
	ref, err := b.ctl.StoreBytes(t.Context(), outboard.Caller{Key: "apikey_01t", Role: outboard.RoleDeveloper},
		strings.NewReader("<script>"))
	if err != nil {
		t.Fatal(err)
	}
	out := outboard.File{ID: "file_01out", Filename: "ré\"port.html", MediaType: "text/html", Blob: ref,
		Session: outboard.SessionID(id), Downloadable: true, CreatedAt: time.Now()}
	old := outboard.File{ID: "file_01old", Filename: "o", MediaType: "a/b", Blob: ref, CreatedAt: time.Now(),
		ExpiresAt: time.Now().Add(-time.Minute)}
	for _, f := range []outboard.File{out, old} {
		if err := b.store.PutFile(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	r := b.ok("GET", "/v1/files/file_01out/content", nil)
	if string(r.body) != "<script>" || !strings.HasPrefix(r.header.Get("Content-Disposition"), "attachment") ||
		r.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("content %q, headers %v", r.body, r.header)
	}
	if got := b.walk("/v1/files", url.Values{"scope_id": {id}}); !slices.Equal(got, []string{"file_01out"}) {
		t.Errorf("files of the session: %v", got)
	}
	b.refused(404, "expired", "GET", "/v1/files/file_01old", nil)
	if got := b.walk("/v1/files", url.Values{"limit": {"1"}}); !slices.Equal(got, []string{"file_01out"}) {
		t.Errorf("an expired file is listed: %v", got)
	}
}

// Fails if a mounted file is not the session's own copy, mounts escape or collide, or a running sandbox does not
// see the file.
func TestFileResources(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	file := b.upload("file", "data.csv:1,2,3").str("id")
	agent, env := b.agent(), b.environment()
	with := func(resources ...any) map[string]any {
		return map[string]any{"agent": agent, "environment_id": env, "resources": resources}
	}
	res := func(mount string) map[string]any {
		return map[string]any{"type": "file", "file_id": file, "mount_path": mount}
	}
	s := b.ok("POST", "/v1/sessions", with(map[string]any{"type": "file", "file_id": file}, res("in/data.csv")))
	id, copied := s.str("id"), s.str("resources.0.file_id")
	if copied == file || s.str("resources.0.mount_path") != "/mnt/session/uploads/"+file ||
		s.str("resources.1.mount_path") != "/mnt/session/uploads/in/data.csv" {
		t.Errorf("resources: %s", s.body)
	}
	b.ok("DELETE", "/v1/files/"+file, nil) // the session keeps its copy
	b.ok("GET", "/v1/files/"+copied, nil)
	b.refused(400, file, "POST", "/v1/sessions", with(res("x")))
	file = b.upload("file", "more.csv:4,5,6").str("id")
	for _, mounts := range [][]string{{"a", "/a"}, {"a", "a/b"}, {"/mnt/session/uploads/a", "a"}} {
		b.refused(400, "collides", "POST", "/v1/sessions", with(res(mounts[0]), res(mounts[1])))
	}
	before := len(b.walk("/v1/files", url.Values{"limit": {"1000"}}))
	b.refused(400, "file_01nope", "POST", "/v1/sessions",
		with(res("ok"), map[string]any{"type": "file", "file_id": "file_01nope"}))
	if after := len(b.walk("/v1/files", url.Values{"limit": {"1000"}})); after != before {
		t.Errorf("a refused session left %d files", after-before)
	}

	f := b.follow(id, "")
	run := func(script string) string {
		b.ok("POST", "/v1/sessions/"+id+"/events", send(message(script)))
		for _, e := range f.until("session.status_idle") {
			if e["type"] == "agent.tool_result" {
				return e["content"].([]any)[0].(map[string]any)["text"].(string)
			}
		}
		return ""
	}
	if got := run("- read: /mnt/session/uploads/in/data.csv\n- say: done\n"); !strings.Contains(got, "1,2,3") {
		t.Errorf("the sandbox reads %q", got)
	}
	added := b.ok("POST", "/v1/sessions/"+id+"/resources", res("in/more.csv"))
	if got := run("- read: /mnt/session/uploads/in/more.csv\n- say: done\n"); !strings.Contains(got, "4,5,6") {
		t.Errorf("after adding, the sandbox reads %q", got)
	}
	path := "/v1/sessions/" + id + "/resources/"
	if got := b.walk("/v1/sessions/"+id+"/resources", url.Values{"limit": {"2"}}); len(got) != 3 ||
		got[2] != added.str("id") {
		t.Errorf("resources: %v", got)
	}
	b.ok("GET", path+added.str("id"), nil)
	b.refused(400, "nothing to update", "POST", path+added.str("id"), `{"authorization_token":"x"}`)
	b.ok("DELETE", path+added.str("id"), nil)
	b.refused(404, "no resource", "GET", path+added.str("id"), nil)
	b.refused(404, "no file", "GET", "/v1/files/"+added.str("file_id"), nil)
}

// Fails if an edit of a session is recorded when it changes nothing, or not recorded when it does.
func TestUpdateSession(t *testing.T) {
	b := newBench(t)
	id := b.session()
	path := "/v1/sessions/" + id
	b.ok("POST", path, `{"title":"one","metadata":{"a":"1","b":"2"}}`)
	b.ok("POST", path, `{"title":"one","metadata":{"a":"1"}}`)
	b.ok("POST", path, `{"metadata":{"a":null,"c":"3"}}`)
	b.ok("POST", path, `{"agent":{"tools":[{"type":"agent_toolset_20260401","default_config":{"enabled":false}}]}}`)
	last := b.ok("POST", path, `{"title":null,"metadata":{"b":null,"c":null}}`)
	if last.get("title") != nil || len(last.get("metadata").(map[string]any)) != 0 ||
		last.get("agent.tools.0.default_config.enabled") != false {
		t.Errorf("session: %s", last.body)
	}
	evs := b.list(id, "")
	if !slices.Equal(types(evs), []string{"session.updated", "session.updated", "session.updated", "session.updated"}) {
		t.Fatalf("events: %v", types(evs))
	}
	if evs[0]["title"] != "one" || len(evs[1]["metadata"].(map[string]any)) != 2 || evs[2]["agent"] == nil ||
		evs[2]["title"] != nil {
		t.Errorf("updates: %v", evs)
	}
	if _, set := evs[3]["title"]; !set || evs[3]["title"] != nil || evs[3]["metadata"] != nil {
		t.Errorf("clearing: %v", evs[3])
	}
	b.ok("POST", path+"/events", send(message("x")))
	b.refused(400, "idle", "POST", path, `{"agent":{"tools":[]}}`)
	b.ok("POST", path, `{"title":"while running"}`)
	h, err := b.store.Session(t.Context(), outboard.SessionID(id))
	if err != nil || h.Title != "while running" {
		t.Errorf("header: %v %v", h.Title, err)
	}
}

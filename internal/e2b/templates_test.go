//go:build linux

package e2b

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// refused makes a request that must be refused with a status and some words.
func (r *rig) refused(method, path, body string, status int, words ...string) {
	r.t.Helper()
	var e errorBody
	if got := r.api(method, path, body, &e); got != status || e.Code != status {
		r.t.Errorf("%s %s %s: %d %+v, want %d", method, path, body, got, e, status)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Message, w) {
			r.t.Errorf("%s %s %s says %q, without %q", method, path, body, e.Message, w)
		}
	}
}

// request asks for a build.
func (r *rig) request(body string) (out buildRequestOut) {
	r.t.Helper()
	if status := r.api("POST", "/v3/templates", body, &out); status != http.StatusAccepted || out.TemplateID == "" {
		r.t.Fatalf("asking for a build with %s: %d %+v", body, status, out)
	}
	return out
}

// ready makes a build ready, with nothing that it is made of.
func (r *rig) ready(id string) {
	r.t.Helper()
	if _, err := r.back.Store.ChangeTemplateBuild(r.t.Context(), outboard.TemplateBuildID(id),
		func(b *outboard.TemplateBuild) error {
			b.State, b.StartedAt, b.EndedAt = outboard.TemplateReady, b.CreatedAt, b.CreatedAt
			return nil
		}); err != nil {
		r.t.Fatal(err)
	}
}

// If this fails, a client that reads a template by E2B's description of the API misses its builds.
func TestTemplateWithBuilds(t *testing.T) {
	r := newRig(t)
	first := r.request(`{"name":"web","cpuCount":4,"memoryMB":512}`)
	r.ready(first.BuildID)
	second := r.request(`{"name":"web","tags":["next"]}`)
	var out withBuildsOut
	if status := r.api("GET", "/templates/web", "", &out); status != http.StatusOK ||
		out.TemplateID != first.TemplateID || len(out.Builds) != 2 {
		t.Fatalf("%d %+v", status, out)
	}
	newest, oldest := out.Builds[0], out.Builds[1]
	if newest.BuildID != second.BuildID || newest.Status != "waiting" || newest.FinishedAt != nil ||
		newest.CPUCount != defaultCPUs {
		t.Errorf("the newest build: %+v", newest)
	}
	if oldest.BuildID != first.BuildID || oldest.Status != "ready" || oldest.FinishedAt == nil ||
		oldest.CPUCount != 4 || oldest.MemoryMB != 512 || oldest.EnvdVersion == "" {
		t.Errorf("the oldest build: %+v", oldest)
	}
	var raw map[string]any
	r.api("GET", "/templates/web", "", &raw)
	for _, name := range []string{"templateID", "public", "aliases", "names", "createdAt", "updatedAt", "lastSpawnedAt",
		"spawnCount", "builds"} {
		if _, ok := raw[name]; !ok {
			t.Errorf("a template is shown without %s: %v", name, raw)
		}
	}
	if raw["lastSpawnedAt"] != nil || raw["spawnCount"] != 0.0 {
		t.Errorf("nothing began with it: %v %v", raw["lastSpawnedAt"], raw["spawnCount"])
	}
	if status := r.api("GET", "/templates/base", "", &out); status != http.StatusOK || out.SpawnCount != 1 ||
		out.LastSpawnedAt == nil {
		t.Errorf("the template of the sandbox that runs: %d %+v", status, out)
	}
	if status := r.api("GET", "/templates/web?limit=1", "", &out); status != http.StatusOK || len(out.Builds) != 1 ||
		out.Builds[0].BuildID != second.BuildID {
		t.Errorf("a page of one build: %d %+v", status, out)
	}
	var list []map[string]any
	if status := r.api("GET", "/v2/templates", "", &list); status != http.StatusOK || len(list) != 1 ||
		list[0]["cpuCount"] != 4.0 || list[0]["buildID"] != first.BuildID {
		t.Errorf("the list: %d %v", status, list)
	}
	for _, name := range []string{"createdBy", "lastSpawnedAt", "buildStatus"} {
		if _, ok := list[0][name]; !ok {
			t.Errorf("the list is without %s: %v", name, list[0])
		}
	}
}

// If this fails, somebody who mistypes a tag looks for a template that is there.
func TestMissingTag(t *testing.T) {
	r := newRig(t)
	first := r.request(`{"name":"web:v1"}`)
	waiting := r.request(`{"name":"new"}`)
	r.ready(first.BuildID)
	if status := r.api("POST", "/sandboxes/"+r.box.SandboxID+"/snapshots", `{"name":"shot"}`,
		nil); status != http.StatusCreated {
		t.Fatalf("control: a snapshot: %d", status)
	}
	for _, c := range []struct{ ref, tag string }{{"web:nope", "nope"}, {first.TemplateID + ":nope", "nope"},
		{"web:default", "default"}, {"base:nope", "nope"}, {"shot:nope", "nope"}} {
		for _, p := range []string{"/templates/aliases/", "/templates/"} {
			if c.ref == "shot:nope" {
				continue // of snapshots, create alone knows tags
			}
			if c.tag == "default" && p == "/templates/" {
				continue // there it is a name alone
			}
			r.refused("GET", p+c.ref, "", 404, "tag", `"`+c.tag+`"`)
		}
		r.refused("POST", "/sandboxes", `{"templateID":"`+c.ref+`"}`, 404, "tag", `"`+c.tag+`"`)
	}
	r.refused("GET", "/templates/web:nope/tags", "", 404, "tag", `"nope"`)
	r.refused("DELETE", "/templates/web:nope", "", 404, "tag", `"nope"`)
	r.refused("DELETE", "/templates/web:v1", "", 400, "without the tag")
	r.refused("POST", "/templates/tags", `{"target":"web:nope","tags":["x"]}`, 404, "tag", `"nope"`)
	r.refused("GET", "/templates/aliases/none:v1", "", 404, `no template "none"`)
	for _, path := range []string{"/templates/aliases/web", "/templates/aliases/web:v1", "/templates/aliases/new",
		"/templates/web:v1", "/templates/" + waiting.TemplateID, "/templates/aliases/shot:default"} {
		if status := r.api("GET", path, "", nil); status != http.StatusOK {
			t.Errorf("control: %s: %d", path, status)
		}
	}
}

// If this fails, the server's own template is there at one route and not at another.
func TestBaseEverywhere(t *testing.T) {
	r := newRig(t)
	for _, ref := range []string{"base", "base:default", "outboard%2Fbase", "BASE", "%20base%20"} {
		var alias aliasOut
		if status := r.api("GET", "/templates/aliases/"+ref, "", &alias); status != http.StatusOK ||
			alias.TemplateID != "base" || !alias.Public {
			t.Errorf("the alias %s: %d %+v", ref, status, alias)
		}
		var out withBuildsOut
		if status := r.api("GET", "/templates/"+ref, "", &out); status != http.StatusOK || out.TemplateID != "base" ||
			!out.Public || len(out.Builds) != 1 || out.Builds[0].Status != "ready" {
			t.Errorf("the template %s: %d %+v", ref, status, out)
		}
		var tags []map[string]any
		if status := r.api("GET", "/templates/"+ref+"/tags", "", &tags); status != http.StatusOK || len(tags) != 1 ||
			tags[0]["tag"] != "default" || tags[0]["buildID"] != out.Builds[0].BuildID {
			t.Errorf("the tags of %s: %d %v", ref, status, tags)
		}
		name := strings.NewReplacer("%2F", "/", "%20", " ").Replace(ref)
		var box sandboxOut
		if status := r.api("POST", "/sandboxes", `{"templateID":"`+name+`"}`, &box); status != http.StatusCreated ||
			box.TemplateID != "base" {
			t.Errorf("a sandbox of %q: %d %+v", name, status, box)
		}
		r.api("DELETE", "/sandboxes/"+box.SandboxID, "", nil)
		r.refused("DELETE", "/templates/"+ref, "", 403, "server's own")
		r.refused("POST", "/templates/tags", `{"target":"`+name+`","tags":["x"]}`, 403, "server's own")
	}
	r.refused("DELETE", "/templates/tags", `{"name":"base","tags":["x"]}`, 403, "server's own")
	r.refused("GET", "/templates/base/files/abc", "", 403, "server's own")
	r.refused("GET", "/templates/base/builds/"+baseBuild+"/status", "", 404, "no builds")
	r.refused("POST", "/v3/templates", `{"name":"base"}`, 400, "server's own")
	if status := r.api("POST", "/sandboxes/"+r.box.SandboxID+"/snapshots", `{"name":"mine"}`,
		nil); status != http.StatusCreated {
		t.Fatalf("control: a snapshot: %d", status)
	}
	if status := r.api("DELETE", "/templates/mine", "", nil); status != http.StatusNoContent {
		t.Errorf("control: what is one's own is removed: %d", status)
	}
}

// If this fails, a name that E2B takes in capitals or with spaces around it is another one here, or none.
func TestNamesAreCompared(t *testing.T) {
	r := newRig(t)
	out := r.request(`{"name":" Outboard/My-App : V1 ","tags":["Stable"," stable "]}`)
	if !slices.Equal(out.Aliases, []string{"my-app"}) || !slices.Equal(out.Tags, []string{"stable", "v1"}) {
		t.Errorf("a name in capitals: %+v", out)
	}
	r.ready(out.BuildID)
	if again := r.request(`{"name":"MY-APP"}`); again.TemplateID != out.TemplateID {
		t.Errorf("the same name makes another template: %+v", again)
	}
	for _, path := range []string{"/templates/aliases/MY-App", "/templates/aliases/my-app:V1", "/templates/" +
		strings.ToUpper(out.TemplateID), "/templates/%20my-app",
		"/templates/MY-APP/builds/" + strings.ToUpper(out.BuildID) + "/status"} {
		if status := r.api("GET", path, "", nil); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	var tagged struct{ Tags []string }
	if status := r.api("POST", "/templates/tags", `{"target":"My-App:V1","tags":["Prod"]}`,
		&tagged); status != http.StatusCreated || !slices.Equal(tagged.Tags, []string{"prod"}) {
		t.Errorf("tags in capitals: %d %+v", status, tagged)
	}
	if status := r.api("DELETE", "/templates/tags", `{"name":"My-App","tags":["PROD"]}`,
		nil); status != http.StatusNoContent {
		t.Errorf("taking one away: %d", status)
	}
	r.refused("GET", "/templates/aliases/my-app:prod", "", 404, "prod")
	r.refused("DELETE", "/templates/tags", `{"name":"my-app","tags":["default"]}`, 400, "default")
	r.refused("DELETE", "/templates/tags", `{"name":"my-app","tags":[]}`, 400, "empty")
	r.refused("DELETE", "/templates/tags", `{"name":"my-app:v1","tags":["v1"]}`, 400, "without a tag")
	var shot snapshotOut
	if status := r.api("POST", "/sandboxes/"+r.box.SandboxID+"/snapshots", `{"name":" Shot "}`,
		&shot); status != http.StatusCreated || shot.SnapshotID != "outboard/shot:default" {
		t.Errorf("a snapshot in capitals: %d %+v", status, shot)
	}
	for ref, want := range map[string]int{"base": 1, "BASE": 1, "shot": 0, "my-app": 0, "none": 0} {
		var list []listedOut
		if status := r.api("GET", "/v2/sandboxes?template="+ref, "", &list); status != http.StatusOK ||
			len(list) != want {
			t.Errorf("the sandboxes of %s: %d %+v", ref, status, list)
		}
	}
}

// If this fails, somebody changes the letters of a name that is refused for its length, or because it is taken.
func TestWhyNotThatName(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("a", 129)
	for name, words := range map[string][]string{
		long: {"129 bytes", "at most 128"}, "a b": {"letters"}, "tags": {"path"}, "aliases": {"path"}, string(outboard.NewTemplateID()): {"ids look like that"},
		string(outboard.NewSnapshotID()): {"ids look like that"}, "": {"needs a name"}, "other/x": {"namespace",
			`"other"`, `"outboard"`}, "x:": {"tag needs a name"},
		"x:" + long: {"129 bytes"}, "x:" +
			string(outboard.NewTemplateBuildID()): {"builds look like that"}, "x:a b": {"tag", "letters"},
	} {
		r.refused("POST", "/v3/templates", `{"name":"`+name+`"}`, 400, words...)
		if !strings.Contains(name, ":") && name != "" {
			r.refused("POST", "/sandboxes/"+r.box.SandboxID+"/snapshots", `{"name":"`+name+`"}`, 400, words...)
		}
	}
	r.refused("POST", "/sandboxes/"+r.box.SandboxID+"/snapshots", `{"name":"x:v1"}`, 501, "no tag but default")
	r.request(`{"name":"` + long[1:] + `"}`) // the control
}

// If this fails, limits that no sandbox can have are found out when somebody has uploaded all files, by names
// that the client never said.
func TestLimitsAtTheDoor(t *testing.T) {
	r := newRig(t)
	for body, word := range map[string]string{
		`"cpuCount":0`: "cpuCount must be 1 to 1024, not 0", `"cpuCount":-1`: "cpuCount", `"cpuCount":1025`: "cpuCount", `"cpuCount":1.5`: "cpuCount: expected an integer",
		`"cpuCount":"2"`: "cpuCount: expected an integer, got string", `"memoryMB":0`: "memoryMB", `"memoryMB":127`: "memoryMB must be 128 to 8388608, not 127",
		`"memoryMB":-128`: "memoryMB", `"memoryMB":8388609`: "memoryMB", `"memoryMB":9007199254740993`: "memoryMB", `"memoryMB":1e30`: "memoryMB",
	} {
		r.refused("POST", "/v3/templates", `{"name":"web",`+body+`}`, 400, word)
	}
	r.refused("GET", "/templates/aliases/web", "", 404)
	r.request(`{"name":"web","cpuCount":1,"memoryMB":128}`)
	r.request(`{"name":"web","cpuCount":null,"memoryMB":null}`)
}

// If this fails, a client waits for a build that was refused, or a template begins with something that nobody said.
func TestRefusedBuilds(t *testing.T) {
	r := newRig(t)
	var snap struct {
		SnapshotID string `json:"snapshotID"`
	}
	if status := r.api("POST", "/sandboxes/"+r.box.SandboxID+"/snapshots", `{"name":"kept"}`,
		&snap); status != http.StatusCreated {
		t.Fatalf("a snapshot: %d", status)
	}
	for body, words := range map[string][]string{
		`{"fromTemplate":"` + snap.SnapshotID +
			`"}`: {"is a snapshot"}, `{"fromTemplate":"Kept"}`: {"kept is a snapshot"},
		`{}`: {"fromImage", "fromTemplate",
			"base"}, `{"fromImage":"","fromTemplate":" "}`: {"fromImage"}, `{"fromTemplate":"none"}`: {`no template "none"`},
		`{"fromTemplate":"base:nope"}`: {"tag",
			"nope"}, `{"fromTemplate":"base","steps":[{"type":"FLY"}]}`: {"steps[0]", "FLY"}, `{"fromImage":5}`: {"fromImage: expected a string, got number"},
		`{"fromTemplate":"base","steps":[{"type":"COPY","args":["a","b"],"filesHash":"none"}]}`: {"nothing was uploaded"},
		`{"fromTemplate":"web","fromImage":"alpine"}`:                                           {"not with both"},
		`{"fromTemplate":"base","fromImageRegistry":{"type":"moon"}}`:                           {"fromImageRegistry.type"},
	} {
		out := r.request(`{"name":"web"}`)
		path := "/templates/" + out.TemplateID + "/builds/" + out.BuildID
		var status struct {
			Status string
			Reason reasonOut
		}
		if r.api("GET", path+"/status", "", &status); status.Status != "waiting" {
			t.Fatalf("control: a build that nobody began is %q", status.Status)
		}
		want := 400
		switch {
		case strings.Contains(words[0], "no template"), strings.Contains(words[0], "tag"):
			want = 404
		case strings.Contains(words[0], "snapshot"):
			want = 501
		}
		r.refused("POST", "/v2"+path, body, want, words...)
		if r.api("GET", path+"/status", "", &status); status.Status != "error" ||
			!strings.Contains(status.Reason.Message, words[0]) {
			t.Errorf("a build refused with %s is %+v", body, status)
		}
		r.refused("POST", "/v2"+path, `{"fromTemplate":"base"}`, 409)
	}
	out := r.request(`{"name":"web"}`)
	r.refused("POST", "/v2/templates/none/builds/"+out.BuildID, "{", 404)
}

// If this fails, a program that looks for E2B's words when a command runs as nobody does not find them, or finds
// them elsewhere.
func TestNobodysCommand(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		step      outboard.TemplateStep
		err, want string
	}{
		{outboard.TemplateStep{Kind: outboard.StepRun, Command: "whoami"},
			"step 1, RUN whoami: invalid username: 'root123'", "failed to run command 'whoami': command failed: " +
				"unauthenticated: invalid username: 'root123'"},
		{outboard.TemplateStep{Kind: outboard.StepRun, Command: "false"}, "step 1, RUN false: it ended with status 1",
			"step 1, RUN false: it ended with status 1"},
		{outboard.TemplateStep{Kind: outboard.StepWorkdir, Target: "/x"}, "step 1, WORKDIR /x: invalid username: 'x'",
			"step 1, WORKDIR /x: invalid username: 'x'"},
	} {
		out := r.request(`{"name":"web"}`)
		if _, err := r.back.Store.ChangeTemplateBuild(t.Context(), outboard.TemplateBuildID(out.BuildID),
			func(b *outboard.TemplateBuild) error {
				b.State, b.Error, b.ErrorStep, b.Spec.Steps = outboard.TemplateFailed, c.err, 1, []outboard.TemplateStep{c.step}
				return nil
			}); err != nil {
			t.Fatal(err)
		}
		var status struct{ Reason reasonOut }
		if r.api("GET", "/templates/web/builds/"+out.BuildID+"/status", "", &status); status.Reason.Message != c.want ||
			status.Reason.Step != "1" {
			t.Errorf("%q is told as %+v", c.err, status.Reason)
		}
	}
}

// If this fails, somebody who mistypes a filter takes the answer for what they asked.
func TestUnknownFilters(t *testing.T) {
	r := newRig(t)
	box := "/v2/sandboxes/" + r.box.SandboxID
	for path, words := range map[string][]string{
		"/v2/sandboxes?state=runing": {"state", "runing", "paused"}, "/v2/sandboxes?state=running,x": {"state",
			`"x"`}, "/v2/sandboxes?order=up": {"order", `"up"`, "desc or asc"},
		"/v2/sandboxes?template=a:b": {"template",
			"tag"}, "/sandboxes/metrics": {"sandbox_ids"}, "/sandboxes/metrics?sandbox_ids=": {"sandbox_ids"},
		box + "/logs?direction=up": {"direction"}, box + "/logs?level=loud": {"level", "loud"}, box +
			"/logs?limit=x": {"limit"}, box + "/logs?limit=1001": {"limit", "1000"},
		box + "/logs?limit=-1": {"limit"}, box + "/logs?search=" + strings.Repeat("x", 257): {"search", "256"},
	} {
		r.refused("GET", path, "", 400, words...)
	}
	for _, path := range []string{"/v2/sandboxes?state=running,paused&order=asc", "/v2/sandboxes?state=&order=",
		"/sandboxes/metrics?sandbox_ids=" + r.box.SandboxID, box + "/logs?direction=backward&level=info&limit=1000",
		"/sandboxes/" + r.box.SandboxID + "/logs?limit=5000"} {
		if status := r.api("GET", path, "", nil); status != http.StatusOK {
			t.Errorf("control: %s: %d", path, status)
		}
	}
	var out struct{ Logs []logOut }
	if r.api("GET", box+"/logs?level=info", "", &out); len(out.Logs) == 0 {
		t.Error("control: the log is empty")
	}
	if r.api("GET", box+"/logs?level=warn", "", &out); len(out.Logs) != 0 {
		t.Errorf("lines below the level that was asked for: %+v", out.Logs)
	}
}

// If this fails, a client whose JSON is wrong is told of types of Go, or not which field it is.
func TestWrongTypes(t *testing.T) {
	r := newRig(t)
	box := "/sandboxes/" + r.box.SandboxID
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/sandboxes", `{"templateID":5}`, "templateID: expected a string, got number"},
		{"POST", "/sandboxes", `{"templateID":"base","timeout":"60"}`, "timeout: expected an integer, got string"},
		{"POST", "/sandboxes", `{"templateID":"base","metadata":{"a":1}}`, "metadata: expected a string, got number"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"allowOut":"x"}}`,
			"network.allowOut: expected an array, got string"},
		{"POST", "/sandboxes", `[]`, "expected an object, got array"}, {"POST", "/sandboxes", `{"templateID":`,
			"ends too early"},
		{"PUT", box + "/network", `{"allowOut":5}`, "allowOut: expected an array, got number"},
		{"POST", box + "/timeout", `{"timeout":true}`, "timeout: expected an integer, got bool"},
		{"POST", "/v3/templates", `{"name":"x","tags":"v1"}`, "tags: expected an array, got string"},
	} {
		var e errorBody
		status := r.api(c.method, c.path, c.body, &e)
		if status != 400 || !strings.Contains(e.Message, c.want) || strings.Contains(e.Message, "Go ") ||
			strings.Contains(e.Message, "networkIn") {
			t.Errorf("%s %s: %d %q, want %q", c.path, c.body, status, e.Message, c.want)
		}
	}
	var e rpcError
	if status := r.do(r.envd("/filesystem.Filesystem/Stat", "application/json", []byte(`{"path":5}`)),
		&e); status != 400 || !strings.Contains(e.Message, "path: expected a string, got number") {
		t.Errorf("a message: %d %+v", status, e)
	}
}

// If this fails, somebody whose sandbox is paused, or who said too little, is told something that is not so.
func TestPausedIsSaid(t *testing.T) {
	r := newRig(t)
	box := "/sandboxes/" + r.box.SandboxID
	r.refused("POST", box+"/timeout", `{"timeout":-1}`, 400, "timeout must be 0 to")
	r.refused("POST", "/sandboxes", `{"templateID":"base","timeout":0}`, 400, "timeout must be 1 to")
	r.refused("POST", "/sandboxes", `{"templateID":"base","metadata":{"a":"\u0000"}}`, 400, "metadata", `"a"`, "NUL")
	for _, host := range []string{"localhost:${PORT}", "app_1.example.com", "[::1]:80"} {
		var out sandboxOut
		if status := r.api("POST", "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"`+host+`"}}`,
			&out); status != http.StatusCreated {
			t.Errorf("control: %s: %d", host, status)
		}
		r.api("DELETE", "/sandboxes/"+out.SandboxID, "", nil)
	}
	for _, call := range []string{"/timeout", "/refreshes"} {
		if status := r.api("POST", box+call, `{"timeout":600}`, nil); status != http.StatusNoContent {
			t.Errorf("control: %s of one that runs: %d", call, status)
		}
	}
	if status := r.api("POST", box+"/pause", "", nil); status != http.StatusNoContent {
		t.Fatalf("pausing: %d", status)
	}
	r.refused("POST", box+"/timeout", `{"timeout":60}`, 404, "paused")
	r.refused("POST", box+"/refreshes", `{"duration":60}`, 404, "paused")
	var e errorBody
	if status := r.api("POST", box+"/pause", "", &e); status != 409 || strings.Contains(e.Message, "reading") ||
		!strings.Contains(e.Message, "paused already") {
		t.Errorf("pausing again: %d %+v", status, e)
	}
}

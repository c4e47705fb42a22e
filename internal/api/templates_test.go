//go:build linux

package api_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// Fails if a page of templates or builds leaves one out or gives one twice, also when the row of its cursor was
// deleted; or if a body is taken with something in it that nobody reads.
func TestTemplateRoutes(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	at := time.Now().UTC().Truncate(time.Second)
	for i := range 5 {
		m := outboard.Template{ID: outboard.NewTemplateID(), Name: fmt.Sprint("t", i), Org: outboard.DefaultOrg,
			CreatedAt: at.Add(time.Duration(i) * time.Second)}
		build := outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), Org: outboard.DefaultOrg,
			State: outboard.TemplateWaiting, CreatedAt: at}
		if _, err := b.store.AddTemplateBuild(t.Context(), m, build); err != nil {
			t.Fatal(err)
		}
	}
	first := b.ok("GET", "/v1/templates?limit=2", nil)
	if first.str("data.0.name") != "t4" || first.str("data.1.name") != "t3" {
		t.Errorf("the first page: %s", first.body)
	}
	b.ok("DELETE", "/v1/templates/t3", nil)
	second := b.ok("GET", "/v1/templates?limit=2&page="+first.str("next_page"), nil)
	if second.str("data.0.name") != "t2" || second.str("data.1.name") != "t1" {
		t.Errorf("the second page: %s", second.body)
	}
	third := b.ok("GET", "/v1/templates?limit=2&page="+second.str("next_page"), nil)
	if third.str("data.0.name") != "t0" || third.get("next_page") != nil {
		t.Errorf("the third page: %s", third.body)
	}
	builds := b.ok("GET", "/v1/templates/t1/builds", nil)
	if builds.str("data.0.state") != "waiting" || builds.str("data.0.template_id") != b.ok("GET", "/v1/templates/t1",
		nil).str("id") {
		t.Errorf("builds: %s", builds.body)
	}
	log := b.ok("GET", "/v1/templates/t1/builds/"+builds.str("data.0.id")+"/log", nil)
	if log.str("state") != "waiting" || len(log.get("data").([]any)) != 0 {
		t.Errorf("the log: %s", log.body)
	}
	b.refused(400, "steps[0].comand: unknown field", "POST", "/v1/templates",
		`{"name":"n","steps":[{"type":"run","comand":"x"}]}`)
	b.refused(400, "limits.memory: unknown field", "POST", "/v1/templates", `{"name":"n","limits":{"memory":1}}`)
	b.refused(400, "warm must be 0 to 8", "POST", "/v1/templates", `{"name":"n","warm":9}`)
	b.refused(400, "a step is run, copy", "POST", "/v1/templates", `{"name":"n","steps":[{"type":"add"}]}`)
	b.refused(400, "from", "GET", "/v1/templates/t1/builds/"+builds.str("data.0.id")+"/log?from=-1", nil)
	b.refused(400, "page", "GET", "/v1/templates/t1/builds?page="+first.str("next_page"), nil)
	b.refused(404, `no template "n"`, "GET", "/v1/templates/n", nil) // what was refused left none behind
}

// Fails if limits that no sandbox can have are saved with an environment, a template or a sandbox, and then fail
// wherever they are used; or if the answer does not say which of them it was.
func TestLimitsRefused(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	env := b.ok("POST", "/v1/environments",
		`{"name":"edge","config":{"type":"cloud","outboard":{"limits":{"pids":16,"memory_bytes":8388608,"cpus":0.01}}}}`).str("id")
	for limit, want := range map[string]string{
		`"pids":1`: "limits.pids must be 16 to 1000000", `"pids":-1`: "limits.pids must be", `"disk_bytes":9000000000000000000`: "limits.disk_bytes must be",
		`"cpus":0.000001`: "limits.cpus must be 0.01 to 1024", `"memory_bytes":8388607`: "limits.memory_bytes must be",
	} {
		b.refused(400, "config.outboard."+want, "POST", "/v1/environments",
			`{"name":"e","config":{"type":"cloud","outboard":{"limits":{`+limit+`}}}}`)
		b.refused(400, "config.outboard."+want, "POST", "/v1/environments/"+env,
			`{"config":{"type":"cloud","outboard":{"limits":{`+limit+`}}}}`)
		b.refused(400, want, "POST", "/v1/boxes", `{"limits":{`+limit+`}}`)
		b.refused(400, want, "POST", "/v1/templates", `{"name":"n","limits":{`+limit+`}}`)
	}
	if got := b.ok("GET", "/v1/environments/"+env, nil); got.get("config.outboard.limits.pids") != 16.0 {
		t.Errorf("after what was refused: %s", got.body)
	}
	b.refused(404, `no template "n"`, "GET", "/v1/templates/n", nil)
}

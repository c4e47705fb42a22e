//go:build linux

package api_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// Fails if a page of templates or builds leaves one out or gives one twice, also when the row of its cursor was deleted; or if a body is
// taken with something in it that nobody reads.
func TestTemplateRoutes(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	at := time.Now().UTC().Truncate(time.Second)
	for i := range 5 {
		m := outboard.Template{ID: outboard.NewTemplateID(), Name: fmt.Sprint("t", i), Org: outboard.DefaultOrg, CreatedAt: at.Add(time.Duration(i) * time.Second)}
		build := outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), Org: outboard.DefaultOrg, State: outboard.TemplateWaiting, CreatedAt: at}
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
	if builds.str("data.0.state") != "waiting" || builds.str("data.0.template_id") != b.ok("GET", "/v1/templates/t1", nil).str("id") {
		t.Errorf("builds: %s", builds.body)
	}
	log := b.ok("GET", "/v1/templates/t1/builds/"+builds.str("data.0.id")+"/log", nil)
	if log.str("state") != "waiting" || len(log.get("data").([]any)) != 0 {
		t.Errorf("the log: %s", log.body)
	}
	b.refused(400, "steps[0].comand: unknown field", "POST", "/v1/templates", `{"name":"n","steps":[{"type":"run","comand":"x"}]}`)
	b.refused(400, "limits.memory: unknown field", "POST", "/v1/templates", `{"name":"n","limits":{"memory":1}}`)
	b.refused(400, "warm must be 0 to 8", "POST", "/v1/templates", `{"name":"n","warm":9}`)
	b.refused(400, "a step is run, copy", "POST", "/v1/templates", `{"name":"n","steps":[{"type":"add"}]}`)
	b.refused(400, "from", "GET", "/v1/templates/t1/builds/"+builds.str("data.0.id")+"/log?from=-1", nil)
	b.refused(400, "page", "GET", "/v1/templates/t1/builds?page="+first.str("next_page"), nil)
	b.refused(404, `no template "n"`, "GET", "/v1/templates/n", nil) // what was refused left none behind
}

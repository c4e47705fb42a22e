package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// newBuild adds a build of a template of an organization and returns both.
func newBuild(t *testing.T, s *store.Store, org outboard.OrgID, name string,
	tags ...string) (outboard.Template, outboard.TemplateBuild) {
	t.Helper()
	b := outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), State: outboard.TemplateWaiting, Tags: tags,
		CreatedAt: now(), Org: org}
	m, err := s.AddTemplateBuild(t.Context(), outboard.Template{ID: outboard.NewTemplateID(), Name: name,
		CreatedAt: now(), Org: org}, b)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = s.TemplateBuild(t.Context(), b.ID); err != nil || b.Template != m.ID || b.Org != org {
		t.Fatalf("the build is %+v, %v", b, err)
	}
	return m, b
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// finish makes a build ready.
func finish(t *testing.T, s *store.Store, id outboard.TemplateBuildID, layers ...string) {
	t.Helper()
	_, err := s.ChangeTemplateBuild(t.Context(), id, func(b *outboard.TemplateBuild) error {
		b.State, b.EndedAt, b.Result.Layers = outboard.TemplateReady, now(), layers
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If this failed, a tag could mean a build that is not ready, a name could be two templates or another
// organization's, or the layers of a build that a tag means could be removed.
func TestTemplates(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		m, b := newBuild(t, s, "org_1", "web", "default", "v1")
		if same, _ := newBuild(t, s, "org_1", "web"); same.ID != m.ID {
			t.Error("a second build made a second template of the same name")
		}
		if other, _ := newBuild(t, s, "org_2", "web"); other.ID == m.ID {
			t.Error("two organizations share a template")
		}
		if got, err := s.Template(t.Context(), "org_1", "web"); err != nil || got.ID != m.ID || len(got.Tags) != 0 {
			t.Errorf("before it is ready: %+v, %v", got, err)
		}
		finish(t, s, b.ID, "built-1")
		got, err := s.Template(t.Context(), "org_1", string(m.ID))
		if err != nil || got.Tags["v1"].Build != b.ID || got.Tags["default"].Build != b.ID {
			t.Errorf("when it is ready: %+v, %v", got, err)
		}
		_, b2 := newBuild(t, s, "org_1", "web", "default")
		finish(t, s, b2.ID, "built-2")
		tagged, err := s.TaggedBuilds(t.Context())
		if err != nil || len(tagged) != 2 {
			t.Errorf("tagged: %+v, %v", tagged, err)
		}
		if _, err := s.Template(t.Context(), "org_2", string(m.ID)); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("another organization's is found: %v", err)
		}
		if _, err := s.ChangeTemplate(t.Context(), m.ID,
			func(m *outboard.Template) error { m.DeletedAt = now(); return nil }); err != nil {
			t.Fatal(err)
		}
		if list, err := s.Templates(t.Context(), "org_1"); err != nil || len(list) != 0 {
			t.Errorf("after it was deleted: %+v, %v", list, err)
		}
		if again, _ := newBuild(t, s, "org_1", "web"); again.ID == m.ID {
			t.Error("the name of a deleted template still means it")
		}
		if old, err := s.TemplateBuild(t.Context(), b.ID); err != nil || old.Result.Layers[0] != "built-1" {
			t.Errorf("what began with a deleted template cannot be made again: %+v, %v", old, err)
		}
	})
}

// If this failed, a build's log would lose lines or show them twice, builds that nobody ended would not be
// found, or a client in a loop could fill the database.
func TestTemplateBuilds(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		m, b := newBuild(t, s, "org_1", "web")
		for from := range 3 {
			if err := s.LogTemplateBuild(t.Context(), b.ID, from*2,
				[]outboard.TemplateLine{{At: now(), Level: "info", Message: fmt.Sprint(from * 2)},
					{At: now(), Level: "info", Step: 1, Message: fmt.Sprint(from*2 + 1)}}); err != nil {
				t.Fatal(err)
			}
		}
		lines, err := s.TemplateLog(t.Context(), b.ID, 3, 2)
		if n, nerr := s.TemplateLines(t.Context(), b.ID); err != nil || nerr != nil || n != 6 || len(lines) != 2 ||
			lines[0].Message != "3" || lines[0].Step != 1 || lines[1].Message != "4" {
			t.Errorf("%d lines, %+v, %v, %v", n, lines, err, nerr)
		}
		begin := func(id outboard.TemplateBuildID) {
			t.Helper()
			if _, err := s.ChangeTemplateBuild(t.Context(), id, func(b *outboard.TemplateBuild) error {
				b.State, b.Host = outboard.TemplateBuilding, "h"
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		begin(b.ID)
		if open, err := s.OpenTemplateBuilds(t.Context(), "h"); err != nil || len(open) != 1 || open[0].ID != b.ID {
			t.Errorf("open: %+v, %v", open, err)
		}
		if open, err := s.OpenTemplateBuilds(t.Context(), "elsewhere"); err != nil || len(open) != 0 {
			t.Errorf("open on another host: %+v, %v", open, err)
		}
		for range store.MaxTemplateBuilds - 1 {
			_, b := newBuild(t, s, "org_1", "web")
			begin(b.ID)
		}
		_, err = s.AddTemplateBuild(t.Context(), outboard.Template{ID: outboard.NewTemplateID(), Name: "web",
			Org: "org_1"},
			outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), State: outboard.TemplateWaiting})
		mustKind(t, err, outboard.Exhausted, "builds of template web")
		ref := outboard.BlobRef{Digest: "d", Size: 3}
		if err := s.PutTemplateFile(t.Context(), m.ID, "h", ref, now()); err != nil {
			t.Fatal(err)
		}
		if got, err := s.TemplateFile(t.Context(), m.ID, "h"); err != nil || got != ref {
			t.Errorf("upload: %+v, %v", got, err)
		}
		if _, err := s.TemplateFile(t.Context(), "tplother", "h"); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("an upload of another template is found: %v", err)
		}
	})
}

// If this failed, every server would read all builds that there ever were twice a minute, to find those that are
// open on its host.
func TestOpenTemplateBuildsByIndex(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		if _, err := s.Exec(t.Context(), manyBuilds); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Exec(t.Context(), "ANALYZE"); err != nil {
			t.Fatal(err)
		}
		if plan, err := s.PlanOfOpenBuilds(t.Context()); err != nil || !strings.Contains(plan, "template_builds_open") {
			t.Errorf("the plan is %s, %v", plan, err)
		}
	})
}

// manyBuilds is one build of each of two hosts that waits among many that have ended.
const manyBuilds = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
INSERT INTO template_builds (id, template, org, host, state, created_at, body)
SELECT 'b' || i, 't', 'org_1', CASE WHEN i % 2 = 0 THEN 'h' ELSE 'g' END, CASE WHEN i < 3 THEN 'waiting' ELSE 'ready' END, i, '{}' FROM n`

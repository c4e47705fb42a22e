//go:build linux

package fleet

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// guestsOf returns the pids of guests that a provider's records below a pattern name.
func guestsOf(t *testing.T, pattern string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pattern, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var s struct{ Pid int }
		if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &s) == nil && s.Pid != 0 {
			pids = append(pids, s.Pid)
		}
	}
	return pids
}

// If this failed, a template that has sandboxes wait would have none, its first session would not get one, or
// they would wait on when nobody means the template any more.
func TestTemplateWarm(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("layers are built as root only")
	}
	r := newRig(t)
	guest, err := guestProgram()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "s")
	p, err := native.New(native.Config{Dir: dir, Guest: guest, Warm: 1})
	if err != nil || !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user:", err)
	}
	t.Cleanup(func() {
		ctx := context.Background() // the test's own is over
		ids, err := p.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := p.Destroy(ctx, id); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	r.provider = p
	store := images(t)
	f := r.fleet(func(c *Config) { c.Images = store })
	waiting := func() []int {
		p.PoolFilled()
		return guestsOf(t, filepath.Join(dir, "shelf", "*", "*"))
	}
	first := func(b outboard.TemplateBuild) int {
		box := r.acquire(t, f, r.sessionIn(t, outboard.EnvConfig{Kind: "cloud", Build: b.ID}))
		return guestsOf(t, filepath.Join(dir, string(box.ID())))[0]
	}
	spec := outboard.TemplateSpec{Steps: []outboard.TemplateStep{runStep("echo cold > /workspace/f")}}
	cold, _ := r.ready(t, f, spec)
	before := waiting()
	if pid := first(cold); slices.Contains(before, pid) {
		t.Fatal("control: the first session of a template that keeps none had one that waited")
	}
	spec.Steps, spec.Warm = []outboard.TemplateStep{runStep("echo warm > /workspace/f")}, 2
	warm, _ := r.ready(t, f, spec)
	before = waiting()
	if pid := first(warm); !slices.Contains(before, pid) {
		t.Errorf("the first session has guest %d, none of those that waited: %v", pid, before)
	}
	if n := len(waiting()); n < 2 {
		t.Errorf("%d wait after one was taken; want 2 of the template's", n)
	}
	b, err := r.store.TemplateBuild(t.Context(), warm.ID)
	if err != nil {
		t.Fatal(err)
	}
	had := len(waiting())
	if _, err := r.store.ChangeTemplate(t.Context(), b.Template,
		func(m *outboard.Template) error { m.DeletedAt = b.EndedAt; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := f.poolTemplates(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(waiting()); n >= had {
		t.Errorf("%d wait after the template was removed, and %d before", n, had)
	}
}

// If this failed, one template or organization could fill the memory of a host with sandboxes that nobody uses,
// or keep others from having any.
func TestWarmShares(t *testing.T) {
	s := shares{of: map[outboard.OrgID]int{}}
	for i, c := range []struct {
		org        outboard.OrgID
		want, have int
	}{{"a", 3, 3}, {"a", 100, 8}, {"a", 8, 5}, {"a", 1, 0}, {"b", 8, 8}, {"b", 8, 8}, {"c", 8, 8}, {"c", 8, 8}, {"d", 8,
		8}, {"d", 6, 6}, {"e", 8, 2}, {"f", 1, 0}} {
		if n := s.take(c.org, c.want); n != c.have {
			t.Errorf("%d: %s wants %d and has %d, want %d", i, c.org, c.want, n, c.have)
		}
	}
}

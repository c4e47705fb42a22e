package outboard_test

import (
	"slices"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// If this fails, a grant covers what nobody granted: another human, a later time, a longer command, a second line.
func TestGrantCovers(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	g := outboard.Grant{Human: "apikey_1", Agent: "agent_1", Session: "sesn_1", Actions: []string{"bash"}, Resources: []string{"git push *", "ls"},
		CreatedAt: now, NotBefore: now, ExpiresAt: now.Add(time.Hour), MaxUses: 2, Uses: 1}
	q := outboard.GrantQuery{Human: "apikey_1", Agent: "agent_1", Session: "sesn_1", Action: "bash", Resource: "git push origin", Now: now.Add(time.Minute)}
	cases := []struct {
		name   string
		change func(*outboard.Grant, *outboard.GrantQuery)
		want   bool
	}{
		{"control", func(*outboard.Grant, *outboard.GrantQuery) {}, true},
		{"exact", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Resource = "ls" }, true},
		{"anybody", func(g *outboard.Grant, q *outboard.GrantQuery) {
			g.Human, g.Agent, g.Session, q.Session = "", "", "", "sesn_2"
		}, true},
		{"longer than exact", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Resource = "ls -l" }, false},
		{"second line", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Resource = "git push x\nrm -rf ." }, false},
		{"another action", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Action = "read" }, false},
		{"another human", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Human = "apikey_2" }, false},
		{"another agent", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Agent = "agent_2" }, false},
		{"a fork", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Session = "sesn_2" }, false},
		{"over", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Now = now.Add(time.Hour) }, false},
		{"too early", func(g *outboard.Grant, _ *outboard.GrantQuery) { g.NotBefore = now.Add(time.Minute * 2) }, false},
		{"the clock went back", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Now = now.Add(-time.Minute) }, false},
		{"spent", func(g *outboard.Grant, _ *outboard.GrantQuery) { g.Uses = 2 }, false},
		{"revoked", func(g *outboard.Grant, _ *outboard.GrantQuery) { g.RevokedAt = now }, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g, q := g, q
			c.change(&g, &q)
			if got := g.Covers(q); got != c.want {
				t.Errorf("covers = %v, want %v", got, c.want)
			}
		})
	}
}

// If this fails, a sub-agent gets more than its parent has: an action, a resource, time or uses.
func TestGrantNarrow(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	parent := outboard.Grant{Human: "apikey_1", Session: "sesn_1", Actions: []string{"bash", "read"}, Resources: []string{"git *", "ls"},
		NotBefore: now, ExpiresAt: now.Add(time.Hour), MaxUses: 5, Uses: 2}
	child := outboard.Grant{Session: "sesn_2", Actions: []string{"*"}, Resources: []string{"git push *", "rm *", "ls"}, NotBefore: now.Add(time.Minute),
		ExpiresAt: now.Add(48 * time.Hour), MaxUses: 100}
	got, ok := parent.Narrow(child)
	if !ok || got.Session != "sesn_2" || got.Human != "apikey_1" || !slices.Equal(got.Actions, []string{"bash", "read"}) ||
		!slices.Equal(got.Resources, []string{"git push *", "ls"}) || !got.ExpiresAt.Equal(parent.ExpiresAt) || !got.NotBefore.Equal(child.NotBefore) || got.MaxUses != 3 {
		t.Errorf("narrowed: %+v, %v", got, ok)
	}
	for name, change := range map[string]func(p, c *outboard.Grant){
		"no action":    func(_, c *outboard.Grant) { c.Actions = []string{"write"} },
		"no resource":  func(_, c *outboard.Grant) { c.Resources = []string{"rm *"} },
		"no time":      func(_, c *outboard.Grant) { c.NotBefore = now.Add(2 * time.Hour) },
		"no uses left": func(p, _ *outboard.Grant) { p.Uses = 5 },
		"other human":  func(_, c *outboard.Grant) { c.Human = "apikey_2" },
		"revoked":      func(p, _ *outboard.Grant) { p.RevokedAt = now },
	} {
		p, c := parent, child
		change(&p, &c)
		if got, ok := p.Narrow(c); ok {
			t.Errorf("%s: %+v is left", name, got)
		}
	}
}

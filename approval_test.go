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
	g := outboard.Grant{Human: "user_1", Agent: "agent_1", Session: "sesn_1", Actions: []string{"bash"},
		Resources: []string{"git push *", "ls"},
		CreatedAt: now, NotBefore: now, ExpiresAt: now.Add(time.Hour), MaxUses: 2, Uses: 1}
	q := outboard.GrantQuery{Person: "user_1", Key: "apikey_1", Agent: "agent_1", Session: "sesn_1", Action: "bash",
		Resource: "git push origin", Now: now.Add(time.Minute)}
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
		{"another human", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Person = "user_2" }, false},
		{"another key of the human", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Key = "apikey_2" }, true},
		{"a program that has no human", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Person = "" }, false},
		{"for the key", func(g *outboard.Grant, _ *outboard.GrantQuery) { g.Human = "apikey_1" }, true},
		{"for another key", func(g *outboard.Grant, _ *outboard.GrantQuery) { g.Human = "apikey_2" }, false},
		{"another agent", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Agent = "agent_2" }, false},
		{"a fork", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Session = "sesn_2" }, false},
		{"over", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Now = now.Add(time.Hour) }, false},
		{"too early", func(g *outboard.Grant, _ *outboard.GrantQuery) { g.NotBefore = now.Add(time.Minute * 2) },
			false},
		{"the clock went back", func(_ *outboard.Grant, q *outboard.GrantQuery) { q.Now = now.Add(-time.Minute) },
			false},
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
	parent := outboard.Grant{Human: "apikey_1", Session: "sesn_1", Actions: []string{"bash", "read"},
		Resources: []string{"git *", "ls"},
		NotBefore: now, ExpiresAt: now.Add(time.Hour), MaxUses: 5, Uses: 2}
	child := outboard.Grant{Session: "sesn_2", Actions: []string{"*"}, Resources: []string{"git push *", "rm *", "ls"},
		NotBefore: now.Add(time.Minute),
		ExpiresAt: now.Add(48 * time.Hour), MaxUses: 100}
	got, ok := parent.Narrow(child)
	if !ok || got.Session != "sesn_2" || got.Human != "apikey_1" || !slices.Equal(got.Actions,
		[]string{"bash", "read"}) ||
		!slices.Equal(got.Resources, []string{"git push *", "ls"}) || !got.ExpiresAt.Equal(parent.ExpiresAt) ||
		!got.NotBefore.Equal(child.NotBefore) || got.MaxUses != 3 {
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

// If this fails, somebody answers for themselves where a rule wants another person: by a second key, by one they
// made for a program or for somebody else, or by one whose secret both know; or nobody may answer any more.
func TestWhoMayAnswer(t *testing.T) {
	dev, admin := outboard.RoleDeveloper, outboard.RoleAdmin
	ann := outboard.Caller{Key: "apikey_ann", User: "user_ann", Role: admin}
	bob := outboard.Caller{Key: "apikey_bob", User: "user_bob", Role: dev}
	program := outboard.Caller{Key: "apikey_p", Role: dev, Maker: ann.Makes()}
	for _, c := range []struct {
		name  string
		owner outboard.Caller
		by    outboard.Caller
		want  bool
	}{
		{"control: another person", ann, bob, true},
		{"control: the other way round", bob, ann, true},
		{"control: another person's program", outboard.Caller{Key: "apikey_q", Role: dev, Maker: bob.Makes()}, program,
			true},
		{"control: a program of nobody", ann, outboard.Caller{Key: "apikey_r", Role: dev}, true},
		{"control: two people whose keys one administrator made", outboard.Caller{Key: "k1", User: "user_c", Role: dev,
			Maker: "user_ann"},
			outboard.Caller{Key: "k2", User: "user_d", Role: dev, Maker: "user_ann"}, true},
		{"control: two programs of the operator", outboard.Caller{Key: "k1", Role: dev,
			Maker: outboard.Caller{Key: "op", Kind: outboard.KeyOperator}.Makes()},
			outboard.Caller{Key: "k2", Role: dev, Maker: outboard.Caller{Key: "op",
				Kind: outboard.KeyOperator}.Makes()}, true},
		{"the same key", ann, ann, false},
		{"another key of the person", ann, outboard.Caller{Key: "apikey_ann2", User: "user_ann", Role: dev}, false},
		{"a program's key that the person made", ann, program, false},
		{"the person, for a program they made", program, ann, false},
		{"two programs of one person", program, outboard.Caller{Key: "apikey_p2", Role: dev, Maker: ann.Makes()},
			false},
		{"a key that the person made for somebody else", ann, outboard.Caller{Key: "k1", User: "user_c", Role: dev,
			Maker: ann.Makes()}, false},
		{"the person, for a key they made for somebody else", outboard.Caller{Key: "k1", User: "user_c", Role: dev,
			Maker: ann.Makes()}, ann, false},
		{"a key that the session's key made", outboard.Caller{Key: "apikey_m", Role: admin},
			outboard.Caller{Key: "k3", Role: dev, Maker: outboard.Caller{Key: "apikey_m"}.Makes()}, false},
		{"a viewer", bob, outboard.Caller{Key: "apikey_v", User: "user_v", Role: outboard.RoleViewer}, false},
		{"a session of nobody", outboard.Caller{}, ann, false},
	} {
		owner := c.owner.Owner()
		if got := outboard.ApproverOther.May(c.by, owner); got != c.want {
			t.Errorf("%s: other is %v", c.name, got)
		}
		if got := outboard.ApproverOtherAdmin.May(c.by, owner); got != (c.want && c.by.Role == admin) {
			t.Errorf("%s: other_admin is %v", c.name, got)
		}
		if got := outboard.ApproverAdmin.May(c.by, owner); got != (c.by.Role == admin) {
			t.Errorf("%s: admin is %v", c.name, got)
		}
	}
	if outboard.Approver("anybody").May(ann, bob.Owner()) {
		t.Error("an approver that nobody knows is met")
	}
	if a := outboard.Approver("").And(outboard.ApproverAny); a != outboard.ApproverAny {
		t.Errorf("a rule that names anybody is shown as %q", a)
	}
	for _, a := range append(outboard.Approvers, "") {
		for _, b := range append(outboard.Approvers, "") {
			both := a.And(b)
			for _, by := range []outboard.Caller{ann, bob, program, {Key: "apikey_v", Role: outboard.RoleViewer}} {
				for _, o := range []outboard.Caller{ann, bob, program} {
					if got, want := both.May(by, o.Owner()), a.May(by, o.Owner()) && b.May(by, o.Owner()); got != want {
						t.Errorf("%q and %q is %q: %s for %s: %v", a, b, both, by.Key, o.Key, got)
					}
				}
			}
		}
	}
}

// If this fails, one person counts as two where several must allow: by two keys, by a key they made for somebody
// else or for a program, or by two keys they made and handed out.
func TestHumans(t *testing.T) {
	ann, bob := outboard.Caller{Key: "apikey_a", User: "user_ann"}, outboard.Caller{Key: "apikey_b", User: "user_bob"}
	robot := outboard.Caller{Key: "apikey_r", Maker: "user_ann"}
	lent := outboard.Caller{Key: "apikey_l", User: "user_bob", Maker: "user_ann"}
	for _, c := range []struct {
		name string
		list []outboard.Caller
		want int
	}{
		{"nobody", nil, 0},
		{"two people", []outboard.Caller{ann, bob}, 2},
		{"two machines of who runs the server", []outboard.Caller{{Key: "apikey_1"}, {Key: "apikey_2"}}, 2},
		{"one key twice", []outboard.Caller{{Key: "apikey_1"}, {Key: "apikey_1"}}, 1},
		{"two keys of one person", []outboard.Caller{ann, {Key: "apikey_a2", User: "user_ann"}}, 1},
		{"her and her robot", []outboard.Caller{ann, robot}, 1},
		{"her and a key she made for him", []outboard.Caller{ann, lent}, 1},
		{"two keys that she made", []outboard.Caller{robot, lent}, 1},
		{"what joins two", []outboard.Caller{ann, bob, lent}, 1},
		{"three people", []outboard.Caller{ann, bob, {Key: "apikey_c", User: "user_cy"}}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // in any order
				if got := outboard.Humans(c.list); got != c.want {
					t.Errorf("%d people, want %d", got, c.want)
				}
				slices.Reverse(c.list)
			}
		})
	}
}

package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// Fails if a test of a call without a session goes by the policies of another organization than the caller's, or
// tells a stranger what they say.
func TestPolicyTestIsOfTheCallersOrganization(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	org := outboard.Organization{ID: outboard.NewID[outboard.OrgID](outboard.PrefixOrg), Name: "second",
		CreatedAt: time.Now()}
	if err := b.store.AddOrg(t.Context(), org); err != nil {
		t.Fatal(err)
	}
	other := *b
	other.key = "obk_second"
	putKey(b, outboard.Key{Name: "second", Org: org.ID, Role: outboard.RoleAdmin}, other.key)
	forbid := func(id, tool string) map[string]any {
		return map[string]any{"level": "organization", "text": `@id("` + id +
			`") forbid (principal, action == Action::"` + tool + `", resource);`}
	}
	b.ok("POST", "/v1/policies", forbid("of-first", "bash"))
	other.ok("POST", "/v1/policies", forbid("of-second", "read"))
	test := func(b *bench, tool string) string {
		v := b.ok("POST", "/v1/policies/test", map[string]any{"tool": tool, "input": map[string]any{}})
		if rules := v.get("rules").([]any); len(rules) > 0 {
			return rules[0].(string)
		}
		return v.str("decision")
	}
	for _, c := range []struct {
		b          *bench
		tool, want string
	}{{b, "bash", "organization/of-first"}, {b, "read", "allow"}, {&other, "bash", "allow"}, {&other, "read",
		"organization/of-second"}} {
		if got := test(c.b, c.tool); got != c.want {
			t.Errorf("%s is decided by %s, want %s", c.tool, got, c.want)
		}
	}
}

// Fails if a call of a custom tool is tested as one of a built-in tool, which no rule is about, or a name that
// no tool has, or an input that no call can have, gets a verdict.
func TestPolicyTestOfACustomTool(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{"type": "custom",
			"name": "pay", "description": "pays", "input_schema": map[string]any{"type": "object"}}}}).str("id")
	b.ok("POST", "/v1/policies", map[string]any{"level": "agent", "target_id": agent,
		"text": `@id("no-pay") forbid (principal, action == Action::"custom", resource == Tool::"pay");`})
	v := b.ok("POST", "/v1/policies/test", map[string]any{"agent_id": agent, "tool": "pay", "input": map[string]any{}})
	if v.str("decision") != "deny" || v.str("rules.0") != "agent/no-pay" {
		t.Errorf("a custom tool: %s", v.body)
	}
	b.refused(400, "built-in tool", "POST", "/v1/policies/test", map[string]any{"tool": "pay",
		"input": map[string]any{}})
	b.refused(400, "kind", "POST", "/v1/policies/test", map[string]any{"tool": "pay", "kind": "magic",
		"input": map[string]any{}})
	b.refused(400, "input", "POST", "/v1/policies/test", map[string]any{"tool": "bash", "input": "true"})
}

// If this fails, who may make sessions gets rid of the rules for one of them by a fork, or nobody can change
// them once it was deleted.
func TestPoliciesOfASessionHoldForItsForks(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	parent := b.talk("always_allow")
	parent.turn("- say: hello")
	policy := map[string]any{"level": "session", "target_id": parent.id,
		"text": `@id("no-bash") forbid (principal, action == Action::"bash", resource);`}
	b.ok("POST", "/v1/policies", policy)
	forks, _ := b.fork(parent.id, map[string]any{"count": 2})
	decides := func(id, want string) {
		t.Helper()
		v := b.ok("POST", "/v1/policies/test", map[string]any{"session_id": id, "tool": "bash",
			"input": map[string]any{"command": "ls"}})
		if got := v.str("decision"); got != want {
			t.Errorf("bash in session %s: %s, want %s", id, got, want)
		}
	}
	decides(parent.id, "deny")
	decides(forks[0], "deny")
	decides(b.session(), "allow")
	b.ok("DELETE", "/v1/sessions/"+parent.id, nil)
	decides(forks[1], "deny")
	policy["text"] = ""
	b.ok("POST", "/v1/policies", policy)
	b.refused(404, "session", "POST", "/v1/policies", map[string]any{"level": "session",
		"target_id": outboard.NewID[outboard.SessionID](outboard.PrefixSession), "text": ""})
	decides(forks[0], "allow")
}

// If this fails, who asks why a call was refused is shown rules that were written later, as if they had refused it.
func TestWhyShowsTheRulesOfThen(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	agent := b.ok("GET", "/v1/sessions/"+k.id, nil).str("agent.id")
	save := func(level, target, text string) {
		b.ok("POST", "/v1/policies", map[string]any{"level": level, "target_id": target, "text": text})
	}
	forbid := func(command string) string {
		return `@id("rule") forbid (principal, action == Action::"bash", resource) when { context.command like "` +
			command + `" };`
	}
	save("agent", agent, forbid("*rm*"))
	save("session", k.id, `@id("stays") forbid (principal, action == Action::"bash", resource);`)
	save("organization", "", `permit (principal, action == Action::"read", resource);`)
	call := of(k.turn("- bash: rm x", "- say: ok"), "agent.tool_use")[0]["id"].(string)
	why := func(rule string) (text string, inForce bool) {
		t.Helper()
		w := b.ok("GET", "/v1/sessions/"+k.id+"/outboard/why/"+call, nil)
		for _, r := range w.get("rules").([]any) {
			if r := r.(map[string]any); r["id"] == rule {
				text, _ = r["text"].(string)
				return text, r["in_force"].(bool)
			}
		}
		t.Fatalf("%s is not among the rules: %s", rule, w.body)
		return "", false
	}
	if text, now := why("agent/rule"); !now || !strings.Contains(text, "*rm*") {
		t.Errorf("a rule that was not changed: %v, %s", now, text)
	}
	save("agent", agent, forbid("*curl*"))
	if text, now := why("agent/rule"); now || !strings.Contains(text, "*rm*") {
		t.Errorf("a rule that says something else by now: %v, %s", now, text)
	}
	if text, now := why("session/stays"); !now || text == "" {
		t.Errorf("a rule beside it: %v, %q", now, text)
	}
	if text, now := why("organization/default"); !now || text != "" {
		t.Errorf("what no rule permits: %v, %q", now, text)
	}
}

// If this fails, who saves rules and tries them is shown what those before would have said.
func TestPolicyTestOfWhatWasJustSaved(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	for range 3 {
		for text, want := range map[string]string{`forbid (principal, action == Action::"bash", resource);`: "deny",
			"": "allow"} {
			b.ok("POST", "/v1/policies", map[string]any{"level": "organization", "text": text})
			v := b.ok("POST", "/v1/policies/test", map[string]any{"tool": "bash",
				"input": map[string]any{"command": "ls"}})
			if got := v.str("decision"); got != want {
				t.Errorf("under %q: %s, want %s", text, got, want)
			}
		}
	}
}

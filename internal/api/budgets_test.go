package api_test

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

func limit(cents string) map[string]any {
	return map[string]any{"type": "limit", "max_list_cost": map[string]any{"amount": cents, "currency": "USD"}}
}

// If this fails, a client of the wire cannot bound what a session spends, is not told that it stopped there, or
// cannot let it go on.
func TestBudgetOfTheWire(t *testing.T) {
	b := whole(t, outboardtest.Options{Models: llm.Config{Prices: map[string]llm.Price{"script/steps": {Input: 1,
		Output: 1_000_000_000}}}})
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}}).str("id")
	body := map[string]any{"agent": agent, "environment_id": b.environment(), "budget": limit("100")}
	for _, bad := range []any{limit("0"), limit("-5"), limit("1.5"), limit("9999999999999"),
		map[string]any{"type": "limit"}, map[string]any{"type": "soft"}, 5} {
		b.refused(400, "budget", "POST", "/v1/sessions", map[string]any{"agent": agent,
			"environment_id": body["environment_id"], "budget": bad})
	}
	made := b.ok("POST", "/v1/sessions", body)
	id := made.str("id")
	if made.str("budget.type") != "limit" || made.str("budget.max_list_cost.amount") != "100" ||
		made.str("budget.max_list_cost.currency") != "USD" || strings.Contains(string(made.body), "list_cost\":null") {
		t.Errorf("made: %s", made.body)
	}
	f := b.follow(id, "")
	step := "- bash: 'true # " + strings.Repeat("x", 400) + "'\n"
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message(strings.Repeat(step, 12)+"- say: end\n")))
	evs := f.until("session.status_idle")
	last := evs[len(evs)-1]
	if stop, _ := last["stop_reason"].(map[string]any); stop["type"] != "budget_reached" {
		t.Fatalf("it stopped with %v", last)
	}
	if usage := evs[len(evs)-2]; usage["type"] != "session.usage" || usage["budget"] == nil ||
		usage["usage"].(map[string]any)["list_cost"] == nil {
		t.Errorf("the usage of it: %v", usage)
	}
	one := "/v1/sessions/" + id
	b.refused(400, "budget", "POST", one+"/events", send(message("- say: more\n")))
	b.ok("POST", one+"/events", send(map[string]any{"type": "user.interrupt"}))
	if got := b.ok("GET", one, nil); got.str("status") != "idle" || got.str("usage.list_cost.currency") != "USD" {
		t.Errorf("after an interrupt: %s", got.body)
	}
	b.refused(400, "more than what was spent", "POST", one, map[string]any{"budget": limit("1")})
	if up := b.ok("POST", one,
		map[string]any{"budget": limit("10000")}); up.str("budget.max_list_cost.amount") != "10000" {
		t.Errorf("raised: %s", up.body)
	}
	evs = f.until("session.status_idle")
	if stop, _ := evs[len(evs)-1]["stop_reason"].(map[string]any); stop["type"] != "end_turn" ||
		evs[0]["type"] != "session.updated" || evs[0]["budget"] == nil {
		t.Errorf("raised: %v ... %v", evs[0], evs[len(evs)-1])
	}
	if none := b.ok("POST", one, map[string]any{"budget": nil}); strings.Contains(string(none.body), `"limit"`) {
		t.Errorf("removed: %s", none.body)
	}
	b.refused(400, "cannot be added", "POST", one, map[string]any{"budget": limit("500")})
}

// If this fails, budgets over agents and owners cannot be set, are not enforced, or are taken for models whose
// cost nobody knows.
func TestOwnBudgets(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	id, f := b.asking("always_allow")
	agent := b.ok("GET", "/v1/sessions/"+id, nil).str("agent.id")
	b.refused(400, "no list price", "POST", "/v1/budgets", map[string]any{"scope": "agent", "target_id": agent,
		"limit": map[string]any{"list_cost_usd": "2.50"}})
	b.refused(400, "at least one limit", "POST", "/v1/budgets", map[string]any{"scope": "agent", "target_id": agent,
		"limit": map[string]any{}})
	b.refused(400, "unknown", "POST", "/v1/budgets", map[string]any{"scope": "agent", "target_id": agent,
		"limit": map[string]any{"dollars": 1}})
	b.refused(404, "agent", "POST", "/v1/budgets", map[string]any{"scope": "agent", "target_id": "agent_01x",
		"limit": map[string]any{"steps": 2}})
	b.refused(404, "owner", "POST", "/v1/budgets", map[string]any{"scope": "owner", "target_id": "apikey_01x",
		"limit": map[string]any{"steps": 2}})
	b.refused(400, "over", "POST", "/v1/budgets", map[string]any{"scope": "planet", "target_id": "x",
		"limit": map[string]any{"steps": 2}})
	set := b.ok("POST", "/v1/budgets", map[string]any{"scope": "agent", "target_id": agent,
		"limit": map[string]any{"steps": 2}})
	if set.str("id") != "agent:"+agent || set.str("type") != "budget" {
		t.Errorf("set: %s", set.body)
	}
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: 'true'\n- bash: 'true'\n- bash: 'true'\n- say: "+
		"end\n")))
	evs := f.until("session.status_idle")
	if stop, _ := evs[len(evs)-1]["stop_reason"].(map[string]any); stop["type"] != "budget_reached" {
		t.Fatalf("two steps: %v", evs[len(evs)-1])
	}
	if got := b.ok("GET", "/v1/budgets?session_id="+id, nil); !strings.Contains(string(got.body), `"used_up":"steps"`) {
		t.Errorf("used up: %s", got.body)
	}
	b.ok("POST", "/v1/budgets", map[string]any{"scope": "agent", "target_id": agent,
		"limit": map[string]any{"steps": 20}})
	evs = f.until("session.status_idle")
	if stop, _ := evs[len(evs)-1]["stop_reason"].(map[string]any); stop["type"] != "end_turn" {
		t.Errorf("raised: %v", evs[len(evs)-1])
	}
	b.ok("DELETE", "/v1/budgets/agent:"+agent, nil)
	b.refused(404, "budget", "DELETE", "/v1/budgets/agent:"+agent, nil)
	if got := b.ok("GET", "/v1/budgets", nil); !strings.Contains(string(got.body), `"data":[]`) {
		t.Errorf("listed: %s", got.body)
	}
}

// keyOf makes a key of a person, or with "" a program's, and returns who uses it and its id.
func (b *bench) keyOf(user any) (*bench, string) {
	theirs := *b
	k := b.ok("POST", "/v1/outboard/keys", map[string]any{"name": "k", "user_id": user})
	theirs.key = k.str("secret")
	return &theirs, k.str("id")
}

// If this fails, somebody gets round the budget over them by signing in again or with another key of theirs, or
// it bounds what others spend.
func TestBudgetOfAPerson(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	ann := b.ok("POST", "/v1/outboard/users", `{"email":"ann@a.test","role":"developer"}`).str("id")
	first, firstID := b.keyOf(ann)
	second, secondID := b.keyOf(ann)
	program, programID := b.keyOf("")
	budget := func(target string, steps int) string {
		t.Helper()
		return b.ok("POST", "/v1/budgets", map[string]any{"scope": "owner", "target_id": target,
			"limit": map[string]any{"steps": steps}}).str("id")
	}
	if got := budget(firstID, 1); got != "owner:"+ann {
		t.Errorf("over one of her keys: %s, want one over her", got)
	}
	if got := budget(ann, 2); got != "owner:"+ann {
		t.Errorf("over her: %s", got)
	}
	if got := budget(programID, 9); got != "owner:"+programID {
		t.Errorf("over a program: %s", got)
	}
	b.refused(404, "owner", "POST", "/v1/budgets", map[string]any{"scope": "owner", "target_id": "user_01x",
		"limit": map[string]any{"steps": 2}})
	stop := func(by *bench) any {
		t.Helper()
		id, f := by.asking("always_allow")
		by.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: 'true'\n- say: end\n")))
		evs := f.until("session.status_idle")
		reason, _ := evs[len(evs)-1]["stop_reason"].(map[string]any)
		return reason["type"]
	}
	if got := stop(first); got != "end_turn" {
		t.Errorf("within it: %v", got)
	}
	if got := stop(second); got != "budget_reached" {
		t.Errorf("with another key, after it was used up: %v", got)
	}
	if got := stop(program); got != "end_turn" {
		t.Errorf("a program beside her: %v", got)
	}
	b.ok("DELETE", "/v1/budgets/owner:"+secondID, nil)
	if got := stop(second); got != "end_turn" {
		t.Errorf("with the budget removed: %v", got)
	}
}

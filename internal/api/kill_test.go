package api_test

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// If this fails, the switch cannot be thrown through the API, its report says nothing, a killed session can be
// used, or a kill that is refused is in force.
func TestKillOfTheAPI(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	id, f := b.asking("always_allow")
	one := "/v1/sessions/" + id
	for _, bad := range []map[string]any{{"scope": "session"}, {"scope": "all", "target_id": id},
		{"scope": "session", "target_id": id, "level": "hard"},
		{"scope": "session", "target_id": id, "id": "kill"}, {"scope": "session", "target_id": id, "force": true}} {
		b.refused(400, "", "POST", "/v1/kills", bad)
	}
	b.refused(404, "there is no host", "POST", "/v1/kills", map[string]any{"scope": "host", "target_id": "typo"})
	b.refused(400, "ahead", "POST", "/v1/kills", map[string]any{"scope": "session", "target_id": id, "ahead": true})
	if got := b.ok("GET", "/v1/kills", nil); strings.Contains(string(got.body), `"kill_`) {
		t.Errorf("in force: %s", got.body)
	}
	ahead := b.ok("POST", "/v1/kills", map[string]any{"scope": "host", "target_id": "later", "ahead": true})
	b.ok("DELETE", "/v1/kills/"+ahead.str("kill.id"), nil)
	b.refused(404, "session", "POST", "/v1/kills", map[string]any{"scope": "session", "target_id": "sesn_01x"})
	b.ok("POST", one+"/events", send(message("- bash: sleep 1000\n- say: end\n")))
	f.until("agent.tool_use")
	rep := b.ok("POST", "/v1/kills", map[string]any{"scope": "session", "target_id": id, "reason": "a test"})
	if rep.str("type") != "kill_report" || rep.str("kill.scope") != "session" || rep.str("kill.level") != "stop" ||
		rep.str("kill.reason") != "a test" ||
		!strings.Contains(string(rep.body), `"machines_left":0`) {
		t.Errorf("the report: %s", rep.body)
	}
	f.until("session.status_idle")
	b.refused(403, "kill switch", "POST", one+"/events", send(message("- say: more\n")))
	if got := b.ok("GET", "/v1/kills", nil); !strings.Contains(string(got.body), rep.str("kill.id")) {
		t.Errorf("in force: %s", got.body)
	}
	b.ok("DELETE", "/v1/kills/"+rep.str("kill.id"), nil)
	b.refused(404, "kill", "DELETE", "/v1/kills/"+rep.str("kill.id"), nil)
	b.ok("POST", one+"/events", send(message("- say: back\n")))
	f.until("session.status_idle")

	b.ok("POST", "/v1/kills", map[string]any{"scope": "session", "target_id": id, "level": "revoke"})
	if got := b.ok("GET", one, nil); got.str("status") != "terminated" {
		t.Errorf("revoked: %s", got.body)
	}
}

// If this fails, a person who is killed goes on with another key of theirs or signs in again, a program is
// killed with who only made its key, or revoking leaves the person a key.
func TestKillOfAPerson(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	ann := b.ok("POST", "/v1/outboard/users", `{"email":"ann@a.test","role":"developer"}`).str("id")
	first, firstID := b.keyOf(ann)
	second, _ := b.keyOf(ann)
	program, _ := b.keyOf("")
	id, f := second.asking("always_allow")
	second.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: sleep 1000\n- say: end\n")))
	f.until("agent.tool_use")
	rep := b.ok("POST", "/v1/kills", map[string]any{"scope": "owner", "target_id": firstID})
	if rep.str("kill.target_id") != ann {
		t.Errorf("a kill of one of her keys: %s", rep.body)
	}
	f.until("session.status_idle")
	second.refused(403, "kill switch", "POST", "/v1/sessions/"+id+"/events", send(message("- say: more\n")))
	third, _ := b.keyOf(ann) // as a new sign-in would be
	begins := func(by *bench) reply {
		agent, env := by.agent(), by.environment()
		return by.do("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": env})
	}
	for what, by := range map[string]*bench{"first": first, "second": second, "third": third} {
		if r := begins(by); r.status != 403 || !strings.Contains(string(r.body), "kill switch") {
			t.Errorf("a session with her %s key: %d %s", what, r.status, r.body)
		}
	}
	if r := begins(program); r.status != 200 {
		t.Errorf("a session of somebody else's: %d %s", r.status, r.body)
	}
	b.refused(404, "owner", "POST", "/v1/kills", map[string]any{"scope": "owner", "target_id": "user_01x"})
	b.ok("DELETE", "/v1/kills/"+rep.str("kill.id"), nil)
	if r := begins(third); r.status != 200 {
		t.Errorf("after it was lifted: %d %s", r.status, r.body)
	}

	b.ok("POST", "/v1/kills", map[string]any{"scope": "owner", "target_id": ann, "level": "revoke"})
	for what, by := range map[string]*bench{"first": first, "second": second, "third": third} {
		if r := by.do("GET", "/v1/outboard/whoami", nil); r.status != 401 {
			t.Errorf("her %s key, revoked: %d", what, r.status)
		}
	}
	if got := b.ok("GET", "/v1/outboard/users/"+ann, nil); got.str("removed_at") != "" {
		t.Errorf("she is no member any more: %s", got.body)
	}
	program.ok("GET", "/v1/outboard/whoami", nil)
}

// If this fails, an administrator of one organization stops whoever runs the server, in every organization, or
// takes the last key of the server away.
func TestKillOfTheOperator(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	putKey(b, outboard.Key{Name: "admin of default", Role: outboard.RoleAdmin, Org: outboard.DefaultOrg}, "obk_admin")
	theirs := *b
	theirs.key = "obk_admin"
	kill := map[string]any{"scope": "owner", "target_id": b.operatorKey(), "level": "revoke"}
	theirs.refused(403, "run", "POST", "/v1/kills", kill)
	b.refused(400, "last key", "POST", "/v1/kills", kill)
	kill["level"] = "pause"
	theirs.refused(403, "run", "POST", "/v1/kills", kill)
	b.ok("GET", "/v1/agents", nil)
	b.ok("POST", "/v1/kills", kill)
}

package api_test

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// If this fails, the switch cannot be thrown through the API, its report says nothing, a killed session can be used, or a kill that
// is refused is in force.
func TestKillOfTheAPI(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	id, f := b.asking("always_allow")
	one := "/v1/sessions/" + id
	for _, bad := range []map[string]any{{"scope": "session"}, {"scope": "all", "target_id": id}, {"scope": "session", "target_id": id, "level": "hard"},
		{"scope": "session", "target_id": id, "id": "kill"}, {"scope": "session", "target_id": id, "force": true}} {
		b.refused(400, "", "POST", "/v1/kills", bad)
	}
	b.refused(404, "session", "POST", "/v1/kills", map[string]any{"scope": "session", "target_id": "sesn_01x"})
	b.ok("POST", one+"/events", send(message("- bash: sleep 1000\n- say: end\n")))
	f.until("agent.tool_use")
	rep := b.ok("POST", "/v1/kills", map[string]any{"scope": "session", "target_id": id, "reason": "a test"})
	if rep.str("type") != "kill_report" || rep.str("kill.scope") != "session" || rep.str("kill.level") != "stop" || rep.str("kill.reason") != "a test" ||
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

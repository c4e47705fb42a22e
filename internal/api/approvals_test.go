package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
)

// asking is a session whose bash calls the operator's rules or the agent's permission ask about.
func (b *bench) asking(permission string) (id string, f *feed) {
	b.t.Helper()
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps", "tools": []any{
		map[string]any{"type": "agent_toolset_20260401",
			"default_config": map[string]any{"permission_policy": map[string]any{"type": permission}}},
	}}).str("id")
	id = b.ok("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": b.environment()}).str("id")
	return id, b.follow(id, "")
}

// pending returns the approvals of a session that wait.
func (b *bench) pending(session string) []map[string]any {
	b.t.Helper()
	var page struct{ Data []map[string]any }
	if err := json.Unmarshal(b.ok("GET", "/v1/approvals?session_id="+session, nil).body, &page); err != nil {
		b.t.Fatal(err)
	}
	return page.Data
}

// result is the text of the newest tool result.
func result(evs []map[string]any) string {
	text := ""
	for _, e := range evs {
		if e["type"] == "agent.tool_result" {
			b, _ := json.Marshal(e["content"])
			text = string(b)
		}
	}
	return text
}

// Fails if an approval cannot be found, shown whole and answered by its own resource, or the answer does not let
// exactly that call run.
func TestApprovals(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	id, f := b.asking("always_ask")
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: \"echo one # \\u202e\"\n- bash: echo two\n- "+
		"say: end\n")))
	f.until("session.status_idle")
	list := b.pending(id)
	if len(list) != 1 || list[0]["action"] != "bash" || !strings.Contains(list[0]["request"].(string), `\u202e`) ||
		list[0]["why"] == "" {
		t.Fatalf("pending: %v", list)
	}
	one := "/v1/approvals/" + list[0]["id"].(string)
	b.refused(409, "another request", "POST", one, map[string]any{"result": "allow", "digest": strings.Repeat("0", 64)})
	b.refused(400, "result", "POST", one, map[string]any{"result": "maybe"})
	b.refused(400, "scope", "POST", one, map[string]any{"result": "deny", "scope": "session"})
	b.refused(404, "there is no approval", "GET", "/v1/approvals/apr_01x", nil)
	done := b.ok("POST", one, map[string]any{"result": "allow", "digest": list[0]["digest"]})
	if done.str("approval.state") != "allowed" || done.str("approval.answer.by") != "admin" {
		t.Errorf("answered: %s", done.body)
	}
	if got := result(f.until("session.status_idle")); !strings.Contains(got, "one") {
		t.Errorf("the allowed call gave %s", got)
	}
	b.ok("POST", one, map[string]any{"result": "allow"})
	b.refused(409, "answered already", "POST", one, map[string]any{"result": "deny"})

	second := b.pending(id)
	if len(second) != 1 || second[0]["id"] == list[0]["id"] || second[0]["digest"] == list[0]["digest"] {
		t.Fatalf("another request shares the approval: %v", second)
	}
	b.ok("POST", "/v1/approvals/"+second[0]["id"].(string), map[string]any{"result": "deny", "message": "not today"})
	if got := result(f.until("session.status_idle")); !strings.Contains(got, "not today") {
		t.Errorf("the denied call gave %s", got)
	}
	if got := b.pending(id); len(got) != 0 {
		t.Errorf("still pending: %v", got)
	}
	audit, err := b.store.CountAudit(t.Context(), b.admin(), "approval.allow", outboard.Allowed, time.Time{})
	if err != nil || audit == 0 {
		t.Errorf("an approval without an audit record: %d, %v", audit, err)
	}
}

// admin is the id of the admin key.
func (b *bench) admin() string {
	b.t.Helper()
	keys, err := b.store.Keys(b.t.Context(), store.Page{})
	if err != nil || len(keys) == 0 {
		b.t.Fatal(keys, err)
	}
	return string(keys[0].ID)
}

// Fails if the same request asks again after it was allowed for the session, or if that right reaches another
// request or session.
func TestApprovalForTheSession(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	id, f := b.asking("always_ask")
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo one\n- bash: echo one\n- bash: echo "+
		"two\n- say: end\n")))
	f.until("session.status_idle")
	done := b.ok("POST", "/v1/approvals/"+b.pending(id)[0]["id"].(string),
		map[string]any{"result": "allow", "scope": "session"})
	f.until("session.status_idle")
	next := b.pending(id)
	if len(next) != 1 || next[0]["resource"] != "echo two" {
		t.Fatalf("pending: %v, want echo two only", next)
	}
	if got := b.ok("GET", "/v1/grants/"+done.str("grant.id"), nil); got.get("uses") != 1.0 {
		t.Errorf("the grant after one use: %s", got.body)
	}
	if r := b.ok("DELETE", "/v1/grants/"+done.str("grant.id"), nil); r.str("revoked_at") == "" {
		t.Errorf("revoked: %s", r.body)
	}
	b.ok("POST", "/v1/approvals/"+next[0]["id"].(string), map[string]any{"result": "allow"})
	f.until("session.status_idle")
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo one\n- say: end\n")))
	f.until("session.status_idle")
	if got := b.pending(id); len(got) != 1 {
		t.Errorf("after the grant was revoked: %v, want one that asks", got)
	}
}

// Fails if a saved policy does not reach a running session, a broken one replaces a good one, or a session
// widens its own rights.
func TestPoliciesOverTheAPI(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: `@id("no-rm") forbid (principal, action, resource) when { context.command like "rm *" };`}})
	id, f := b.asking("always_allow")
	events := "/v1/sessions/" + id + "/events"
	deny := `@id("no-two") @reason("two is one too many") forbid (principal, action == Action::"bash", resource) when { context.command == "echo two" };`
	saved := b.ok("POST", "/v1/policies", map[string]any{"level": "session", "target_id": id, "text": deny})
	if saved.get("version") != 1.0 {
		t.Errorf("saved: %s", saved.body)
	}
	b.refused(400, "efect", "POST", "/v1/policies", map[string]any{"level": "session", "target_id": id,
		"text": `@efect("ask") forbid (principal, action, resource);`})
	b.refused(409, "version 1", "POST", "/v1/policies", map[string]any{"level": "session", "target_id": id, "text": "",
		"version": 0})
	b.refused(404, "there is no session", "POST", "/v1/policies", map[string]any{"level": "session",
		"target_id": "sesn_01x", "text": ""})
	b.refused(400, "level", "POST", "/v1/policies", map[string]any{"level": "operator",
		"text": "permit (principal, action, resource);"})
	b.ok("POST", events, send(message("- bash: echo two\n- bash: echo one\n- bash: rm x\n- say: end\n")))
	evs := f.until("session.status_idle")
	var texts []string
	var uses []string
	for _, e := range evs {
		if e["type"] == "agent.tool_result" {
			texts = append(texts, result([]map[string]any{e}))
		}
		if e["type"] == "agent.tool_use" {
			uses = append(uses, e["id"].(string))
		}
	}
	if len(texts) != 3 || !strings.Contains(texts[0], "two is one too many") || !strings.Contains(texts[1], "one") ||
		!strings.Contains(texts[2], "operator/no-rm") {
		t.Errorf("results: %v", texts)
	}
	why := b.ok("GET", "/v1/sessions/"+id+"/outboard/why/"+uses[0], nil)
	if why.str("decision") != "deny" || why.str("rules.0.id") != "session/no-two" ||
		!strings.Contains(why.str("rules.0.text"), "echo two") {
		t.Errorf("why: %s", why.body)
	}
	test := b.ok("POST", "/v1/policies/test", map[string]any{"session_id": id, "tool": "bash",
		"input": map[string]any{"command": "echo two"}})
	if test.str("decision") != "deny" || test.str("rules.0") != "session/no-two" {
		t.Errorf("test: %s", test.body)
	}
	b.ok("POST", "/v1/policies", map[string]any{"level": "session", "target_id": id,
		"text": `permit (principal, action, resource);`})
	if v := b.ok("GET", "/v1/policies/"+saved.str("id")+"/versions", nil); len(v.get("data").([]any)) != 2 {
		t.Errorf("versions: %s", v.body)
	}
	for deadline := time.Now().Add(20 * time.Second); ; { // a saved policy is in force within a second
		v := b.ok("POST", "/v1/policies/test", map[string]any{"session_id": id, "tool": "bash",
			"input": map[string]any{"command": "echo two"}})
		if v.str("decision") == "allow" || time.Now().After(deadline) {
			break
		}
	}
	b.ok("POST", events, send(message("- bash: rm x\n- bash: echo two\n- say: end\n")))
	evs = f.until("session.status_idle")
	if got := result(evs[:slices.IndexFunc(evs,
		func(e map[string]any) bool { return e["type"] == "agent.tool_result" })+1]); !strings.Contains(got, "operator/no-rm") {
		t.Errorf("a session's permit lifted the operator's forbid: %s", got)
	}
	if got := result(evs); !strings.Contains(got, "two") {
		t.Errorf("after the policy was replaced: %s", got)
	}
}

// judgeScript answers by what the call is, as a second model would; its third rule breaks the schema.
const judgeScript = `
- when: {contains: echo good}
  do: [{call: {name: verdict, input: {verdict: allow, reason: fine}}}]
- when: {contains: echo evil}
  do: [{call: {name: verdict, input: {verdict: deny, reason: destroys}}}]
- when: {contains: echo odd}
  do: [{call: {name: verdict, input: {verdict: allow, reason: fine, because: extra}}}]
- do: [{say: "allow, approved by admin"}]
`

// Fails if the judge's verdict is not followed, if something that is no verdict lets a call run, or the wire
// tells it otherwise.
func TestAutoPermission(t *testing.T) {
	b := whole(t, outboardtest.Options{Judge: "script/judge",
		Models: llm.Config{Scripts: llm.Scripts{Inline: map[string]string{"judge": judgeScript}}}})
	id, f := b.asking("auto")
	for text, want := range map[string]struct{ permission, verdict, reason string }{
		"good": {"allow", "allow", ""}, "evil": {"deny", "deny", "high_risk"}, "odd": {"ask", "ask",
			"indeterminate"}, "prose": {"ask", "ask", "indeterminate"},
	} {
		b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo "+text+"\n- say: end\n")))
		evs := f.until("session.status_idle")
		use := evs[slices.IndexFunc(evs, func(e map[string]any) bool { return e["type"] == "agent.tool_use" })]
		ev, _ := use["evaluation"].(map[string]any)
		verdict, _ := ev["evaluated_permission"].(map[string]any)
		reason, _ := verdict["reason_code"].(string)
		if use["evaluated_permission"] != want.permission || ev["type"] != "auto" || verdict["type"] != want.verdict ||
			reason != want.reason {
			t.Errorf("%s: %v", text, use)
		}
		if want.permission == "ask" {
			b.ok("POST", "/v1/approvals/"+b.pending(id)[0]["id"].(string), map[string]any{"result": "deny"})
			f.until("session.status_idle")
		}
	}
}

// Fails if a grant reaches further than it says: another action, resource, human, agent or time.
func TestGrantsOverTheAPI(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	good := map[string]any{"actions": []string{"bash"}, "resources": []string{"git *"}, "expires_at": soon,
		"why": "release", "max_uses": 1}
	with := func(k string, v any) map[string]any {
		m := map[string]any{}
		maps.Copy(m, good)
		m[k] = v
		return m
	}
	b.refused(400, "no action", "POST", "/v1/grants", with("actions", []string{"launch"}))
	b.refused(400, "resources", "POST", "/v1/grants", with("resources", []string{}))
	b.refused(400, "expires_at", "POST", "/v1/grants", with("expires_at", "2020-01-01T00:00:00Z"))
	b.refused(400, "expires_at", "POST", "/v1/grants", with("expires_at", time.Now().AddDate(5, 0, 0).UTC().
		Format(time.RFC3339)))
	b.refused(400, "why", "POST", "/v1/grants", with("why", ""))
	b.refused(404, "there is no session", "POST", "/v1/grants", with("session_id", "sesn_01x"))
	b.refused(404, "there is no human", "POST", "/v1/grants", with("human_id", "apikey_01x"))
	g := b.ok("POST", "/v1/grants", good)
	if g.str("approved_name") != "admin" || g.get("max_uses") != 1.0 {
		t.Errorf("grant: %s", g.body)
	}
	id, f := b.asking("always_ask")
	b.ok("POST", "/v1/sessions/"+id+"/events",
		send(message("- bash: git --version\n- bash: git --version\n- say: end\n")))
	evs := f.until("session.status_idle")
	if n := len(b.pending(id)); n != 1 || !slices.Contains(types(evs), "agent.tool_result") {
		t.Errorf("%d pending after %v: want the first call to run by the grant, the second to ask", n, types(evs))
	}
	if got := b.ok("GET", "/v1/grants", nil); got.get("data.0.uses") != 1.0 {
		t.Errorf("list: %s", got.body)
	}
}

// Fails if somebody answers an approval who may not: a viewer, the owner where the rule wants another, a
// developer where it wants an administrator; or if the wire's confirmation is another door than the approval's
// own.
func TestWhoMayApprove(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: `
		@id("other") @effect("ask") @approver("other") forbid (principal, action == Action::"bash", resource) when { context.command == "other" };
		@id("admin") @effect("ask") @approver("admin") forbid (principal, action == Action::"bash", resource) when { context.command == "admin" };`}})
	owner := outboard.Caller{Key: outboard.KeyID(b.admin()), Name: "admin", Role: outboard.RoleAdmin}
	second := outboard.Caller{Key: "apikey_second", Name: "second", Role: outboard.RoleAdmin}
	developer := outboard.Caller{Key: "apikey_dev", Name: "dev", Role: outboard.RoleDeveloper}
	viewer := outboard.Caller{Key: "apikey_view", Name: "view", Role: outboard.RoleViewer}
	for _, k := range []outboard.Caller{second, developer, viewer} {
		if err := b.store.PutKey(t.Context(), outboard.Key{ID: k.Key, Name: k.Name, Hash: k.Name, Role: k.Role,
			CreatedAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		command string
		refused []outboard.Caller
		may     outboard.Caller
	}{{"other", []outboard.Caller{owner, viewer}, second}, {"admin", []outboard.Caller{developer, viewer}, owner}} {
		id, f := b.asking("always_allow")
		b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: "+c.command+"\n- say: end\n")))
		f.until("session.status_idle")
		a := b.pending(id)[0]
		allow := control.ApprovalAnswer{Allow: true}
		for _, by := range c.refused {
			if _, err := b.ctl.AnswerApproval(t.Context(), by, outboard.ApprovalID(a["id"].(string)),
				allow); outboard.KindOf(err) != outboard.Denied {
				t.Errorf("%s: %s answered: %v", c.command, by.Name, err)
			}
			in := []outboard.Payload{&outboard.InputConfirmation{Call: outboard.CallID(a["event_id"].(string)),
				Allow: true}}
			if _, err := b.ctl.Send(t.Context(), by, outboard.SessionID(id),
				in); outboard.KindOf(err) != outboard.Denied {
				t.Errorf("%s: %s confirmed: %v", c.command, by.Name, err)
			}
		}
		if got, err := b.ctl.AnswerApproval(t.Context(), c.may, outboard.ApprovalID(a["id"].(string)),
			allow); err != nil || got.Approval.State != outboard.ApprovalAllowed {
			t.Errorf("%s: %s: %+v, %v", c.command, c.may.Name, got, err)
		}
		f.until("session.status_idle")
	}
	for _, by := range []outboard.Caller{viewer, developer} {
		if _, err := b.ctl.SavePolicy(t.Context(), by, outboard.Policy{Level: outboard.LevelOrganization},
			-1); outboard.KindOf(err) != outboard.Denied {
			t.Errorf("%s saved a policy: %v", by.Name, err)
		}
	}
	if _, err := b.ctl.AddGrant(t.Context(), viewer, outboard.Grant{}); outboard.KindOf(err) != outboard.Denied {
		t.Errorf("a viewer gave a grant: %v", err)
	}
	if _, err := b.ctl.SavePolicy(t.Context(), owner, outboard.Policy{Level: outboard.LevelOrganization},
		-1); err != nil {
		t.Errorf("control: %v", err)
	}
}

// Fails if a client is shown a custom tool's call as its own before a rule's ask was allowed, or after it was
// denied; if what is asked cannot be seen, or the offer cannot be answered; or if a listing is not what was
// streamed.
func TestCustomToolAsks(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: `@id("c") @effect("ask") forbid (principal, action == Action::"custom", resource == Tool::"lookup");`}})
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps", "tools": []any{
		map[string]any{"type": "custom", "name": "lookup", "description": "d",
			"input_schema": map[string]any{"type": "object"}}}}).str("id")
	id := b.ok("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": b.environment()}).str("id")
	f, events := b.follow(id, ""), "/v1/sessions/"+id+"/events"
	give := func(id string) any {
		return send(map[string]any{"type": "user.custom_tool_result", "custom_tool_use_id": id,
			"content": []any{map[string]any{"type": "text", "text": "42"}}})
	}
	confirm := func(call, result string) []map[string]any {
		t.Helper()
		b.ok("POST", events, send(map[string]any{"type": "user.tool_confirmation", "tool_use_id": call,
			"result": result}))
		return f.until("session.status_idle")
	}
	ask := func() (call string, seen []map[string]any) {
		t.Helper()
		b.ok("POST", events, send(message("- call: {name: lookup, input: {q: 1}}\n- say: end\n")))
		seen = f.until("session.status_idle")
		use := ofType(seen, "agent.tool_use")
		if len(use) != 1 || use[0]["name"] != "custom:lookup" || use[0]["evaluated_permission"] != "ask" ||
			len(ofType(seen, "agent.custom_tool_use")) != 0 {
			t.Fatalf("while it is asked about: %v", seen)
		}
		call = use[0]["id"].(string)
		if got := stopIDs(seen); len(got) != 1 || got[0] != call ||
			b.pending(id)[len(b.pending(id))-1]["event_id"] != call {
			t.Fatalf("waits for %v, want %s", got, call)
		}
		b.refused(400, "approval first", "POST", events, give(call))
		return call, seen
	}
	call, all := ask()
	got := confirm(call, "allow")
	use := ofType(got, "agent.custom_tool_use")
	if len(use) != 1 || use[0]["name"] != "lookup" || use[0]["id"] == call || len(stopIDs(got)) != 1 ||
		stopIDs(got)[0] != use[0]["id"] {
		t.Fatalf("after the approval: %v", got)
	}
	all = append(all, got...)
	b.refused(400, "approval first", "POST", events, give(call))
	offer := use[0]["id"].(string)
	b.ok("POST", events, give(offer))
	b.ok("POST", events, give(offer)) // a client that lost the reply
	got = f.until("session.status_idle")
	given, result := ofType(got, "user.custom_tool_result"), ofType(got, "agent.tool_result")
	if len(given) != 1 || given[0]["custom_tool_use_id"] != offer || len(result) != 1 ||
		result[0]["tool_use_id"] != call {
		t.Errorf("after the result: %v", got)
	}
	if why := b.ok("GET", "/v1/sessions/"+id+"/outboard/why/"+offer, nil); why.str("tool") != "lookup" {
		t.Errorf("why the offer: %s", why.body)
	}
	all = append(all, got...)
	call, got = ask()
	all = append(all, got...)
	got = confirm(call, "deny")
	if r := ofType(got, "agent.tool_result"); len(ofType(got, "agent.custom_tool_use")) != 0 || len(r) != 1 ||
		r[0]["is_error"] != true {
		t.Errorf("after the refusal: %v", got)
	}
	all = append(all, got...)
	streamed := []string{}
	for _, e := range all {
		streamed = append(streamed, e["id"].(string))
	}
	if listed := b.walk(events, url.Values{"limit": {"3"}}); !slices.Equal(listed, streamed) {
		t.Errorf("listed %v, streamed %v", listed, streamed)
	}
	if uses := b.list(id, "?types[]=agent.custom_tool_use"); len(uses) != 1 || uses[0]["id"] != offer {
		t.Errorf("listed by type: %v", uses)
	}
}

// ofType returns the events of one type.
func ofType(evs []map[string]any, kind string) (out []map[string]any) {
	for _, e := range evs {
		if e["type"] == kind {
			out = append(out, e)
		}
	}
	return out
}

// stopIDs are the calls that the last of the events waits for.
func stopIDs(evs []map[string]any) []any {
	ids, _ := evs[len(evs)-1]["stop_reason"].(map[string]any)["event_ids"].([]any)
	return ids
}

// Fails if whom a session acts for answers for it with a key that they have made, or nobody can answer.
func TestKeyOfTheSamePerson(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: `
		@id("other") @effect("ask") @approver("other") forbid (principal, action == Action::"bash", resource);`}})
	op := outboard.Caller{Key: outboard.KeyID(b.admin()), Name: "admin", Role: outboard.RoleAdmin,
		Kind: outboard.KeyOperator}
	key := func(by outboard.Caller, name string, user outboard.UserID) outboard.Caller {
		t.Helper()
		k, secret, err := b.ctl.CreateKey(t.Context(), by, control.KeyRequest{Name: name, Role: outboard.RoleAdmin,
			User: user})
		if err != nil {
			t.Fatal(err)
		}
		c, err := b.ctl.Authenticate(t.Context(), secret)
		if err != nil || c.Key != k.ID {
			t.Fatal(c, err)
		}
		return c
	}
	person := func(email string) outboard.UserID {
		t.Helper()
		u, err := b.ctl.AddUser(t.Context(), op, email, "", outboard.RoleAdmin)
		if err != nil {
			t.Fatal(err)
		}
		return u.ID
	}
	ann, bob := person("ann@a.test"), person("bob@a.test")
	hers := key(op, "hers", ann)
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}}).str("id")
	s, err := b.ctl.CreateSession(t.Context(), hers, control.SessionRequest{Agent: outboard.AgentID(agent),
		EnvironmentID: outboard.EnvironmentID(b.environment())})
	if err != nil {
		t.Fatal(err)
	}
	f := b.follow(string(s.ID), "")
	b.ok("POST", "/v1/sessions/"+string(s.ID)+"/events", send(message("- bash: 'true'\n- say: end\n")))
	f.until("session.status_idle")
	id := outboard.ApprovalID(b.pending(string(s.ID))[0]["id"].(string))
	robot := key(hers, "robot", "")
	for _, by := range []outboard.Caller{hers, key(op, "second", ann), robot, key(hers, "for bob", bob),
		key(robot, "of the robot", "")} {
		if _, err := b.ctl.AnswerApproval(t.Context(), by, id,
			control.ApprovalAnswer{Allow: true}); outboard.KindOf(err) != outboard.Denied {
			t.Errorf("%s answered: %v", by.Name, err)
		}
	}
	if a, err := b.ctl.AnswerApproval(t.Context(), key(op, "his", bob), id,
		control.ApprovalAnswer{Allow: true}); err != nil || a.Approval.State != outboard.ApprovalAllowed {
		t.Errorf("control: %+v, %v", a, err)
	}
}

// Fails if a host that was refused cannot be answered for as somebody who may decides, is answered twice, after
// its time, under another digest or by who may not, or an answer lets in more than it says, or leaves no record.
func TestApprovalOfAHost(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	op := outboard.Caller{Key: outboard.KeyID(b.admin()), Name: "admin", Role: outboard.RoleAdmin,
		Kind: outboard.KeyOperator}
	session := func(ask map[string]any) (outboard.SessionID, outboard.EnvironmentID) {
		t.Helper()
		env := b.ok("POST", "/v1/environments", map[string]any{"name": outboard.NewID[outboard.EnvironmentID]("n"),
			"config": map[string]any{"type": "cloud",
				"networking": map[string]any{"type": "limited"}, "outboard": map[string]any{"networking": map[string]any{"ask": ask}}}}).str("id")
		agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps"}).str("id")
		return outboard.SessionID(b.ok("POST", "/v1/sessions", map[string]any{"agent": agent,
			"environment_id": env}).str("id")), outboard.EnvironmentID(env)
	}
	refused := func(id outboard.SessionID, host string, who outboard.Approver, policy bool,
		until time.Time) outboard.ApprovalID {
		t.Helper()
		a, err := b.store.AskNet(t.Context(),
			outboard.Approval{ID: outboard.NewID[outboard.ApprovalID](outboard.PrefixApproval), Session: id,
				Action:   "http.request",
				Resource: host, Digest: "digest of " + host, Request: "http.request " +
					host, Why: "no rule", Approver: who, State: outboard.ApprovalPending,
				CreatedAt: time.Now(), ExpiresAt: until, Net: &outboard.NetTarget{Host: host,
					Policy: policy}}, store.NetAsks{Pending: 20, Session: 20, Org: 100})
		if err != nil {
			t.Fatal(err)
		}
		return a.ID
	}
	grants := func(id outboard.SessionID) (out []string) {
		t.Helper()
		list, err := b.store.NetGrants(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range list {
			out = append(out, fmt.Sprintf("%s %d", g.Host, g.Uses))
		}
		return out
	}
	rules := func(id outboard.EnvironmentID) []outboard.NetRule {
		t.Helper()
		e, err := b.store.Environment(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return e.Config.Networking.Rules
	}
	later := time.Now().Add(time.Hour)
	id, env := session(map[string]any{})
	path := func(a outboard.ApprovalID) string { return "/v1/approvals/" + string(a) }

	once := refused(id, "once.example", "any", false, later)
	if list := b.pending(string(id)); len(list) != 1 || list[0]["resource"] != "once.example" ||
		list[0]["network"].(map[string]any)["host"] != "once.example" {
		t.Fatalf("what waits: %v", list)
	}
	b.refused(409, "another request", "POST", path(once), map[string]any{"result": "allow",
		"digest": "of something else"})
	b.refused(400, "scope must be once, session or rule", "POST", path(once),
		map[string]any{"result": "allow", "scope": "agent"})
	if got := grants(id); len(got) != 0 {
		t.Fatalf("refused answers let in %v", got)
	}
	b.ok("POST", path(once), map[string]any{"result": "allow", "digest": "digest of once.example"})
	if got := grants(id); !slices.Equal(got, []string{"once.example 1"}) {
		t.Errorf("once: %v", got)
	}
	for _, result := range []string{"allow", "deny"} {
		b.refused(409, "takes no answer", "POST", path(once), map[string]any{"result": result})
	}
	b.ok("POST", path(refused(id, "no.example", "any", false, later)),
		map[string]any{"result": "deny", "message": "never"})
	b.ok("POST", path(refused(id, "session.example", "any", false, later)),
		map[string]any{"result": "allow", "scope": "session"})
	b.ok("POST", path(refused(id, "rule.example", "any", false, later)),
		map[string]any{"result": "allow", "scope": "rule"})
	if got := grants(id); !slices.Equal(got, []string{"once.example 1", "session.example -1", "rule.example -1"}) {
		t.Errorf("all: %v", got)
	}
	if got := rules(env); len(got) != 1 || got[0].Host != "rule.example" || got[0].Deny {
		t.Errorf("the environment's rules: %+v", got)
	}
	b.refused(409, "expired", "POST", path(refused(id, "late.example", "any", false, time.Now().Add(-time.Second))),
		map[string]any{"result": "allow"})

	// A rule of the policies asks: the answer is a grant for that resource.
	b.ok("POST", path(refused(id, "policy.example/a", "any", true, later)), map[string]any{"result": "allow"})
	b.refused(400, "once, session or agent", "POST", path(refused(id, "policy.example/b", "any", true, later)),
		map[string]any{"result": "allow", "scope": "rule"})
	list, err := b.store.Grants(t.Context(), store.Page{})
	if err != nil || len(list) != 1 || list[0].MaxUses != 1 || list[0].Session != id ||
		!slices.Equal(list[0].Resources, []string{"policy.example/a"}) {
		t.Errorf("grants: %+v, %v", list, err)
	}

	// Who may not.
	strict, _ := session(map[string]any{"approver": "other"})
	asked := refused(strict, "x.example", "other", false, later)
	// the session's own key
	b.refused(403, "may not answer approval", "POST", path(asked), map[string]any{"result": "allow"})
	b.refused(403, "may not let session", "POST", "/v1/sessions/"+string(strict)+"/outboard/network/allow",
		map[string]any{"host": "x.example"})
	key := func(name, role string, scopes ...string) outboard.Caller {
		t.Helper()
		_, secret, err := b.ctl.CreateKey(t.Context(), op, control.KeyRequest{Name: name, Role: role, Scopes: scopes})
		if err != nil {
			t.Fatal(err)
		}
		c, err := b.ctl.Authenticate(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	narrow := key("narrow", outboard.RoleDeveloper, "read", "approvals")
	for _, c := range []struct {
		by    outboard.Caller
		scope string
	}{{key("viewer", outboard.RoleViewer), ""}, {key("sender", outboard.RoleDeveloper, "read", "sessions"),
		""}, {narrow, "rule"}} {
		if _, err := b.ctl.AnswerApproval(t.Context(), c.by, asked, control.ApprovalAnswer{Allow: true,
			Scope: c.scope}); outboard.KindOf(err) != outboard.Denied {
			t.Errorf("%s answered: %v", c.by.Name, err)
		}
	}
	if got := grants(strict); len(got) != 0 {
		t.Errorf("those who may not let in %v", got)
	}
	if done, err := b.ctl.AnswerApproval(t.Context(), narrow, asked, control.ApprovalAnswer{Allow: true}); err != nil ||
		done.Host == nil || len(grants(strict)) != 1 {
		t.Errorf("control: %+v, %v", done, err)
	}
	b.refused(400, "approver must be", "POST", "/v1/environments", map[string]any{"name": "e",
		"config": map[string]any{"type": "cloud",
			"outboard": map[string]any{"networking": map[string]any{"ask": map[string]any{"approver": "me"}}}}})

	// The end of a session is the end of what it waits for.
	left := refused(id, "left.example", "any", false, later)
	b.ok("POST", "/v1/sessions/"+string(id)+"/archive", nil)
	b.refused(409, "closed", "POST", path(left), map[string]any{"result": "allow"})

	var actions []string
	records, err := b.store.AuditRecords(t.Context(), store.AuditQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if strings.HasPrefix(r.Action, "approval.") {
			actions = append(actions, r.Action+" "+strings.TrimPrefix(strings.TrimPrefix(r.Resource, string(id)+" "),
				string(strict)+" "))
		}
	}
	if want := []string{"approval.allow once.example", "approval.deny no.example", "approval.allow session.example",
		"approval.allow rule.example",
		"approval.allow policy.example/a", "approval.allow x.example"}; !slices.Equal(actions, want) {
		t.Errorf("the audit has %q", actions)
	}
}

// Fails if an allow for the session of a request that ends in a star becomes one for everything that begins like it.
func TestStarInAnApproval(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	id, f := b.asking("always_ask")
	b.ok("POST", "/v1/sessions/"+id+"/events",
		send(message("- bash: 'echo *'\n- bash: 'echo x; touch y'\n- say: end\n")))
	f.until("session.status_idle")
	a := "/v1/approvals/" + b.pending(id)[0]["id"].(string)
	for _, scope := range []string{"session", "agent"} {
		b.refused(400, "once only", "POST", a, map[string]any{"result": "allow", "scope": scope})
	}
	b.ok("POST", a, map[string]any{"result": "allow"})
	f.until("session.status_idle")
	if next := b.pending(id); len(next) != 1 || next[0]["resource"] != "echo x; touch y" {
		t.Errorf("after it: %v", next)
	}
}

// Fails if an allow that is to last lets the call run though no grant can be made of it, or makes one for calls
// that nobody was shown.
func TestAllowThatCannotLast(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	id, f := b.asking("always_ask")
	long := "echo ran # " + strings.Repeat("x", 5000)
	b.ok("POST", "/v1/sessions/"+id+"/events",
		send(message("- parallel:\n    - bash: '"+long+"'\n    - bash: {restart: true}\n- say: end\n")))
	f.until("session.status_idle")
	for _, a := range b.pending(id) {
		why := "whatever its arguments"
		if a["resource"] == long {
			why = "4096"
		}
		for _, scope := range []string{"session", "agent"} {
			b.refused(400, why, "POST", "/v1/approvals/"+a["id"].(string),
				map[string]any{"result": "allow", "scope": scope})
		}
	}
	waiting := b.pending(id)
	if len(waiting) != 2 || len(b.ok("GET", "/v1/grants", nil).get("data").([]any)) != 0 {
		t.Fatalf("after answers that were refused: %v", waiting)
	}
	for _, a := range waiting {
		b.ok("POST", "/v1/approvals/"+a["id"].(string), map[string]any{"result": "allow"})
	}
	for got := ""; !strings.Contains(got, "ran"); { // allowed once
		got = result(f.until("agent.tool_result"))
	}
}

// If this fails, the question about a host outlives the kill of its session, or is answered after it; or it ends
// with somebody else's session; or nobody can see why it ended. Both sessions are at rest: no worker comes by to
// close anything.
func TestKillClosesHostApprovals(t *testing.T) {
	for _, level := range []string{"pause", "stop", "revoke"} {
		t.Run(level, func(t *testing.T) {
			b := whole(t, outboardtest.Options{})
			ask := func(id string) string {
				t.Helper()
				a, err := b.store.AskNet(t.Context(),
					outboard.Approval{ID: outboard.NewID[outboard.ApprovalID](outboard.PrefixApproval),
						Session: outboard.SessionID(id),
						Action:  "http.request", Resource: "h.example", Digest: "d", Request: "r", Why: "no rule", State: outboard.ApprovalPending, CreatedAt: time.Now(),
						ExpiresAt: time.Now().
							Add(time.Hour), Net: &outboard.NetTarget{Host: "h.example"}}, store.NetAsks{Pending: 20, Session: 20, Org: 100})
				if err != nil {
					t.Fatal(err)
				}
				return string(a.ID)
			}
			killed, other := b.session(), b.session()
			mine, theirs := ask(killed), ask(other)
			k := b.ok("POST", "/v1/kills", map[string]any{"scope": "session", "target_id": killed, "level": level,
				"reason": "it asks too much"})
			got := b.ok("GET", "/v1/approvals/"+mine, nil)
			if level == "pause" { // which takes nothing away
				if got.str("state") != "pending" {
					t.Errorf("paused: %s", got.body)
				}
			} else if got.str("state") != "closed" || got.str("answer.by") != "kill "+k.str("kill.id") ||
				got.str("answer.message") != "it asks too much" {
				t.Errorf("killed: %s", got.body)
			}
			if got := b.ok("GET", "/v1/approvals/"+theirs, nil); got.str("state") != "pending" {
				t.Errorf("of another session: %s", got.body)
			}
			b.ok("DELETE", "/v1/kills/"+k.str("kill.id"), nil)
			if level == "stop" {
				b.refused(409, "takes no answer", "POST", "/v1/approvals/"+mine, map[string]any{"result": "allow"})
				if again := ask(killed); again == mine {
					t.Error("after the kill was lifted, the closed question stands for a new one")
				}
			}
			b.ok("POST", "/v1/approvals/"+theirs, map[string]any{"result": "allow"})
		})
	}
}

// If this fails, a person is shown one of two values that an input has under one name, and the client that runs
// the call may take the other.
func TestInputsThatNameSomethingTwice(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	evs := k.turn(`- call: {name: bash, input: '{"command": "echo shown", "command": "echo run"}'}`,
		`- call: {name: bash, input: '{"command": "echo once"}'}`, "- say: ok")
	got := texts(evs, "agent.tool_result")
	if len(got) != 2 || !strings.Contains(got[0], `"command" twice`) || got[1] != "once\n" {
		t.Errorf("results: %q", got)
	}
}

// If this fails, a model whose call came after the last use of a grant is told that it is forbidden, and not
// that a person can be asked.
func TestCallsBeyondAGrantCanAsk(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_ask")
	b.ok("POST", "/v1/grants", map[string]any{"session_id": k.id, "actions": []string{"bash"},
		"resources": []string{"echo *"}, "max_uses": 1,
		"why": "once", "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	var ran, told int
	for _, text := range texts(k.turn("- parallel:", "    - bash: echo one", "    - bash: echo one", "- say: ok"),
		"agent.tool_result") {
		switch {
		case strings.HasPrefix(text, "one\n") && strings.Contains(text, "ran in a fresh shell"):
			ran++
		case strings.Contains(text, "a person must allow this call by now") &&
			strings.Contains(text, "make the call again to ask"):
			told++
		default:
			t.Errorf("result: %q", text)
		}
	}
	if ran != 1 || told != 1 {
		t.Errorf("%d calls ran by a grant of one use, and %d were told to ask", ran, told)
	}
	k.say("- bash: echo one", "- say: ok")
	if _, stop, _ := k.rest(); stop != "requires_action" {
		t.Errorf("the call made again: %s", stop)
	}
}

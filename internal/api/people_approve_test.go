package api_test

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
)

// crowd is people with a key each, made by who runs the server.
func (b *bench) crowd(names ...string) map[string]outboard.Caller {
	b.t.Helper()
	op := outboard.Caller{Key: outboard.KeyID(b.admin()), Name: "admin", Role: outboard.RoleAdmin,
		Kind: outboard.KeyOperator}
	out := map[string]outboard.Caller{}
	for _, name := range names {
		u, err := b.ctl.AddUser(b.t.Context(), op, name+"@a.test", "", outboard.RoleDeveloper)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, which := range []string{"", " again"} {
			_, secret, err := b.ctl.CreateKey(b.t.Context(), op, control.KeyRequest{Name: name + which,
				Role: outboard.RoleDeveloper, User: u.ID})
			if err != nil {
				b.t.Fatal(err)
			}
			if out[name+which], err = b.ctl.Authenticate(b.t.Context(), secret); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	return out
}

const twoPeople = `@id("two") @effect("ask") @approvals("2") forbid (principal, action in [Action::"bash", Action::"http.request"], resource);`

// Fails if a call that two people must allow runs by one of them, by one person with two keys, or with the
// session's owner as the second; if one is not told who has allowed it; or if somebody's allow becomes one for
// more than this call.
func TestTwoPeople(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: twoPeople}})
	who := b.crowd("ann", "bob", "cy")
	id, f := b.asking("always_allow")
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo ran\n- say: end\n")))
	f.until("session.status_idle")
	one := "/v1/approvals/" + b.pending(id)[0]["id"].(string)
	row := b.ok("GET", one, nil)
	call, ref := outboard.CallID(row.str("event_id")), outboard.ApprovalID(row.str("id"))
	b.refused(403, "may not answer", "POST", one, map[string]any{"result": "allow"}) // the owner
	allow := func(name string) string {
		t.Helper()
		a, err := b.ctl.AnswerApproval(t.Context(), who[name], ref, control.ApprovalAnswer{Allow: true,
			Digest: row.str("digest")})
		if err != nil {
			t.Fatal(err)
		}
		return string(a.Approval.State)
	}
	for _, scope := range []string{"session", "agent"} {
		if _, err := b.ctl.AnswerApproval(t.Context(), who["ann"], ref,
			control.ApprovalAnswer{Allow: true, Scope: scope}); outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("%s: %v", scope, err)
		}
	}
	for _, name := range []string{"ann", "ann", "ann again"} {
		if got := allow(name); got != "pending" {
			t.Errorf("after %s: %s", name, got)
		}
	}
	var shown struct {
		Needs int
		Votes []struct{ By, At string }
	}
	if err := json.Unmarshal(b.ok("GET", one, nil).body, &shown); err != nil || shown.Needs != 2 ||
		len(shown.Votes) != 2 || shown.Votes[0].By != "ann@a.test" || shown.Votes[0].At == "" {
		t.Errorf("shown: %+v, %v", shown, err)
	}
	answer := func(name string, more ...outboard.Payload) ([]outboard.Event, error) { // as user.tool_confirmation does
		return b.ctl.Send(t.Context(), who[name], outboard.SessionID(id),
			append([]outboard.Payload{&outboard.InputConfirmation{Call: call, Allow: true}}, more...))
	}
	if sent, err := answer("ann again"); err != nil || len(sent) != 0 {
		t.Errorf("by the wire: %v, %v", sent, err)
	}
	if _, err := answer("bob", &outboard.InputInterrupt{}); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("with others: %v", err)
	}
	if sent, err := answer("bob"); err != nil || len(sent) != 1 {
		t.Errorf("by the wire: %v, %v", sent, err)
	}
	if got := result(f.until("session.status_idle")); got == "" || b.ok("GET", one, nil).str("state") != "allowed" {
		t.Errorf("allowed by two: %s", got)
	}
	if got := allow("cy"); got != "allowed" { // the same answer, once more
		t.Errorf("a third: %s", got)
	}
	if list, err := b.store.Grants(t.Context(), store.Page{}); err != nil || len(list) != 0 {
		t.Errorf("grants: %v, %v", list, err)
	}
	// A grant of one person is not enough, and one no is.
	if _, err := b.ctl.AddGrant(t.Context(), who["ann"], outboard.Grant{Session: outboard.SessionID(id),
		Actions: []string{"bash"}, Resources: []string{"*"},
		ExpiresAt: time.Now().Add(time.Hour), Why: "w"}); err != nil {
		t.Fatal(err)
	}
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo again\n- say: end\n")))
	f.until("session.status_idle")
	ref = outboard.ApprovalID(b.pending(id)[0]["id"].(string))
	row = b.ok("GET", "/v1/approvals/"+string(ref), nil)
	allow("ann")
	if a, err := b.ctl.AnswerApproval(t.Context(), who["bob"], ref, control.ApprovalAnswer{}); err != nil ||
		a.Approval.State != outboard.ApprovalDenied {
		t.Errorf("denied: %+v, %v", a.Approval, err)
	}
}

// Fails if of people who allow a call at the same moment none is the last, the call runs twice, or somebody's
// allow counts who was demoted after it.
func TestTwoPeopleAtOnce(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: twoPeople}})
	who := b.crowd("ann", "bob", "cy")
	id, f := b.asking("always_allow")
	ask := func() outboard.ApprovalID {
		t.Helper()
		b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo ran\n- say: end\n")))
		f.until("session.status_idle")
		return outboard.ApprovalID(b.pending(id)[0]["id"].(string))
	}
	ref := ask()
	var all sync.WaitGroup
	for _, by := range who {
		all.Go(func() {
			_, err := b.ctl.AnswerApproval(t.Context(), by, ref, control.ApprovalAnswer{Allow: true})
			if err != nil && outboard.KindOf(err) != outboard.Conflict { // answered meanwhile
				t.Error(by.Name, err)
			}
		})
	}
	all.Wait()
	ran := 0
	for _, e := range f.until("session.status_idle") {
		if e["type"] == "agent.tool_result" {
			ran++
		}
	}
	if got := b.ok("GET", "/v1/approvals/"+string(ref), nil).str("state"); got != "allowed" || ran != 1 {
		t.Errorf("%s, and it ran %d times", got, ran)
	}

	ref = ask()
	if _, err := b.ctl.AnswerApproval(t.Context(), who["ann"], ref, control.ApprovalAnswer{Allow: true}); err != nil {
		t.Fatal(err)
	}
	op := outboard.Caller{Key: outboard.KeyID(b.admin()), Name: "admin", Role: outboard.RoleAdmin,
		Kind: outboard.KeyOperator}
	if _, err := b.ctl.UpdateUser(t.Context(), op, who["ann"].User,
		control.UserPatch{Role: new(outboard.RoleViewer)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, want string }{{"bob", "pending"}, {"cy", "allowed"}} {
		a, err := b.ctl.AnswerApproval(t.Context(), who[c.name], ref, control.ApprovalAnswer{Allow: true})
		if err != nil || string(a.Approval.State) != c.want {
			t.Errorf("after the first was demoted, %s: %s, %v", c.name, a.Approval.State, err)
		}
	}
}

// Fails if a host that two people must allow is let in by one, or by both for more than one request.
func TestTwoPeopleForAHost(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: twoPeople}})
	who := b.crowd("ann", "bob")
	id, _ := b.asking("always_allow")
	now := time.Now()
	a, err := b.store.AskNet(t.Context(),
		outboard.Approval{ID: outboard.NewID[outboard.ApprovalID](outboard.PrefixApproval),
			Session: outboard.SessionID(id),
			Action:  policy.ActionHTTP, Resource: "h.example/a", Digest: "d", Request: "r", Why: "two", Approver: outboard.ApproverOther, Needs: 2, State: outboard.ApprovalPending,
			CreatedAt: now, ExpiresAt: now.Add(time.Hour), Net: &outboard.NetTarget{Host: "h.example",
				Policy: true}}, store.NetAsks{Pending: 20, Session: 20, Org: 100})
	if err != nil {
		t.Fatal(err)
	}
	allow := func(name, scope string) (control.AnsweredApproval, error) {
		return b.ctl.AnswerApproval(t.Context(), who[name], a.ID, control.ApprovalAnswer{Allow: true, Scope: scope})
	}
	if _, err := allow("ann", "session"); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("for the session: %v", err)
	}
	for _, name := range []string{"ann", "ann again"} {
		if got, err := allow(name, ""); err != nil || got.Approval.State != outboard.ApprovalPending ||
			got.Grant != nil || len(got.Approval.Votes) == 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if list, err := b.store.Grants(t.Context(), store.Page{}); err != nil || len(list) != 0 {
		t.Fatalf("by one: %v, %v", list, err)
	}
	if got, err := allow("bob", ""); err != nil || got.Grant == nil || got.Grant.MaxUses != 1 {
		t.Fatalf("by two: %+v, %v", got, err)
	}
	if _, err := allow("bob", ""); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("once more: %v", err)
	}
	engine, err := policy.New(policy.Config{Operator: twoPeople, Source: b.store})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := b.store.SessionConfig(t.Context(), outboard.SessionID(id))
	if err != nil {
		t.Fatal(err)
	}
	request := func(key string) outboard.Decision {
		t.Helper()
		r := &policy.Request{Session: outboard.SessionID(id), Owner: cfg.Owner, Agent: cfg.Agent.ID,
			Environment: cfg.Environment, Action: policy.ActionHTTP,
			Resource: "h.example", Context: policy.Context{Host: "h.example", Path: "/a"}}
		v, grant := engine.Decide(t.Context(), r)
		if v.Decision == outboard.Allow {
			if err := engine.Admit(t.Context(), r, key, grant); err != nil {
				t.Fatal(err)
			}
		}
		return v.Decision
	}
	if first, second := request("1"), request("2"); first != outboard.Allow || second != outboard.Ask {
		t.Errorf("the first request: %s, the second: %s", first, second)
	}
}

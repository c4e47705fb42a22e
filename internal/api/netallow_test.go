package api_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/store"
)

// If this fails, a host that was let in stays in for the session's life, whatever its owner thinks of it later;
// or the question about it waits on, for an answer that has been given, and takes one of the few places; or an
// allow answers what nobody was asked by it.
func TestAllowAndTakeBackAHost(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	env := b.ok("POST", "/v1/environments", map[string]any{"name": "e",
		"config": map[string]any{"type": "cloud", "networking": map[string]any{"type": "limited"}}}).str("id")
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps"}).str("id")
	id := outboard.SessionID(b.ok("POST", "/v1/sessions", map[string]any{"agent": agent,
		"environment_id": env}).str("id"))
	ask := func(a outboard.Approval, target outboard.NetTarget) {
		t.Helper()
		a.ID, a.Session, a.Action, a.Digest, a.Request = outboard.NewID[outboard.ApprovalID](outboard.PrefixApproval), id, "http.request", "d", "r"
		a.Resource = fmt.Sprintf("%s:%d", target.Host, target.Port)
		a.State, a.Net, a.CreatedAt, a.ExpiresAt = outboard.ApprovalPending, &target, time.Now(), time.Now().
			Add(time.Hour)
		if _, err := b.store.AskNet(t.Context(), a, store.NetAsks{Pending: 20, Session: 20, Org: 100}); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func(want ...string) {
		t.Helper()
		var got []string
		for _, a := range b.pending(string(id)) {
			got = append(got, a["resource"].(string))
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("what waits is %q, want %q", got, want)
		}
	}
	anybody := outboard.Approval{Approver: outboard.ApproverAny}
	ask(anybody, outboard.NetTarget{Host: "a.example"})
	ask(anybody, outboard.NetTarget{Host: "a.example", Port: 8443})
	ask(anybody, outboard.NetTarget{Host: "b.example"})
	ask(anybody, outboard.NetTarget{Host: "policy.example", Policy: true})
	ask(outboard.Approval{Approver: outboard.ApproverAny, Needs: 2}, outboard.NetTarget{Host: "two.example"})
	ask(outboard.Approval{Approver: outboard.ApproverOther}, outboard.NetTarget{Host: "other.example"})

	path := "/v1/sessions/" + string(id) + "/outboard/network"
	for _, host := range []string{"a.example", "policy.example", "two.example", "other.example"} {
		b.ok("POST", path+"/allow", map[string]any{"host": host, "scope": "session"})
	}
	// less than what is asked about
	b.ok("POST", path+"/allow", map[string]any{"host": "b.example", "port": 443, "scope": "once"})
	waiting("a.example:8443", "b.example:0", "policy.example:0", "two.example:0", "other.example:0")
	list, err := b.store.Approvals(t.Context(), store.ApprovalFilter{Session: id})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if a.Resource == "a.example:0" && (a.State != outboard.ApprovalAllowed || a.Answer == nil || !a.Answer.Allow ||
			a.Answer.Name != "admin") {
			t.Errorf("the approval of what was allowed: %+v", a)
		}
	}
	b.ok("POST", path+"/allow", map[string]any{"host": "b.example", "scope": "rule"})
	waiting("a.example:8443", "policy.example:0", "two.example:0", "other.example:0")

	grants := func(host string) (n int) {
		t.Helper()
		list, err := b.store.NetGrants(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range list {
			if g.Host == host {
				n++
			}
		}
		return n
	}
	rules := func() int {
		t.Helper()
		e, err := b.store.Environment(t.Context(), outboard.EnvironmentID(env))
		if err != nil {
			t.Fatal(err)
		}
		return len(e.Config.Networking.Rules)
	}
	b.refused(404, "nobody has let session", "DELETE", path+"/allow?host=a.example&port=8443", nil)
	b.refused(400, "host", "DELETE", path+"/allow", nil)
	b.ok("DELETE", path+"/allow?host=A.example.", nil)
	if grants("a.example") != 0 || grants("b.example") != 2 {
		t.Errorf("%d grants of what was taken back, %d of another host", grants("a.example"), grants("b.example"))
	}
	b.refused(404, "nobody has let session", "DELETE", path+"/allow?host=a.example", nil)
	ask(anybody, outboard.NetTarget{Host: "a.example"}) // asked about again, like the first time
	waiting("a.example:0", "a.example:8443", "policy.example:0", "two.example:0", "other.example:0")
	b.ok("DELETE", path+"/allow?host=b.example&rule=true", nil)
	if grants("b.example") != 1 || rules() != 0 { // that of port 443 is another one
		t.Errorf("%d grants, %d rules", grants("b.example"), rules())
	}
}

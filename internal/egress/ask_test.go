package egress_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// asker remembers what it was asked, and answers as it is told.
type asker struct {
	mu    sync.Mutex
	asked []string
	says  egress.Asked
}

func (a *asker) Ask(_ context.Context, r egress.Request, q egress.Question) (egress.Asked, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprintf("%s %v %s %s", r.Host, q.Policy, q.Approver, strings.Join(q.Rules, ",")))
	return a.says, nil
}

func (a *asker) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.asked
	a.asked = nil
	return out
}

type asking struct{ host string }

func (a asking) Decide(_ context.Context, r egress.Request) (egress.Verdict, error) {
	if r.Host != a.host {
		return egress.Verdict{Allow: true}, nil
	}
	return egress.Verdict{Rule: "operator/ask", Reason: "a person decides", Ask: &egress.Question{Rules: []string{"operator/ask"}, Policy: true, Approver: "admin"}}, nil
}

// Broken if a refused host is not asked about, waits for the answer, is asked about for every request, or what a rule denies by name is
// asked about as well; or an allow does not let it pass, or lets it pass more often than it says.
func TestRefusedHostsAreAskedAbout(t *testing.T) {
	var c clock
	a := &asker{says: egress.Asked{Approval: "apr_1"}}
	r := newRig(t, rules(anyPort("a.test"), anyPort("policy.test"), outboard.NetRule{Host: "denied.test", Port: -1, Deny: true}), moving(&c),
		func(cfg *egress.Config, s *outboard.SessionConfig) {
			cfg.Asker, cfg.Policy = a, asking{"policy.test"}
			s.Env.Networking.Ask = outboard.NetAsk{Approver: "other"}
		})
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	expect := func(url string, status int, body string, asked ...string) {
		t.Helper()
		code, text := get(t, r.client(true), url)
		got := a.take()
		if code != status || !strings.Contains(text, body) || strings.Join(got, ";") != strings.Join(asked, ";") {
			t.Errorf("%s: %d %s, asked %q", url, code, text, got)
		}
	}
	expect(r.http("a.test", "/"), 200, "served")
	expect(r.http("new.test", "/x"), 403, "a person was asked: apr_1", "new.test false other default")
	expect(r.http("new.test", "/y"), 403, "a person was asked: apr_1") // a moment later
	expect(r.http("denied.test", "/"), 403, "a rule denies it")
	expect(r.http("policy.test", "/"), 403, "a person was asked: apr_1", "policy.test true admin operator/ask")
	if code, text := get(t, r.client(true), r.https("tunnel.test", "/")); code != 0 || !strings.Contains(text, "Forbidden") {
		t.Errorf("a tunnel: %d %s", code, text)
	}
	if got := a.take(); len(got) != 1 || !strings.HasPrefix(got[0], "tunnel.test ") {
		t.Errorf("a tunnel asked %q", got)
	}
	c.advance(time.Minute)
	a.says.Denied = true
	expect(r.http("new.test", "/x"), 403, "has denied it", "new.test false other default")
	for _, rec := range r.audit(t) {
		if strings.Contains(rec.Resource, "new.test") && !strings.Contains(string(rec.Detail), `"approval":"apr_1"`) {
			t.Errorf("the record does not name the approval: %s", rec.Detail)
		}
	}
	// The answer, as it is stored.
	err := r.store.PutNetGrant(t.Context(), outboard.NetGrant{ID: "ngrt_1", Session: r.session, Host: "new.test", Port: portOf(r.plain), Uses: 1, CreatedAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	expect(r.http("new.test", "/x"), 200, "served")
	expect(r.http("new.test", "/x"), 403, "has denied it")
}

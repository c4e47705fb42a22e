package egress_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/store"
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
	return egress.Verdict{Rule: "operator/ask", Reason: "a person decides",
		Ask: &egress.Question{Rules: []string{"operator/ask"}, Policy: true, Approver: "admin"}}, nil
}

// Broken if a refused host is not asked about, waits for the answer, is asked about for every request, or what a
// rule denies by name is asked about as well; or an allow does not let it pass, or lets it pass more often than
// it says.
func TestRefusedHostsAreAskedAbout(t *testing.T) {
	var c clock
	a := &asker{says: egress.Asked{Approval: "apr_1"}}
	r := newRig(t, rules(anyPort("a.test"), anyPort("policy.test"), outboard.NetRule{Host: "denied.test", Port: -1,
		Deny: true}), moving(&c),
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
	// which an allow would not make reachable
	for _, address := range []string{"169.254.169.254", "10.0.0.1", "[fd00:ec2::254]"} {
		expect("http://"+address+"/", 403, "none could")
	}
	expect("http://192.88.98.1/", 403, "a person was asked: apr_1", "192.88.98.1 false other default")
	expect(r.http("policy.test", "/"), 403, "a person was asked: apr_1", "policy.test true admin operator/ask")
	if code, text := get(t, r.client(true), r.https("tunnel.test", "/")); code != 0 ||
		!strings.Contains(text, "Forbidden") {
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
	err := r.store.AllowNet(t.Context(), outboard.NetGrant{ID: "ngrt_1", Session: r.session, Host: "new.test",
		Port: portOf(r.plain), Uses: 1, CreatedAt: time.Now()}, outboard.Answer{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	expect(r.http("new.test", "/x"), 200, "served")
	expect(r.http("new.test", "/x"), 403, "has denied it")
}

// growing allows a request by a log that has grown before it is recorded, as often as there are heads.
type growing struct {
	session outboard.SessionID
	heads   []int64 // of the marks, in turn
	then    egress.Verdict
}

func (g *growing) Decide(ctx context.Context, _ egress.Request) (egress.Verdict, error) {
	if len(g.heads) == 0 {
		return g.then, nil
	}
	head := g.heads[0]
	g.heads = g.heads[1:]
	return egress.Verdict{Allow: true, While: store.Mark{Session: g.session, Head: head},
		Again: g.Decide}, nil
}

// unread is a policy that cannot be asked.
type unread struct{ err error }

func (u unread) Decide(context.Context, egress.Request) (egress.Verdict, error) {
	return egress.Verdict{Allow: u.err == nil}, u.err
}

// Broken if a request goes out under policies that nobody could read, or if the client is told that they forbid it.
func TestAPolicyThatCannotBeRead(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		text   string
		hits   int64
	}{
		{nil, 200, "served", 1},
		{outboard.Errorf(outboard.Unavailable, "the database at db.internal is away"), 503,
			"cannot be read at the moment", 0},
		{outboard.Errorf(outboard.Internal, "a rule of db.internal panicked"), 403, "could not be evaluated", 0},
	} {
		r := newRig(t, rules(anyPort("a.test")),
			func(cfg *egress.Config, _ *outboard.SessionConfig) { cfg.Policy = unread{c.err} })
		r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
		code, text := get(t, r.client(true), r.http("a.test", "/"))
		if code != c.status || !strings.Contains(text, c.text) || strings.Contains(text, "db.internal") ||
			r.hits.Load() != c.hits {
			t.Errorf("%v: %d %s, and the server was asked %d times", c.err, code, text, r.hits.Load())
		}
	}
}

// Broken if a request goes out that was allowed by a log as it is no more, or none goes out after a log has grown.
func TestAVerdictHoldsWhileItsLogDoes(t *testing.T) {
	g := &growing{then: egress.Verdict{Rule: "platform/taint", Reason: "it is tainted now"}}
	r := newRig(t, rules(anyPort("a.test")), func(cfg *egress.Config, _ *outboard.SessionConfig) { cfg.Policy = g })
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread)}
	h, err := r.store.CreateSession(t.Context(), h, outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{}))
	if err != nil {
		t.Fatal(err)
	}
	g.session = h.ID
	head := h.Head
	for _, c := range []struct {
		heads  []int64
		status int
		text   string
		hits   int64
	}{
		{[]int64{head}, 200, "served", 1},
		{[]int64{head + 1, head + 2, head}, 200, "served", 1},
		{[]int64{head + 1}, 403, "it is tainted now", 0},
		{slices.Repeat([]int64{head + 1}, 100), 503, "could not be recorded", 0},
	} {
		g.heads = c.heads
		before, records := r.hits.Load(), len(r.audit(t))
		if code, text := get(t, r.client(true), r.http("a.test", "/")); code != c.status ||
			!strings.Contains(text, c.text) {
			t.Errorf("%v: %d %s", c.heads, code, text)
		}
		if n := r.hits.Load() - before; n != c.hits {
			t.Errorf("%v: the server was asked %d times", c.heads, n)
		}
		if n := len(r.audit(t)) - records; n != 1 {
			t.Errorf("%v: %d records", c.heads, n)
		}
	}
}

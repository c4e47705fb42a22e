package server

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
)

// If this fails, rules about http.request, or the rule of taint, hold for tools but not for what a command sends
// through the gateway.
func TestGatePolicy(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "outboard.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	engine, err := policy.New(policy.Config{Source: s, Operator: `@id("no-forms") @reason("no uploads")
		forbid (principal, action == Action::"http.request", resource) when { context.method == "POST" && context.host == "forms.example" };
		permit (principal, action, resource);`})
	if err != nil {
		t.Fatal(err)
	}
	g := &gatePolicy{engine: engine, store: s}
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_01x"}
	if h, err = s.CreateSession(t.Context(), h, outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{})); err != nil {
		t.Fatal(err)
	}
	decide := func(method, host string) egress.Verdict {
		t.Helper()
		v, err := g.Decide(t.Context(), egress.Request{Subject: egress.Subject{Session: h.ID}, Scheme: "https",
			Method: method, Host: host, Port: 443, Path: "/x"})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	taint := func(x outboard.Taint) {
		t.Helper()
		call := outboard.NewEvent(h.Thread,
			&outboard.CallFinished{Call: outboard.CallID(outboard.NewID[outboard.EventID](outboard.PrefixEvent)),
				Outcome: outboard.OutcomeOK, Taint: x})
		if _, err := s.Append(t.Context(), h.ID, h.Epoch, h.Head, call); err != nil {
			t.Fatal(err)
		}
		h.Head++
	}
	for _, host := range []string{"forms.example", "other.example"} {
		if v := decide("GET", host); !v.Allow {
			t.Errorf("GET %s: %+v", host, v)
		}
	}
	if v := decide("POST", "forms.example"); v.Allow || v.Rule != "operator/no-forms" || v.Reason != "no uploads" {
		t.Errorf("a rule does not hold: %+v", v)
	}
	taint(outboard.Taint{Private: true})
	if v := decide("GET", "other.example"); !v.Allow {
		t.Errorf("private data alone: %+v", v)
	}
	imported := outboard.NewEvent(h.Thread, &outboard.SessionForked{Parent: "sesn_01x", Seq: 1, Import: "d",
		Taint: outboard.Taint{Untrusted: true}})
	if _, err := s.Append(t.Context(), h.ID, h.Epoch, h.Head, imported); err != nil {
		t.Fatal(err)
	}
	h.Head++
	if v := decide("GET", "other.example"); v.Allow || v.Rule != "platform/taint" ||
		!strings.Contains(v.Hint, "--resource 'other.example/*'") {
		t.Errorf("private and untrusted: %+v", v)
	}
	grant := outboard.Grant{ID: outboard.NewID[outboard.GrantID](outboard.PrefixGrant), Session: h.ID,
		Actions:   []string{policy.ActionHTTP},
		Resources: []string{"other.example/*"}, MaxUses: 1, CreatedAt: h.CreatedAt, ExpiresAt: h.CreatedAt.AddDate(1, 0,
			0)}
	if err := s.PutGrant(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	if v := decide("GET", "other.example"); !v.Allow {
		t.Errorf("with a grant: %+v", v)
	}
	if v := decide("GET", "other.example"); v.Allow {
		t.Errorf("a spent grant counts again: %+v", v)
	}
}

// If this fails, a stream that was allowed goes on after what allowed it was taken back, or after its session
// has read what must not leave; or one ends whose grant was spent on it.
func TestGatePolicyOfStreams(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "outboard.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	engine, err := policy.New(policy.Config{Source: s, Operator: `permit (principal, action, resource);`})
	if err != nil {
		t.Fatal(err)
	}
	g := &gatePolicy{engine: engine, store: s}
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_01x"}
	if h, err = s.CreateSession(t.Context(), h, outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{})); err != nil {
		t.Fatal(err)
	}
	open := func(host string) func() error {
		t.Helper()
		v, err := g.Decide(t.Context(), egress.Request{Subject: egress.Subject{Session: h.ID}, Scheme: "https",
			Method: "GET", Host: host, Port: 443, Path: "/x"})
		if err != nil || !v.Allow || v.Still == nil {
			t.Fatalf("%s: %+v, %v", host, v, err)
		}
		return func() error { return v.Still(t.Context()) }
	}
	early := open("early.example")
	if err := early(); err != nil {
		t.Errorf("a clean session: %v", err)
	}
	call := outboard.NewEvent(h.Thread,
		&outboard.CallFinished{Call: outboard.CallID(outboard.NewID[outboard.EventID](outboard.PrefixEvent)),
			Outcome: outboard.OutcomeOK, Taint: outboard.Taint{Private: true, Untrusted: true}})
	if _, err := s.Append(t.Context(), h.ID, h.Epoch, h.Head, call); err != nil {
		t.Fatal(err)
	}
	if err := early(); err == nil || outboard.KindOf(err) != outboard.Denied {
		t.Errorf("a stream from before the taint: %v", err)
	}
	for name, uses := range map[string]int{"once.example": 1, "often.example": 0} {
		grant := outboard.Grant{ID: outboard.NewID[outboard.GrantID](outboard.PrefixGrant), Session: h.ID,
			Actions:   []string{policy.ActionHTTP},
			Resources: []string{name + "/*"}, MaxUses: uses, CreatedAt: h.CreatedAt, ExpiresAt: h.CreatedAt.AddDate(1,
				0, 0)}
		if err := s.PutGrant(t.Context(), grant); err != nil {
			t.Fatal(err)
		}
		still := open(name)
		if err := still(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.RevokeGrant(t.Context(), grant.ID, s.Now()); err != nil {
			t.Fatal(err)
		}
		if err := still(); err == nil {
			t.Errorf("%s: its grant was revoked, and it goes on", name)
		}
	}
}

// If this fails, a session that has read private data and a stranger's text sends to a host that its environment
// allows and nobody trusts with it; or is held where its environment says that it may send.
func TestGatePolicyOfTrustedHosts(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "outboard.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	engine, err := policy.New(policy.Config{Source: s, Operator: `permit (principal, action, resource);`})
	if err != nil {
		t.Fatal(err)
	}
	g := &gatePolicy{engine: engine, store: s}
	for _, mode := range []string{"limited", "unrestricted"} {
		n := outboard.Networking{Mode: mode, AllowPackageManagers: mode == "limited",
			Rules: []outboard.NetRule{{Host: "plain.example"},
				{Host: "ours.example", Trusted: true}, {Host: "part.example"}, {Host: "part.example", Path: "/in/**",
					Methods: []string{"POST"}, Trusted: true}}}
		h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_01x"}
		if h, err = s.CreateSession(t.Context(), h, outboard.SessionConfig{},
			outboard.NewEvent("", &outboard.SessionCreated{})); err != nil {
			t.Fatal(err)
		}
		decide := func(method, host, path string, also ...egress.Request) bool {
			t.Helper()
			v, err := g.Decide(t.Context(),
				egress.Request{Subject: egress.Subject{Session: h.ID,
					Config: outboard.SessionConfig{Env: outboard.EnvConfig{Networking: n}}},
					Scheme: "https", Method: method, Host: host, Port: 443, Path: path, Also: also})
			if err != nil {
				t.Fatal(err)
			}
			return v.Allow
		}
		if !decide("POST", "plain.example", "/") {
			t.Errorf("%s: the control, a clean session, is held", mode)
		}
		call := outboard.NewEvent(h.Thread,
			&outboard.CallFinished{Call: outboard.CallID(outboard.NewID[outboard.EventID](outboard.PrefixEvent)),
				Outcome: outboard.OutcomeOK, Taint: outboard.Taint{Private: true, Untrusted: true}})
		if _, err := s.Append(t.Context(), h.ID, h.Epoch, h.Head, call); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			method, host, path string
			also               []egress.Request
			want               bool
		}{
			{"POST", "plain.example", "/", nil, false},
			{"GET", "plain.example", "/", nil, false},
			{"POST", "ours.example", "/", nil, true},
			{"POST", "part.example", "/in/x", nil, true},
			{"GET", "part.example", "/in/x", nil, false},
			{"POST", "part.example", "/out", nil, false},
			{"POST", "part.example", "/in/x",
				[]egress.Request{{Method: "GET", Host: "part.example", Port: 443, Path: "/in/x"}}, false},
			{"GET", "pypi.org", "/simple/x/", nil, mode == "limited"},
			{"POST", "pypi.org", "/simple/x/", nil, false},
		} {
			if got := decide(c.method, c.host, c.path, c.also...); got != c.want {
				t.Errorf("%s: %s %s%s: allowed %v, want %v", mode, c.method, c.host, c.path, got, c.want)
			}
		}
	}
}

// If this fails, a request is allowed by what this server remembers of a session that another server's event has
// tainted meanwhile, or one that the event does not concern spends its grant twice.
func TestGatePolicyByALogThatGrew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "outboard.db")
	var stores [2]*store.Store
	for i := range stores {
		s, err := store.Open(t.Context(), store.Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		stores[i] = s
	}
	s, other := stores[0], stores[1]
	engine, err := policy.New(policy.Config{Source: s, Operator: `permit (principal, action, resource);`})
	if err != nil {
		t.Fatal(err)
	}
	g := &gatePolicy{engine: engine, store: s}
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_01x"}
	if h, err = other.CreateSession(t.Context(), h, outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{})); err != nil {
		t.Fatal(err)
	}
	request := egress.Request{Subject: egress.Subject{Session: h.ID}, Scheme: "https", Method: "GET", Host: "a.example",
		Port: 443, Path: "/x"}
	decide := func() egress.Verdict {
		t.Helper()
		v, err := g.Decide(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	taint := func(x outboard.Taint) {
		t.Helper()
		call := outboard.NewEvent(h.Thread,
			&outboard.CallFinished{Call: outboard.CallID(outboard.NewID[outboard.EventID](outboard.PrefixEvent)),
				Outcome: outboard.OutcomeOK, Taint: x})
		if _, err := other.Append(t.Context(), h.ID, h.Epoch, h.Head, call); err != nil {
			t.Fatal(err)
		}
		h.Head++
	}
	write := func(v egress.Verdict) error {
		return s.AuditWhile(t.Context(), outboard.AuditRecord{Actor: string(h.ID), Action: egress.ActionRequest,
			Decision: outboard.Allowed}, v.While)
	}
	again := func(v egress.Verdict) egress.Verdict {
		t.Helper()
		v, err := v.Again(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := decide(); !v.Allow || write(v) != nil {
		t.Errorf("at first: %+v", v)
	}
	taint(outboard.Taint{})
	v := decide()
	if !v.Allow || !errors.Is(write(v), store.ErrMoved) {
		t.Errorf("remembered: %+v is written", v)
	}
	if v = again(v); !v.Allow || write(v) != nil {
		t.Errorf("what does not concern it: %+v", v)
	}
	taint(outboard.Taint{Private: true, Untrusted: true})
	if v = decide(); v.Allow && !errors.Is(write(v), store.ErrMoved) {
		t.Errorf("a tainted session: %+v is written", v)
	}
	if v = again(v); v.Allow || v.Rule != "platform/taint" {
		t.Errorf("tainted meanwhile: %+v", v)
	}
	grant := outboard.Grant{ID: outboard.NewID[outboard.GrantID](outboard.PrefixGrant), Session: h.ID,
		Actions:   []string{policy.ActionHTTP},
		Resources: []string{"a.example/*"}, MaxUses: 2, CreatedAt: h.CreatedAt, ExpiresAt: h.CreatedAt.AddDate(1, 0, 0)}
	if err := s.PutGrant(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		v := decide()
		taint(outboard.Taint{})
		if !v.Allow || !errors.Is(write(v), store.ErrMoved) {
			t.Fatalf("use %d of a grant: %+v", i, v)
		}
		if v = again(v); !v.Allow || write(v) != nil {
			t.Errorf("use %d of a grant, again: %+v", i, v)
		}
	}
	if v := decide(); v.Allow {
		t.Errorf("a spent grant counts again: %+v", v)
	}
}

// If this fails, the first request of a long session through the gateway waits until its whole log was read, or
// what the part that was not read says of it is forgotten.
func TestTaintOfALongSession(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "outboard.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), Thread: "sthr_01x"}
	if h, err = s.CreateSession(t.Context(), h, outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{})); err != nil {
		t.Fatal(err)
	}
	st := new(outboard.State)
	add := func(ps ...outboard.Payload) {
		t.Helper()
		var events []outboard.Event
		for _, p := range ps {
			events = append(events, outboard.NewEvent(h.Thread, p))
		}
		if _, err := s.Append(t.Context(), h.ID, 0, store.Any, events...); err != nil {
			t.Fatal(err)
		}
		for e, err := range s.Read(t.Context(), h.ID, st.Head) {
			if err == nil {
				err = st.Apply(&e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	call := func(x outboard.Taint) {
		t.Helper()
		req := outboard.NewEvent(h.Thread, &outboard.CallRequested{Name: "bash", Kind: "builtin",
			Decision: outboard.Allow})
		if _, err := s.Append(t.Context(), h.ID, 0, store.Any, req); err != nil {
			t.Fatal(err)
		}
		add(&outboard.ModelFinished{}, &outboard.CallFinished{Call: req.ID, Outcome: outboard.OutcomeOK, Taint: x})
	}
	call(outboard.Taint{Private: true})
	for range 100 {
		call(outboard.Taint{})
	}
	taint := func(g *gatePolicy) (outboard.Taint, int64) {
		t.Helper()
		began := s.EventsRead()
		got, err := g.taint(t.Context(), h.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.taint, s.EventsRead() - began
	}
	if x, rows := taint(&gatePolicy{store: s}); !x.Private || rows < 100 { // positive control
		t.Errorf("without a summary: %+v of %d rows", x, rows)
	}
	add(&outboard.ContextCompacted{Summary: "so far", Base: st.Base()})
	call(outboard.Taint{Untrusted: true})
	g := &gatePolicy{store: s}
	if x, rows := taint(g); x != (outboard.Taint{Private: true, Untrusted: true}) || rows > 10 {
		t.Errorf("after a summary: %+v of %d rows", x, rows)
	}
	add(&outboard.AgentThinking{})
	if x, rows := taint(g); x != (outboard.Taint{Private: true, Untrusted: true}) || rows > 0 {
		t.Errorf("after an event that is no outcome: %+v of %d rows", x, rows)
	}
}

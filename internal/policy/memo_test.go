package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// Broken if a decision is remembered for a request that differs in anything, or for longer than the second it
// was made in.
func TestRecall(t *testing.T) {
	l, err := Compile(outboard.LevelOperator, `
		@id("secret") forbid (principal, action, resource) when { context.path like "/secret*" };
		@id("method") forbid (principal, action, resource) when { context.method == "DELETE" };
		@id("tainted") forbid (principal, action, resource) when { context.taint.private };
		@id("poor") forbid (principal, action, resource) when { context.budget.limited && context.budget.left_cents < 5 };
		@id("granted") forbid (principal, action, resource) when { context.granted };
		@id("child") forbid (principal, action, resource) when { principal.depth > 0 };
		@id("guest") forbid (principal, action, resource) when { principal.user.role == "viewer" };
		@id("over") forbid (principal, action, resource) when { context.now >= datetime("2026-11-21T09:30:01Z") };`)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSet(l)
	request := func() *Request {
		return &Request{Session: "sesn_1", Action: ActionHTTP, Resource: "a.test",
			Context: Context{Host: "a.test", Port: 443, Method: "GET", Path: "/",
				Left: &outboard.Spend{Cost: 9 * outboard.Cent},
				Now:  time.Date(2026, 11, 21, 9, 30, 0, 999_000_000, time.UTC)}}
	}
	for name, change := range map[string]func(*Request){
		"secret": func(r *Request) { r.Context.Path = "/secret/1" }, "method": func(r *Request) { r.Context.Method = "DELETE" },
		"tainted": func(r *Request) { r.Context.Taint.Private = true }, "granted": func(r *Request) { r.Context.Granted = true },
		"poor":  func(r *Request) { r.Context.Left.Cost = 4 * outboard.Cent },
		"child": func(r *Request) { r.Depth = 1 }, "guest": func(r *Request) { r.Role = "viewer" },
		"over": func(r *Request) { r.Context.Now = r.Context.Now.Add(time.Millisecond) },
	} {
		for range 2 { // decided, and remembered
			r := request()
			if v := s.recall(r); v.Decision != outboard.Allow {
				t.Fatalf("the control: %+v", v)
			}
			change(r)
			if v := s.recall(r); v.Decision != outboard.Deny || len(v.Rules) != 1 || v.Rules[0] != "operator/"+name {
				t.Errorf("%s: %+v", name, v)
			}
		}
	}
	before := len(s.memo.verdicts)
	s.recall(request())
	s.recall(request())
	if n := len(s.memo.verdicts); n > before+1 || n == 0 {
		t.Errorf("%d decisions are remembered, %d before the same request came twice", n, before)
	}
	before = len(s.memo.verdicts)
	long := request()
	long.Context.Input = strings.Repeat("x", maxAsked+1)
	if v := s.recall(long); v.Decision != outboard.Allow || len(s.memo.verdicts) != before {
		t.Errorf("long arguments: %+v, and %d decisions are remembered instead of %d", v, len(s.memo.verdicts), before)
	}
	for i := range maxMemo + 10 {
		r := request()
		r.Context.Port = i
		s.recall(r)
	}
	if n := len(s.memo.verdicts); n > maxMemo {
		t.Errorf("%d decisions are remembered", n)
	}
}

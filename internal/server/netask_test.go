package server

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/store"
)

// If this fails, a person is shown less than what they allow or text that lies, a flood of hosts makes a flood
// of rows, or somebody is asked where nobody should be.
func TestNetAsker(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "outboard.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	n := &netAsker{store: s}
	request := func(host string, port int, path string) egress.Request {
		return egress.Request{Subject: egress.Subject{Session: "sesn_1"}, Scheme: "https", Method: "GET", Host: host,
			Port: port, Path: path, Query: "secret=1"}
	}
	ask := func(r egress.Request, q egress.Question) outboard.Approval {
		t.Helper()
		got, err := n.Ask(t.Context(), r, q)
		if err != nil || got.Approval == "" {
			t.Fatalf("%+v, %v", got, err)
		}
		a, err := s.Approval(t.Context(), got.Approval)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := ask(request("a.test", 443, "/x\x1b[31m\u202e"), egress.Question{Why: "w", Rules: []string{"default"}})
	for _, want := range []string{`"host": "a.test"`, `"ports": "80 and 443"`, "every request to this host",
		"GET https://a.test:443/x", `\u202e`} {
		if !strings.Contains(a.Request, want) {
			t.Errorf("%q is not in\n%s", want, a.Request)
		}
	}
	if strings.ContainsAny(a.Request, "\x1b\u202e") || strings.Contains(a.Request, "secret") ||
		a.Resource != "a.test" || a.Approver != outboard.ApproverAny || len(a.Digest) != 64 || a.Net.Port != 0 {
		t.Errorf("a host: %+v", a)
	}
	if b := ask(request("a.test", 80, "/other"), egress.Question{}); b.ID != a.ID {
		t.Errorf("the same host on its other port is %s, not %s", b.ID, a.ID)
	}
	if b := ask(request("a.test", 8080, "/"), egress.Question{Approver: "other"}); b.Resource != "a.test:8080" ||
		b.Net.Port != 8080 || b.Approver != "other" {
		t.Errorf("another port: %+v", b)
	}
	if b := ask(request("a.test", 443, "/v1/x"), egress.Question{Policy: true,
		Approver: "admin"}); b.Resource != "a.test/v1/x" || !b.Net.Policy ||
		!strings.Contains(b.Request, "requests to this path") {
		t.Errorf("by a rule: %+v", b)
	}
	for name, c := range map[string]struct {
		r egress.Request
		q egress.Question
	}{
		"nobody":         {request("b.test", 443, "/"), egress.Question{Approver: outboard.ApproverNone}},
		"a star":         {request("b.test", 443, "/v1/*"), egress.Question{Policy: true}},
		"an endless one": {request("b.test", 443, "/"+strings.Repeat("x", 2000)), egress.Question{Policy: true}},
	} {
		if got, err := n.Ask(t.Context(), c.r, c.q); err != nil || got != (egress.Asked{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for i := range 1000 {
		if _, err := n.Ask(t.Context(), request(fmt.Sprintf("h%d.test", i), 443, "/"), egress.Question{}); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := s.Approvals(t.Context(), store.ApprovalFilter{Limit: 2000}); err != nil ||
		len(list) != netAsks.Pending {
		t.Errorf("a thousand hosts made %d rows, %v", len(list), err)
	}
}

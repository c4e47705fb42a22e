//go:build linux

package runner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/policy"
)

// If this fails, a client is shown a custom tool's call, and so runs it, that nobody allowed, that may not run
// any more, or twice.
func TestCustomToolIsOfferedOnceAllowed(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{Operator: `@id("ticket") @effect("ask") @approver("admin") @timeout("1h") forbid (principal, action == Action::"custom", resource);`})
	for name, k := range map[string]outboard.Key{"live": {}, "revoked": {RevokedAt: r.now()}} {
		k.ID, k.Hash, k.Name, k.Role, k.CreatedAt = outboard.KeyID("apikey_"+name), name, name, outboard.RoleAdmin, r.now()
		if err := r.store.PutKey(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(call outboard.CallID, allow bool, key outboard.KeyID) outboard.Payload {
		return &outboard.InputConfirmation{Call: call, Allow: allow, Key: key, Message: "no"}
	}
	cut := &outboard.InputInterrupt{}
	cases := []struct {
		name    string
		answers func(outboard.CallID) []outboard.Payload
		want    outboard.Outcome // "" = offered
		text    string
	}{
		{"allowed", func(c outboard.CallID) []outboard.Payload {
			return []outboard.Payload{answer(c, true,
				"apikey_live")}
		}, "", ""},
		{"denied", func(c outboard.CallID) []outboard.Payload {
			return []outboard.Payload{answer(c, false,
				"apikey_live")}
		}, outboard.OutcomeDenied, "They said: no"},
		{"revoked", func(c outboard.CallID) []outboard.Payload {
			return []outboard.Payload{answer(c, true, "apikey_revoked")}
		}, outboard.OutcomeDenied, "was revoked"},
		{"expired", func(outboard.CallID) []outboard.Payload { r.advance(2 * time.Hour); return nil },
			outboard.OutcomeDenied, "in time"},
		{"interrupted", func(outboard.CallID) []outboard.Payload { return []outboard.Payload{cut} },
			outboard.OutcomeCanceled, "interrupted"},
		{"allowed and interrupted", func(c outboard.CallID) []outboard.Payload {
			return []outboard.Payload{answer(c, true, "apikey_live"), cut}
		}, outboard.OutcomeCanceled, "interrupted"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			id := r.steps("- call: {name: ticket, input: {n: 1}}", "- say: done")
			s := r.rests(id, "requires_action")
			call := s.Calls[0].ID
			if ps := c.answers(call); len(ps) > 0 {
				r.send(id, ps...)
			}
			if c.want == "" {
				offer := outboard.OfferedID(call)
				r.until(id, "offered", func(s *outboard.State) bool {
					return s.Parked() && slices.Equal(s.Stop.EventIDs, []outboard.EventID{offer})
				})
				r.send(id, &outboard.InputToolResult{Call: call, As: offer, Custom: true,
					Content: []outboard.Content{outboard.Text("42")}})
				c.want, c.text = outboard.OutcomeOK, "42"
			}
			r.rests(id, "end_turn")
			if out := r.outcomes(id); len(out) != 1 || out[0].Outcome != c.want ||
				!strings.Contains(finalText(out[0]), c.text) {
				t.Errorf("outcomes: %+v", out)
			}
			if n := len(payloads[*outboard.CallOffered](r, id)); (n == 1) != (c.want == outboard.OutcomeOK) || n > 1 {
				t.Errorf("offered %d times", n)
			}
		})
	}
}

// If this fails, a custom tool's call that is asked about holds up, or is held up for good by, the calls beside it.
func TestOfferBesideOtherCalls(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{Operator: `@id("ticket") @effect("ask") forbid (principal, action == Action::"custom", resource) when { context.input like "*7*" };`})
	id := r.session("script/steps", asks("bash"))
	r.say(id, "- parallel:", "  - bash: "+r.mark(), "  - call: {name: ticket, input: {n: 7}}",
		"  - call: {name: ticket, input: {n: 1}}", "- say: done")
	s := r.rests(id, "requires_action")
	bash, held, free := s.Calls[0].ID, s.Calls[1].ID, s.Calls[2].ID
	waits := func(ids ...outboard.EventID) {
		t.Helper()
		r.until(id, "parked", func(s *outboard.State) bool { return s.Parked() && slices.Equal(s.Stop.EventIDs, ids) })
	}
	waits(bash, held, free)
	r.send(id, &outboard.InputConfirmation{Call: held, Allow: true})
	waits(bash, free)
	r.send(id, &outboard.InputToolResult{Call: free, Custom: true})
	waits(bash)
	r.send(id, &outboard.InputConfirmation{Call: bash, Allow: true})
	waits(outboard.OfferedID(held))
	if n := len(r.marks()); n != 1 {
		t.Errorf("%d commands ran, want the one that was allowed", n)
	}
	r.send(id, &outboard.InputToolResult{Call: held, As: outboard.OfferedID(held), Custom: true})
	r.rests(id, "end_turn")
}

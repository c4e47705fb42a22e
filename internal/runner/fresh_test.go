//go:build linux

package runner

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/policy"
)

// asksFor is a rule that asks a person about commands which begin so.
func asksFor(prefix string) policy.Config {
	return policy.Config{Operator: `@id("asked") @effect("ask") forbid (principal, action == Action::"bash", resource) when ` +
		`{ context.command like "` + prefix + `*" };`}
}

// If this fails, state that the agent prepared in its shell decides what a command does that a person allowed.
func TestAllowedCommandsRunInFreshShells(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ prepare, command string }{ // each with a control: the same command, unasked
		"function": {`true; date() { echo EVIL; }`, `date -u -d @0 +%s`},
		"alias":    {`alias date="echo EVIL"`, `date -u -d @0 +%s`},
		"PATH": {`printf '#!/bin/sh\necho EVIL\n' >` + dir + `/date; chmod +x ` + dir + `/date; export PATH=` +
			dir + `:$PATH`, `date -u -d @0 +%s`},
		"directory": {`mkdir -p sub; cd sub; echo EVIL > which; echo 0 > ../which`, `date >/dev/null; cat which`},
		"hook":      {`trap 'echo EVIL' DEBUG`, `date -u -d @0 +%s`},
	} {
		for _, asked := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " unasked", true: " allowed"}[asked], func(t *testing.T) {
				r := newRig(t, llm.Config{})
				cfg := policy.Config{}
				if asked {
					cfg = asksFor("date")
				}
				r.ruled(cfg)
				id := r.steps("- bash: "+quoted(c.prepare), "- bash: "+quoted(c.command),
					"- bash: "+quoted(c.command+" #"), "- say: done")
				if asked {
					for answered := range 2 {
						s := r.until(id, "it asks", func(s *outboard.State) bool {
							return s.Parked() && s.Calls[0].Requested.Input != nil && s.ModelCalls == answered+2
						})
						call := s.Calls[0].ID
						if a := r.approval(id, call); !strings.Contains(a.Why, "fresh shell, in /") {
							t.Errorf("shown: %q", a.Why)
						}
						r.send(id, &outboard.InputConfirmation{Call: call, Allow: true})
					}
				}
				r.rests(id, "end_turn")
				for _, fin := range r.outcomes(id)[1:] {
					got := finalText(fin)
					if strings.Contains(got, "EVIL") == asked || strings.Contains(got, "fresh shell") != asked ||
						asked && !strings.HasPrefix(got, "0\n") {
						t.Errorf("%+v", fin)
					}
				}
			})
		}
	}
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// If this fails, calls of one response run beside one that a person allowed, and change what it finds.
func TestAllowedCallsRunByThemselves(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{})
	at := filepath.Join(t.TempDir(), "at")
	id := r.session("script/steps", asks("bash"))
	r.say(id, "- parallel:", "  - bash: sleep 0.3; echo one >>"+at, "  - bash: cat "+at+"; sleep 0.3; echo two >>"+at,
		"  - bash: cat "+at, "- say: done")
	s := r.rests(id, "requires_action")
	for _, c := range s.Calls {
		r.send(id, &outboard.InputConfirmation{Call: c.ID, Allow: true})
	}
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if !strings.HasPrefix(finalText(out[1]), "one\n") || !strings.HasPrefix(finalText(out[2]), "one\ntwo\n") {
		t.Errorf("%+v", out)
	}
}

// If this fails, a command that only a grant allowed by the time it was sent runs in the agent's own shell, because the
// process that used the grant died before it sent the command.
func TestAllowedCommandsStayFreshAfterACrash(t *testing.T) {
	for _, granted := range []bool{false, true} { // without, nothing asks: the control
		r := newRig(t, llm.Config{})
		id := r.steps("- parallel:", "  - bash: 'true; date() { echo EVIL; }'", "  - bash: date -u -d @0 +%s",
			"- say: done")
		died := dieAt(r, 3) // the response is in the log, nobody was asked, nothing was sent
		<-died.dead
		r.advance(outboard.LeaseTTL + time.Second)
		engine, err := policy.New(policy.Config{Source: r.store, Now: r.now, Logger: r.log})
		if granted {
			rules := asksFor("date")
			rules.Source, rules.Now, rules.Logger = r.store, r.now, r.log
			engine, err = policy.New(rules)
			g := outboard.Grant{ID: "grant_1", Session: id, Actions: []string{"bash"}, Resources: []string{"date *"},
				MaxUses:   1,
				CreatedAt: r.now(), ExpiresAt: r.now().Add(time.Hour), ApprovedBy: "apikey_1", Why: "test"}
			if err := r.store.PutGrant(t.Context(), g); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		m := newMortal(1) // the intent is in the log, the grant is used, and the command was not sent
		r.start(func(c *Config) { c.fault, c.Fleet, c.Policy = m.fault, r.newFleet(), engine })
		s := r.until(id, "the intent",
			func(s *outboard.State) bool { return len(s.Calls) == 2 && s.Calls[1].Started != nil })
		if c := s.Calls[1]; c.Requested.Grant != "" || c.Requested.Decision != outboard.Allow ||
			c.Started.Allowed != granted {
			t.Errorf("requested %+v, started %+v", c.Requested, c.Started)
		}
		<-m.dead
		r.advance(outboard.LeaseTTL + time.Second)
		r.start(func(c *Config) { c.Fleet, c.Policy = r.newFleet(), engine })
		r.rests(id, "end_turn")
		if got := finalText(r.outcomes(id)[1]); strings.Contains(got, "EVIL") == granted ||
			strings.Contains(got, "fresh shell") != granted {
			t.Errorf("granted %v: %q\n%s", granted, got, r.dump(id))
		}
	}
}

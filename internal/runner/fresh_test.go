//go:build linux

package runner

import (
	"path/filepath"
	"strings"
	"testing"

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
		"function":  {`true; date() { echo EVIL; }`, `date -u -d @0 +%s`},
		"alias":     {`alias date="echo EVIL"`, `date -u -d @0 +%s`},
		"PATH":      {`printf '#!/bin/sh\necho EVIL\n' >` + dir + `/date; chmod +x ` + dir + `/date; export PATH=` + dir + `:$PATH`, `date -u -d @0 +%s`},
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
				id := r.steps("- bash: "+quoted(c.prepare), "- bash: "+quoted(c.command), "- bash: "+quoted(c.command+" #"), "- say: done")
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
					if strings.Contains(got, "EVIL") == asked || strings.Contains(got, "fresh shell") != asked || asked && !strings.HasPrefix(got, "0\n") {
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
	r.say(id, "- parallel:", "  - bash: sleep 0.3; echo one >>"+at, "  - bash: cat "+at+"; sleep 0.3; echo two >>"+at, "  - bash: cat "+at, "- say: done")
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

package policy

import "strings"

// Notes is what the author of rules should know about them, beside mistakes: a rule about paths does not hold commands.
func (l *Layer) Notes() []string {
	var out []string
	for i := range l.rules {
		r := &l.rules[i]
		text := string(r.policy.MarshalCedar())
		speaks := strings.Contains(text, "context.path") || strings.Contains(text, `context["path"]`) || strings.Contains(text, "context has path")
		web := strings.Contains(text, `Action::"http.request"`) || strings.Contains(text, `Action::"web_fetch"`)
		if speaks && !web {
			out = append(out, "policy "+r.id+" speaks of a path. It holds for read, write, edit, glob and grep; it cannot bind bash, whose commands open "+
				"any file. Where that matters, forbid bash as well, or keep the file out of the sandbox")
		}
	}
	return out
}

package policy

import (
	"strings"

	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// Notes is what the author of rules should know about them, beside mistakes: a rule about paths does not hold commands.
func (l *Layer) Notes() []string {
	var out, files, addresses []string
	for _, t := range registry.Built() {
		switch {
		case t.Opens():
			files = append(files, t.Name)
		case t.Subject == registry.Address:
			addresses = append(addresses, t.Name)
		}
	}
	for i := range l.rules {
		r := &l.rules[i]
		text := string(r.policy.MarshalCedar())
		speaks := strings.Contains(text, "context.path") || strings.Contains(text, `context["path"]`) ||
			strings.Contains(text, "context has path")
		web := strings.Contains(text, `Action::"`+ActionHTTP+`"`)
		for _, name := range addresses {
			web = web || strings.Contains(text, `Action::"`+name+`"`)
		}
		if speaks && !web {
			out = append(out, "policy "+r.id+" speaks of a path. It holds for "+strings.Join(files,
				", ")+"; it cannot bind bash, whose commands open "+
				"any file. Where that matters, forbid bash as well, or keep the file out of the sandbox")
		}
	}
	return out
}

package e2b

import (
	"encoding/json"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// headerRules are what is done to requests, by host. What a rule says besides headers is refused: it must not
// seem to be done.
type headerRules map[string][]map[string]map[string]json.RawMessage

type ruleOut struct {
	Transform transformOut `json:"transform"`
}

type transformOut struct {
	Headers map[string]string `json:"headers"`
}

// hidden is shown in the place of a header's value, and refused as one: a client that sends back what it was
// shown means the old value, which it does not have.
const hidden = "[secret]"

// headers reads them.
func (in headerRules) headers() (control.BoxHeaders, error) {
	out := control.BoxHeaders{}
	for host, rules := range in {
		if len(rules) != 1 {
			return nil, outboard.Errorf(outboard.Invalid, "network.rules: one transform for %q, not %d", host,
				len(rules))
		}
		name := strings.ToLower(host)
		if out[name] != nil {
			return nil, outboard.Errorf(outboard.Invalid, "network.rules: %q is there twice", name)
		}
		list := map[string]outboard.Secret{}
		out[name] = list
		for kind, what := range rules[0] {
			if kind != "transform" {
				return nil, outboard.Errorf(outboard.Unimplemented, "network.rules: %q is not built here", kind)
			}
			if err := transform(what, list); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// transform reads the headers of one rule.
func transform(in map[string]json.RawMessage, out map[string]outboard.Secret) error {
	for kind, text := range in {
		if kind != "headers" {
			return outboard.Errorf(outboard.Unimplemented, "network.rules: the transform %q is not built here", kind)
		}
		var headers map[string]string
		if json.Unmarshal(text, &headers) != nil { // its error may repeat a value
			return outboard.Errorf(outboard.Invalid, "network.rules: headers must be an object of texts")
		}
		for name, value := range headers {
			switch {
			case strings.Contains(value, "${e2b."):
				return outboard.Errorf(outboard.Unimplemented,
					"network.rules: the header %q names a secret of E2B's, and those are not built here", name).
					WithHint("put the value itself; it is sealed and not shown again")
			case value == hidden:
				return outboard.Errorf(outboard.Invalid, "network.rules: the header %q has what is shown in the "+
					"place of a value, and not a value", name)
			}
			out[name] = outboard.NewSecret(value)
		}
	}
	return nil
}

// shownRules are the rules of a box without their values.
func shownRules(h outboard.BoxHeaders) map[string][]ruleOut {
	out := map[string][]ruleOut{}
	for host, names := range h.Names {
		headers := map[string]string{}
		for _, name := range names {
			headers[name] = hidden
		}
		out[host] = []ruleOut{{transformOut{headers}}}
	}
	return out
}

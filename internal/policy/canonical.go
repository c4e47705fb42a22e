package policy

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/term"
)

// MaxShown bounds the canonical text of one request. What is longer is not cut, because nobody can approve what
// they have not seen: the request is refused.
const MaxShown = 64 << 10

// Canonical is a call as a person is shown it: the tool and every argument, in an order that does not depend on
// how the model wrote them, with everything that a screen would hide or act on (control characters,
// bidirectional overrides, zero-width characters) visible. Two calls that do the same look the same, and nothing
// in it is markup.
func Canonical(name string, input outboard.Raw) (string, error) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(input))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return "", outboard.Errorf(outboard.Invalid, "the input of %s is not JSON: %w", clip(name), err)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return "", outboard.Errorf(outboard.Invalid, "the input of %s cannot be shown: %w", clip(name), err)
	}
	text := term.Clean(name + " " + strings.TrimSpace(b.String()))
	if len(text) > MaxShown {
		return "", outboard.Errorf(outboard.TooLarge, "the request is %d bytes long, and at most %d can be shown to "+
			"a person whole", len(text), MaxShown).
			WithHint("do it in smaller steps")
	}
	return text, nil
}

// Repeated returns a name that an object in a JSON text has twice, however deep, and "" where there is none.
// Which of the two counts is for each parser to say: what is shown to a person, or judged, need not be what a
// client goes by. A text that is not JSON has none.
func Repeated(text []byte) string {
	type level struct {
		names map[string]bool // nil in an array
		value bool            // a value comes next
	}
	var in []level
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		token, err := dec.Token()
		if err != nil {
			return ""
		}
		if n := len(in) - 1; n >= 0 && in[n].names != nil {
			if name, ok := token.(string); ok && !in[n].value {
				if in[n].names[name] {
					return name
				}
				in[n].names[name], in[n].value = true, true
				continue
			}
			in[n].value = false
		}
		switch token {
		case json.Delim('{'):
			in = append(in, level{names: map[string]bool{}})
		case json.Delim('['):
			in = append(in, level{})
		case json.Delim('}'), json.Delim(']'):
			in = in[:len(in)-1]
		}
	}
}

// Host is a host name in the one form that policies compare with: lower case, without a trailing dot.
func Host(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

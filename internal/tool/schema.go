package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// field is one field of a tool's input.
type field struct {
	name     string
	kind     kind
	required bool
	empty    bool  // of text: may be ""
	min, max int64 // of whole
	about    string
}

// kind is the type of a field.
type kind int

const (
	str   kind = iota // a string
	path              // a string that names something in a file system: not empty, no NUL
	flag              // true or false
	whole             // a whole number from min to max
	lines             // [start, end], whole numbers from 1, start <= end
)

// args are the decoded fields of an input; optional fields that are absent or null are not in it.
type args map[string]any

// seal makes the schema of a definition from its fields.
func (d Def) seal() Def {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","properties":{`)
	var required []string
	for i, f := range d.fields {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encode(f.name))
		b.WriteByte(':')
		f.schema(&b)
		if f.required {
			required = append(required, f.name)
		}
	}
	b.WriteString(`}`)
	if len(required) > 0 {
		b.WriteString(`,"required":`)
		b.Write(encode(required))
	}
	b.WriteString(`,"additionalProperties":false}`)
	d.Schema = b.Bytes()
	return d
}

func (f field) schema(b *bytes.Buffer) {
	switch f.kind {
	case str, path:
		b.WriteString(`{"type":"string"`)
		if !f.empty {
			b.WriteString(`,"minLength":1`)
		}
	case flag:
		b.WriteString(`{"type":"boolean"`)
	case whole:
		fmt.Fprintf(b, `{"type":"integer","minimum":%d,"maximum":%d`, f.min, f.max)
	case lines:
		b.WriteString(`{"type":"array","items":{"type":"integer","minimum":1},"minItems":2,"maxItems":2`)
	}
	b.WriteString(`,"description":`)
	b.Write(encode(f.about))
	b.WriteByte('}')
}

// encode marshals a string or a list of strings, which cannot fail, without escaping for HTML.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("tool: encoding a schema: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Validate checks an input against the definition: all required fields, no unknown ones, each of its type. An optional field
// may be null, which is the same as leaving it out. The error is Invalid, names the field and says what was expected; it is
// fit for the model to read.
func (d Def) Validate(input outboard.Raw) error {
	if err := d.validate(input); err != nil {
		return outboard.Errorf(outboard.Invalid, "invalid input for %s: %w", d.Name, err)
	}
	return nil
}

func (d Def) validate(input outboard.Raw) error {
	raw, err := object(input)
	if err != nil {
		return err
	}
	got := args{}
	for _, f := range d.fields {
		v, ok := raw[f.name]
		delete(raw, f.name)
		if !ok || string(v) == "null" {
			if f.required {
				return fmt.Errorf("%s is required (%s)", f.name, f.expected())
			}
			continue
		}
		if got[f.name], err = f.decode(v); err != nil {
			return err
		}
	}
	for name := range raw {
		return fmt.Errorf("unknown field %q; %s takes %s", clip(name), d.Name, d.names())
	}
	if d.check != nil {
		return d.check(got)
	}
	return nil
}

func (d Def) names() string {
	var names []string
	for _, f := range d.fields {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

// object decodes exactly one JSON object.
func object(input outboard.Raw) (map[string]json.RawMessage, error) {
	var raw map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(input))
	if err := dec.Decode(&raw); err != nil {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, fmt.Errorf("expected a JSON object, got %s", clip(string(input)))
		}
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one JSON value")
	}
	if raw == nil {
		return nil, fmt.Errorf("expected a JSON object, got null")
	}
	return raw, nil
}

// decode returns a field's value as a Go string, bool, int64 or [2]int64.
func (f field) decode(v json.RawMessage) (any, error) {
	switch f.kind {
	case flag:
		var b bool
		if json.Unmarshal(v, &b) == nil {
			return b, nil
		}
	case whole:
		var n int64
		if json.Unmarshal(v, &n) == nil && n >= f.min && n <= f.max {
			return n, nil
		}
	case lines:
		var pair []int64
		if json.Unmarshal(v, &pair) == nil && len(pair) == 2 && pair[0] >= 1 && pair[1] >= pair[0] {
			return [2]int64(pair), nil
		}
	default:
		var s string
		if json.Unmarshal(v, &s) != nil {
			break
		}
		if s == "" && !f.empty {
			return nil, fmt.Errorf("%s must not be empty", f.name)
		}
		if f.name != "content" && strings.ContainsRune(s, 0) {
			return nil, fmt.Errorf("%s must not contain a NUL character", f.name)
		}
		return s, nil
	}
	return nil, fmt.Errorf("%s must be %s, got %s", f.name, f.expected(), clip(string(v)))
}

func (f field) expected() string {
	switch f.kind {
	case flag:
		return "true or false"
	case whole:
		return fmt.Sprintf("a whole number from %d to %d", f.min, f.max)
	case lines:
		return "[start, end], two whole numbers with 1 <= start <= end"
	}
	return "a string"
}

// clip shortens foreign text for an error message.
func clip(s string) string { return text.Clip(s, 100) }

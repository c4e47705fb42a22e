package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// Field is one field of a tool's input.
type Field struct {
	Name     string
	Kind     Kind
	Required bool
	Step     string // its key in a step of a script; "" = Name

	empty    bool     // of text: may be ""
	nul      bool     // of text: may have NUL characters
	min, max int64    // of Whole; of Text max is bytes, of List entries; 0 = no limit of text
	options  []string // of Text: the only values
	of       []Field  // of List: the fields of an entry
	about    string
}

// Key is the field's key in a step of a script.
func (f Field) Key() string {
	if f.Step != "" {
		return f.Step
	}
	return f.Name
}

// Kind is the type of a field.
type Kind int

// The kinds.
const (
	Text  Kind = iota // a string
	Path              // a string that names something in a file system: not empty, no NUL
	Flag              // true or false
	Whole             // a whole number from min to max
	Lines             // [start, end], whole numbers from 1, start <= end
	List              // a list of objects
)

// args are the decoded fields of an input; optional fields that are absent or null are not in it.
type args map[string]any

// text is a field that is a string, else "".
func (a args) text(name string) string {
	s, _ := a[name].(string)
	return s
}

// objectSchema is the JSON Schema of an object with those fields.
func objectSchema(fields []Field) []byte {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","properties":{`)
	var required []string
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encode(f.Name))
		b.WriteByte(':')
		f.schema(&b)
		if f.Required {
			required = append(required, f.Name)
		}
	}
	b.WriteString(`}`)
	if len(required) > 0 {
		b.WriteString(`,"required":`)
		b.Write(encode(required))
	}
	b.WriteString(`,"additionalProperties":false}`)
	return b.Bytes()
}

func (f Field) schema(b *bytes.Buffer) {
	switch f.Kind {
	case Text, Path:
		b.WriteString(`{"type":"string"`)
		if !f.empty {
			b.WriteString(`,"minLength":1`)
		}
		if f.max > 0 { // bytes, so that a text of as many characters may be refused still
			fmt.Fprintf(b, `,"maxLength":%d`, f.max)
		}
		if f.options != nil {
			b.WriteString(`,"enum":`)
			b.Write(encode(f.options))
		}
	case Flag:
		b.WriteString(`{"type":"boolean"`)
	case Whole:
		fmt.Fprintf(b, `{"type":"integer","minimum":%d,"maximum":%d`, f.min, f.max)
	case Lines:
		b.WriteString(`{"type":"array","items":{"type":"integer","minimum":1},"minItems":2,"maxItems":2`)
	case List:
		fmt.Fprintf(b, `{"type":"array","maxItems":%d,"items":%s`, f.max, objectSchema(f.of))
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

// Validate checks an input against the definition: all required fields, no unknown ones, each of its type. An
// optional field may be null, which is the same as leaving it out. The error is Invalid, names the field and
// says what was expected; it is fit for the model to read.
func (t Tool) Validate(input outboard.Raw) error {
	if err := t.validate(input); err != nil {
		return outboard.Errorf(outboard.Invalid, "invalid input for %s: %w", t.Name, err)
	}
	return nil
}

func (t Tool) validate(input outboard.Raw) error {
	got, err := decode(t.Name, t.Fields, input)
	if err != nil || t.check == nil {
		return err
	}
	return t.check(got)
}

// decode reads an object with those fields. what is what has them.
func decode(what string, fields []Field, input []byte) (args, error) {
	raw, err := object(input)
	if err != nil {
		return nil, err
	}
	got := args{}
	for _, f := range fields {
		v, ok := raw[f.Name]
		delete(raw, f.Name)
		if !ok || string(v) == "null" {
			if f.Required {
				return nil, fmt.Errorf("%s is required (%s)", f.Name, f.expected())
			}
			continue
		}
		if got[f.Name], err = f.decode(v); err != nil {
			return nil, err
		}
	}
	for name := range raw {
		return nil, fmt.Errorf("unknown field %q; %s takes %s", text.Clip(name, maxQuoted), what, names(fields))
	}
	return got, nil
}

func names(fields []Field) string {
	var names []string
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}

// object decodes exactly one JSON object.
func object(input outboard.Raw) (map[string]json.RawMessage, error) {
	var raw map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(input))
	if err := dec.Decode(&raw); err != nil {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, fmt.Errorf("expected a JSON object, got %s", text.Clip(string(input), maxQuoted))
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

// decode returns a field's value as a Go string, bool, int64, [2]int64 or []args.
func (f Field) decode(v json.RawMessage) (any, error) {
	switch f.Kind {
	case Flag:
		var b bool
		if json.Unmarshal(v, &b) == nil {
			return b, nil
		}
	case Whole:
		var n int64
		if json.Unmarshal(v, &n) == nil && n >= f.min && n <= f.max {
			return n, nil
		}
	case Lines:
		var pair []int64
		if json.Unmarshal(v, &pair) == nil && len(pair) == 2 && pair[0] >= 1 && pair[1] >= pair[0] {
			return [2]int64(pair), nil
		}
	case List:
		var entries []json.RawMessage
		if json.Unmarshal(v, &entries) == nil && int64(len(entries)) <= f.max {
			return f.entries(entries)
		}
	default:
		var s string
		if json.Unmarshal(v, &s) == nil && (f.options == nil || slices.Contains(f.options, s)) {
			return s, f.holds(s)
		}
	}
	return nil, fmt.Errorf("%s must be %s, got %s", f.Name, f.expected(), text.Clip(string(v), maxQuoted))
}

// entries reads the objects of a list.
func (f Field) entries(raw []json.RawMessage) ([]args, error) {
	out := make([]args, len(raw))
	for i, v := range raw {
		where := fmt.Sprintf("%s[%d]", f.Name, i)
		var err error
		if out[i], err = decode(where, f.of, v); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
	}
	return out, nil
}

// holds checks what a text may not be.
func (f Field) holds(s string) error {
	switch {
	case s == "" && !f.empty:
		return fmt.Errorf("%s must not be empty", f.Name)
	case !f.nul && strings.ContainsRune(s, 0):
		return fmt.Errorf("%s must not contain a NUL character", f.Name)
	case f.max > 0 && int64(len(s)) > f.max:
		return fmt.Errorf("%s must have at most %d bytes, not %d", f.Name, f.max, len(s))
	}
	return nil
}

func (f Field) expected() string {
	switch f.Kind {
	case Flag:
		return "true or false"
	case Whole:
		return fmt.Sprintf("a whole number from %d to %d", f.min, f.max)
	case Lines:
		return "[start, end], two whole numbers with 1 <= start <= end"
	case List:
		return fmt.Sprintf("a list of at most %d objects with %s", f.max, names(f.of))
	}
	if f.options != nil {
		return "one of " + strings.Join(f.options, ", ")
	}
	return "a string"
}

// maxQuoted bounds foreign text in an error message, in bytes.
const maxQuoted = 100

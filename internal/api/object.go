package api

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// maxDepth bounds the nesting of a request body. The deepest thing a client legitimately sends is a tool's JSON schema.
const maxDepth = 100

func bad(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Invalid, format, args...)
}

// checkDocument refuses a body that is not one JSON document, and what a decoder would accept or repair silently: invalid UTF-8
// and absurd nesting. Everything below relies on it.
func checkDocument(b []byte) error {
	if !utf8.Valid(b) {
		return bad("the request body is not valid UTF-8")
	}
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return bad("the request body is nested more than %d levels deep", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	if json.Valid(b) {
		return nil
	}
	var why json.RawMessage
	return bad("the request body: %s", control.WhyJSON(json.Unmarshal(b, &why)))
}

// object decodes a JSON object into the struct v points at, strictly: field names must match exactly, none may be unknown or
// repeated, and those tagged need:"yes" must be present and not null. path names the object in errors ("" for the body).
// Fields of type json.RawMessage are left to the caller, who knows their union.
func object(path string, b []byte, v any) error {
	fields, err := members(path, b)
	if err != nil {
		return err
	}
	rv := reflect.ValueOf(v).Elem()
	rt := rv.Type()
	known := make(map[string]bool, rt.NumField())
	for i := range rt.NumField() {
		f := rt.Field(i)
		name := f.Tag.Get("json")
		known[name] = true
		raw, ok := fields[name]
		if f.Tag.Get("need") == "yes" && (!ok || string(raw) == "null") {
			return bad("%s: required", join(path, name))
		}
		if !ok {
			continue
		}
		to := rv.Field(i).Addr().Interface()
		if r, ok := to.(*json.RawMessage); ok {
			*r = raw // a body may be 32 MiB: nothing is copied that needs no decoding
			continue
		}
		if err := json.Unmarshal(raw, to); err != nil {
			return bad("%s: %s", join(path, name), control.WhyJSON(err))
		}
	}
	for name := range fields {
		if !known[name] {
			return bad("%s: unknown field", join(path, name))
		}
	}
	return nil
}

// members splits an object into its raw members, which share its memory. b is valid JSON: checkDocument has seen it.
func members(path string, b []byte) (map[string]json.RawMessage, error) {
	i := skipSpace(b, 0)
	if i == len(b) || b[i] != '{' {
		if path == "" {
			path = "the request body"
		}
		return nil, bad("%s must be a JSON object", path)
	}
	fields := map[string]json.RawMessage{}
	for i = skipSpace(b, i+1); i < len(b) && b[i] != '}'; {
		end := skipValue(b, i)
		var name string
		if err := json.Unmarshal(b[i:end], &name); err != nil {
			return nil, bad("%s: %s", path, control.WhyJSON(err))
		}
		i = skipSpace(b, skipSpace(b, end)+1) // over the colon
		end = skipValue(b, i)
		if _, twice := fields[name]; twice {
			return nil, bad("%s: given twice", join(path, name))
		}
		fields[name] = b[i:end]
		if i = skipSpace(b, end); i < len(b) && b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
	return fields, nil
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return min(i, len(b))
}

// skipValue returns the end of the JSON value that begins at i.
func skipValue(b []byte, i int) int {
	depth, inString := 0, false
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			if inString = !inString; !inString && depth == 0 {
				return i + 1
			}
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return i // the end of what a number or a word stands in
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case depth == 0 && (c == ',' || c == ':' || c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			return i
		}
	}
	return len(b)
}

// join makes the path of a member.
func join(path, name string) string {
	if len(name) > 100 {
		name = strings.ToValidUTF8(name[:100], "") + "..."
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// at makes the path of an array element.
func at(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// unionType returns the type member of an object.
func unionType(path string, b []byte) (string, error) {
	fields, err := members(path, b)
	if err != nil {
		return "", err
	}
	var s string
	if raw, ok := fields["type"]; !ok || json.Unmarshal(raw, &s) != nil || s == "" {
		return "", bad("%s: required, and must be a string", join(path, "type"))
	}
	return s, nil
}

// field is a member whose absence, null and value mean three things.
type field[T any] struct {
	set, null bool
	v         T
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *field[T]) UnmarshalJSON(b []byte) error {
	f.set = true
	if string(b) == "null" {
		f.null = true
		return nil
	}
	return json.Unmarshal(b, &f.v)
}

// clearing returns what a patch does with a member that null clears: nil keeps.
func (f *field[T]) clearing() *T {
	if !f.set {
		return nil
	}
	return new(f.v)
}

// keeping returns what a patch does with a member that cannot be cleared: null is refused.
func (f *field[T]) keeping(name string) (*T, error) {
	if f.null {
		return nil, bad("%s: cannot be cleared", name)
	}
	return f.clearing(), nil
}

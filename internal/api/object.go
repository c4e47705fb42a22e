package api

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

func bad(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Invalid, format, args...)
}

// object decodes a JSON object into the struct v points at, strictly: field names must match exactly, none may
// be unknown or repeated, and those tagged need:"yes" must be present and not null. path names the object in
// errors ("" for the body). Fields of type json.RawMessage are left to the caller, who knows their union.
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
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		known[name] = true
		raw, ok := fields[name]
		if f.Tag.Get("need") == "yes" && (!ok || string(raw) == "null") {
			return bad("%s: required", control.Join(path, name))
		}
		if !ok {
			continue
		}
		to := rv.Field(i).Addr().Interface()
		if r, ok := to.(*json.RawMessage); ok {
			*r = raw // a body may be 32 MiB: nothing is copied that needs no decoding
			continue
		}
		if err := decodeField(control.Join(path, name), raw, rv.Field(i)); err != nil {
			return err
		}
	}
	for name := range fields {
		if !known[name] {
			return bad("%s: unknown field", control.Join(path, name))
		}
	}
	return nil
}

// decodeField decodes a member. The objects in it are as strict as the one around it; encoding/json would take any case
// of a name, and names that nobody knows.
func decodeField(path string, raw json.RawMessage, v reflect.Value) error {
	_, own := v.Addr().Interface().(json.Unmarshaler)
	_, text := v.Addr().Interface().(encoding.TextUnmarshaler)
	t := v.Type()
	switch {
	case own || text || isNull(raw):
	case t.Kind() == reflect.Struct:
		return object(path, raw, v.Addr().Interface())
	case t.Kind() == reflect.Pointer && (t.Elem().Kind() == reflect.Struct || t.Elem().Kind() == reflect.Slice):
		v.Set(reflect.New(t.Elem()))
		return decodeField(path, raw, v.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		var raws []json.RawMessage
		if err := json.Unmarshal(raw, &raws); err != nil {
			return bad("%s: %s", path, control.WhyJSON(err))
		}
		v.Set(reflect.MakeSlice(t, len(raws), len(raws)))
		for i := range raws {
			if err := decodeField(control.At(path, i), raws[i], v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		return bad("%s: %s", path, control.WhyJSON(err))
	}
	return nil
}

// members splits an object into its raw members, which share its memory. b is valid JSON: control.CheckJSON has
// seen it.
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
			return nil, bad("%s: given twice", control.Join(path, name))
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

// unionType returns the type member of an object.
func unionType(path string, b []byte) (string, error) {
	fields, err := members(path, b)
	if err != nil {
		return "", err
	}
	var s string
	if raw, ok := fields["type"]; !ok || json.Unmarshal(raw, &s) != nil || s == "" {
		return "", bad("%s: required, and must be a string", control.Join(path, "type"))
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
	return decodeField("", b, reflect.ValueOf(&f.v).Elem())
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

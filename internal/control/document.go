package control

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds on a request body, besides its size. The deepest thing a client legitimately sends is a tool's JSON schema,
// and the one with the most values is a hundred events of a thousand blocks.
const (
	maxDepth  = 100
	maxValues = 1_000_000
	maxNumber = 1000 // characters of one number: to read it can take more than linear time
)

// CheckJSON refuses a body that is not one JSON document, what two readers would read in two ways (invalid UTF-8,
// halves of surrogate pairs, a name twice in one object, however deep), and what takes much longer to read than to
// send. Every door asks it before anything else.
func CheckJSON(b []byte) error {
	if !utf8.Valid(b) {
		return invalid("the request body is not valid UTF-8")
	}
	if depthOf(b) > maxDepth {
		return invalid("the request body is nested more than %d levels deep", maxDepth)
	}
	if !json.Valid(b) {
		var why json.RawMessage
		return invalid("the request body: %s", WhyJSON(json.Unmarshal(b, &why)))
	}
	d := document{b: b}
	return d.check()
}

// DecodeJSON decodes an object of a client of any version into the value v points at: what is not known is
// ignored. What two readers would read in two ways is refused, and so is the name of a field in another case,
// which some readers take for the field.
func DecodeJSON(b []byte, v any) error {
	if err := CheckJSON(b); err != nil {
		return err
	}
	if b = bytes.TrimLeft(b, " \t\r\n"); b[0] != '{' {
		return invalid("the request body must be a JSON object: expected an object, got %s", kindOfJSON(b[0]))
	}
	if err := exactNames("", b, reflect.TypeOf(v).Elem()); err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return invalid("the request body: %s", WhyJSON(err))
	}
	return nil
}

// kindOfJSON names what a document is that begins with c.
func kindOfJSON(c byte) string {
	switch c {
	case '[':
		return "array"
	case '"':
		return "string"
	case 'n':
		return "null"
	case 't', 'f':
		return "bool"
	}
	return "number"
}

// exactNames refuses names in b, which is to become a t, that differ from a field's in case only.
func exactNames(path string, b []byte, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !hasFields(t) {
		return nil
	}
	if t.Kind() == reflect.Slice {
		var items []json.RawMessage
		_ = json.Unmarshal(b, &items) // who decodes it says what else it is
		for i, raw := range items {
			if err := exactNames(At(path, i), raw, t.Elem()); err != nil {
				return err
			}
		}
		return nil
	}
	var members map[string]json.RawMessage
	_ = json.Unmarshal(b, &members)
	for name, raw := range members {
		to := t
		if t.Kind() == reflect.Map {
			to = t.Elem()
		} else if known, field := fieldOf(t, name); field == nil {
			continue
		} else if known != name {
			return invalid("%s: unknown field; it is called %s", Join(path, name), known)
		} else {
			to = field
		}
		if err := exactNames(Join(path, name), raw, to); err != nil {
			return err
		}
	}
	return nil
}

// hasFields reports whether values of a type can have fields, which decode as encoding/json does it.
func hasFields(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return hasFields(t.Elem())
	case reflect.Struct:
		return !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
	}
	return false
}

// fieldOf is the field that encoding/json would decode a name into, with its own name; nil = none.
func fieldOf(t reflect.Type, name string) (known string, field reflect.Type) {
	for _, f := range reflect.VisibleFields(t) {
		own, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous && own == "" || own == "-" {
			continue
		}
		if own == "" {
			own = f.Name
		}
		if own == name {
			return own, f.Type
		}
		if strings.EqualFold(own, name) {
			known, field = own, f.Type
		}
	}
	return known, field
}

// depthOf is the deepest nesting, up to one level more than is allowed. b need not be JSON.
func depthOf(b []byte) (deepest int) {
	depth, inString := 0, false
	for i := 0; i < len(b) && deepest <= maxDepth; i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// Join makes the path of a member, At that of an element of an array.
func Join(path, name string) string {
	if len(name) > 100 {
		name = strings.ToValidUTF8(name[:100], "") + "..."
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// At makes the path of an element of an array.
func At(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// document walks over a body that is valid JSON.
type document struct {
	b      []byte
	in     []level
	values int
}

// level is an object or an array that the walk is in.
type level struct {
	names  map[string]bool // of an object; made for its second name
	first  string          // its first name
	last   string          // its newest name
	object bool
	name   bool // a name comes next
	count  int  // of an array: the values behind the walk
}

// check refuses what two readers read in two ways, and too much of anything.
func (d *document) check() error {
	for i := 0; i < len(d.b); {
		end := i + 1
		switch c := d.b[i]; c {
		case ' ', '\t', '\r', '\n', ':':
		case ',':
			if top := d.top(); top != nil {
				top.name = top.object
				top.count++
			}
		case '{', '[':
			d.values++
			d.in = append(d.in, level{object: c == '{', name: c == '{'})
		case '}', ']':
			d.in = d.in[:len(d.in)-1]
		case '"':
			end = stringEnd(d.b, i)
			if err := d.text(d.b[i:end]); err != nil {
				return err
			}
		default: // a number or a word
			end = wordEnd(d.b, i)
			if d.values++; end-i > maxNumber {
				return invalid("%s: a number has more than %d characters", d.path(), maxNumber)
			}
		}
		if d.values > maxValues {
			return invalid("the request body has more than %d values", maxValues)
		}
		i = end
	}
	return nil
}

func (d *document) top() *level {
	if len(d.in) == 0 {
		return nil
	}
	return &d.in[len(d.in)-1]
}

// text takes in a string: a name or a value.
func (d *document) text(quoted []byte) error {
	escaped, whole := escapes(quoted)
	top := d.top()
	if top == nil || !top.name {
		if d.values++; !whole {
			return invalid("%s: a string has half of a surrogate pair, which is no character", d.path())
		}
		return nil
	}
	if !whole {
		return invalid("%s: a name has half of a surrogate pair, which is no character", d.path())
	}
	name := string(quoted[1 : len(quoted)-1])
	if escaped {
		if err := json.Unmarshal(quoted, &name); err != nil {
			return invalid("%s: %v", d.path(), err)
		}
	}
	return d.named(top, name)
}

// named takes in a name of an object.
func (d *document) named(top *level, name string) error {
	top.name = false
	if top.count == 0 {
		top.first, top.last = name, name
		return nil
	}
	if top.names == nil {
		top.names = map[string]bool{top.first: true}
	}
	top.last = name
	if top.names[name] {
		return invalid("%s: given twice", d.path())
	}
	top.names[name] = true
	return nil
}

// path says where the walk is.
func (d *document) path() string {
	path := ""
	for _, l := range d.in {
		if l.object {
			path = Join(path, l.last)
		} else {
			path = At(path, l.count)
		}
	}
	if path == "" {
		return "the request body"
	}
	return path
}

// wordEnd is the end of the number or the word that begins at i.
func wordEnd(b []byte, i int) int {
	if n := bytes.IndexAny(b[i:], ",:]} \t\r\n"); n >= 0 {
		return i + n
	}
	return len(b)
}

// stringEnd is the end of the string that begins at i.
func stringEnd(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// escapes reports whether a string of JSON has escapes, and whether every half of a surrogate pair among them has the
// other.
func escapes(s []byte) (any, whole bool) {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		any = true
		if i++; s[i] != 'u' {
			continue
		}
		unit := unitAt(s, i+1)
		i += 4
		switch {
		case unit >= 0xdc00 && unit < 0xe000:
			return any, false
		case unit >= 0xd800 && unit < 0xdc00:
			if i+6 >= len(s) || s[i+1] != '\\' || s[i+2] != 'u' {
				return any, false
			}
			if low := unitAt(s, i+3); low < 0xdc00 || low >= 0xe000 {
				return any, false
			}
			i += 6
		}
	}
	return any, true
}

// unitAt is the UTF-16 unit of four hexadecimal digits.
func unitAt(s []byte, i int) uint64 {
	n, _ := strconv.ParseUint(string(s[i:i+4]), 16, 32) // the document is valid
	return n
}

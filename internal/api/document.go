package api

import (
	"encoding/json"
	"strconv"
)

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
			end = skipValue(d.b, i)
			if d.values++; end-i > maxNumber {
				return bad("%s: a number has more than %d characters", d.path(), maxNumber)
			}
		}
		if d.values > maxValues {
			return bad("the request body has more than %d values", maxValues)
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
			return bad("%s: a string has half of a surrogate pair, which is no character", d.path())
		}
		return nil
	}
	if !whole {
		return bad("%s: a name has half of a surrogate pair, which is no character", d.path())
	}
	name := string(quoted[1 : len(quoted)-1])
	if escaped {
		if err := json.Unmarshal(quoted, &name); err != nil {
			return bad("%s: %v", d.path(), err)
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
		return bad("%s: given twice", d.path())
	}
	top.names[name] = true
	return nil
}

// path says where the walk is.
func (d *document) path() string {
	path := ""
	for _, l := range d.in {
		if l.object {
			path = join(path, l.last)
		} else {
			path = at(path, l.count)
		}
	}
	if path == "" {
		return "the request body"
	}
	return path
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

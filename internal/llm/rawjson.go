package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// Reasoning is signed or encrypted over what the provider sent, so a response is replayed with the very bytes it
// came in: escapes, key order, number formats and white space included. Decoding and encoding again would lose
// some of that (Go turns a lone surrogate into U+FFFD), so raw JSON is cut and joined as bytes here.

// packRaw makes the Raw of a Response: a JSON string that holds the provider's JSON text. It is a string because
// encoding an event compacts and escapes an embedded document, and because a database may do the same; the text
// in a string survives both.
func packRaw(text []byte) (json.RawMessage, error) {
	if !utf8.Valid(text) || !json.Valid(text) {
		return nil, garbage("the response is not valid JSON")
	}
	return json.Marshal(string(text))
}

// unpackRaw returns the provider's JSON text of an assistant message, or nil if there is none.
func unpackRaw(ctx context.Context, req Request, m outboard.Message) ([]byte, error) {
	raw := []byte(m.Raw)
	if m.RawBlob != nil {
		var err error
		if raw, err = loadBlob(ctx, req, *m.RawBlob); err != nil {
			return nil, err
		}
	}
	if len(raw) == 0 || raw[0] != '"' {
		return raw, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, outboard.Errorf(outboard.Internal, "reading the raw response at %d: %w", m.Seq, err)
	}
	return []byte(text), nil
}

// member is one key of a JSON object with the exact bytes of its value.
type member struct {
	key   string
	value json.RawMessage
}

// object is a JSON object whose members keep their order and their bytes.
type object []member

// parseObject splits a JSON object. The text has been validated by whoever read it.
func parseObject(raw []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, garbage("expected a JSON object, got %s", text.Clip(string(raw), 60))
	}
	var o object
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, garbage("%v", err)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, garbage("%v", err)
		}
		name, _ := key.(string)
		o = append(o, member{name, v})
	}
	return o, nil
}

// get returns the value of a key, or nil.
func (o object) get(key string) json.RawMessage {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// text returns the string value of a key, or "".
func (o object) text(key string) string { return decodeString(o.get(key)) }

// set replaces the value of a key, or adds the key at the end.
func (o *object) set(key string, value []byte) {
	for i := range *o {
		if (*o)[i].key == key {
			(*o)[i].value = value
			return
		}
	}
	*o = append(*o, member{key, value})
}

// setMember returns the text of a JSON object with the value of a key replaced, or the key added at the end.
// Every other byte stays as it is.
func setMember(raw []byte, key string, value []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, garbage("expected a JSON object, got %s", text.Clip(string(raw), 60))
	}
	comma := ""
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, garbage("%v", err)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, garbage("%v", err)
		}
		if end := int(dec.InputOffset()); name == key {
			return slices.Concat(raw[:end-len(v)], value, raw[end:]), nil
		}
		comma = ","
	}
	end := int(dec.InputOffset())
	return slices.Concat(raw[:end], []byte(comma), appendString(nil, key), []byte(":"), value, raw[end:]), nil
}

// appendTo appends the object as JSON.
func (o object) appendTo(dst []byte) []byte {
	dst = append(dst, '{')
	for i, m := range o {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, m.key), ':')
		dst = append(dst, m.value...)
	}
	return append(dst, '}')
}

// isString reports whether raw is a JSON string.
func isString(raw []byte) bool { return len(raw) >= 2 && raw[0] == '"' }

// isNull reports whether raw is absent or null.
func isNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// decodeString returns the value of a JSON string, or "" for anything else.
func decodeString(raw []byte) string {
	var s string
	if !isString(raw) || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// joined is a JSON string that arrives in pieces, joined without decoding them.
type joined struct{ body []byte }

// add appends a piece, which is a JSON string; anything else is ignored.
func (j *joined) add(raw []byte) {
	if isString(raw) {
		j.body = append(j.body, raw[1:len(raw)-1]...)
	}
}

// literal returns the whole as a JSON string.
func (j *joined) literal() []byte {
	return append(append([]byte{'"'}, j.body...), '"')
}

// value returns the decoded string.
func (j *joined) value() string { return decodeString(j.literal()) }

// argumentsText is the text of a tool call's arguments, which wires send as a JSON string and some servers as
// the value itself.
func argumentsText(raw json.RawMessage) string {
	if isNull(raw) || isString(raw) {
		return decodeString(raw)
	}
	return string(raw)
}

// toolInput makes a Block's Input of the text of a call's arguments. No text at all stands for {}. A model that
// wrote something else than a JSON object has made a call all the same: it gets to read that as the call's
// result, and its turn goes on.
func toolInput(text string) json.RawMessage {
	trimmed := bytes.TrimSpace([]byte(text))
	switch {
	case len(trimmed) == 0:
		return json.RawMessage("{}")
	case json.Valid(trimmed):
		return trimmed
	}
	return appendString(nil, text)
}

// isObject reports whether a Block's Input is what a call's arguments have to be.
func isObject(input json.RawMessage) bool { return len(input) > 0 && input[0] == '{' }

// asObject is an input as it goes back to a model. All wires, and the templates of many servers, want an object
// and refuse the whole conversation over anything else.
func asObject(input json.RawMessage) json.RawMessage {
	if isObject(input) {
		return input
	}
	return object{{"invalid", input}}.appendTo(nil)
}

// maxFields bounds the keys of a streamed object, which are looked up one by one.
const maxFields = 256

// fields is a JSON object that arrives in pieces: strings are joined, lists extended, anything else replaced.
type fields struct{ list []*fieldPieces }

type fieldPieces struct {
	key     string
	raw     json.RawMessage // the newest piece
	text    joined          // of strings
	members [][]byte        // of lists
}

func (f *fields) find(key string) *fieldPieces {
	for _, p := range f.list {
		if p.key == key {
			return p
		}
	}
	return nil
}

// has reports whether the key has had a value other than null.
func (f *fields) has(key string) bool {
	p := f.find(key)
	return p != nil && !isNull(p.raw)
}

// add takes in a piece of a key's value. A null says nothing once there is a value.
func (f *fields) add(key string, raw json.RawMessage) error {
	p := f.find(key)
	if p == nil {
		if len(f.list) >= maxFields {
			return garbage("an object has more than %d keys", maxFields)
		}
		p = &fieldPieces{key: key}
		f.list = append(f.list, p)
	}
	switch {
	case isNull(raw) && !isNull(p.raw):
		return nil
	case isString(raw):
		p.text.add(raw)
	case len(raw) > 0 && raw[0] == '[':
		if inner := bytes.TrimSpace(raw[1 : len(raw)-1]); len(inner) > 0 {
			p.members = append(p.members, inner)
		}
	}
	p.raw = raw
	return nil
}

// value returns the key's value so far, or nil.
func (f *fields) value(key string) json.RawMessage {
	p := f.find(key)
	switch {
	case p == nil:
		return nil
	case isString(p.raw):
		return p.text.literal()
	case len(p.raw) > 0 && p.raw[0] == '[':
		return joinList(p.members)
	}
	return p.raw
}

// object returns all of it.
func (f *fields) object() object {
	var o object
	for _, p := range f.list {
		o = append(o, member{p.key, f.value(p.key)})
	}
	return o
}

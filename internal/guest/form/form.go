// Package form owns the form of messages between host and guest. A message is the Version and then
// its fields, in the order in which Fields returns them. It uses the standard library only, and no
// reflection.
//
// Invariants:
//   - Nothing in a message says which field is which, so both sides must have one Version: a guest
//     can outlive the server that started it.
//   - A change of any field changes Version.
//
// It is not JSON, because encoding/json looks at every field of every type when it first meets the
// type, and makes tables. A guest lives for one sandbox and would do so for each: that was a tenth
// of a sandbox's start.
//
// A number is a varint, of a signed type in zigzag. A truth is the number 0 or 1. A text is its
// length and its bytes. A list or a map is the number of its elements, then the elements. An
// optional value is a truth, then the value if there is one.
//
// Start reading at Message and Encode.
package form

import (
	"encoding/binary"
	"errors"
	"strings"
)

// Version begins each message. It changes when a field of any message does, which a test of package guest sees to,
// and is never that of "{", which begins what is JSON.
const Version = 6

// Message is what has fields to send: pointers to the types that Encode knows, or a Field.
type Message interface{ Fields() []any }

// Field is a field that Encode does not know by its type: Raw, List and Maybe make them.
type Field interface {
	write(b []byte) []byte
	read(d *decoder)
}

// None is a message that says nothing.
type None struct{}

// Fields returns none.
func (None) Fields() []any { return nil }

// Encode returns a message as bytes.
func Encode(m Message) []byte { return appendFields([]byte{Version}, m) }

func appendFields(b []byte, m Message) []byte {
	for _, f := range m.Fields() {
		switch f := f.(type) {
		case *string:
			b = appendText(b, *f)
		case *[]byte:
			b = appendText(b, *f)
		case *bool:
			b = appendTruth(b, *f)
		case *int:
			b = binary.AppendVarint(b, int64(*f))
		case *int64:
			b = binary.AppendVarint(b, *f)
		case *uint16:
			b = appendNumber(b, uint64(*f))
		case *uint32:
			b = appendNumber(b, uint64(*f))
		case *uint64:
			b = appendNumber(b, *f)
		case **int:
			if b = appendTruth(b, *f != nil); *f != nil {
				b = binary.AppendVarint(b, int64(**f))
			}
		case *[]string:
			b = appendNumber(b, uint64(len(*f)))
			for _, s := range *f {
				b = appendText(b, s)
			}
		case *map[string]string:
			b = appendNumber(b, uint64(len(*f)))
			for k, v := range *f {
				b = appendText(appendText(b, k), v)
			}
		case Field:
			b = f.write(b)
		default:
			panic("form: a field of a type that no message has")
		}
	}
	return b
}

func appendNumber(b []byte, n uint64) []byte { return binary.AppendUvarint(b, n) }

func appendTruth(b []byte, is bool) []byte {
	if is {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendText[T string | []byte](b []byte, s T) []byte {
	return append(appendNumber(b, uint64(len(s))), s...)
}

// Decode reads a message that Encode has made, into one whose fields have no value yet. Texts are taken as they
// are: they are parts of one copy of data, since each piece of memory of its own costs a guest that starts.
// Fields of bytes are parts of data.
func Decode(data []byte, m Message) error { return decode(decoder{data: data}, m) }

// DecodeText does so for a message of somebody who is not trusted, or that people see: its texts are UTF-8
// afterwards, whatever they were, but for those that are Raw. Each can be kept without the others.
func DecodeText(data []byte, m Message) error { return decode(decoder{data: data, clean: true}, m) }

func decode(d decoder, m Message) error {
	if len(d.data) == 0 || d.data[0] != Version {
		return errors.New("host and guest are of different versions")
	}
	d.data = d.data[1:]
	d.fields(m)
	if d.bad || len(d.data) > 0 {
		return errors.New("unreadable message")
	}
	return nil
}

// decoder takes fields off data. bad says that something was not there, or cannot be; then there is nothing more.
type decoder struct {
	data  []byte
	all   string // data as it was, made for the first text: each is a part of it
	clean bool   // texts are made UTF-8
	bad   bool
}

func (d *decoder) fields(m Message) {
	for _, f := range m.Fields() {
		switch f := f.(type) {
		case *string:
			*f = d.text()
		case *[]byte:
			*f = d.bytes()
		case *bool:
			*f = d.truth()
		case *int:
			*f = d.int()
		case *int64:
			*f = d.signed()
		case *uint16:
			*f = uint16(d.atMost(1<<16 - 1))
		case *uint32:
			*f = uint32(d.atMost(1<<32 - 1))
		case *uint64:
			*f = d.atMost(1<<64 - 1)
		case **int:
			if d.truth() {
				*f = new(d.int())
			}
		case *[]string:
			*f = list(d, func(s *string) { *s = d.text() })
		case *map[string]string:
			if n := d.count(); n > 0 {
				*f = make(map[string]string)
				for i := 0; i < n && !d.bad; i++ {
					k := d.text()
					(*f)[k] = d.text()
				}
			}
		case Field:
			f.read(d)
		default:
			panic("form: a field of a type that no message has")
		}
	}
}

// list reads elements until one is not there: how many are claimed makes nobody take memory for them.
func list[T any](d *decoder, read func(*T)) []T {
	n := d.count()
	if n == 0 {
		return nil
	}
	out := make([]T, 0, min(n, 64))
	for i := range n {
		var none T
		out = append(out, none)
		if read(&out[i]); d.bad {
			return nil
		}
	}
	return out
}

func (d *decoder) fail() { d.bad, d.data = true, nil }

func (d *decoder) atMost(limit uint64) uint64 {
	n, size := binary.Uvarint(d.data)
	if size <= 0 || n > limit {
		d.fail()
		return 0
	}
	d.data = d.data[size:]
	return n
}

func (d *decoder) signed() int64 {
	n, size := binary.Varint(d.data)
	if size <= 0 {
		d.fail()
		return 0
	}
	d.data = d.data[size:]
	return n
}

func (d *decoder) int() int {
	n := d.signed()
	if int64(int(n)) != n {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) truth() bool { return d.atMost(1) == 1 }

// count is a number of things of which each takes at least a byte.
func (d *decoder) count() int { return int(d.atMost(uint64(len(d.data)))) }

func (d *decoder) bytes() []byte {
	n := d.count()
	if n > len(d.data) { // the number itself took some
		d.fail()
		return nil
	}
	if n == 0 {
		return nil
	}
	b := d.data[:n:n]
	d.data = d.data[n:]
	return b
}

func (d *decoder) text() string {
	if d.clean {
		return strings.ToValidUTF8(string(d.bytes()), "\uFFFD")
	}
	if d.all == "" {
		d.all = string(d.data)
	}
	b := d.bytes()
	end := len(d.all) - len(d.data)
	return d.all[end-len(b) : end]
}

// Raw is a text of any bytes, such as the name of a file.
func Raw[T ~string](s *T) Field { return raw[T]{s} }

type raw[T ~string] struct{ s *T }

func (r raw[T]) write(b []byte) []byte { return appendText(b, string(*r.s)) }

func (r raw[T]) read(d *decoder) { *r.s = T(d.bytes()) }

// message is a *T with fields.
type message[T any] interface {
	*T
	Message
}

// List is a list of messages, each of at least one field.
func List[T any, P message[T]](l *[]T) Field { return listed[T, P]{l} }

type listed[T any, P message[T]] struct{ l *[]T }

func (l listed[T, P]) write(b []byte) []byte {
	b = appendNumber(b, uint64(len(*l.l)))
	for i := range *l.l {
		b = appendFields(b, P(&(*l.l)[i]))
	}
	return b
}

func (l listed[T, P]) read(d *decoder) { *l.l = list(d, func(e *T) { d.fields(P(e)) }) }

// Maybe is a message that may be missing.
func Maybe[T any, P message[T]](p **T) Field { return maybe[T, P]{p} }

type maybe[T any, P message[T]] struct{ p **T }

func (m maybe[T, P]) write(b []byte) []byte {
	if b = appendTruth(b, *m.p != nil); *m.p != nil {
		b = appendFields(b, P(*m.p))
	}
	return b
}

func (m maybe[T, P]) read(d *decoder) {
	if d.truth() {
		*m.p = new(T)
		d.fields(P(*m.p))
	}
}

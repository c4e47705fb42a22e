package boot

import (
	"encoding/binary"
	"errors"
)

// What a host tells a guest before it serves has a form of its own: the fields one after the other, as fields returns them. Host and guest
// are of one build. The first use of encoding/json looks at every field of every type and makes tables of them, which was a tenth of the
// time in which a sandbox starts.

// messageForm begins each message. It changes when a field does.
const messageForm = 1

// Message is what has fields to send: pointers to the types that Encode knows.
type Message interface{ fields() []any }

func (c *Config) fields() []any {
	return []any{&c.Generation, &c.Hostname, &c.Later, &c.Env, &c.ToolUID, &c.ToolGID, &c.ToolName, &c.Rooted, &c.Upper, &c.UpperSize,
		&c.Lower, &c.Binds, &c.Trees, &c.Owned, &c.Networked, &c.TmpSize, &c.ShmSize, &c.Masked, &c.ReadOnly, &c.BootID, &c.Network,
		&c.Files, &c.Processes, &c.DataBytes, &c.Keep, &c.Inherit, &c.Filter}
}

func (id *Identity) fields() []any { return []any{&id.Generation, &id.Env, &id.CA} }

func (b *Bind) fields() []any { return []any{&b.Source, &b.Target, &b.File} }

func (d *Dir) fields() []any { return []any{&d.Path, &d.Mode, &d.Tool} }

func (u *Uplink) fields() []any { return []any{&u.CA, &u.Redirected} }

// Encode returns a message as bytes.
func Encode(m Message) []byte { return appendFields([]byte{messageForm}, m) }

func appendFields(b []byte, m Message) []byte {
	for _, f := range m.fields() {
		switch f := f.(type) {
		case *string:
			b = appendText(b, *f)
		case *[]byte:
			b = appendText(b, string(*f))
		case *bool:
			b = appendBool(b, *f)
		case *int:
			b = appendNumber(b, uint64(*f))
		case *int64:
			b = appendNumber(b, uint64(*f))
		case *uint32:
			b = appendNumber(b, uint64(*f))
		case *uint64:
			b = appendNumber(b, *f)
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
		case *[]Bind:
			b = appendNumber(b, uint64(len(*f)))
			for i := range *f {
				b = appendFields(b, &(*f)[i])
			}
		case *[]Dir:
			b = appendNumber(b, uint64(len(*f)))
			for i := range *f {
				b = appendFields(b, &(*f)[i])
			}
		case **Uplink:
			if b = appendBool(b, *f != nil); *f != nil {
				b = appendFields(b, *f)
			}
		default:
			panic("boot: a field of a type that no message has")
		}
	}
	return b
}

func appendNumber(b []byte, n uint64) []byte { return binary.AppendUvarint(b, n) }

func appendBool(b []byte, is bool) []byte {
	if is {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendText(b []byte, s string) []byte { return append(appendNumber(b, uint64(len(s))), s...) }

// Decode reads a message that Encode has made.
func Decode(data []byte, m Message) error {
	if len(data) == 0 || data[0] != messageForm {
		return errors.New("the host is of another version than the guest")
	}
	d := decoder{data: data[1:]}
	d.fields(m)
	if d.bad || len(d.data) > 0 {
		return errors.New("unreadable message")
	}
	return nil
}

// decoder takes fields off data. bad says that something was not there.
type decoder struct {
	data []byte
	bad  bool
}

func (d *decoder) fields(m Message) {
	for _, f := range m.fields() {
		switch f := f.(type) {
		case *string:
			*f = d.text()
		case *[]byte:
			if text := d.text(); text != "" {
				*f = []byte(text)
			}
		case *bool:
			*f = d.number() != 0
		case *int:
			*f = int(d.number())
		case *int64:
			*f = int64(d.number())
		case *uint32:
			*f = uint32(d.number())
		case *uint64:
			*f = d.number()
		case *[]string:
			*f = list(d, func(s *string) { *s = d.text() })
		case *map[string]string:
			if n := d.count(); n > 0 {
				*f = make(map[string]string, n)
				for range n {
					k := d.text()
					(*f)[k] = d.text()
				}
			}
		case *[]Bind:
			*f = list(d, func(b *Bind) { d.fields(b) })
		case *[]Dir:
			*f = list(d, func(e *Dir) { d.fields(e) })
		case **Uplink:
			if d.number() != 0 {
				*f = new(Uplink)
				d.fields(*f)
			}
		default:
			panic("boot: a field of a type that no message has")
		}
	}
}

func list[T any](d *decoder, read func(*T)) []T {
	n := d.count()
	if n == 0 {
		return nil
	}
	out := make([]T, n)
	for i := range out {
		read(&out[i])
	}
	return out
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.data)
	if size <= 0 {
		d.bad, d.data = true, nil
		return 0
	}
	d.data = d.data[size:]
	return n
}

// count is a number of things of which each takes at least a byte.
func (d *decoder) count() int {
	n := d.number()
	if n > uint64(len(d.data)) {
		d.bad, d.data = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.count()
	s := string(d.data[:n])
	d.data = d.data[n:]
	return s
}

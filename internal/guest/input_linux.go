package guest

import (
	"encoding/json"
	"unicode/utf8"
)

// The inputs of calls come from models, as JSON. Those of the two that run programs are read by scanner, which
// knows the plain JSON that nearly all of them are: encoding/json makes tables of a type first, in every sandbox
// anew. What is not plain is left to it, and so is every refusal.

// readExec decodes the input of op exec.
func readExec(input []byte) (in execInput, err error) {
	p := scanner{rest: input}
	p.object(func(name string) {
		switch {
		case name == "argv" && in.Argv == nil:
			in.Argv = p.texts()
		case name == "env" && in.Env == nil:
			in.Env = p.names()
		case name == "cwd":
			in.Cwd = p.text()
		default:
			p.other()
		}
	})
	if !p.whole() {
		in = execInput{}
		err = json.Unmarshal(input, &in)
	}
	return in, err
}

// readBash decodes the input of op bash.
func readBash(input []byte) (in bashInput, err error) {
	p := scanner{rest: input}
	p.object(func(name string) {
		switch name {
		case "command":
			in.Command = p.text()
		case "restart":
			in.Restart = p.truth()
		case "timeout_ms":
			in.TimeoutMs = p.number()
		default:
			p.other()
		}
	})
	if !p.whole() {
		in = bashInput{}
		err = json.Unmarshal(input, &in)
	}
	return in, err
}

// scanner takes values off JSON. bad says that something is no JSON, or may mean to encoding/json what it does
// not mean here; then there is nothing more.
type scanner struct {
	rest []byte
	bad  bool
}

// other is for what is not expected.
func (p *scanner) other() { p.bad, p.rest = true, nil }

// whole reports whether everything was read, and there was nothing else.
func (p *scanner) whole() bool { return p.peek() == 0 && !p.bad }

// peek returns the next byte that is no white space, 0 where there is none.
func (p *scanner) peek() byte {
	for len(p.rest) > 0 {
		switch c := p.rest[0]; c {
		case ' ', '\t', '\n', '\r':
			p.rest = p.rest[1:]
		case 0:
			p.other()
		default:
			return c
		}
	}
	return 0
}

// skip takes c, or reports that something else is next.
func (p *scanner) skip(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *scanner) need(c byte) {
	if !p.skip(c) {
		p.other()
	}
}

// elements calls each for what stands between commas, up to the end of what was opened.
func (p *scanner) elements(open, end byte, each func()) {
	if p.need(open); p.skip(end) {
		return
	}
	for !p.bad {
		if each(); p.skip(end) {
			return
		}
		p.need(',')
	}
}

func (p *scanner) object(value func(name string)) {
	p.elements('{', '}', func() {
		name := p.text()
		p.need(':')
		value(name)
	})
}

func (p *scanner) texts() []string {
	list := []string{}
	p.elements('[', ']', func() { list = append(list, p.text()) })
	return list
}

func (p *scanner) names() map[string]string {
	m := map[string]string{}
	p.object(func(name string) { m[name] = p.text() })
	return m
}

func (p *scanner) truth() bool {
	is := p.word("true")
	if !is && !p.word("false") {
		p.other()
	}
	return is
}

func (p *scanner) word(w string) bool {
	p.peek()
	if len(p.rest) < len(w) || string(p.rest[:len(w)]) != w {
		return false
	}
	p.rest = p.rest[len(w):]
	return true
}

// number takes a whole number that is not negative. What continues it in another way is no end of a value.
func (p *scanner) number() (n int64) {
	const most = 18 // digits that fit
	p.peek()
	i := 0
	for ; i < len(p.rest) && p.rest[i] >= '0' && p.rest[i] <= '9'; i++ {
		n = n*10 + int64(p.rest[i]-'0')
	}
	if i == 0 || i > most || i > 1 && p.rest[0] == '0' {
		p.other()
		return 0
	}
	p.rest = p.rest[i:]
	return n
}

func (p *scanner) text() string {
	p.need('"')
	for i, c := range p.rest {
		if c == '\\' {
			return p.escaped(i)
		}
		if c < ' ' || c == '"' && !utf8.Valid(p.rest[:i]) {
			break
		}
		if c == '"' {
			s := string(p.rest[:i])
			p.rest = p.rest[i+1:]
			return s
		}
	}
	p.other()
	return ""
}

// escaped takes the rest of a text of which the first n bytes are as they stand.
func (p *scanner) escaped(n int) string {
	s := append(make([]byte, 0, len(p.rest)), p.rest[:n]...)
	p.rest = p.rest[n:]
	for len(p.rest) > 0 {
		c := p.rest[0]
		p.rest = p.rest[1:]
		switch {
		case c == '"' && utf8.Valid(s):
			return string(s)
		case c == '\\':
			s = p.escape(s)
		case c != '"' && c >= ' ':
			s = append(s, c)
		default:
			p.other()
		}
	}
	p.other()
	return ""
}

// escapes are what may follow a backslash, and what they stand for.
const escapes = "\"\"\\\\//b\bf\fn\nr\rt\t"

// escape takes what follows a backslash. Half a character, of which encoding/json may make another with the
// next, is not plain.
func (p *scanner) escape(s []byte) []byte {
	if len(p.rest) == 0 {
		return s
	}
	c := p.rest[0]
	p.rest = p.rest[1:]
	for i := 0; i < len(escapes); i += 2 {
		if escapes[i] == c {
			return append(s, escapes[i+1])
		}
	}
	var r rune
	for i := range 4 {
		if c != 'u' || len(p.rest) <= i {
			p.other()
			return s
		}
		r = r<<4 | digit(p.rest[i])
	}
	if r < 0 || !utf8.ValidRune(r) {
		p.other()
		return s
	}
	p.rest = p.rest[4:]
	return utf8.AppendRune(s, r)
}

// digit is the value of a hexadecimal digit; what is none makes a rune negative.
func digit(c byte) rune {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0')
	case c >= 'a' && c <= 'f':
		return rune(c - 'a' + 10)
	case c >= 'A' && c <= 'F':
		return rune(c - 'A' + 10)
	}
	return -1
}

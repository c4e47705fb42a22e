package egress

import (
	"bufio"
	"bytes"
	"mime"
	"net/textproto"
	"slices"
	"strings"
)

// parts is where a guarded body in parts (multipart/form-data and its like) is. Every line that begins as a
// boundary does is taken for one: that a server takes fewer makes no value of its longer than one that was
// looked at.
type parts struct {
	delim string
	line  []byte   // the line that is read, as far as delim is long
	at    place    // of the last byte
	head  []byte   // of the part
	inner *guarded // looks at a part's value; nil = its name holds keys, or it was looked at
	name  string   // of a part whose value waits until it is whole; "" = it does not
}

// place is what a byte of a body in parts belongs to.
type place byte

const (
	between place = iota // before the first part, or behind the last
	border               // the rest of a boundary's line
	heading
	value
)

func newParts(boundary string) *parts { return &parts{delim: "--" + boundary} }

// next adds a byte, and reports whether it ends a boundary, or a line that is empty.
func (s *parts) next(c byte) (boundary, blank bool) {
	if c == '\n' {
		blank = len(bytes.TrimSuffix(s.line, []byte{'\r'})) == 0
		s.line = s.line[:0]
		return false, blank
	}
	if len(s.line) >= len(s.delim) { // longer than any that matters
		return false, false
	}
	s.line = append(s.line, c)
	return string(s.line) == s.delim, false
}

// takePart looks at one byte of a body in parts.
func (g *guarded) takePart(c byte) {
	s := g.parts
	boundary, blank := s.next(c)
	switch s.at {
	case value:
		g.takeValue(c, boundary)
	case heading:
		if s.head, g.wait = append(s.head, c), append(g.wait, c); len(s.head) > maxPartHead {
			g.err = g.inj.unread()
		} else if boundary {
			g.pass()
		} else if blank {
			g.headed()
			return
		}
	case border:
		if g.out = append(g.out, c); c == '\n' {
			s.at, s.head = heading, s.head[:0]
		}
	default:
		g.out = append(g.out, c)
	}
	if boundary {
		s.at = border
	}
}

// headed begins the value of a part whose head has ended.
func (g *guarded) headed() {
	s := g.parts
	name, err := partName(s.head)
	if err != nil {
		g.err = g.inj.unread()
		return
	}
	g.pass()
	s.at, s.name, s.inner = value, "", nil
	if g.inj.minds(name) {
		s.name, g.text, g.long = name, g.text[:0], false
	} else {
		s.inner = &guarded{inj: g.inj}
	}
}

// partName returns the name of a part, or errUnread of one that servers may read in several ways.
func partName(head []byte) (string, error) {
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(head))).ReadMIMEHeader()
	if err != nil {
		return "", errUnread
	}
	said := h.Values("Content-Disposition")
	if len(said) == 0 {
		return "", nil
	}
	_, params, err := mime.ParseMediaType(said[0])
	coded := strings.ToLower(h.Get("Content-Transfer-Encoding"))
	if err != nil || len(said) > 1 || !slices.Contains([]string{"", "7bit", "8bit", "binary"}, coded) {
		return "", errUnread
	}
	return params["name"], nil
}

// takeValue looks at a byte of a part's value, which a boundary ends.
func (g *guarded) takeValue(c byte, boundary bool) {
	s := g.parts
	switch {
	case s.name != "":
		g.keep(c)
		if g.wait = append(g.wait, c); boundary {
			g.text = bytes.TrimSuffix(g.text, []byte(s.delim))
			g.check(s.name, strings.TrimRight(string(g.text), "\r\n"))
			g.pass()
		} else if g.long {
			g.check(s.name, string(g.text))
			g.pass()
			s.name = "" // the rest of it passes
		}
	case s.inner != nil:
		s.inner.take(c)
		if boundary {
			s.inner.end()
		}
		g.from(boundary)
	default:
		g.out = append(g.out, c)
	}
}

// from takes over what a part's value has let go of, and all of it at its end.
func (g *guarded) from(end bool) {
	in := g.parts.inner
	if g.err = in.err; g.err != nil {
		return
	}
	g.out, in.out = append(g.out, in.out...), in.out[:0]
	if end {
		g.out, in.wait = append(g.out, in.wait...), in.wait[:0]
	}
}

// endParts looks at what the body's end has cut.
func (g *guarded) endParts() {
	s := g.parts
	if s.at != value {
		return
	}
	if s.name != "" {
		g.check(s.name, string(g.text))
	} else if s.inner != nil {
		s.inner.end()
		g.from(true)
	}
}

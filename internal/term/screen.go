package term

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// Screen keeps one row, the status, below what is written through it, and above the row a person types in.
type Screen struct {
	mu     sync.Mutex
	tty    io.Writer // where the status is drawn
	status string
	drawn  bool // the status is on the screen, in the row above the cursor
	mid    bool // the last write ended within a row: nothing is drawn
}

// NewScreen returns a Screen on a terminal, and out and errs as they are written from now on. A stream that is
// no terminal is returned as it is.
func NewScreen(out, errs io.Writer) (s *Screen, newOut, newErrs io.Writer) {
	s = &Screen{tty: errs}
	return s, s.over(out), s.over(errs)
}

func (s *Screen) over(w io.Writer) io.Writer {
	if !IsTerminal(w) {
		return w
	}
	return screenWriter{s, w, w.(descriptor)}
}

// Status sets the row, cut to the width; "" removes it. It may hold style codes of our own and nothing foreign.
func (s *Screen) Status(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == s.status {
		return
	}
	s.status = text
	switch {
	case s.drawn && text != "": // what is being typed below stays
		fmt.Fprintf(s.tty, "\x1b7\x1b[1A\r\x1b[2K%s\x1b8", s.row())
	case s.drawn:
		s.clear()
	default:
		s.draw()
	}
}

// Leave makes the status a row like any other: a person has typed below it. The next write draws it again.
func (s *Screen) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drawn = false
}

func (s *Screen) row() string {
	w := Width(s.tty, 80) - 1
	if w < 1 || columns(s.status) <= w {
		return s.status
	}
	var b strings.Builder
	n, code := 0, false
	for _, r := range s.status {
		switch {
		case r == '\x1b':
			code = true
		case code:
			code = r != 'm'
		case n+runeColumns(r) > w-1:
			return b.String() + "\x1b[0m…"
		default:
			n += runeColumns(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (s *Screen) draw() {
	if s.status != "" && !s.mid {
		fmt.Fprintf(s.tty, "\r\x1b[K%s\n", s.row())
		s.drawn = true
	}
}

func (s *Screen) clear() {
	if s.drawn {
		_, _ = io.WriteString(s.tty, "\x1b[1A\r\x1b[J") // the write that follows fails as well
		s.drawn = false
	}
}

// descriptor is what has a file descriptor, as a terminal does.
type descriptor interface{ Fd() uintptr }

// screenWriter writes above the status.
type screenWriter struct {
	s *Screen
	w io.Writer
	descriptor
}

// Write implements io.Writer.
func (w screenWriter) Write(p []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.clear()
	n, err := w.w.Write(p)
	if n > 0 {
		w.s.mid = p[n-1] != '\n'
	}
	w.s.draw()
	return n, err
}

// columns is how many columns text takes that may carry style codes of our own.
func columns(s string) int {
	n, code := 0, false
	for _, r := range s {
		switch {
		case r == '\x1b':
			code = true
		case code:
			code = r != 'm'
		default:
			n += runeColumns(r)
		}
	}
	return n
}

// runeColumns is how many columns a rune takes, or more: East Asian letters and pictures take two.
func runeColumns(r rune) int {
	switch {
	case r < 0x1100:
		return 1
	case r >= 0x2000 && r < 0x2e80 && (r < 0x2600 || r > 0x27ff): // dashes, arrows, boxes, letterlike
		return 1
	}
	return 2
}

// Wrap breaks a line into rows of at most width columns. Width 0 does not.
func Wrap(line string, width int) []string {
	if width <= 0 || columns(line) <= width {
		return []string{line}
	}
	var rows []string
	var b strings.Builder
	n := 0
	for _, r := range line {
		if n+runeColumns(r) > width {
			rows = append(rows, b.String())
			b.Reset()
			n = 0
		}
		b.WriteRune(r)
		n += runeColumns(r)
	}
	return append(rows, b.String())
}

// Words breaks text into rows of at most width columns between its words. Rows after the first are indented. A
// word that is wider than a row stays whole, so that it can be copied. Width 0 does not break.
func Words(text string, width, indent int) string {
	if width <= 0 {
		return text
	}
	var b strings.Builder
	n := 0
	for i, word := range strings.Split(text, " ") {
		switch {
		case n > indent && n+1+columns(word) > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			n = indent
		case i > 0:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += columns(word)
	}
	return b.String()
}

// Package term prints what models, tools and sandboxes say without letting it speak to the
// terminal.
//
// Invariant: everything that this program did not write passes Clean or a Writer on its way out, on
// terminals and in pipes alike. Escape sequences, control bytes, bidirectional overrides and
// invisible characters come out as visible text.
//
// The attacks: OSC 52 writes the clipboard, OSC 8 disguises a link, DECRQSS and DA make the
// terminal type an answer, cursor movement rewrites earlier lines, and bidirectional overrides show
// code in another order than it runs.
//
// It never decides what is said. Start reading at Clean and Writer.
package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	xterm "golang.org/x/term"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f any) bool {
	file, ok := f.(descriptor)
	return ok && xterm.IsTerminal(int(file.Fd()))
}

// ReadPassword reads one line from a terminal without showing it. What was typed before is dropped.
func ReadPassword(f any) ([]byte, error) {
	file, ok := f.(*os.File)
	if !ok {
		return nil, fmt.Errorf("not a terminal")
	}
	Discard(file)
	return xterm.ReadPassword(int(file.Fd()))
}

// Width returns the width of a terminal in columns, or fallback where it has none.
func Width(f any, fallback int) int {
	file, ok := f.(descriptor)
	if !ok {
		return fallback
	}
	w, _, err := xterm.GetSize(int(file.Fd()))
	if err != nil || w <= 0 {
		return fallback
	}
	return w
}

// Clean returns s with everything a terminal may act on made visible. Tabs and newlines stay, a carriage return
// before a newline is dropped. The result is valid UTF-8, and cleaning it again changes nothing.
func Clean(s string) string {
	if safe(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		writeRune(&b, r, s[i:i+n], strings.HasPrefix(s[i+n:], "\n"))
		i += n
	}
	return b.String()
}

// JSON returns encoded JSON with everything a terminal may act on escaped, as JSON has it: it means the same.
// The encoder does that for ASCII only.
func JSON(text []byte) []byte {
	if safe(string(text)) {
		return text
	}
	out := make([]byte, 0, len(text)+16)
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == '\n' || r == '\t' || shown(r): // between values
			out = append(out, text[i:i+n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += n
	}
	return out
}

// Line is Clean for text that must stay on one line: newlines and tabs become spaces, runs of space one, and
// what is over width runes is cut with an ellipsis. Width 0 does not cut.
func Line(s string, width int) string {
	s = strings.Join(strings.Fields(Clean(s)), " ")
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	if width == 1 {
		return "…"
	}
	r := []rune(s)
	return strings.TrimRight(string(r[:width-1]), " ") + "…"
}

func safe(s string) bool {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' && c != '\n' && c != '\t' || c == 0x7f {
				return false
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || !shown(r) {
			return false
		}
		i += n
	}
	return true
}

// writeRune appends one rune of raw, visible if it must be. beforeNewline says that a newline follows.
func writeRune(b *strings.Builder, r rune, raw string, beforeNewline bool) {
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r == '\n' || r == '\t':
		b.WriteRune(r)
	case r == '\r' && beforeNewline:
	case r == '\r':
		b.WriteString(`\r`)
	case r < 0x80 && shown(r):
		b.WriteRune(r)
	case r < 0x100 && !shown(r):
		fmt.Fprintf(b, `\x%02x`, r)
	case !shown(r) && r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	case !shown(r):
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		b.WriteString(raw)
	}
}

// shown reports whether a terminal prints r and does nothing else. Format characters (category Cf: bidirectional
// controls, zero-width characters, tags), line and paragraph separators and private use are not shown.
func shown(r rune) bool {
	switch {
	case r < 0x80:
		return r >= ' ' && r != 0x7f
	case r < 0xa0: // C1 controls, CSI and OSC among them
		return false
	case r == 0x034f || r == 0x115f || r == 0x1160 || r == 0x3164 || r == 0xffa0 || r == 0x2028 || r == 0x2029:
		return false
	case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r), unicode.Is(unicode.Cs, r):
		return false
	// variation selectors hide data; 0xfe0f only styles emoji
	case r >= 0xfe00 && r <= 0xfe0e || r >= 0xe0100 && r <= 0xe01ef:
		return false
	}
	return true
}

// Writer cleans what is written through it. It holds back an unfinished rune or carriage return until the next Write or
// Flush. It is not safe for concurrent use.
type Writer struct {
	w    io.Writer
	rest []byte // at most 4 bytes
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write cleans p and writes it. It reports len(p) unless the destination failed.
func (w *Writer) Write(p []byte) (int, error) {
	buf := append(w.rest, p...)
	keep := unfinished(buf)
	w.rest = append([]byte(nil), buf[len(buf)-keep:]...)
	if _, err := io.WriteString(w.w, Clean(string(buf[:len(buf)-keep]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what was held back.
func (w *Writer) Flush() error {
	rest := w.rest
	w.rest = nil
	_, err := io.WriteString(w.w, Clean(string(rest)))
	return err
}

// unfinished returns how many bytes at the end of b cannot be judged yet.
func unfinished(b []byte) int {
	if n := len(b); n > 0 && b[n-1] == '\r' {
		return 1
	}
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return i
			}
			return 0
		}
	}
	return 0
}

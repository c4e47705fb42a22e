package term

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Style marks up our own words, never foreign ones. The zero value is plain.
type Style struct{ On bool }

// StyleFor returns a Style that is on for a terminal, unless NO_COLOR is set or TERM is dumb.
func StyleFor(f any, env func(string) string) Style {
	return Style{On: IsTerminal(f) && env("NO_COLOR") == "" && env("TERM") != "dumb"}
}

// Bold marks a name or a result.
func (s Style) Bold(text string) string { return s.wrap("1", text) }

// Dim marks what is only of use when looking for it.
func (s Style) Dim(text string) string { return s.wrap("2", text) }

// Good marks success.
func (s Style) Good(text string) string { return s.wrap("32", text) }

// Bad marks failure.
func (s Style) Bad(text string) string { return s.wrap("31", text) }

// Warn marks what needs attention.
func (s Style) Warn(text string) string { return s.wrap("33", text) }

func (s Style) wrap(code, text string) string {
	if !s.On {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Table prints rows under a header, columns as wide as their widest cell, two spaces apart. Cells are cleaned to
// one line.
func Table(w io.Writer, header []string, rows [][]string) error {
	return TableWithin(w, 0, header, rows)
}

// TableWithin is Table with rows of at most that many columns of a window; 0 does not cut.
func TableWithin(w io.Writer, columns int, header []string, rows [][]string) error {
	width := make([]int, len(header))
	all := append([][]string{header}, rows...)
	for r, row := range all {
		cells := make([]string, len(header))
		for i := range cells {
			if i < len(row) {
				cells[i] = Line(row[i], 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cells[i]))
		}
		all[r] = cells
	}
	for _, row := range all {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		text := strings.TrimRight(b.String(), " ")
		if r := []rune(text); columns > 0 && len(r) > columns {
			text = strings.TrimRight(string(r[:columns-1]), " ") + "…"
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"bytes"
	"fmt"
	"html"
	"strings"
	"time"

	"github.com/hinshun/vt10x"
)

// Sizes in pixels of a character and of the room around the text.
const (
	charWidth, lineHeight = 8.4, 19.0
	margin                = 16.0
)

const (
	background = "#11151c"
	foreground = "#d6dde6"
	faint      = "#7d8896"
)

// palette is the eight colours of a terminal and their bright kind, chosen to be read on the background.
var palette = []string{
	"#3b4252", "#ff7b72", "#7ee787", "#e3b341", "#79b8ff", "#d2a8ff", "#76e3ea", "#d6dde6",
	"#7d8896", "#ffa198", "#aff5b4", "#f2cc60", "#a5d6ff", "#e2c5ff", "#b3f0ff", "#ffffff",
}

// Bits of a glyph's mode, which vt10x does not export.
const (
	reverse = 1 << iota
	underline
	bold
)

// style is how a run of characters looks.
type style struct {
	fill       string
	bold, rule bool
}

func styleOf(g vt10x.Glyph) style {
	s := style{fill: foreground, bold: g.Mode&bold != 0, rule: g.Mode&underline != 0}
	c := g.FG
	if g.Mode&reverse != 0 {
		c = g.BG
	}
	if int(c) < len(palette) {
		s.fill = palette[c]
	} else if c < 256 {
		s.fill = faint
	}
	return s
}

// screen is what the terminal shows: one SVG text for each line that is not empty, with an empty string for
// those that are.
func screen(t vt10x.Terminal, cols, rows int) []string {
	t.Lock()
	defer t.Unlock()
	out := make([]string, rows)
	for y := range rows {
		out[y] = textLine(t, cols, y)
	}
	return out
}

func textLine(t vt10x.Terminal, cols, y int) string {
	var b strings.Builder
	var run []rune
	var s style
	flush := func() {
		if text := strings.TrimRight(string(run), " "); text != "" || len(run) > 0 && s.rule {
			weight, rule := "", ""
			if s.bold {
				weight = ` font-weight="bold"`
			}
			if s.rule {
				rule = ` text-decoration="underline"`
			}
			fmt.Fprintf(&b, `<tspan fill="%s"%s%s>%s</tspan>`, s.fill, weight, rule, html.EscapeString(string(run)))
		} else {
			b.WriteString(string(run))
		}
		run = run[:0]
	}
	for x := range cols {
		g := t.Cell(x, y)
		if g.Char == 0 {
			g.Char = ' '
		}
		if n := styleOf(g); n != s {
			flush()
			s = n
		}
		run = append(run, g.Char)
	}
	flush()
	if strings.TrimSpace(b.String()) == "" {
		return ""
	}
	return strings.TrimRight(b.String(), " ")
}

// draw writes the frames as one SVG. Each distinct line of text is defined once; a frame is a group of uses,
// visible for its time.
func draw(out *bytes.Buffer, frames []frame, cols, rows int) {
	width, height := margin*2+float64(cols)*charWidth, margin*2+float64(rows)*lineHeight
	var total time.Duration
	for i := range frames {
		frames[i].shown = min(frames[i].shown, longest)
		if i == len(frames)-1 {
			frames[i].shown = final
		}
		total += frames[i].shown
	}
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img"`+"\n", width, height, width, height)
	fmt.Fprintf(out, ` aria-label="A terminal in which the commands of the README are run">`+"\n<style>\n")
	fmt.Fprintf(out, "text { font: 14px ui-monospace, 'SFMono-Regular', Menlo, Consolas, 'DejaVu Sans Mono', "+
		"monospace; white-space: pre }\n")
	fmt.Fprintf(out, "g { visibility: hidden; animation: f %.2fs steps(1) infinite }\n", total.Seconds())
	var at time.Duration
	for i, f := range frames {
		from, to := share(at, total), share(at+f.shown, total)
		fmt.Fprintf(out, "#f%d { animation-name: k%d } @keyframes k%d { 0%%,100%% { visibility: hidden } %.3f%% { "+
			"visibility: visible } %.3f%% { visibility: hidden } }\n",
			i, i, i, from, min(to, 99.999))
		at += f.shown
	}
	// Where animations are off, the last screen is shown.
	fmt.Fprintf(out, "@media (prefers-reduced-motion: reduce) { g { animation: none } #f%d { visibility: visible } "+
		"}\n</style>\n", len(frames)-1)
	fmt.Fprintf(out, `<rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", background)
	names := map[string]int{}
	out.WriteString("<defs>\n")
	for _, f := range frames {
		for _, line := range f.lines {
			if _, ok := names[line]; line == "" || ok {
				continue
			}
			names[line] = len(names)
			fmt.Fprintf(out, `<text id="l%d" fill="%s" xml:space="preserve">%s</text>`+"\n", names[line], foreground,
				line)
		}
	}
	out.WriteString("</defs>\n")
	for i, f := range frames {
		fmt.Fprintf(out, `<g id="f%d">`, i)
		for y, line := range f.lines {
			if line != "" {
				fmt.Fprintf(out, `<use href="#l%d" x="%.0f" y="%.0f"/>`, names[line], margin,
					margin+float64(y)*lineHeight+14)
			}
		}
		out.WriteString("</g>\n")
	}
	out.WriteString("</svg>\n")
}

// share is how much of the whole a time is, in percent.
func share(d, total time.Duration) float64 { return 100 * float64(d) / float64(total) }

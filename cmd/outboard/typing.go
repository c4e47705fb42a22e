package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
)

// typing is a message on the screen that the model has not finished.
type typing struct {
	event string
	raw   strings.Builder // what came of it, as it came
	out   *term.Writer    // cleans what is shown
}

// piece shows some of a message while the model writes it, in the shape that the whole message would have.
func (t *timeline) piece(p client.Piece) {
	if t.tools {
		return
	}
	if p.Start {
		t.stopTyping()
		t.typing = &typing{event: p.Event}
		return
	}
	w := t.typing
	if w == nil || w.event != p.Event {
		return
	}
	text := p.Text
	if w.out == nil { // nothing is shown before there is something to show
		if text = strings.TrimLeftFunc(text, unicode.IsSpace); text == "" {
			w.raw.WriteString(p.Text)
			return
		}
		fmt.Fprintf(t.out, "  %s  %-6s ", t.st.Dim(t.stamp(time.Now())), "says")
		w.out = term.NewWriter(&indented{w: t.out})
	}
	w.raw.WriteString(p.Text)
	_, _ = io.WriteString(w.out, text) // an output that fails is noticed with the next row
}

// typed completes the message that is being shown, and reports whether it could: else it must be shown whole.
func (t *timeline) typed(event, whole string) bool {
	w := t.typing
	if w == nil || w.out == nil || w.event != event {
		return false
	}
	rest, ok := strings.CutPrefix(whole, w.raw.String())
	if !ok {
		return false
	}
	_, _ = io.WriteString(w.out, rest)
	t.endTyping("")
	return true
}

// stopTyping leaves a message that something else follows: it was cut off, or it will be shown whole.
func (t *timeline) stopTyping() {
	if t.typing == nil {
		return
	}
	t.endTyping(" …")
}

func (t *timeline) endTyping(mark string) {
	w := t.typing
	t.typing = nil
	if w.out == nil {
		return
	}
	_ = w.out.Flush()
	fmt.Fprintln(t.out, mark)
}

// indented writes lines below a row. Space at the end of a text is dropped.
type indented struct {
	w    io.Writer
	held []byte // space that may be the last
}

// Write implements io.Writer.
func (i *indented) Write(p []byte) (int, error) {
	text := append(i.held, p...)
	end := len(strings.TrimRightFunc(string(text), unicode.IsSpace))
	out := strings.ReplaceAll(string(text[:end]), "\n", "\n"+indent)
	i.held = append([]byte(nil), text[end:]...)
	if _, err := io.WriteString(i.w, out); err != nil {
		return 0, err
	}
	return len(p), nil
}

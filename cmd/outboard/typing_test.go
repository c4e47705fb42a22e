package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
)

// said is the event of a whole message.
func said(t *testing.T, id, text string) client.Event {
	t.Helper()
	b, err := json.Marshal(map[string]any{"type": "agent.message", "id": id, "processed_at": time.Now(),
		"content": []any{map[string]string{"type": "text", "text": text}}})
	if err != nil {
		t.Fatal(err)
	}
	var ev client.Event
	if err := json.Unmarshal(b, &ev); err != nil {
		t.Fatal(err)
	}
	return ev
}

// withoutTimes drops the clock, which rows begin with.
func withoutTimes(s string) string {
	var out []string
	for l := range strings.Lines(s) {
		if len(l) > 12 && l[4] == ':' && l[7] == ':' {
			l = l[12:]
		}
		out = append(out, l)
	}
	return strings.Join(out, "")
}

// What a person sees while a message is written must end as what they see when it comes whole: once, cleaned, in
// its place.
func TestTyping(t *testing.T) {
	texts := []string{"done", "  first line\nsecond\n\n\nlast  \n\n", "colours \x1b[31mred\x1b[0m and \u202e",
		"über\r\nzwei\r", "日本語\n\tx", "\n"}
	for _, text := range texts {
		var whole bytes.Buffer
		tl := &timeline{out: &whole, width: plainWidth, zone: time.Local, calls: map[string]*openCall{}}
		if err := tl.event(said(t, "sevt_1", text)); err != nil {
			t.Fatal(err)
		}
		for size := 1; size <= len(text); size++ {
			for _, upto := range []int{len(text), len(text) / 2, 0} { // a slow reader loses the rest
				var live bytes.Buffer
				tl := &timeline{out: &live, width: plainWidth, zone: time.Local, calls: map[string]*openCall{}}
				tl.piece(client.Piece{Event: "sevt_1", Start: true})
				for at := 0; at < upto; at += size {
					tl.piece(client.Piece{Event: "sevt_1", Text: text[at:min(upto, at+size)]})
				}
				if err := tl.event(said(t, "sevt_1", text)); err != nil {
					t.Fatal(err)
				}
				if got, want := trimLines(withoutTimes(live.String())), trimLines(withoutTimes(whole.String())); got != want {
					t.Fatalf("%q in pieces of %d up to %d:\n%q, want\n%q", text, size, upto, got, want)
				}
			}
		}
	}
}

// trimLines drops space at the ends of lines, which nobody sees.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " \t")
	}
	return strings.Join(lines, "\n")
}

// A message that is cut off, by a failure of the model or by another row, must not run into what follows, and
// what replaces it is shown.
func TestTypingIsCutOff(t *testing.T) {
	var out bytes.Buffer
	tl := &timeline{out: &out, width: plainWidth, zone: time.Local, calls: map[string]*openCall{}}
	tl.piece(client.Piece{Event: "sevt_0", Text: "missed its beginning"})
	tl.piece(client.Piece{Event: "sevt_1", Start: true})
	tl.piece(client.Piece{Event: "sevt_1", Text: "half a sent"})
	tl.piece(client.Piece{Event: "sevt_0", Text: "of another"})
	tl.piece(client.Piece{Event: "sevt_2", Start: true})
	tl.piece(client.Piece{Event: "sevt_2", Text: "again: "})
	if err := tl.line(time.Now(), "note", "something else", ""); err != nil {
		t.Fatal(err)
	}
	tl.piece(client.Piece{Event: "sevt_2", Text: "too late"})
	if err := tl.event(said(t, "sevt_2", "again: whole")); err != nil {
		t.Fatal(err)
	}
	tl.piece(client.Piece{Event: "sevt_3", Start: true})
	tl.piece(client.Piece{Event: "sevt_3", Text: "not what"})
	if err := tl.event(said(t, "sevt_3", "the log has")); err != nil {
		t.Fatal(err)
	}
	want := []string{"says   half a sent …", "says   again: …", "note   something else", "says   again: whole",
		"says   not what …", "says   the log has"}
	if got := trimLines(strings.TrimSpace(withoutTimes(out.String()))); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, fmt.Sprint(strings.Join(want, "\n")))
	}
}

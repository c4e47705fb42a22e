package harness

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
)

// Fails if a transcript is longer than asked, has lost what there was room for, or tears a character.
func TestTranscriptFits(t *testing.T) {
	text := func(s string) []outboard.Content { return []outboard.Content{outboard.Text(s)} }
	short := []*outboard.Message{
		{Role: "user", Content: text("Fix it.")},
		{Role: "assistant", Content: text("I look."),
			Uses: []outboard.ToolUse{{ID: "c1", Name: "bash", Input: outboard.Raw(`{"command":"ls"}`)}}},
		{Role: "tool", Results: []outboard.ToolResult{{ToolUseID: "c1",
			Content: append(text("a.go"), outboard.Content{Type: "image", Source: &outboard.Source{Type: "base64"}})}}},
	}
	long := append(short[:len(short):len(short)], &outboard.Message{Role: "user",
		Content: text("é" + strings.Repeat("日本", 50_000) + "!")})
	var many []*outboard.Message
	for i := range 1000 {
		many = append(many, &outboard.Message{Role: "user",
			Content: text(fmt.Sprintf("%03d %s", i, strings.Repeat("x", 1000)))})
	}
	whole := []string{"user: Fix it.\n\nassistant: I look.\n\nassistant called bash: " +
		"{\"command\":\"ls\"}\n\nresult: a.go\n[outboard] A block of type \"image\" is not shown."}
	for name, c := range map[string]struct {
		history []*outboard.Message
		size    int
		has     []string
	}{
		"all of it":  {short, 1000, whole},
		"one is cut": {long, 20_000, append([]string{"user: é日本", "本!", "bytes are left out here"}, whole...)},
		"oldest go":  {many, 20_000, []string{"The oldest 900 parts are left out", "user: 999 x"}},
		"no room":    {many, 0, []string{"The oldest 1000 parts are left out"}},
		"nothing":    {nil, 100, []string{"as a transcript"}},
	} {
		got, err := (&loop{}).transcript(t.Context(), c.history, c.size)
		if err != nil || !utf8.ValidString(got) {
			t.Errorf("%s: %v, valid %v", name, err, utf8.ValidString(got))
		}
		if most := c.size + c.size/2 + 300; len(got) > most { // what says that something is cut comes on top
			t.Errorf("%s: %d bytes, over %d", name, len(got), most)
		}
		for _, want := range c.has {
			if !strings.Contains(got, want) {
				t.Errorf("%s: lacks %q: %.200s ... %s", name, want, got, got[max(0, len(got)-200):])
			}
		}
	}
}

package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Broken if a message holds half a character or a byte that JSON and PostgreSQL refuse, or more of a stranger's
// text than it should.
func TestClip(t *testing.T) {
	for _, c := range []struct {
		s    string
		most int
		want string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc..."},
		{"abcd", 0, "..."},
		{"aé", 3, "aé"},
		{"aéb", 2, "a..."},
		{"aéb", 3, "aé..."},
		{"日本語", 4, "日..."},
		{"a\xffb", 9, "a?b"},
		{"\xff\xfe\xfd", 2, "?..."},
		{"\x80\x80\x80", 2, "..."},
	} {
		got := Clip(c.s, c.most)
		if got != c.want || !utf8.ValidString(got) {
			t.Errorf("Clip(%q, %d) = %q, want %q", c.s, c.most, got, c.want)
		}
		if text, _ := strings.CutSuffix(got, "..."); len(text) > max(c.most, len(c.s)) {
			t.Errorf("Clip(%q, %d) = %q is too long", c.s, c.most, got)
		}
	}
}

package term

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// A sequence that comes through unescaped can write the clipboard, fake a link or rewrite what the user already read.
func TestCleanEscapes(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain text stays", "a\tb\nc — ü 漢 🙂\n", "a\tb\nc — ü 漢 🙂\n"},
		{"CSI", "\x1b[2J\x1b[1;1H", `\x1b[2J\x1b[1;1H`},
		{"OSC 52 clipboard", "\x1b]52;c;ZXZpbA==\x07", `\x1b]52;c;ZXZpbA==\x07`},
		{"OSC 8 link", "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\", `\x1b]8;;http://evil\x1b\text\x1b]8;;\x1b\`},
		{"C1 CSI as UTF-8", "\u009b2J", `\x9b2J`},
		{"C1 CSI as a raw byte", "\x9b2J", `\x9b2J`},
		{"carriage return rewrites the line", "good\rbad", `good\rbad`},
		{"CRLF is a newline", "a\r\nb", "a\nb"},
		{"backspace and bell", "a\bb\x07", `a\x08b\x07`},
		{"delete", "a\x7fb", `a\x7fb`},
		{"right-to-left override", "a\u202eb", `a\u202eb`},
		{"isolate", "\u2066x\u2069", `\u2066x\u2069`},
		{"zero width", "a\u200bb\ufeff", `a\u200bb\ufeff`},
		{"tag characters", "\U000e0041", `\U000e0041`},
		{"line separator", "a\u2028b", `a\u2028b`},
		{"invalid UTF-8", "a\xff\xfeb", `a\xff\xfeb`},
		{"nul", "a\x00b", `a\x00b`},
		{"hangul filler", "\u3164", `\u3164`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Clean(tt.in); got != tt.want {
				t.Errorf("Clean(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

// A timeline line that contains a newline would let tool input draw lines of its own.
func TestLineStaysOneLine(t *testing.T) {
	if got, want := Line("  echo hi\n\techo there\x1b[K ", 0), `echo hi echo there\x1b[K`; got != want {
		t.Errorf("Line = %q, want %q", got, want)
	}
	if got, want := Line("abcdefgh", 4), "abc…"; got != want {
		t.Errorf("Line cut = %q, want %q", got, want)
	}
	if got := Line("abcd", 4); got != "abcd" {
		t.Errorf("Line of exactly the width = %q", got)
	}
}

// A rune split over two writes must not be taken for garbage, and an escape must not slip through at the seam.
func TestWriterAtEverySplit(t *testing.T) {
	const in = "ü\x1b[31m漢\r\n🙂\rx\u202e\xff\xf0\x9f"
	for cut := range len(in) + 1 {
		var out bytes.Buffer
		w := NewWriter(&out)
		for _, part := range []string{in[:cut], in[cut:]} {
			if n, err := w.Write([]byte(part)); err != nil || n != len(part) {
				t.Fatalf("Write = %d, %v", n, err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if out.String() != Clean(in) {
			t.Errorf("cut at %d: %q, want %q", cut, out.String(), Clean(in))
		}
	}
}

// A full disk or closed pipe must not look like success.
func TestWriterReportsErrors(t *testing.T) {
	if _, err := NewWriter(errWriter{}).Write([]byte("x")); err == nil {
		t.Error("a failing destination went unnoticed")
	}
}

type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, iotest.ErrTimeout }

// Columns that do not line up make a list unreadable; a cell with a newline would fake a row.
func TestTable(t *testing.T) {
	var out strings.Builder
	err := Table(&out, []string{"SESSION", "STATE"}, [][]string{{"calm-otter-7f2", "idle"}, {"x\ny", ""}})
	if err != nil {
		t.Fatal(err)
	}
	want := "SESSION         STATE\ncalm-otter-7f2  idle\nx y\n"
	if out.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", out.String(), want)
	}
}

// Whatever bytes arrive, the terminal must see printable text, tabs and newlines only, in valid UTF-8, whether
// it comes at once or in pieces.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "plain", "\x1b]0;t\x07", "\u202e", "\xff\xfe", "a\r\nb\r", "\u009b", "\U000e0001"} {
		f.Add(s, 1)
	}
	f.Fuzz(func(t *testing.T, s string, cut int) {
		got := Clean(s)
		if !utf8.ValidString(got) {
			t.Fatalf("Clean(%q) is not valid UTF-8", s)
		}
		for _, r := range got {
			if r != '\n' && r != '\t' && !shown(r) {
				t.Fatalf("Clean(%q) kept %U", s, r)
			}
		}
		if again := Clean(got); again != got {
			t.Fatalf("cleaning twice changed %q to %q", got, again)
		}
		if strings.ContainsAny(Line(s, 20), "\n\t") {
			t.Fatalf("Line(%q) has several lines", s)
		}
		cut = min(max(cut, 0), len(s))
		var out bytes.Buffer
		w := NewWriter(&out)
		w.Write([]byte(s[:cut]))
		w.Write([]byte(s[cut:]))
		w.Flush()
		if out.String() != got {
			t.Fatalf("in two pieces at %d: %q, want %q", cut, out.String(), got)
		}
	})
}

// If this fails, JSON on a terminal can act, or does not mean what it did.
func TestJSON(t *testing.T) {
	for _, s := range []string{"", "plain \u00fc \u65e5", "\u009b2J", "\u202etxt", "\x7f", "\u2028", "\U000e0041x",
		"a\n\tb\x1b]0;x\a"} {
		b, err := json.Marshal(map[string]string{s: s})
		if err != nil {
			t.Fatal(err)
		}
		out := JSON(append(b, '\n'))
		var back map[string]string
		if err := json.Unmarshal(out, &back); err != nil || back[s] != s || len(back) != 1 {
			t.Errorf("%q became %s: %v", s, out, err)
		}
		for _, r := range string(out) {
			if r != '\n' && !shown(r) {
				t.Errorf("%q kept %U", s, r)
			}
		}
	}
	if b := []byte("{\n\t\"a\": \"\u00fc\"\n}"); string(JSON(b)) != string(b) {
		t.Errorf("what is harmless was changed: %s", JSON(b))
	}
}

// Words must break between words alone, into rows that a window has room for, and change nothing else.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		text          string
		width, indent int
		want          string
	}{
		{"why  one two three", 0, 5, "why  one two three"}, {"why  one two three", 18, 5,
			"why  one two three"}, {"why  one two three", 17, 5, "why  one two\n     three"},
		{"why  one two three", 9, 5, "why  one\n     two\n     three"}, {"digest  aaaaaaaaaaaaaaaaaaaa b", 12, 8,
			"digest  aaaaaaaaaaaaaaaaaaaa\n        b"},
		{"a \u4e16\u754c b", 6, 0, "a \u4e16\u754c\nb"}, {"", 10, 2, ""},
	} {
		if got := Words(c.text, c.width, c.indent); got != c.want {
			t.Errorf("%q in %d columns:\n%s\nwant\n%s", c.text, c.width, got, c.want)
		}
	}
}

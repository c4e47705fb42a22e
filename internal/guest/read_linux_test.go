//go:build linux

package guest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reader runs file tools on a workspace.
func reader(t *testing.T) (tool func(op string, in map[string]any) Result, workspace string) {
	t.Helper()
	c, dir := guestAs(t, os.Geteuid(), os.Getegid())
	n := 0
	return func(op string, in map[string]any) Result {
		t.Helper()
		n++
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		return runCall(t, c, Start{Key: "k" + string(rune('a'+n)), Epoch: 1, Generation: testGen, Op: op, Input: raw,
			OutputLimit: maxOutput})
	}, filepath.Join(dir, "workspace")
}

// If this fails, a model is told that lines have numbers and gets none, or others; or is not told why it sees nothing.
func TestReadNumbersLines(t *testing.T) {
	tool, dir := reader(t)
	long := strings.Repeat("x", 70_000)
	for name, text := range map[string]string{"f": "alpha\nbeta\ngamma\n", "open": "a\nb", "empty": "", "long": long +
		"\nnext\n", "crlf": "a\r\nb\r\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		file  string
		lines []int
		want  string
		fails bool
	}{
		{"f", nil, "     1\talpha\n     2\tbeta\n     3\tgamma\n", false},
		{"f", []int{2, 3}, "     2\tbeta\n     3\tgamma", false},
		{"f", []int{3, 9}, "     3\tgamma\n", false},
		{"f", []int{4, 9}, "has 3 lines; view_range begins at line 4", true},
		{"open", nil, "     1\ta\n     2\tb", false},
		{"open", []int{3, 3}, "has 2 lines", true},
		{"empty", nil, "(the file is empty)", false},
		{"long", nil, "     1\t" + long + "\n     2\tnext\n", false},
		{"long", []int{2, 2}, "     2\tnext", false},
		{"crlf", []int{1, 1}, "     1\ta\r", false},
	} {
		in := map[string]any{"file_path": c.file}
		if c.lines != nil {
			in["view_range"] = c.lines
		}
		r := tool("read", in)
		if got := string(r.Output); (r.Cause == causeError) != c.fails || !c.fails && got != c.want ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s %v: %s %.100q, want %.100q", c.file, c.lines, r.Cause, got, c.want)
		}
	}
}

// If this fails, a picture or another binary file is given to the model as text.
func TestReadOfWhatIsNoText(t *testing.T) {
	tool, dir := reader(t)
	for name, c := range map[string]struct{ content, want string }{
		"a.png":  {"\x89PNG\r\n\x1a\n\x00\x00rest", "media image/png 14 "},
		"b.dat":  {"RIFF\x00\x00\x00\x00WEBPVP8 ", "media image/webp 16 "},
		"c.txt":  {"GIF89a\x01", "media image/gif 7 "},
		"d":      {"\xff\xd8\xff\xe0", "media image/jpeg 4 "},
		"e.pdf":  {"%PDF-1.7\n", "media application/pdf 9 "},
		"f.o":    {"\x7fELF\x00\x01", "is not text: it has NUL bytes"},
		"g":      {strings.Repeat("text\n", 4000) + "\x00", "is not text: it has NUL bytes"},
		"h":      {"media image/png 14 00\n", "     1\tmedia image/png"},
		"i.png":  {"\x89PNG\r\n\x1a\n" + strings.Repeat("x", MaxMedia), "make a smaller copy"},
		"j.utf8": {"\xef\xbb\xbfGrüße\n", "     1\t\xef\xbb\xbfGrüße\n"},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		r := tool("read", map[string]any{"file_path": name})
		if !strings.Contains(string(r.Output), c.want) {
			t.Errorf("%s: %s %.200q, want %q", name, r.Cause, r.Output, c.want)
		}
		if _, _, _, ok := ParseMediaLine(r.Output); ok != strings.HasPrefix(c.want, "media ") {
			t.Errorf("%s: taken for a picture: %v", name, ok)
		}
	}
}

// If this fails, a call that was judged by its path opens what a link on it leads to.
func TestJudgedPathsHaveNoLinks(t *testing.T) {
	tool, dir := reader(t)
	if err := os.MkdirAll(filepath.Join(dir, "secret"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret/key"), []byte("hush\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"l": "secret/key", "d": "secret"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for op, in := range map[string]map[string]any{"read": {}, "write": {"content": "x"},
		"edit": {"old_string": "hush", "new_string": "x"},
		"grep": {"pattern": "hush"}, "glob": {"pattern": "*"}} {
		field := map[bool]string{true: "path", false: "file_path"}[op == "grep" || op == "glob"]
		paths := []string{"/workspace/l", "/workspace/d/key"}
		if op == "glob" {
			paths = []string{"/workspace/d"}
		}
		for _, p := range paths {
			in[field], in["judged"] = p, true
			if r := tool(op, in); r.Cause != causeError || !strings.Contains(string(r.Output), "a link on this path") {
				t.Errorf("%s %s: %s %q", op, p, r.Cause, r.Output)
			}
		}
		in[field] = "/workspace/secret/key"
		if op == "glob" {
			in[field] = "/workspace/secret"
		}
		if r := tool(op, in); r.Cause == causeError {
			t.Errorf("control: %s: %q", op, r.Output)
		}
		if err := os.WriteFile(filepath.Join(dir, "secret/key"), []byte("hush\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

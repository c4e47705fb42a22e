package outboard_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A link to a page or a heading that is not there sends a reader nowhere.
func TestLinksOfDocuments(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.md", ":!changelog").Output()
	if err != nil {
		t.Fatalf("listing the documents: %v", err)
	}
	files := strings.Fields(string(out))
	if len(files) < 20 {
		t.Fatalf("git lists %d documents", len(files))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range brokenLinks(file, string(text)) {
			t.Errorf("%s links to %s, which is not there", file, bad)
		}
	}
}

// The test above finds what it looks for.
func TestBrokenLinksAreFound(t *testing.T) {
	const page = "[a](docs/README.md) [b](docs/gone.md) [c](#here) [d](#gone) [e](https://example.org/x.md) [f](docs/README.md#gone)\n\n## Here\n"
	if got, want := brokenLinks("x.md", page), []string{"docs/gone.md", "#gone", "docs/README.md#gone"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

var (
	linkOf    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingOf = regexp.MustCompile(`(?m)^#+ (.*)$`)
	codeOf    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// brokenLinks returns the links of a page whose file or heading does not exist. Addresses with a scheme are not followed.
func brokenLinks(file, text string) []string {
	var bad []string
	for _, m := range linkOf.FindAllStringSubmatch(codeOf.ReplaceAllString(text, ""), -1) {
		path, heading, _ := strings.Cut(m[1], "#")
		if strings.Contains(path, ":") {
			continue
		}
		target := text
		if path != "" {
			p := filepath.Join(filepath.Dir(file), path)
			if info, err := os.Stat(p); err != nil || info.IsDir() {
				if err != nil {
					bad = append(bad, m[1])
				}
				continue
			}
			b, err := os.ReadFile(p)
			if err != nil {
				bad = append(bad, m[1])
				continue
			}
			target = string(b)
		}
		if heading != "" && !slices.Contains(anchors(target), heading) {
			bad = append(bad, m[1])
		}
	}
	return bad
}

// anchors are the names by which the headings of a page are linked to, as GitHub makes them.
func anchors(text string) []string {
	var out []string
	for _, m := range headingOf.FindAllStringSubmatch(text, -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
				b.WriteRune(r)
			}
		}
		out = append(out, b.String())
	}
	return out
}

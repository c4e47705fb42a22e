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
	const page = "[a](docs/README.md) [b](docs/gone.md) [c](#here) [d](#gone) [e](https://example.org/x.md) " +
		"[f](docs/README.md#gone)\n\n## Here\n"
	if got, want := brokenLinks("x.md", page), []string{"docs/gone.md", "#gone",
		"docs/README.md#gone"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

var (
	linkOf    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingOf = regexp.MustCompile(`(?m)^#+ (.*)$`)
	codeOf    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// brokenLinks returns the links of a page whose file or heading does not exist. Addresses with a scheme are not
// followed.
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

// A record of a decision that the index does not name is found by nobody.
func TestDecisionsAreListed(t *testing.T) {
	index, err := os.ReadFile("docs/design/README.md")
	if err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob("docs/design/[0-9]*.md")
	if err != nil || len(records) < 40 {
		t.Fatalf("%d records: %v", len(records), err)
	}
	for _, r := range records {
		if name := filepath.Base(r); strings.Count(string(index), "]("+name+")") != 1 {
			t.Errorf("docs/design/README.md does not list %s once: add a line that says what was decided", name)
		}
	}
}

var (
	fileOf = regexp.MustCompile("`([\\w-]+(?:/[\\w.-]+)+/?|\\w+\\.go)`((?: \\((?:`[\\w.]+`(?:,| and)? ?)+\\))?)")
	nameOf = regexp.MustCompile("`([\\w.]+)`")
)

// missingCode returns the files that a page names and the project does not have, and the names behind a file in
// parentheses that are not in it.
func missingCode(text string) (missing []string) {
	for _, m := range fileOf.FindAllStringSubmatch(text, -1) {
		code, err := os.ReadFile(m[1])
		if info, statErr := os.Stat(m[1]); statErr != nil || err != nil && !info.IsDir() {
			missing = append(missing, m[1])
			continue
		}
		for _, n := range nameOf.FindAllStringSubmatch(m[2], -1) {
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(n[1]) + `\b`).Match(code) {
				missing = append(missing, m[1]+" "+n[1])
			}
		}
	}
	return missing
}

// The pages for contributors lead to files and functions. One that has moved leads a newcomer nowhere.
func TestContributorsFindTheCode(t *testing.T) {
	pages, err := filepath.Glob("docs/contributing/*.md")
	if err != nil || len(pages) < 4 {
		t.Fatalf("%d pages for contributors: %v", len(pages), err)
	}
	for _, page := range append(pages, "CONTRIBUTING.md", "AGENTS.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range missingCode(string(text)) {
			t.Errorf("%s names %s, which is not there", page, m)
		}
	}
	const control = "`fold.go` (`Fold`), `fold.go` (`Fold`, `NoSuch`) `internal/gone/x.go` `internal/store` " +
		"`gone.go` (`Fold`)"
	if got, want := missingCode(control), []string{"fold.go NoSuch", "internal/gone/x.go",
		"gone.go"}; !slices.Equal(got, want) {
		t.Errorf("found %q missing, want %q", got, want)
	}
}

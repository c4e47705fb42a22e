package outboard_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	caseName   = regexp.MustCompile(`\{"([A-Z]\w*)", test[A-Z]\w*\}`)
	nameInCell = regexp.MustCompile("(?:(suite|script) )?`([^`]+)`")
)

// testNames returns every test of the repository as docs/reference/threats.md names it: package.Test, by the end
// of the package's path; suite.Name for what every provider of sandboxes runs; script.name for scripts of the
// command line.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case strings.HasSuffix(file, ".txtar"):
			names["script."+strings.TrimSuffix(d.Name(), ".txtar")] = true
			return nil
		case !strings.HasSuffix(file, "_test.go") && file != "internal/sandboxtest/suite.go":
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if file == "internal/sandboxtest/suite.go" {
			for _, m := range caseName.FindAllSubmatch(text, -1) {
				names["suite."+string(m[1])] = true
			}
			return nil
		}
		dir := path.Dir(filepath.ToSlash(file))
		if dir == "." {
			dir = "outboard"
		}
		for _, m := range testName.FindAllSubmatch(text, -1) {
			for at, found := dir, true; found; _, at, found = strings.Cut(at, "/") {
				names[at+"."+string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// threats returns what is wrong with the tables of a page: rows that name no test, and tests that do not exist.
func threats(page string, exist map[string]bool) (rows, tests int, wrong []string) {
	for line := range strings.SplitSeq(page, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.TrimSpace(cells[0]) == "threat" {
			continue
		}
		if rows++; len(cells) != 3 {
			wrong = append(wrong, "not threat, mechanism and test: "+line)
			continue
		}
		named := 0
		where := "" // for `a` `b` or suite `a`, `b`: what the names that follow are in
		for _, m := range nameInCell.FindAllStringSubmatch(cells[2], -1) {
			if m[1] != "" {
				where = m[1]
			}
			switch {
			case exist[m[2]], exist[where+"."+m[2]]:
				named++
			case m[2] == strings.ToLower(m[2]): // a package
				where = m[2]
			default:
				named++
				wrong = append(wrong, "there is no test "+m[2]+": "+line)
			}
		}
		if tests += named; named == 0 {
			wrong = append(wrong, "no test: "+line)
		}
	}
	return rows, tests, wrong
}

// If this fails, docs/reference/threats.md promises something that no test checks.
func TestThreatTable(t *testing.T) {
	exist := testNames(t)
	page, err := os.ReadFile("docs/reference/threats.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, tests, wrong := threats(string(page), exist)
	for _, w := range wrong {
		t.Error(w)
	}
	if rows < 100 || tests < 150 || len(exist) < 500 {
		t.Errorf("%d rows name %d of %d tests: the page is not read as it is meant", rows, tests, len(exist))
	}
	const bad = "| threat | mechanism | test |\n|---|---|---|\n| a | b | `outboard.TestThreatTable` |\n| a | b | " +
		"`guest.TestNoSuchThing` |\n| a | b | suite `Disk`, `Nothing` |\n| a | b | `cmd/outboard` |\n| a | b | |\n| a | `outboard.TestThreatTable` |\n"
	if rows, tests, wrong := threats(bad, exist); rows != 6 || tests != 4 || len(wrong) != 5 {
		t.Errorf("the control: %d rows, %d tests, %q", rows, tests, wrong)
	}
}

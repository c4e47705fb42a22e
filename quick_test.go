package outboard_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Broken if `make quick` leaves out a package that a change can break, or runs what the change cannot reach.
func TestQuickRunsWhatAChangeTouches(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	script, err := os.ReadFile("scripts/quick")
	if err != nil {
		t.Fatal(err)
	}
	write("scripts/quick", string(script))
	write("go.mod", "module m\n\ngo 1.26\n")
	write("root.go", "package m\n")
	write("low/low.go", "package low\n")
	write("mid/mid.go", "package mid\n\nimport _ \"m/low\"\n")
	write("top/top.go", "package top\n\nimport _ \"m/mid\"\n")
	write("test/test_test.go", "package test_test\n\nimport (\n\t_ \"m\"\n\t_ \"m/low\"\n)\n")
	run("git", "init", "-q", "-b", "main")
	run("git", "add", ".")
	run("git", "-c", "user.name=t", "-c", "user.email=t@t.test", "commit", "-q", "-m", "m")

	for _, c := range []struct {
		file, text string
		want       []string
	}{
		{"low/low.go", "package low\n\nvar X = 1\n", []string{"m/low", "m/mid", "m/test"}},
		{"low/low_test.go", "package low\n", []string{"m/low"}},
		{"mid/testdata/x/a.txt", "new", []string{"m/mid"}},
		{"mid/a.sql", "new", []string{"m/mid", "m/top"}},
		{"root_test.go", "package m\n", []string{"m"}},
		{"scripts/other", "new", []string{"m"}},
		{"root.go", "package m\n\nvar X = 1\n", []string{"m", "m/test"}},
		{"go.mod", "module m\n\ngo 1.26.0\n", []string{"m", "m/low", "m/mid", "m/test", "m/top"}},
	} {
		write(c.file, c.text)
		if got := strings.Fields(run("scripts/quick", "--list")); !slices.Equal(got, c.want) {
			t.Errorf("after a change of %s: %v, want %v", c.file, got, c.want)
		}
		run("git", "stash", "-q", "-u")
	}
}

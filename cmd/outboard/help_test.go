package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Who asks for help must find each command under a heading, and see how it is typed.
func TestHelp(t *testing.T) {
	a := &app{in: strings.NewReader(""), out: &bytes.Buffer{}, errs: &bytes.Buffer{},
		env: func(string) string { return "" }}
	root := a.root()
	var all func(c *cobra.Command)
	all = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if c == root && sub.GroupID == "" {
				t.Errorf("%s is under no heading", sub.CommandPath())
			}
			if sub.Name() == "help" || c.Name() == "completion" {
				continue
			}
			if !slices.ContainsFunc(strings.Split(sub.Example, "\n"),
				func(l string) bool { return strings.Contains(l, sub.CommandPath()) }) {
				t.Errorf("%s has no example", sub.CommandPath())
			}
			all(sub)
		}
	}
	all(root)
	for path := range examples {
		if found, _, err := root.Find(strings.Fields(path)); err != nil || found.CommandPath() != "outboard "+path {
			t.Errorf("there is an example of %q, which is no command", path)
		}
	}
	var out bytes.Buffer
	root.SetOut(&out)
	if err := root.Help(); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, heading := range []string{"\nSessions:\n", "\nDecide:\n", "\nSandboxes:\n", "\nServer:\n", "\nMore:\n"} {
		next := strings.Index(out.String(), heading)
		if next <= at {
			t.Errorf("%q is not where it belongs:\n%s", heading, out.String())
		}
		at = next
	}
	if strings.Contains(out.String(), "Additional Commands") {
		t.Errorf("commands are left over:\n%s", out.String())
	}
}

// A page that a reader of manuals takes for commands, or a command without a page.
func TestManualPages(t *testing.T) {
	a := &app{in: strings.NewReader(""), out: &bytes.Buffer{}, errs: &bytes.Buffer{},
		env: func(string) string { return "" }}
	root := a.root()
	dir := t.TempDir()
	if err := writeMan(root, dir); err != nil {
		t.Fatal(err)
	}
	var all func(c *cobra.Command)
	all = func(c *cobra.Command) {
		path := filepath.Join(dir, manName(c)+".1")
		page, err := os.ReadFile(path)
		if c.Hidden {
			if err == nil {
				t.Errorf("%s is hidden, and has a page", c.CommandPath())
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(string(page), `\fB`+roff("--"+f.Name)+`\fR`) &&
				!strings.Contains(string(page), roff(", --"+f.Name)+`\fR`) {
				t.Errorf("%s says nothing of --%s", path, f.Name)
			}
		})
		for line := range strings.Lines(string(page)) {
			if request, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(line, ".") ||
				strings.HasPrefix(line, "'") {
				if !slices.Contains([]string{".TH", ".SH", ".PP", ".TP", ".nf", ".fi"}, request) {
					t.Errorf("%s: %q is no request", path, line)
				}
			}
		}
		for _, sub := range c.Commands() {
			all(sub)
		}
	}
	all(root)
	if got, want := roff(".a\\b\n'c-d"), `\&.a\eb`+"\n"+`\&'c\-d`; got != want {
		t.Errorf("escaped to %q, want %q", got, want)
	}
}

// What a release says of itself must name the commit and the day, and a build that knows neither must not invent them.
func TestVersionNamesCommitAndDay(t *testing.T) {
	for want, v := range map[string]versionInfo{
		" (0123456789ab, 2026-11-29)": {Revision: "0123456789abcdef", Date: "2026-11-29T10:00:00Z"},
		" (0123456789ab+modified)":    {Revision: "0123456789abcdef", Modified: true},
		"":                            {},
	} {
		if got := v.from(); got != want {
			t.Errorf("%+v is shown as %q, want %q", v, got, want)
		}
	}
}

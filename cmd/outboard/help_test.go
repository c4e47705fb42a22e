package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Who asks for help must find each command under a heading, and see how it is typed.
func TestHelp(t *testing.T) {
	a := &app{in: strings.NewReader(""), out: &bytes.Buffer{}, errs: &bytes.Buffer{}, env: func(string) string { return "" }}
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
			if !slices.ContainsFunc(strings.Split(sub.Example, "\n"), func(l string) bool { return strings.Contains(l, sub.CommandPath()) }) {
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

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newMan makes the manual pages of a release. It is hidden: a package brings the pages along.
func newMan(a *app) *cobra.Command {
	return &cobra.Command{Use: "man DIR", Short: "Write a manual page for each command", Args: exactArgs("a directory"),
		Hidden: true,
		RunE:   func(cmd *cobra.Command, args []string) error { return writeMan(cmd.Root(), args[0]) }}
}

func writeMan(cmd *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if cmd.Hidden {
		return nil
	}
	name := manName(cmd)
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(manPage(cmd, name)), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if err := writeMan(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func manPage(cmd *cobra.Command, name string) string {
	v := thisVersion()
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 %q %q Outboard\n", strings.ToUpper(roff(name)), v.Date, "outboard "+v.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n%s\n", roff(name), roff(cmd.Short), roff(cmd.UseLine()))
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", manText(text))
	if cmd.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range cmd.Commands() {
			if !sub.Hidden {
				fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(1)\n%s\n", roff(manName(sub)), roff(sub.Short))
			}
		}
	}
	manFlags(&b, "OPTIONS", cmd.NonInheritedFlags())
	manFlags(&b, "OPTIONS OF EVERY COMMAND", cmd.InheritedFlags())
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(strings.Trim(cmd.Example, "\n")))
	}
	if cmd.HasParent() {
		fmt.Fprintf(&b, ".SH SEE ALSO\n\\fB%s\\fR(1)\n", roff(manName(cmd.Parent())))
	}
	return b.String()
}

func manFlags(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR", roff(name))
		if kind != "" {
			fmt.Fprintf(b, " \\fI%s\\fR", roff(kind))
		}
		fmt.Fprintf(b, "\n%s\n", roff(usage))
	})
}

// manText sets paragraphs, and lines that are indented as they stand.
func manText(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		switch {
		case line == "":
			b.WriteString(".PP\n")
		case line[0] == ' ' || line[0] == '\t':
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(line))
		default:
			b.WriteString(roff(line) + "\n")
		}
	}
	return b.String()
}

// roff escapes what a manual page would take for a command.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

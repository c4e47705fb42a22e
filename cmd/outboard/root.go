package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// app is what every command shares: the process's streams and environment, and the global flags.
type app struct {
	in        io.Reader
	out, errs io.Writer
	env       func(string) string
	screen    *term.Screen // what out and errs are written through, nil where nothing is drawn in place

	json bool
	data string
	org  string

	foreground bool   // work that no server runs for is done in this process
	kept       string // the server at which a kept login is used, "" = a key is
	started    bool   // a command's own code was reached: errors before that are about usage
}

// group is a heading of the help, with its commands in the order in which they are shown.
type group struct {
	id, title string
	commands  []*cobra.Command
}

// groups lists every command. A new command is one file and one name here.
func (a *app) groups() []group {
	return []group{
		{"sessions", "Sessions:", []*cobra.Command{newRun(a), newList(a), newShow(a), newAttach(a), newLogs(a),
			newSend(a), newInterrupt(a), newDiff(a), newApply(a),
			newPull(a), newFork(a), newRewind(a), newCheckpoint(a), newStop(a), newRemove(a)}},
		{"decide", "Decide:", []*cobra.Command{newApprove(a), newDeny(a), newApproval(a), newGrant(a), newPolicy(a),
			newNet(a), newBudget(a), newKill(a)}},
		{"sandboxes", "Sandboxes:", []*cobra.Command{newBox(a), newSandbox(a), newTemplate(a), newImage(a), newSSH(a),
			newSSHKey(a)}},
		{"server", "Server:", []*cobra.Command{newServe(a), newUp(a), newDown(a), newStatus(a), newDoctor(a),
			newConfig(a), newAudit(a), newBlob(a), newOrg(a), newUser(a), newKey(a)}},
		{"more", "More:", []*cobra.Command{newDemo(a), newResource(a, "agent"), newResource(a, "environment"),
			newResource(a, "vault"), newSecret(a),
			newResource(a, "file"), newResource(a,
				"model"), newLogin(a), newLogout(a), newWhoami(a), newChaos(a), newBench(a), newVersion(a), newMan(a)}},
	}
}

// root returns the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "outboard",
		Short: "Durable agent sessions: the harness outside, the hands in a sandbox",
		Long: "Outboard runs agents whose loop lives outside the sandbox their tools act in.\n" +
			"Every step is in a log, so either side can be killed and the session goes on.\n\n" +
			"Start with: outboard demo",
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		PersistentPreRun:  func(*cobra.Command, []string) { a.started = true },
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetFlagErrorFunc(flagError)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON object per line")
	root.PersistentFlags().StringVar(&a.data, "data", "",
		"data directory (default $OUTBOARD_DATA, else "+a.defaultData()+")")
	root.PersistentFlags().StringVar(&a.org, "org", "", "organization to act in, for who runs the server (default "+
		"$OUTBOARD_ORG)")
	for _, g := range a.groups() {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.id
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommandGroupID("more")
	root.SetCompletionCommandGroupID("more")
	cobra.EnableCommandSorting = false
	root.CompletionOptions.HiddenDefaultCmd = false
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	addExamples(root)
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args, cmd.RunE = cobra.ArbitraryArgs, groupRun
		case "help":
			cmd.Args = func(help *cobra.Command, args []string) error {
				if found, _, err := help.Root().Find(args); err != nil || found == help.Root() && len(args) > 0 {
					return usagef("there is no help for %q", strings.Join(args, " ")).
						WithHint("outboard help lists the commands")
				}
				return nil
			}
		}
	}
	return root
}

// groupRun is a command that only holds others: alone it shows its help, and an unknown word behind it is an error.
func groupRun(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return usagef("%s has no command %q", cmd.Name(), args[0]).
		WithHint("%s%s %s", meant(cmd.CommandPath()+" ", args[0], commandNames(cmd)),
			cmd.CommandPath(), strings.Join(commandNames(cmd), "|"))
}

// unknownCommand refuses a word that is no command, with the one that was meant.
func unknownCommand(root *cobra.Command, word string) error {
	known := commandNames(root)
	for _, c := range root.Commands() {
		known = append(known, c.Aliases...)
	}
	return usagef("unknown command %q", word).WithHint("%soutboard help lists the commands",
		meant("outboard ", word, known))
}

func commandNames(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return names
}

// values says what is wrong with a value, by the type of its flag: what the parsers say is for programmers.
var values = map[string]string{"int": "not a whole number", "int64": "not a whole number",
	"uint16": "not a whole number from 0", "float64": "not a number",
	"duration": "not a duration such as 90s, 1h30m or 90d", "bool": "not true or false"}

// flagError explains a flag that is none; most often it is a task or message that begins with a dash.
func flagError(cmd *cobra.Command, err error) error {
	e := usagef("%v", err)
	if value, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		what := values[value.GetFlag().Value.Type()]
		if errors.Is(err, strconv.ErrRange) {
			what = "out of range"
		}
		if what != "" {
			e = usagef("--%s %q is %s", value.GetFlag().Name, value.GetValue(), what)
		}
	}
	if strings.Contains(err.Error(), "shorthand flag: ' '") {
		return e.WithHint("put -- before an argument that begins with a dash, or give - and the text on standard input")
	}
	near := ""
	if missing, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		near = meant("--", missing.GetSpecifiedName(), known)
	}
	return e.WithHint("%s%s --help lists the flags", near, cmd.CommandPath())
}

// asksJSON reports whether a command line has --json. A mistake in it ends the parsing, and --json may stand
// behind the mistake.
func asksJSON(args []string) bool {
	for _, arg := range args {
		if arg == "--" {
			return false
		}
		if arg == "--json" || arg == "--json=true" {
			return true
		}
	}
	return false
}

// dataDir returns the data directory in use.
func (a *app) dataDir() (string, error) {
	dir := a.data
	if dir == "" {
		dir = a.env("OUTBOARD_DATA")
	}
	if dir == "" {
		dir = a.defaultData()
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolving the data directory: %w", err)
	}
	return abs, nil
}

func (a *app) defaultData() string {
	if d := a.env("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "outboard")
	}
	home := a.env("HOME")
	if runtime.GOOS == "windows" {
		if d := a.env("LOCALAPPDATA"); d != "" {
			return filepath.Join(d, "outboard")
		}
		home = a.env("USERPROFILE")
	}
	if home == "" {
		return filepath.Join(os.TempDir(), fmt.Sprintf("outboard-%d", os.Getuid()))
	}
	return filepath.Join(home, ".local", "share", "outboard")
}

// object prints one line of machine output.
func (a *app) object(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding output: %w", err)
	}
	_, err = a.out.Write(append(term.JSON(b), '\n'))
	return err
}

// say tells the person something that is not the command's result. It is silent with --json.
func (a *app) say(format string, args ...any) {
	if !a.json {
		fmt.Fprintf(a.errs, "outboard: "+format+"\n", args...)
	}
}

// exact returns what foreign bytes are written to: visible on a terminal, as they are into a file or pipe.
func exact(w io.Writer) (out io.Writer, flush func()) {
	if !term.IsTerminal(w) {
		return w, func() {}
	}
	clean := term.NewWriter(w)
	return clean, func() { _ = clean.Flush() } // an output that fails has been noticed
}

// interactive reports whether a person can be asked.
func (a *app) interactive() bool {
	return !a.json && term.IsTerminal(a.in) && term.IsTerminal(a.errs)
}

// style marks up text for stdout.
func (a *app) style() term.Style {
	if a.json {
		return term.Style{}
	}
	return term.StyleFor(a.out, a.env)
}

// exactArgs refuses another number of arguments in words.
func exactArgs(names ...string) cobra.PositionalArgs {
	return rangeArgs(len(names), len(names), names...)
}

// rangeArgs wants from least to most arguments; most < 0 is no limit. names are for the message.
func rangeArgs(least, most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s needs %s", cmd.CommandPath(), names[len(args)]).WithHint("%s", cmd.UseLine())
		case most == 0 && len(args) > 0:
			return usagef("%s takes no argument %q", cmd.CommandPath(), args[0]).WithHint("%s", cmd.UseLine())
		case most > 0 && len(args) > most:
			hint := cmd.UseLine()
			if strings.Contains(cmd.Use, "|-") { // a text
				hint += "; quote what is several words"
			}
			return usagef("%s takes %s, and %q is one more", cmd.CommandPath(), count(most, "argument"), args[most]).
				WithHint("%s", hint)
		}
		return nil
	}
}

// count is a number of things, in words.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func usagef(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Invalid, format, args...).WithCode("usage")
}

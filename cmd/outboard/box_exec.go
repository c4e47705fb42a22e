package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

type boxExecOptions struct {
	input bool
	tty   bool
	user  string
	dir   string
	env   []string
}

func newBoxExec(a *app) *cobra.Command {
	var o boxExecOptions
	cmd := &cobra.Command{Use: "exec [flags] BOX [--] COMMAND [ARG...]", Short: "Run a program in a box",
		Args: rangeArgs(2, -1, "a box", "a command"),
		Long: "Run a program in a box and end with its exit code, or 128 and the number of the signal that ended " +
			"it. What it says is made harmless on a terminal, unless -t gives it one.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] == "--" && len(args) > 2 {
				args = append(args[:1:1], args[2:]...)
			}
			return runBoxExec(cmd.Context(), a, &o, args[0], args[1:])
		}}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows the box is the program's
	f.BoolVarP(&o.input, "interactive", "i", false, "pass standard input on")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the program a terminal")
	f.StringVarP(&o.user, "user", "u", "", "who runs it (default user; root is root inside)")
	f.StringVarP(&o.dir, "workdir", "w", "", "where it starts (default the user's home)")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE in its environment")
	return cmd
}

func runBoxExec(ctx context.Context, a *app, o *boxExecOptions, ref string, argv []string) error {
	env, err := pairs("--env", o.env)
	if err != nil {
		return err
	}
	if o.tty && !term.IsTerminal(a.out) {
		return usagef("-t needs a terminal here")
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	b, err := findBox(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	x := &boxExec{a: a, c: c.Client, box: b.ID, o: o}
	body := map[string]any{"argv": argv, "env": env, "cwd": o.dir, "user": o.user, "stdin": o.input}
	if o.tty {
		restore, err := term.Raw(a.in)
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "taking over the terminal: %w", err).WithHint("leave out -t")
		}
		defer restore()
		cols, rows := term.Size(a.out)
		body["terminal"] = map[string]int{"cols": cols, "rows": rows}
		if env["TERM"] == "" {
			env["TERM"] = "xterm-256color"
		}
	}
	return x.run(ctx, body)
}

// boxExec is a program under way.
type boxExec struct {
	a   *app
	c   *client.Client
	box string
	o   *boxExecOptions
	pid int
}

// run shows what the program does and returns its exit code as an error.
func (x *boxExec) run(ctx context.Context, body any) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, errs := x.a.out, x.a.errs
	if !x.o.tty { // each for itself: one of them may be a file
		var flushOut, flushErrs func()
		out, flushOut = exact(out)
		errs, flushErrs = exact(errs)
		defer flushOut()
		defer flushErrs()
	}
	for e, err := range x.c.StartProcess(ctx, x.box, body) {
		if err != nil {
			return x.interrupted(ctx, err)
		}
		switch e.Type {
		case "process.started":
			x.pid = e.Pid
			if x.o.input {
				// ends with standard input, which nobody can take away from a read; the process ends soon after
				// us
				go x.feed(ctx)
			}
			if x.o.tty {
				stop := term.OnResize(func() {
					cols, rows := term.Size(x.a.out)
					_ = x.c.ProcessResize(ctx, x.box, x.pid, cols, rows) // the next change sets it right
				})
				defer stop()
			}
		case "process.output":
			w := out
			if e.Stream == "stderr" {
				w = errs
			}
			if _, err := w.Write(e.Data); err != nil {
				x.end(ctx) // nobody reads it: it would wait for that for ever
				return err
			}
		case "process.lost":
			x.a.say("some output came too fast and was lost")
		case "process.ended":
			if e.MemoryLimit != 0 {
				x.a.say("the box's memory limit of %s was hit, and the kernel ended a program",
					formatBytes(e.MemoryLimit))
			}
			return ended(e)
		}
	}
	return nil
}

// interrupted ends the program when we are told to end.
func (x *boxExec) interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && x.pid != 0 {
		x.end(ctx)
	}
	// The program's exit code is not known, so it cannot be ours: this error has the code of a broken connection.
	if x.pid != 0 && ctx.Err() == nil {
		return &exitError{exitTransport, err}
	}
	return shellCode(err)
}

// The codes by which a shell says that it could not start a program.
const (
	exitNotExecutable = 126
	exitNoProgram     = 127
)

// shellCode gives an error of a program that cannot be started the code that a shell gives it.
func shellCode(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "not found in PATH"), strings.HasSuffix(text, "no such file or directory"):
		return &exitError{exitNoProgram, err}
	case strings.HasSuffix(text, "permission denied"), strings.HasSuffix(text, "exec format error"):
		return &exitError{exitNotExecutable, err}
	}
	return err
}

// end tells the program to end.
func (x *boxExec) end(ctx context.Context) {
	const sigterm = 15
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := x.c.ProcessSignal(late, x.box, x.pid, sigterm); err != nil && outboard.KindOf(err) != outboard.NotFound {
		x.a.say("the program may go on: %v", err)
	}
}

// ended turns a program's end into an exit code, as a shell does.
func ended(e client.ProcessEvent) error {
	if e.ExitCode == nil {
		return &exitError{code: 128 + e.SignalNo, err: outboard.Errorf(outboard.Canceled,
			"the program was ended by a signal: %s", e.Signal)}
	}
	if *e.ExitCode != 0 {
		return &exitError{code: *e.ExitCode}
	}
	return nil
}

// feed passes standard input on.
func (x *boxExec) feed(ctx context.Context) {
	buf := make([]byte, 64<<10)
	for {
		n, err := x.a.in.Read(buf)
		eof := err != nil && !x.o.tty
		if n > 0 || eof {
			if x.c.ProcessInput(ctx, x.box, x.pid, buf[:n], eof) != nil {
				return // it has ended, or will not read: its stream tells
			}
		}
		if err != nil {
			if err != io.EOF && !os.IsTimeout(err) {
				x.a.say("reading standard input: %v", err)
			}
			return
		}
	}
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newDoctor(a *app) *cobra.Command {
	return &cobra.Command{Use: "doctor", Short: "Say what this host can isolate, and how to fix the rest",
		Args: exactArgs(),
		Long: "Try to make a sandbox of each isolation and say what it protects and what it does not. Exits with 9 " +
			"when none of the default one can be made.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd.Context(), a) }}
}

// diagnosis is what doctor found.
type diagnosis struct {
	Type string `json:"type"`
	native.Report
	Other  []native.Check `json:"other"` // what is not about sandboxes
	Models []string       `json:"models"`
}

func runDoctor(ctx context.Context, a *app) error {
	d := diagnosis{Type: "doctor", Models: []string{}}
	guest, guestErr := server.FindGuest(a.env)
	if guestErr == nil {
		dir, err := os.MkdirTemp("", "outboard-doctor-")
		if err != nil {
			return fmt.Errorf("making a temporary directory: %w", err)
		}
		defer os.RemoveAll(dir)
		d.Report = native.Probe(ctx, native.Config{Dir: dir, Guest: guest})
	}
	d.Checks = append([]native.Check{check("guest program", guest, guestErr)}, d.Checks...)
	d.other(ctx, a, guest)
	if a.json {
		if err := a.object(d); err != nil {
			return err
		}
	} else if err := d.print(a); err != nil {
		return err
	}
	if !d.Usable {
		return &exitError{code: exitIsolation}
	}
	return nil
}

// check is one line about something that is there or whose absence has a hint.
func check(name, detail string, err error) native.Check {
	c := native.Check{Name: name, OK: err == nil, Detail: detail}
	if err != nil {
		c.Detail = err.Error()
		if e, ok := errors.AsType[*outboard.Error](err); ok {
			c.Fix = e.Hint
		}
	}
	return c
}

// other looks at what runs need besides sandboxes.
func (d *diagnosis) other(ctx context.Context, a *app, guest string) {
	data, err := a.dataDir()
	if err == nil {
		err = writable(data)
	}
	d.Other = append(d.Other, check("data directory", data, err))
	d.Other = append(d.Other, kernelCheck()...)
	git, err := exec.LookPath("git")
	if err != nil {
		err = outboard.Errorf(outboard.Unavailable, "not installed: run cannot send work, diff and apply cannot "+
			"bring it home").WithHint("install git")
	}
	d.Other = append(d.Other, check("git", git, err))
	cfg, err := loadConfig(data, "", a.env)
	if err == nil {
		_, err = llm.NewRegistry(cfg.LLM)
	}
	if err == nil {
		for _, p := range cfg.LLM.Providers {
			d.Models = append(d.Models, p.Name)
		}
		d.Other = append(d.Other, native.Check{Name: "sandbox pool", OK: true,
			Detail: fmt.Sprintf("per kind of sandbox, %d started and %d places kept ready "+
				"(sandbox.warm, sandbox.ahead)", cfg.Sandbox.Guests(), cfg.Sandbox.Places())})
		if guest != "" {
			d.Other = append(d.Other, tryIsolations(ctx, cfg.Sandbox, guest)...)
		}
	}
	d.Other = append(d.Other, check("configuration", "read without mistakes", err))
	if len(d.Models) == 0 {
		d.Other = append(d.Other, native.Check{Name: "models", Detail: "only the scripted model is configured",
			Fix: "set ANTHROPIC_API_KEY, OPENAI_API_KEY or OLLAMA_HOST, or write a configuration: outboard config init"})
	} else {
		d.Other = append(d.Other, check("models", strings.Join(d.Models, ", "), nil))
	}
}

// writable reports whether the data directory can be used, without leaving anything there that was not.
func writable(dir string) error {
	for {
		st, err := os.Stat(dir)
		if err == nil && !st.IsDir() {
			return outboard.Errorf(outboard.Unavailable, "%s is not a directory", dir).
				WithHint("name another with --data")
		}
		if err == nil {
			err := writeSome(dir)
			if outboard.DiskFull(err) {
				return outboard.FullDisk(dir+" cannot be written", err)
			}
			if err != nil {
				return outboard.Errorf(outboard.Unavailable, "%s cannot be written: %w", dir, err).
					WithHint("name another with --data")
			}
			return nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return err
		}
		dir = up // it will be made below the nearest directory that is there
	}
}

// minDiskSpace is what has to fit on the disk of the data directory: less, and a server that starts there can
// make next to nothing.
const minDiskSpace = 1 << 20

// writeSome tries what a server does first: to make a directory, and a file in it.
func writeSome(dir string) error {
	tmp, err := os.MkdirTemp(dir, ".outboard-*")
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(tmp, "some"), make([]byte, minDiskSpace), 0o600)
	return errors.Join(err, os.RemoveAll(tmp))
}

func (d *diagnosis) print(a *app) error {
	st, width := a.style(), term.Width(a.out, 0)
	for _, group := range [][]native.Check{d.Checks, d.Other} {
		for _, c := range group {
			mark := st.Good("ok  ")
			if !c.OK {
				mark = st.Bad("no  ")
			}
			if _, err := fmt.Fprintln(a.out, mark+term.Words(fmt.Sprintf(" %-16s %s", c.Name, term.Line(c.Detail, 0)),
				max(0, width-4), 22)); err != nil {
				return err
			}
			if !c.OK && c.Fix != "" {
				if _, err := fmt.Fprintln(a.out, term.Words(fmt.Sprintf("%22sfix: %s", "", term.Line(c.Fix, 0)), width,
					27)); err != nil {
					return err
				}
			}
		}
	}
	if !d.Usable {
		_, err := fmt.Fprintln(a.out, "\nno sandbox can be made here, so sessions cannot run tools; nothing is ever "+
			"run on the host instead")
		return err
	}
	if _, err := fmt.Fprintf(a.out, "\nisolation        %s\nlimits           %s\n", d.Isolation,
		cmp.Or(strings.Join(d.Limits, ", "), "none")); err != nil {
		return err
	}
	for i, gap := range d.Gaps {
		label := ""
		if i == 0 {
			label = "not protected"
		}
		if _, err := fmt.Fprintln(a.out, term.Words(fmt.Sprintf("%-16s %s", label, gap), width, 17)); err != nil {
			return err
		}
	}
	return nil
}

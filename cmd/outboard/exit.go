package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// The exit codes; docs/reference/cli.md explains them. They are part of the interface and never change meaning.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitNotFound  = 3
	exitSignIn    = 4
	exitConflict  = 5
	exitApproval  = 6
	exitLimit     = 7
	exitCheck     = 8
	exitIsolation = 9
	exitTimeout   = 124
	exitTransport = 255
)

// exitError ends the command with a code of its own. Err nil means that everything has been said.
type exitError struct {
	code int
	err  error
}

// Error returns what went wrong.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// exitCode is the table from error to exit code.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[*client.TransportError](err); ok {
		return exitTransport
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exitTimeout
	}
	if e, ok := errors.AsType[*outboard.Error](err); ok && e.Code == server.CodeNoIsolation {
		return exitIsolation
	}
	switch outboard.KindOf(err) {
	case outboard.Invalid, outboard.TooLarge:
		return exitUsage
	case outboard.NotFound:
		return exitNotFound
	case outboard.Unauthenticated, outboard.Denied:
		return exitSignIn
	case outboard.Conflict:
		return exitConflict
	case outboard.Exhausted:
		return exitLimit
	}
	return exitFailed
}

// finish says what went wrong with a command, in three lines at most, and returns the exit code.
func (a *app) finish(cmd *cobra.Command, err error) int {
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return exitOK
	}
	e, known := errors.AsType[*outboard.Error](err)
	if !a.started && !known { // cobra's own errors
		e, known = usagef("%v", err).WithHint("outboard help lists the commands"), true
		err = e
	}
	code := exitCode(err)
	if x, ok := errors.AsType[*exitError](err); ok && x.err == nil {
		return code
	}
	name, hint := "failed", ""
	if known {
		name, hint = string(e.Kind), outboard.HintOf(err)
		if e.Code != "" {
			name = e.Code
		}
	}
	// the server cannot tell a login that has ended from any other text
	if a.kept != "" && outboard.KindOf(err) == outboard.Unauthenticated {
		hint = "your login there has ended; sign in again: outboard login " + a.kept
	}
	if _, ok := errors.AsType[*client.TransportError](err); ok {
		name, hint = "transport", "check OUTBOARD_URL, or unset it to use the data directory"
		if a.env("OUTBOARD_URL") == "" { // it answered when the command began
			hint = "the server of the data directory is gone; sessions go on once one runs: outboard serve, or " +
				"outboard attach SESSION"
		}
	}
	a.complain(name, asTyped(cmd, err), hint, code)
	return code
}

func (a *app) complain(name, message, hint string, code int) {
	if a.json {
		type body struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Hint    string `json:"hint,omitempty"`
			Exit    int    `json:"exit"`
		}
		b, err := json.Marshal(map[string]any{"error": body{name, message, hint, code}})
		if err == nil {
			fmt.Fprintf(a.errs, "%s\n", term.JSON(b))
		}
		return
	}
	text := strings.ReplaceAll(term.Clean(strings.TrimSpace(message)), "\n", "\n  ")
	fmt.Fprintf(a.errs, "outboard: %s\n", text)
	if hint != "" {
		fmt.Fprintf(a.errs, "hint: %s\n", strings.ReplaceAll(term.Clean(strings.TrimSpace(hint)), "\n", "\n  "))
	}
}

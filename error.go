package outboard

import (
	"errors"
	"fmt"
	"strings"
)

// Kind classifies an error for whoever must answer it: a wire's status code, a CLI's exit code, a retry decision.
type Kind string

// The kinds. Each dialect (HTTP, CLI) has one table from kind to its own code.
const (
	Invalid         Kind = "invalid"         // the request is wrong and would be wrong again
	Unauthenticated Kind = "unauthenticated" // no or bad credential
	Denied          Kind = "denied"          // known caller, not allowed
	NotFound        Kind = "not_found"       // absent, or not the caller's: the two are never told apart
	Conflict        Kind = "conflict"        // the state moved or forbids it; reading again may help
	TooLarge        Kind = "too_large"       // over a stated limit
	Exhausted       Kind = "exhausted"       // a budget, quota or rate limit is used up
	Unavailable     Kind = "unavailable"     // a dependency is down or the host lacks it; the same call may work later
	Unimplemented   Kind = "unimplemented"   // part of the wire, not built
	Canceled        Kind = "canceled"        // the caller went away
	Internal        Kind = "internal"        // our fault; the text never leaves the server
)

// Error is an error with a kind, a message fit for the user and, where one is known, the next thing to do.
type Error struct {
	Kind    Kind
	Code    string // stable machine code where a wire defines one, e.g. "environment_archived"; else empty
	Message string // names what and why, in one sentence
	Hint    string // the next command or change, or empty
	// what clients are told instead, where Message has what is the operator's own: addresses, users, paths; else
	// empty
	Public string
	Err    error // the cause, for errors.Is and the log
}

// Error returns the message. Errorf has already worked a wrapped cause into it.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error of a kind. A %w verb sets its cause's chain as usual; a hint of the cause is the new
// error's too, since who reads the last error of a chain can do just what the first one says.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Hint: HintOf(err), Err: errors.Unwrap(err)}
}

// HintOf returns the first hint in err's chain, or "".
func HintOf(err error) string {
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Err) {
		if e.Hint != "" {
			return e.Hint
		}
	}
	return ""
}

// HasCode reports whether an error of a chain has a code.
func HasCode(err error, code string) bool {
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Err) {
		if e.Code == code {
			return true
		}
	}
	return false
}

// PublicOf is what a client is told of err: its text, with the first Public in its chain instead of what that
// stands for. Logs have the text.
func PublicOf(err error) string {
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Err) {
		if e.Public == "" {
			continue
		}
		if before, after, found := strings.Cut(err.Error(), e.Message); found {
			return before + e.Public + after
		}
		return e.Public
	}
	return err.Error()
}

// WithPublic returns a copy of e that tells clients something else than its message.
func (e *Error) WithPublic(format string, args ...any) *Error {
	c := *e
	c.Public = fmt.Sprintf(format, args...)
	return &c
}

// WithHint returns a copy of e that names the next thing to do.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithCode returns a copy of e with a stable machine code.
func (e *Error) WithCode(code string) *Error {
	c := *e
	c.Code = code
	return &c
}

// KindOf reports the kind of the first Error in err's chain, or Internal.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

package outboard_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Fails if the next thing to do is lost on the way up: each layer wraps, and only the last one is shown.
func TestHintsSurviveWrapping(t *testing.T) {
	inner := outboard.Errorf(outboard.Unavailable, "the disk is full").WithHint("free space")
	for name, err := range map[string]error{
		"itself":       inner,
		"wrapped":      fmt.Errorf("opening: %w", inner),
		"another kind": outboard.Errorf(outboard.Internal, "starting: %w", inner),
		"twice": outboard.Errorf(outboard.Unavailable, "x: %w",
			fmt.Errorf("y: %w", outboard.Errorf(outboard.Invalid, "z: %w", inner))),
		"joined":           errors.Join(errors.New("first"), inner),
		"joined and built": outboard.Errorf(outboard.Unavailable, "x: %w", errors.Join(inner, errors.New("second"))),
		"a literal":        &outboard.Error{Kind: outboard.Invalid, Message: "m", Err: inner},
	} {
		if got := outboard.HintOf(err); got != "free space" {
			t.Errorf("%s: hint %q", name, got)
		}
	}
	if got := outboard.HintOf(outboard.Errorf(outboard.Invalid, "x: %w", inner).
		WithHint("do this first")); got != "do this first" {
		t.Errorf("a hint of its own: %q", got)
	}
	for _, err := range []error{nil, errors.New("x"), outboard.Errorf(outboard.Invalid, "x: %w", errors.New("y"))} {
		if got := outboard.HintOf(err); got != "" {
			t.Errorf("%v has the hint %q", err, got)
		}
	}
}

// Fails if a client is told what only the operator should read, or the log loses it.
func TestPublicSurvivesWrapping(t *testing.T) {
	inner := outboard.Errorf(outboard.Unavailable, "database x on /run/pg cannot be reached").
		WithPublic("the database is away")
	for want, err := range map[string]error{
		"the database is away":          inner,
		"opening: the database is away": fmt.Errorf("opening: %w", inner),
		"the kill holds: x: the database is away\ny": outboard.Errorf(outboard.Unavailable, "the kill holds: %w",
			errors.Join(fmt.Errorf("x: %w", inner), errors.New("y"))).WithHint("h"),
	} {
		if got := outboard.PublicOf(err); got != want || !strings.Contains(err.Error(), "/run/pg") {
			t.Errorf("a client is told %q of %q", got, err)
		}
	}
	if got := outboard.PublicOf(&outboard.Error{Kind: outboard.Unavailable, Message: "other words",
		Err: inner}); got != "the database is away" {
		t.Errorf("a client is told %q", got)
	}
	for _, err := range []error{errors.New("x"), outboard.Errorf(outboard.Invalid, "name: %w", errors.New("empty"))} {
		if got := outboard.PublicOf(err); got != err.Error() {
			t.Errorf("a client is told %q of %q", got, err)
		}
	}
}

// Fails if a full disk is not known as one above the layer that met it, or if a client is told a path of the host.
func TestFullDisk(t *testing.T) {
	cause := &fs.PathError{Op: "write", Path: "/var/lib/outboard/x", Err: syscall.ENOSPC}
	full := fmt.Errorf("making a sandbox: %w", outboard.FullDisk("writing its state", cause))
	if outboard.KindOf(full) != outboard.Unavailable || !outboard.DiskFull(full) ||
		!strings.Contains(full.Error(), "/var/lib") {
		t.Errorf("the log has %q, of kind %s", full, outboard.KindOf(full))
	}
	if got, want := outboard.PublicOf(full), "making a sandbox: writing its state: the server's disk is full"; got != want {
		t.Errorf("a client is told %q, want %q", got, want)
	}
	if hint := outboard.HintOf(full); !strings.Contains(hint, "outboard blob prune") ||
		!strings.Contains(hint, "outboard rm") {
		t.Errorf("the hint is %q", hint)
	}
	for _, err := range []error{cause, syscall.EDQUOT, outboard.Errorf(outboard.Unavailable, "x: %w",
		(&outboard.Error{Message: "y"}).WithCode(outboard.CodeDiskFull))} {
		if !outboard.DiskFull(err) {
			t.Errorf("%v is not a full disk", err)
		}
	}
	for _, err := range []error{nil, errors.New("the disk is full"), syscall.EIO,
		outboard.Errorf(outboard.Unavailable, "x: %w", syscall.ENOENT)} {
		if outboard.DiskFull(err) {
			t.Errorf("%v is a full disk", err)
		}
	}
}

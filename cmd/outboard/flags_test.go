package main

import (
	"io"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
)

// Fails if an error of a command speaks of what nobody has typed, or if other words than the field are taken for it.
func TestErrorsNameFlags(t *testing.T) {
	for _, c := range []struct {
		args, text, want string
		kind             outboard.Kind
	}{
		{"key create x --for -1h", "expires_in_seconds must be positive", "--for must be positive", outboard.Invalid},
		{"key create x", "expires_in_seconds must be positive", "expires_in_seconds must be positive",
			outboard.Invalid},
		{"key create x --for -1h", "no expires_in_seconds", "no expires_in_seconds", outboard.NotFound},
		{"key create x --role r", "role must be viewer, not r", "--role must be viewer, not r", outboard.Invalid},
		{"key create x --role r", "a role must be viewer", "a role must be viewer", outboard.Invalid},
		{"key create x --role r", "roles are many", "roles are many", outboard.Invalid},
		{"key create x --scope a", "scopes: a is not one of b", "--scope: a is not one of b", outboard.Invalid},
		{"key create x --scope a --for 1h", "with scopes, expires_in_seconds is wrong", "with scopes, --for is wrong",
			outboard.Invalid},
		{"grant add --for 1s --uses 2", "max_uses must not be negative", "--uses must not be negative",
			outboard.Invalid},
		{"fork s -n 0", "count must be 1 to 16, not 0", "--number must be 1 to 16, not 0", outboard.Invalid},
		{"run --vault a task", "vault_ids[0]: it is there twice", "--vault[0]: it is there twice", outboard.Invalid},
		{"run --model a task", "model.speed must be fast", "model.speed must be fast", outboard.Invalid},
	} {
		root := (&app{in: strings.NewReader(""), out: io.Discard, errs: io.Discard,
			env: func(string) string { return "" }}).root()
		cmd, args, err := root.Find(strings.Fields(c.args))
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.args, err)
		}
		if got := asTyped(cmd, outboard.Errorf(c.kind, "%s", c.text)); got != c.want {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
}

// Fails if the table names a command or a flag that is not there any more.
func TestFields(t *testing.T) {
	root := (&app{in: strings.NewReader(""), out: io.Discard, errs: io.Discard,
		env: func(string) string { return "" }}).root()
	for path, flags := range fields {
		cmd, _, err := root.Find(strings.Fields(path)[1:])
		if err != nil || cmd.CommandPath() != path {
			t.Errorf("there is no %s: %v", path, err)
			continue
		}
		for name := range flags {
			if cmd.Flags().Lookup(name) == nil {
				t.Errorf("%s has no --%s", path, name)
			}
		}
	}
}

// Broken if a saved state that will never be stored is shown as one that will.
func TestDurability(t *testing.T) {
	for want, k := range map[string]client.Checkpoint{
		"yes": {Durable: true}, "not yet": {}, "no: too large": {Lost: "too_large"}, "no: host lost": {Lost: "host_lost"},
	} {
		if got := durability(k); got != want {
			t.Errorf("%+v is %q, want %q", k, got, want)
		}
	}
}

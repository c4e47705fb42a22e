package main

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Broken if a guest that cannot start in a sandbox is found out only by every sandbox.
func TestGuestIsStatic(t *testing.T) {
	find := func(path string) (string, error) {
		return findGuest(func(name string) string { return map[string]string{"OUTBOARD_GUEST": path}[name] })
	}
	if path, err := find(guestPath); err != nil || path != guestPath {
		t.Fatalf("the control: %q, %v", path, err)
	}
	_, err := find("/bin/sh")
	if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(), "dynamic loader /lib") {
		t.Errorf("a program that needs a loader: %v", err)
	}
}

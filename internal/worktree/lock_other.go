//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package worktree

import (
	"context"
	"os"
)

// lock does nothing where there is no flock: one apply at a time is the user's care.
func lock(context.Context, string) (unlock func(), err error) { return func() {}, nil }

func keepOwner(*os.Root, string, string) error { return nil }

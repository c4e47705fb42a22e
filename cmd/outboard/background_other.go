//go:build !unix

package main

import (
	"context"
	"errors"
	"os/exec"
)

// canDetach: sandboxes are made on Linux only, so there is no work to leave behind here.
const canDetach = false

func detach(*exec.Cmd) {}

func terminate(int) error { return errors.ErrUnsupported }

func lockFile(context.Context, string) (func(), error) { return nil, errors.ErrUnsupported }

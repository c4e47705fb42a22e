//go:build !unix

package storetest

import (
	"errors"
	"os/exec"
)

// detach refuses: a server is started on Unix only; elsewhere OUTBOARD_TEST_POSTGRES names one.
func detach(*exec.Cmd, string) error {
	if _, _, err := owner(); err != nil {
		return err
	}
	return errors.New("a server can be started only on Unix")
}

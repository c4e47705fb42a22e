//go:build unix

package term

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// waitInput waits until a read would not block: for ever, or not at all with timeout 0.
func waitInput(f *os.File, timeout int) error {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, timeout)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errNoInput
		default:
			return nil
		}
	}
}

package term

import (
	"os"

	"golang.org/x/sys/unix"
)

// discard fails only where there is no terminal any more, and nothing to drop.
func discard(f *os.File) { _ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) }

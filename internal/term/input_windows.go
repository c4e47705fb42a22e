package term

import (
	"os"

	"golang.org/x/sys/windows"
)

// waitInput does not wait: the read does.
func waitInput(*os.File, int) error { return nil }

// discard fails only where there is no console any more, and nothing to drop.
func discard(f *os.File) { _ = windows.FlushConsoleInputBuffer(windows.Handle(f.Fd())) }

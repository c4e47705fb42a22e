//go:build unix

package main

import (
	"fmt"
	"runtime"
	"syscall"
)

// noCoreDumps keeps this process's memory, which holds open secrets for moments, out of files and crash
// collectors. On Linux the limit is one byte: no file is written below a page, and the kernel takes exactly one
// as "do not pipe it to a collector either", where it would not heed zero.
func noCoreDumps() error {
	limit := syscall.Rlimit{}
	if runtime.GOOS == "linux" {
		limit.Cur, limit.Max = 1, 1
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("switching core dumps off: %w", err)
	}
	return nil
}

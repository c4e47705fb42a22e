package main

import (
	"os"
	"path/filepath"
)

// processesMarked counts the processes of this machine that sleep for a time that nothing else sleeps for.
func processesMarked(mark string) (n int) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0
	}
	for _, path := range lines {
		if b, err := os.ReadFile(path); err == nil && string(b) == "sleep\x00"+mark+"\x00" {
			n++
		}
	}
	return n
}

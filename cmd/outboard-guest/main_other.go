//go:build !linux

// Outboard-guest runs inside Linux sandboxes only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "outboard-guest: runs on Linux only")
	os.Exit(1)
}

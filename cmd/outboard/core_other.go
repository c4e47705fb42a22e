//go:build !unix

package main

// noCoreDumps does nothing where processes write no core files.
func noCoreDumps() error { return nil }

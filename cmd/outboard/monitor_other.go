//go:build !linux

package main

// seldom is for Linux, where servers run.
func seldom() {}

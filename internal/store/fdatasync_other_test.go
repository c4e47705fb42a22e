//go:build !linux

package store_test

import "os"

func fdatasync(f *os.File) error { return f.Sync() }

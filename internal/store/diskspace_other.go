//go:build !linux

package store

import "errors"

// noDiskSpace says that there is room: no server runs here.
func noDiskSpace(string) bool { return false }

func diskSpace(string) (uint64, bool) { return 0, false }

// allocate makes no file, for the same reason.
func allocate(string, int64) error { return errors.ErrUnsupported }

//go:build !linux

package store

import "errors"

// noRoom says that there is room: no server runs here.
func noRoom(string) bool { return false }

func room(string) (uint64, bool) { return 0, false }

// allocate makes no file, for the same reason.
func allocate(string, int64) error { return errors.ErrUnsupported }

//go:build !unix

package blob

// syncDir does nothing where directories cannot be opened for syncing; the file system orders renames itself there.
func syncDir(string) error { return nil }

// isFull reports nothing where the error numbers have other names; the message carries the system's own text.
func isFull(error) bool { return false }

//go:build !unix

package blob

// syncDir does nothing where directories cannot be opened for syncing; the file system orders renames itself there.
func syncDir(string) error { return nil }

// lockDir locks nothing: no server runs where it cannot.
func lockDir(string, bool) (unlock func(), err error) { return func() {}, nil }

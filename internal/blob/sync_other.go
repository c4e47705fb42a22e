//go:build !unix

package blob

import (
	"errors"
	"os"
)

// syncDir does nothing where directories cannot be opened for syncing; the file system orders renames itself there.
func syncDir(string) error { return nil }

// lockDir locks nothing: no server runs where it cannot.
func lockDir(string, bool) (unlock func(), err error) { return func() {}, nil }

// lockFile and tryLock lock nothing, so nobody's file is taken for one that nobody has.
func lockFile(*os.File) error { return errors.ErrUnsupported }
func tryLock(*os.File) error  { return errors.ErrUnsupported }

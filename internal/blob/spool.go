package blob

import (
	"os"
	"time"

	"github.com/outboard-dev/outboard"
)

// Spool is a directory for content that is read whole before it is known whether any of it is to be stored. nil
// is the system's directory for temporary files. It is safe for concurrent use by several processes.
type Spool struct {
	dir string
}

// NewSpool returns the spool in dir, creating the directory (0700), and removes what a crash left there.
func NewSpool(dir string) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "creating the spool: %w", err)
	}
	if err := sweep(dir, time.Now().Add(-staleTemp)); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "tidying the spool: %w", err)
	}
	return &Spool{dir}, nil
}

// Spooled is a file that only who made it knows. Close it.
type Spooled struct {
	*os.File
}

// New makes an empty file. It has no name, so that nothing is left of it when the process ends, however it does.
func (s *Spool) New() (Spooled, error) {
	dir := ""
	if s != nil {
		dir = s.dir
	}
	f, err := os.CreateTemp(dir, "spool-*")
	if err != nil {
		return Spooled{}, SpoolError(err)
	}
	_ = os.Remove(f.Name()) // a system that cannot does at Close
	return Spooled{f}, nil
}

// Close removes the file.
func (s Spooled) Close() error {
	err := s.File.Close()
	_ = os.Remove(s.Name()) // gone already
	return err
}

// SpoolError is what a read or a write of a spooled file came to, for a user.
func SpoolError(err error) error {
	return failed("spooling", "a file", err)
}

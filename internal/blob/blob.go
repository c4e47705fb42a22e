// Package blob stores immutable bytes under their SHA-256. Putting the same bytes twice is one blob. The local directory is
// the first implementation; an object store comes behind the same methods.
package blob

import (
	"context"
	"io"

	"github.com/outboard-dev/outboard"
)

// Store is a content-addressed store. It is safe for concurrent use by several processes on one directory.
type Store interface {
	// Put stores what r yields, durably, before it returns. It never reads more than limit bytes (TooLarge); 0 = no limit.
	Put(ctx context.Context, r io.Reader, limit int64) (outboard.BlobRef, error)
	// Open returns the bytes of ref. NotFound if there are none; a digest mismatch found while reading is an error, never EOF.
	Open(ctx context.Context, ref outboard.BlobRef) (io.ReadCloser, error)
}

// Dir is a Store in a local directory.
type Dir struct{ path string }

// NewDir returns the store in path, creating the directory (0700).
func NewDir(path string) (*Dir, error) { panic("later") }

// Put implements Store.
func (d *Dir) Put(ctx context.Context, r io.Reader, limit int64) (outboard.BlobRef, error) {
	panic("later")
}

// Open implements Store.
func (d *Dir) Open(ctx context.Context, ref outboard.BlobRef) (io.ReadCloser, error) { panic("later") }

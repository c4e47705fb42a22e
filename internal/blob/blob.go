// Package blob owns immutable bytes, stored under their SHA-256: in a local directory (Dir) or in a
// bucket (S3), behind one interface (Store).
//
// Invariants:
//   - Putting the same bytes twice gives one blob.
//   - Content is checked against its digest before its end is handed out.
//   - Long content is stored in pieces; nobody above this package knows.
//
// It never knows what a blob means or who needs it: a caller of Prune says what stays.
//
// Start reading at Store and Dir.
package blob

import (
	"context"
	"fmt"
	"io"

	"github.com/outboard-dev/outboard"
)

// Store is a content-addressed store. It is safe for concurrent use by several processes on one directory.
type Store interface {
	// Put stores what r yields, durably, before it returns. It never reads more than limit bytes (TooLarge); 0 =
	// no limit.
	Put(ctx context.Context, r io.Reader, limit int64) (outboard.BlobRef, error)
	// Open returns the bytes of ref. NotFound if there are none; a digest mismatch found while reading is an
	// error, never EOF.
	Open(ctx context.Context, ref outboard.BlobRef) (io.ReadCloser, error)
}

// Bytes returns a whole blob of at most max bytes: TooLarge, without reading it, for a longer one.
func Bytes(ctx context.Context, s Store, ref outboard.BlobRef, max int64) ([]byte, error) {
	if ref.Size > max {
		return nil, outboard.Errorf(outboard.TooLarge, "blob %s has %d bytes, over the limit of %d", ref.Digest,
			ref.Size, max)
	}
	r, err := s.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading blob %s: %w", ref.Digest, err)
	}
	return b, nil
}

// Stored returns what some blobs take together: pieces that several have count once. It is what their content has,
// before compression.
func Stored(ctx context.Context, s Store, refs []outboard.BlobRef) (n int64, err error) {
	cut, _ := s.(interface {
		pieces(ctx context.Context, ref outboard.BlobRef) ([]outboard.BlobRef, error)
	})
	seen := map[string]bool{}
	for _, ref := range refs {
		parts := []outboard.BlobRef{ref}
		if cut != nil && ref.Size > smallBlob && !seen[ref.Digest] {
			list, err := cut.pieces(ctx, ref)
			if err != nil && outboard.KindOf(err) != outboard.NotFound {
				return 0, err
			}
			if list != nil {
				parts = list
			}
		}
		for _, p := range parts {
			if !seen[p.Digest] {
				n += p.Size
			}
			seen[p.Digest] = true
		}
		seen[ref.Digest] = true
	}
	return n, nil
}

// validRef reports whether ref can name a blob. A digest becomes part of a path, so nothing but 64 lower-case
// hex digits may pass.
func validRef(ref outboard.BlobRef) bool {
	if len(ref.Digest) != 64 || ref.Size < 0 {
		return false
	}
	for i := range len(ref.Digest) {
		c := ref.Digest[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

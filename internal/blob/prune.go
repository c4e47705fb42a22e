package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// freshEvery is how old Put lets a blob that it finds stored look. What was put counts as young for that much
// less than Prune says.
const freshEvery = time.Hour

// Pruned is what Prune removed, or would have.
type Pruned struct {
	Removed int
	Bytes   int64 // on the disk
	Kept    int   // needed, or too young
}

// Pruner is a Store that can remove blobs.
type Pruner interface {
	// Prune removes the blobs that were last put before a time and are not needed; with dry it only counts. What
	// needed says of a blob must hold for as long as nobody puts it again. One that is put meanwhile, by
	// whichever process, stays.
	Prune(ctx context.Context, before time.Time, needed func(digest string) bool, dry bool) (Pruned, error)
}

// Prune implements Pruner. It first reads the lists of pieces, then looks at every blob once, a directory at a time.
func (d *Dir) Prune(ctx context.Context, before time.Time, needed func(digest string) bool,
	dry bool) (p Pruned, err error) {
	leaves, err := filepath.Glob(filepath.Join(d.path, "[0-9a-f][0-9a-f]", "[0-9a-f][0-9a-f]"))
	if err != nil {
		return p, fmt.Errorf("blob store: %w", err)
	}
	pieces, err := d.piecesNeeded(ctx, leaves, before, needed)
	if err != nil {
		return p, err
	}
	for _, leaf := range leaves {
		if ctx.Err() != nil {
			return p, outboard.Errorf(outboard.Canceled, "removing blobs: %w", context.Cause(ctx))
		}
		keep := func(digest string) bool { return pieces[digest] || needed(digest) }
		if err := d.pruneLeaf(leaf, before, keep, dry, &p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// piecesNeeded returns the pieces of the blobs that stay. Of a blob that is put from now on, every piece is put
// too, and so is too young to be removed.
func (d *Dir) piecesNeeded(
	ctx context.Context, leaves []string, before time.Time, needed func(string) bool,
) (map[string]bool, error) {
	pieces := map[string]bool{}
	for _, leaf := range leaves {
		if ctx.Err() != nil {
			return nil, outboard.Errorf(outboard.Canceled, "removing blobs: %w", context.Cause(ctx))
		}
		names, err := filepath.Glob(filepath.Join(leaf, "*"+piecesSuffix))
		if err != nil {
			return nil, fmt.Errorf("blob store: %w", err)
		}
		for _, path := range names {
			info, err := os.Stat(path)
			if err == nil && info.ModTime().Before(before) &&
				!needed(strings.TrimSuffix(filepath.Base(path), piecesSuffix)) {
				continue
			}
			var list []outboard.BlobRef
			if err == nil {
				list, err = readListFile(path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				continue // another process is at it too
			}
			if err != nil {
				return nil, failed("reading", path, err)
			}
			for _, piece := range list {
				pieces[piece.Digest] = true
			}
		}
	}
	return pieces, nil
}

func readListFile(path string) ([]outboard.BlobRef, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readPieceList(f, path)
}

// pruneLeaf is Prune of one directory. It is locked meanwhile, against a Put that finds a blob there and says
// that it is stored.
func (d *Dir) pruneLeaf(leaf string, before time.Time, needed func(string) bool, dry bool, p *Pruned) error {
	unlock, err := lockDir(leaf, true)
	if err != nil {
		return failed("locking", leaf, err)
	}
	defer unlock()
	entries, err := os.ReadDir(leaf)
	if err != nil {
		return failed("listing", leaf, err)
	}
	for _, e := range entries {
		digest := strings.TrimSuffix(strings.TrimSuffix(e.Name(), compressedSuffix), piecesSuffix)
		if !validRef(outboard.BlobRef{Digest: digest}) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process is at it too
		}
		if err != nil {
			return failed("looking for", e.Name(), err)
		}
		if !info.ModTime().Before(before) || needed(digest) {
			p.Kept++
			continue
		}
		if !dry {
			if err := os.Remove(filepath.Join(leaf, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return failed("removing", e.Name(), err)
			}
		}
		p.Removed++
		p.Bytes += info.Size()
	}
	return nil
}

// found makes a blob that Put has found stored look as if it had been put now, and reports whether it is there still.
func (d *Dir) found(path string) (bool, error) {
	unlock, err := lockDir(filepath.Dir(path), false)
	if err != nil {
		return false, failed("locking", filepath.Dir(path), err)
	}
	defer unlock()
	info, err := os.Stat(path)
	if err == nil && time.Since(info.ModTime()) > freshEvery {
		now := time.Now()
		err = os.Chtimes(path, now, now)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, failed("looking for", path, err)
	}
	return true, nil
}

package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// smallBlob is what Put holds in memory to learn the digest before it touches the disk; longer content is
	// stored in pieces. A megabyte covers nearly every event payload and checkpoint delta.
	smallBlob = 1 << 20
	// staleTemp is how long a temporary file may go unwritten before NewDir takes it for what a crash left,
	// where no lock tells. A live writer that stalls longer than this loses its file and reports Unavailable; it
	// never stores half of one.
	staleTemp = time.Hour
)

// Dir is a Store in a local directory: ab/cd/abcd... per blob (with .zst where it is compressed, .pieces where it
// is a list of other blobs), and tmp for files being written. A blob's file appears under its name by rename,
// complete and durable, or not at all.
type Dir struct {
	path    string
	durable sync.Map // directories that this process has synced into their parents
}

// NewDir returns the store in path, creating the directory (0700), and removes temporary files that a crash left
// behind.
func NewDir(path string) (*Dir, error) {
	d := &Dir{path: path}
	if err := os.MkdirAll(d.temp(), 0o700); err != nil {
		return nil, failed("creating", path, err)
	}
	if err := sweep(d.temp(), time.Now().Add(-staleTemp)); err != nil {
		return nil, failed("tidying", d.temp(), err)
	}
	return d, nil
}

func (d *Dir) temp() string { return filepath.Join(d.path, "tmp") }

func (d *Dir) file(digest string) string {
	return filepath.Join(d.path, digest[:2], digest[2:4], digest)
}

// Put implements Store. Bytes that are stored already are not written again. Unavailable: the directory cannot
// be written, for instance because the disk is full.
func (d *Dir) Put(ctx context.Context, r io.Reader, limit int64) (outboard.BlobRef, error) {
	src := &source{ctx: ctx, r: r, limit: limit, sum: sha256.New()}
	var head bytes.Buffer
	_, err := io.CopyN(&head, src, smallBlob)
	if err == io.EOF {
		return d.putSmall(src.ref(), head.Bytes())
	}
	if err != nil {
		return outboard.BlobRef{}, err
	}
	return d.putPieces(src, io.MultiReader(&head, src))
}

// putPieces stores content that is too long to be one file. Its length does not matter to memory.
func (d *Dir) putPieces(src *source, r io.Reader) (outboard.BlobRef, error) {
	staged, err := d.stage()
	if err != nil {
		return outboard.BlobRef{}, err
	}
	defer staged.close()
	list, err := putPieces(r, staged.put)
	if src.err != nil {
		return outboard.BlobRef{}, src.err
	}
	if err == nil {
		err = staged.commit()
	}
	if err != nil {
		return outboard.BlobRef{}, err
	}
	return d.putList(src.ref(), list)
}

// putList stores the list of a blob's pieces, which are stored.
func (d *Dir) putList(ref outboard.BlobRef, list []outboard.BlobRef) (outboard.BlobRef, error) {
	if len(list) == 1 { // which is the blob
		return ref, nil
	}
	if have, err := d.have(ref); have || err != nil {
		return ref, err
	}
	return ref, d.write(d.file(ref.Digest)+piecesSuffix, pieceList(list))
}

// putSmall stores content whose digest is known before anything is written.
func (d *Dir) putSmall(ref outboard.BlobRef, content []byte) (outboard.BlobRef, error) {
	if have, err := d.have(ref); have || err != nil {
		return ref, err
	}
	path := d.file(ref.Digest)
	if z := compressed(content); z != nil {
		content, path = z, path+compressedSuffix
	}
	return ref, d.write(path, content)
}

// write makes content the file at path.
func (d *Dir) write(path string, content []byte) error {
	f, err := createHeld(d.temp())
	if err != nil {
		return failed("creating a file in", d.temp(), err)
	}
	defer os.Remove(f.Name()) // gone already when it was renamed
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return failed("writing into", d.temp(), err)
	}
	return d.commit(f, path)
}

// have reports whether ref is stored, whole or in pieces.
func (d *Dir) have(ref outboard.BlobRef) (bool, error) {
	if have, err := d.haveWhole(ref); have || err != nil {
		return have, err
	}
	return d.haveFile(d.file(ref.Digest)+piecesSuffix, -1)
}

// haveWhole reports whether ref is stored as one file.
func (d *Dir) haveWhole(ref outboard.BlobRef) (bool, error) {
	path := d.file(ref.Digest)
	if have, err := d.haveFile(path, ref.Size); have || err != nil {
		return have, err
	}
	return d.haveFile(path+compressedSuffix, -1)
}

// haveFile reports whether a file of size bytes is there; -1 is any but 0: a rename made it, so it is whole. One
// of the wrong length counts as absent, and is replaced. The directory is synced because another process may have
// renamed the file into it and not have come to its own sync.
func (d *Dir) haveFile(path string, size int64) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, failed("looking for", path, err)
	}
	if size < 0 && info.Size() == 0 || size >= 0 && info.Size() != size {
		return false, nil
	}
	if there, err := d.found(path); !there || err != nil {
		return false, err
	}
	return true, d.syncDir(filepath.Dir(path))
}

// commit makes the complete temporary file f the blob at path. Its data and the directories above its place are
// made durable side by side, since neither needs the other, then the name.
func (d *Dir) commit(f *os.File, path string) error {
	var dirs error
	var wg sync.WaitGroup
	wg.Go(func() { dirs = d.makeDirs(path) })
	err := f.Sync()
	wg.Wait()
	if err != nil {
		return failed("syncing", f.Name(), err)
	}
	if dirs != nil {
		return dirs
	}
	if err := os.Rename(f.Name(), path); err != nil { // before it is closed, and with that given up
		return failed("renaming to", path, err)
	}
	if err := f.Close(); err != nil {
		return failed("closing", path, err)
	}
	return d.syncDir(filepath.Dir(path))
}

// makeDirs creates the two directories above a blob's file, each durable in its parent. One that exists is
// synced too, once per process: its maker may not have come to it.
func (d *Dir) makeDirs(path string) error {
	leaf := filepath.Dir(path)
	for _, dir := range []string{filepath.Dir(leaf), leaf} {
		if _, ok := d.durable.Load(dir); ok {
			continue
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return failed("creating", dir, err)
		}
		if err := d.syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
		d.durable.Store(dir, nil)
	}
	return nil
}

func (d *Dir) syncDir(path string) error {
	if err := syncDir(path); err != nil {
		return failed("syncing", path, err)
	}
	return nil
}

// failed wraps an error of the file system, which names the path once; clients are not told it. It is
// Unavailable: the same call works again once the disk does.
func failed(doing, path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		err = e.Err
	}
	if outboard.DiskFull(err) {
		return outboard.FullDisk("storing a blob", fmt.Errorf("%s %s: %w", doing, path, err))
	}
	public := "the blob store of the server fails"
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		public += ": " + errno.Error()
	}
	return outboard.Errorf(outboard.Unavailable, "blob store: %s %s: %w", doing, path, err).WithPublic("%s", public)
}

// Open implements Store.
func (d *Dir) Open(ctx context.Context, ref outboard.BlobRef) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, outboard.Errorf(outboard.Canceled, "opening blob: %w", context.Cause(ctx))
	}
	if !validRef(ref) {
		return nil, outboard.Errorf(outboard.NotFound, "blob %.80q does not exist", ref.Digest)
	}
	r, err := d.openWhole(ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	path := d.file(ref.Digest) + piecesSuffix
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "blob %s does not exist", ref.Digest)
	}
	if err != nil {
		return nil, failed("opening", path, err)
	}
	defer f.Close()
	list, err := readPieceList(f, path)
	if err != nil {
		return nil, err
	}
	return newVerified(openPieces(ctx, path, list, d.openPiece), ref, path, false)
}

// pieces returns the pieces of a blob; NotFound when it has no list of them.
func (d *Dir) pieces(_ context.Context, ref outboard.BlobRef) ([]outboard.BlobRef, error) {
	list, err := readListFile(d.file(ref.Digest) + piecesSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "blob %s has no pieces", ref.Digest)
	}
	return list, err
}

// openPiece opens a piece.
func (d *Dir) openPiece(_ context.Context, ref outboard.BlobRef) (io.ReadCloser, error) {
	r, err := d.openWhole(ref)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "blob %s does not exist", ref.Digest)
	}
	return r, err
}

// openWhole opens what is stored as one file; fs.ErrNotExist when there is none.
func (d *Dir) openWhole(ref outboard.BlobRef) (io.ReadCloser, error) {
	for _, suffix := range []string{"", compressedSuffix} {
		path := d.file(ref.Digest) + suffix
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, failed("opening", path, err)
		}
		return newVerified(f, ref, path, suffix != "")
	}
	return nil, fs.ErrNotExist
}

// source reads the caller's content: counted against the limit, hashed, and stopped when ctx ends.
type source struct {
	ctx   context.Context
	r     io.Reader
	limit int64 // 0 = none
	sum   hash.Hash
	n     int64
	err   error // first error but EOF
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		s.err = outboard.Errorf(outboard.Canceled, "storing blob: %w", context.Cause(s.ctx))
		return 0, s.err
	}
	if s.limit > 0 {
		p = p[:min(int64(len(p)), s.limit-s.n+1)] // one more than allowed tells "at the limit" from "over"
	}
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	if s.limit > 0 && s.n > s.limit {
		s.err = outboard.Errorf(outboard.TooLarge, "content is over the limit of %d bytes", s.limit)
		return 0, s.err
	}
	if err != nil && err != io.EOF {
		s.err = fmt.Errorf("reading content to store: %w", err)
		return n, s.err
	}
	return n, err
}

func (s *source) ref() outboard.BlobRef {
	return outboard.BlobRef{Digest: hex.EncodeToString(s.sum.Sum(nil)), Size: s.n}
}

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
	// smallBlob is what Put holds in memory to learn the digest before it touches the disk; longer content goes through a
	// temporary file at once. A megabyte covers nearly every event payload and checkpoint delta.
	smallBlob = 1 << 20
	// staleTemp is how long a temporary file may go unwritten before NewDir takes it for what a crash left, where no lock tells. A live writer
	// that stalls longer than this loses its file and reports Unavailable; it never stores half of one.
	staleTemp = time.Hour
)

// Dir is a Store in a local directory: ab/cd/abcd... per blob (with .zst where it is compressed), and tmp for files being written. A blob's file appears under its
// name by rename, complete and durable, or not at all.
type Dir struct {
	path    string
	durable sync.Map // directories that this process has synced into their parents
}

// NewDir returns the store in path, creating the directory (0700), and removes temporary files that a crash left behind.
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

// Put implements Store. Bytes that are stored already are not written again. Unavailable: the directory cannot be written, for
// instance because the disk is full.
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
	return d.putStream(src, io.MultiReader(bytes.NewReader(head.Bytes()), src), compressed(head.Bytes()) != nil)
}

// putSmall stores content whose digest is known before anything is written.
func (d *Dir) putSmall(ref outboard.BlobRef, content []byte) (outboard.BlobRef, error) {
	if have, err := d.have(ref); have || err != nil {
		return ref, err
	}
	f, err := createHeld(d.temp())
	if err != nil {
		return outboard.BlobRef{}, failed("creating a file in", d.temp(), err)
	}
	defer os.Remove(f.Name()) // gone already when it was renamed
	defer f.Close()
	path := d.file(ref.Digest)
	if z := compressed(content); z != nil {
		content, path = z, path+compressedSuffix
	}
	if _, err := f.Write(content); err != nil {
		return outboard.BlobRef{}, failed("writing into", d.temp(), err)
	}
	return ref, d.commit(f, path)
}

// putStream stores content through a temporary file, so that its length does not matter to memory.
func (d *Dir) putStream(src *source, r io.Reader, compress bool) (outboard.BlobRef, error) {
	f, err := createHeld(d.temp())
	if err != nil {
		return outboard.BlobRef{}, failed("creating a file in", d.temp(), err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	suffix, write := "", func() error { _, err := io.Copy(f, r); return err }
	if compress {
		suffix, write = compressedSuffix, func() error { return compressTo(f, r) }
	}
	if err := write(); err != nil {
		if src.err != nil {
			return outboard.BlobRef{}, src.err
		}
		return outboard.BlobRef{}, failed("writing into", d.temp(), err)
	}
	ref := src.ref()
	if have, err := d.have(ref); have || err != nil {
		return ref, err
	}
	return ref, d.commit(f, d.file(ref.Digest)+suffix)
}

// have reports whether ref is stored. The directory is synced because another process may have renamed the file into it and
// not have come to its own sync; a file of the wrong length counts as absent, and is replaced.
func (d *Dir) have(ref outboard.BlobRef) (bool, error) {
	path := d.file(ref.Digest)
	info, err := os.Stat(path)
	absent := errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != ref.Size
	if absent {
		path += compressedSuffix
		info, err = os.Stat(path) // its length says nothing; a rename made it, so it is whole
		absent = errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0
	}
	if err != nil && !absent {
		return false, failed("looking for", path, err)
	}
	if absent {
		return false, nil
	}
	if there, err := d.found(path); !there || err != nil {
		return false, err
	}
	return true, d.syncDir(filepath.Dir(path))
}

// commit makes the complete temporary file f the blob at path. Its data and the directories above its place are made durable side
// by side, since neither needs the other, then the name.
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

// makeDirs creates the two directories above a blob's file, each durable in its parent. One that exists is synced too, once
// per process: its maker may not have come to it.
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

// failed wraps an error of the file system, which names the path once; clients are not told it. It is Unavailable: the same call works again
// once the disk does.
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
	path := d.file(ref.Digest)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = os.Open(path + compressedSuffix); err == nil {
			return newVerified(f, ref, f.Name(), true)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "blob %s does not exist", ref.Digest)
	}
	if err != nil {
		return nil, failed("opening", path, err)
	}
	return newVerified(f, ref, f.Name(), false)
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

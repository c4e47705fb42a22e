package blob

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"

	"github.com/outboard-dev/outboard"
)

// Blobs are named by the digest of their content and may be stored compressed: whoever reads gets the content.
const (
	compressedSuffix = ".zst"
	// compressMin is less than what is worth the time: it fits the file system's block either way.
	compressMin = 4096
	// maxWindow bounds the memory that reading a compressed blob takes, whatever it claims.
	maxWindow = 8 << 20
)

// encoder compresses whole contents. It is safe for concurrent use.
var encoder = must(zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
	zstd.WithWindowSize(1<<20)))

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// compressed returns content compressed, or nil where that saves less than a tenth.
func compressed(content []byte) []byte {
	if len(content) < compressMin {
		return nil
	}
	z := encoder.EncodeAll(content, nil)
	if len(z) > len(content)/10*9 {
		return nil
	}
	return z
}

// verified reads a stored blob and compares length and digest before it admits the end.
type verified struct {
	r    io.Reader
	name string // for errors
	stop func() error

	decoding bool
	ref      outboard.BlobRef
	sum      hash.Hash
	n        int64
	end      error // EOF or the damage, once known
}

// Read implements io.Reader.
func (v *verified) Read(p []byte) (int, error) {
	if v.end != nil {
		return 0, v.end
	}
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	v.n += int64(n)
	switch {
	case v.n > v.ref.Size:
		v.end = v.damaged(fmt.Sprintf("it has more than the %d bytes recorded", v.ref.Size))
		return 0, v.end
	case err == io.EOF && v.n < v.ref.Size:
		v.end = v.damaged(fmt.Sprintf("it has %d of %d bytes", v.n, v.ref.Size))
	case err == io.EOF && hex.EncodeToString(v.sum.Sum(nil)) != v.ref.Digest:
		v.end = v.damaged("its content has another digest")
	case err == io.EOF:
		v.end = io.EOF
	case err != nil && outboard.KindOf(err) == outboard.Internal && errors.Is(err, ErrDamaged): // a piece
		v.end = err
	case err != nil && v.decoding && !isFile(err):
		v.end = v.damaged(err.Error())
	case err != nil:
		v.end = outboard.Errorf(outboard.Unavailable, "blob store: reading %s: %w", v.name, err)
	}
	return n, v.end
}

// ErrDamaged says that what is stored under a blob's name is not the blob.
var ErrDamaged = errors.New("damaged")

func (v *verified) damaged(how string) error {
	return outboard.Errorf(outboard.Internal, "blob store: %s is %w: %s", v.name, ErrDamaged, how)
}

// Close implements io.Closer.
func (v *verified) Close() error { return v.stop() }

// newVerified reads ref from r, which is closed with it, also after an error.
func newVerified(r io.ReadCloser, ref outboard.BlobRef, name string, isCompressed bool) (io.ReadCloser, error) {
	v := &verified{r: r, name: name, stop: r.Close, ref: ref, sum: sha256.New()}
	if !isCompressed {
		return v, nil
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, errors.Join(outboard.Errorf(outboard.Unavailable, "blob store: reading %s: %w", name, err),
			r.Close())
	}
	v.r, v.decoding, v.stop = z, true, func() error { z.Close(); return r.Close() }
	return v, nil
}

// isFile reports whether an error is of the file system, not of what was read.
func isFile(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

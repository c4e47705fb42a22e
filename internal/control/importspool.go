package control

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
)

// takeIn spools the file and holds it against its manifest and its signature, of which it returns the manifest's
// hash and the key. Nothing is stored.
func (m *importing) takeIn(ctx context.Context, src io.Reader) (digest, key string, err error) {
	spooling := &spooling{r: io.LimitReader(src, MaxImport), w: m.spool}
	file := newSealReader(spooling)
	zr, err := unzstd(file)
	if err != nil {
		return "", "", err
	}
	defer zr.Close()
	m.rest = io.LimitReader(zr, maxUnpacked)
	m.tr = tar.NewReader(m.rest)
	if digest, err = m.read(ctx); err == nil {
		key, err = m.judge(file)
	}
	if spooling.err != nil { // this server's fault, not the file's
		err = blob.SpoolError(spooling.err)
	}
	return digest, key, err
}

// spooling writes what is read.
type spooling struct {
	r   io.Reader
	w   io.Writer
	err error // of writing
}

// Read implements io.Reader.
func (s *spooling) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if _, werr := s.w.Write(p[:n]); werr != nil {
		s.err = werr
		return 0, werr
	}
	return n, err
}

func unzstd(r io.Reader) (*zstd.Decoder, error) {
	zr, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderMaxMemory(2*maxZstdWindow),
		zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	return zr, nil
}

// again visits the entries of the spooled file, of which every hash holds, until visit returns false.
func (m *importing) again(ctx context.Context, visit func(name string, r io.Reader) (bool, error)) error {
	if _, err := m.spool.Seek(0, io.SeekStart); err != nil {
		return blob.SpoolError(err)
	}
	zr, err := unzstd(m.spool)
	if err != nil {
		return err
	}
	defer zr.Close()
	for tr := tar.NewReader(zr); ; {
		if ctx.Err() != nil {
			return outboard.Errorf(outboard.Canceled, "importing: %w", context.Cause(ctx))
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return blob.SpoolError(err)
		}
		if more, err := visit(h.Name, tr); err != nil || !more {
			return err
		}
	}
}

// keep stores the content of the file.
func (m *importing) keep(ctx context.Context) error {
	return m.again(ctx, func(name string, r io.Reader) (bool, error) {
		digest, isBlob := strings.CutPrefix(name, blobsDir)
		if !isBlob {
			return true, nil
		}
		ref, err := m.c.blob.Put(ctx, r, 0)
		if err == nil && ref.Digest != digest {
			err = outboard.Errorf(outboard.Internal, "it has the hash %s, and had another when it came in", ref.Digest)
		}
		if err != nil {
			return false, outboard.Errorf(outboard.KindOf(err), "storing %s: %w", quote(name), err)
		}
		return true, nil
	})
}

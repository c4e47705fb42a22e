package blob

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/outboard-dev/outboard"
)

// staging holds the new pieces of one Put until all of them are written: a Put that fails, on a full disk for
// instance, leaves nothing behind. Its directory is locked, as temporary files are.
type staging struct {
	d    *Dir
	lock *os.File // of the directory

	mu    sync.Mutex
	files []string // names of what is staged
}

func (d *Dir) stage() (*staging, error) {
	lock, err := createHeldDir(d.temp())
	if err != nil {
		return nil, failed("creating a directory in", d.temp(), err)
	}
	return &staging{d: d, lock: lock}, nil
}

// close removes what was not committed.
func (s *staging) close() {
	_ = os.RemoveAll(s.lock.Name())
	s.lock.Close()
}

// put writes a piece, durably, unless it is stored. A list of pieces under its digest will not do: lists name no lists.
func (s *staging) put(ref outboard.BlobRef, content []byte) error {
	if have, err := s.d.haveWhole(ref); have || err != nil {
		return err
	}
	name := ref.Digest
	if z := compressed(content); z != nil {
		content, name = z, name+compressedSuffix
	}
	path := filepath.Join(s.lock.Name(), name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // the content has the piece twice
	}
	if err != nil {
		return failed("creating a file in", s.d.temp(), err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return failed("writing into", s.d.temp(), err)
	}
	if err := f.Sync(); err != nil {
		return failed("writing into", s.d.temp(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = append(s.files, name)
	return nil
}

// commit makes what is staged blobs, side by side.
func (s *staging) commit() error {
	work := make(chan string)
	errs := make([]error, pieceWorkers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for name := range work {
				if errs[i] == nil {
					errs[i] = s.move(name)
				}
			}
		})
	}
	for _, name := range s.files {
		work <- name
	}
	close(work)
	wg.Wait()
	return errors.Join(errs...)
}

func (s *staging) move(name string) error {
	path := filepath.Join(filepath.Dir(s.d.file(name)), name)
	if err := s.d.makeDirs(path); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(s.lock.Name(), name), path); err != nil {
		return failed("renaming to", path, err)
	}
	return s.d.syncDir(filepath.Dir(path))
}

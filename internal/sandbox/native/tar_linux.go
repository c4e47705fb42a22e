package native

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// archivePrefix begins the names of layers made from archives. They are kept: making one again is dear.
const archivePrefix = "tar-"

// archives unpacks root file systems once per content.
type archives struct {
	mu   sync.Mutex
	seen map[archiveID]string // layer by identity of the file, so that it is hashed once per process
}

type archiveID struct {
	dev, ino uint64
	size     int64
	mtime    unix.Timespec
}

// unpack returns the layer of an archive. One archive at a time: the disk is the bottleneck.
func (a *archives) unpack(p *Provider, file string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	id := archiveID{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim}
	if layer, ok := a.seen[id]; ok {
		return layer, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	layer := filepath.Join(p.dir, cacheDir, archivePrefix+hex.EncodeToString(h.Sum(nil)[:12]))
	err = buildLayer(layer, func(root *os.Root) error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return extract(root, f, !p.rootless)
	})
	if err != nil {
		return "", err
	}
	if a.seen == nil {
		a.seen = make(map[archiveID]string)
	}
	a.seen[id] = layer
	return layer, nil
}

// extractor writes one archive into a directory. os.Root keeps every path inside it, whatever links the archive
// makes first.
type extractor struct {
	root    *os.Root
	owners  bool // give files to the archive's uids; else they are ours
	modes   map[string]fs.FileMode
	entries int
	bytes   int64
}

// extract unpacks a plain or gzipped tar. Devices, pipes and set-id bits are left out: nothing inside could use them.
func extract(root *os.Root, r io.Reader, owners bool) error {
	br := bufio.NewReaderSize(r, 1<<20)
	r = br
	if magic, err := br.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		if r, err = gzip.NewReader(br); err != nil {
			return err
		}
	}
	x := &extractor{root: root, owners: owners, modes: make(map[string]fs.FileMode)}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := x.entry(h, tr); err != nil {
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
	if x.entries == 0 {
		return errors.New("the archive is empty")
	}
	// Last, because a directory that is closed to its owner could not have been filled.
	for name, mode := range x.modes {
		if err := root.Chmod(name, mode); err != nil {
			return fmt.Errorf("setting the mode of %q: %w", name, err)
		}
	}
	return nil
}

func (x *extractor) entry(h *tar.Header, r io.Reader) error {
	name := strings.TrimLeft(path.Clean("/"+h.Name), "/")
	for part := range strings.SplitSeq(h.Name, "/") {
		if part == ".." {
			return errors.New("name leaves the root")
		}
	}
	if name == "" {
		return nil // the root itself
	}
	if x.entries++; x.entries > maxTarEntries {
		return fmt.Errorf("more than %d entries", maxTarEntries)
	}
	if x.bytes += h.Size; x.bytes > maxTarBytes {
		return fmt.Errorf("more than %d bytes", int64(maxTarBytes))
	}
	if dir := path.Dir(name); dir != "." {
		if err := x.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := x.clear(name, true); err != nil {
			return err
		}
		if err := x.root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		x.modes[name] = mode
	case tar.TypeReg:
		if err := x.file(name, r); err != nil {
			return err
		}
		if err := x.root.Chmod(name, mode); err != nil {
			return err
		}
		if err := x.root.Chtimes(name, h.ModTime, h.ModTime); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := errors.Join(x.clear(name, false), x.root.Symlink(h.Linkname, name)); err != nil {
			return err
		}
	case tar.TypeLink:
		target := strings.TrimLeft(path.Clean("/"+h.Linkname), "/")
		if target == name {
			return nil
		}
		return errors.Join(x.clear(name, false), x.root.Link(target, name))
	default:
		return nil
	}
	if !x.owners {
		return nil
	}
	return x.root.Lchown(name, ownerID(h.Uid), ownerID(h.Gid))
}

// clear makes way for an entry whose name was used before. A directory stays for a directory.
func (x *extractor) clear(name string, dir bool) error {
	fi, err := x.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || dir && fi.IsDir() {
		return err
	}
	delete(x.modes, name)
	return x.root.Remove(name)
}

func (x *extractor) file(name string, r io.Reader) error {
	if err := x.clear(name, false); err != nil {
		return err
	}
	f, err := x.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// ownerID keeps ids inside a sandbox's range; what does not fit is nobody's.
func ownerID(id int) int {
	if id < 0 || id >= uidRange {
		return uidRange - 2
	}
	return id
}

package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// Names in a layer that begin with whiteout say what of the layers below is deleted.
const (
	whiteout    = ".wh."
	opaqueEntry = ".wh..wh..opq" // everything that the layers below have in this directory
	auxPrefix   = ".wh..wh."     // other notes of an old file system
)

// maxOwner bounds owners: a sandbox has this many ids, and the last but one is nobody's.
const maxOwner = 1 << 16

// extractor unpacks one layer. os.Root keeps every path inside its directory, whatever links the archive makes first.
type extractor struct {
	root    *os.Root
	limits  Limits
	owners  bool
	entries int
	bytes   int64
	dirs    map[string]dirAttrs // set at the end: a directory that is closed to us could not be filled
	gone    map[string]bool     // whiteouts of this layer, by the name they stand for
}

type dirAttrs struct {
	mode  fs.FileMode
	mtime time.Time
}

func refused(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Invalid, "the image is refused: "+format, args...)
}

func (x *extractor) extract(r io.Reader) error {
	x.dirs, x.gone = map[string]dirAttrs{}, map[string]bool{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) ||
			errors.Is(err, tar.ErrInsecurePath) || errors.Is(err, io.ErrUnexpectedEOF) {
			return refused("a layer is no archive that can be read: %w", err)
		}
		if err != nil {
			return fmt.Errorf("reading a layer: %w", err)
		}
		if err := x.entry(h, tr); err != nil {
			if _, ok := errors.AsType[*outboard.Error](err); ok {
				return err
			}
			// What os.Root says of a path that leaves, and what two entries that contradict each other make the
			// kernel say.
			return refused("entry %q: %w", clip(h.Name), err)
		}
	}
	for name, a := range x.dirs {
		if err := errors.Join(x.root.Chmod(name, a.mode), x.root.Chtimes(name, a.mtime, a.mtime)); err != nil {
			return fmt.Errorf("finishing directory %q: %w", clip(name), err)
		}
	}
	return nil
}

// clip shortens a name of an image's for an error.
func clip(s string) string { return text.Clip(s, 200) }

// clean returns the path of an entry below the root, "" for the root itself.
func (x *extractor) clean(name string) (string, error) {
	if len(name) > x.limits.Name {
		return "", refused("a path is longer than %d bytes", x.limits.Name)
	}
	if strings.ContainsRune(name, 0) || slices.Contains(strings.Split(name, "/"), "..") {
		return "", refused("the path %q leaves the layer", clip(name))
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

func (x *extractor) entry(h *tar.Header, r io.Reader) error {
	name, err := x.clean(h.Name)
	if err != nil || name == "" {
		return err
	}
	if x.entries++; x.entries > x.limits.Entries {
		return outboard.Errorf(outboard.TooLarge, "the image is refused: a layer has more than %d entries",
			x.limits.Entries)
	}
	if h.Size < 0 || h.Size > x.limits.Layer-x.bytes {
		return outboard.Errorf(outboard.TooLarge, "the image is refused: it unpacks to more than %d bytes",
			x.limits.Layer)
	}
	dir, base := path.Split(name)
	dir = strings.TrimSuffix(dir, "/")
	if err := x.parents(dir); err != nil {
		return err
	}
	switch {
	case base == opaqueEntry:
		return x.opaque(dir)
	case strings.HasPrefix(base, auxPrefix):
		return nil
	case strings.HasPrefix(base, whiteout):
		return x.delete(dir, strings.TrimPrefix(base, whiteout))
	}
	return x.make(h, name, r)
}

// parents makes the directories above an entry that the layer does not list.
func (x *extractor) parents(dir string) error {
	if dir == "" {
		return nil
	}
	fi, err := x.root.Stat(dir)
	if err == nil && fi.IsDir() {
		return nil
	}
	for i := range len(dir) + 1 {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		part := dir[:i]
		if x.gone[part] { // deleted below and made anew
			if err := x.revive(part); err != nil {
				return err
			}
		}
		if err := x.root.Mkdir(part, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if x.gone[part] {
			delete(x.gone, part)
			if err := x.opaque(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// revive removes the whiteout of a name that the layer has as well: it is about the layers below. The name stays
// in gone.
func (x *extractor) revive(name string) error {
	if err := x.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// delete makes a whiteout. Where the layer has something of that name, it is kept, and only what lies below it
// is deleted.
func (x *extractor) delete(dir, base string) error {
	if base == "" || base == "." || base == ".." {
		return refused("a deleted file has the name %q", base)
	}
	name := path.Join(dir, base)
	fi, err := x.root.Lstat(name)
	switch {
	case err == nil && fi.IsDir():
		return x.opaque(name)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	x.gone[name] = true
	return x.inDir(dir, func(d *os.File) error { return makeWhiteout(d, base) })
}

// opaque hides what the layers below have in a directory.
func (x *extractor) opaque(dir string) error {
	return x.inDir(dir, func(d *os.File) error { return makeOpaque(d, x.owners) })
}

func (x *extractor) inDir(dir string, f func(*os.File) error) error {
	if dir == "" {
		dir = "."
	}
	d, err := x.root.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return f(d)
}

// make writes one entry that is not a deletion. Devices, pipes and sockets are left out.
func (x *extractor) make(h *tar.Header, name string, r io.Reader) error {
	mode := fs.FileMode(h.Mode) & fs.ModePerm // no set-id bits: nothing inside could use them, and nothing outside must
	wasGone := x.gone[name]
	switch h.Typeflag {
	case tar.TypeDir:
		if err := x.directory(name); err != nil {
			return err
		}
		if h.Mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		x.dirs[name] = dirAttrs{mode, h.ModTime}
		if wasGone {
			delete(x.gone, name)
			if err := x.opaque(name); err != nil {
				return err
			}
		}
	case tar.TypeReg, tar.TypeGNUSparse:
		if err := x.file(name, mode, h.ModTime, r); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := errors.Join(x.clear(name), x.root.Symlink(h.Linkname, name)); err != nil {
			return err
		}
	case tar.TypeLink:
		return x.link(name, h.Linkname)
	default:
		return nil
	}
	delete(x.gone, name)
	if !x.owners {
		return nil
	}
	return x.root.Lchown(name, owner(h.Uid), owner(h.Gid))
}

// owner keeps ids inside a sandbox's range; what does not fit is nobody's.
func owner(id int) int {
	if id < 0 || id >= maxOwner {
		return maxOwner - 2
	}
	return id
}

// clear makes way for an entry whose name was used before. A tree that is replaced by a file is refused: no
// builder makes one.
func (x *extractor) clear(name string) error {
	_, err := x.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	delete(x.dirs, name)
	return x.root.Remove(name)
}

func (x *extractor) directory(name string) error {
	if fi, err := x.root.Lstat(name); err == nil && fi.IsDir() {
		return nil
	}
	if err := x.clear(name); err != nil {
		return err
	}
	return x.root.Mkdir(name, 0o755)
}

func (x *extractor) file(name string, mode fs.FileMode, mtime time.Time, r io.Reader) error {
	if err := x.clear(name); err != nil {
		return err
	}
	f, err := x.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	x.bytes += n
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return x.root.Chtimes(name, mtime, mtime)
}

// link makes another name of a file of this layer.
func (x *extractor) link(name, target string) error {
	target, err := x.clean(target)
	if err != nil {
		return err
	}
	if target == name {
		return nil
	}
	fi, err := x.root.Lstat(target)
	if err != nil {
		return err
	}
	if t := fi.Mode().Type(); t != 0 && t != fs.ModeSymlink {
		return refused("%q is to be another name of %q, which is no file", clip(name), clip(target))
	}
	if err := errors.Join(x.clear(name), x.root.Link(target, name)); err != nil {
		return err
	}
	delete(x.gone, name)
	return nil
}

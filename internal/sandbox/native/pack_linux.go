package native

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// Pack implements sandbox.Layers. Nothing can write to layers, so what is read is one state; a tool has shaped
// it, so no name is followed.
func (p *Provider) Pack(ctx context.Context, id, base outboard.CheckpointID, w io.Writer) error {
	unlock, err := p.lockLayers(unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := p.between(id, base)
	if err != nil {
		return err
	}
	top, st, err := p.checkpointLayer(id)
	if err != nil {
		return err
	}
	var fds descriptors
	defer fds.close()
	merged, err := p.mergedView(&fds, append([]string{top}, st.Below...), st.Root)
	if err != nil {
		return fmt.Errorf("packing checkpoint %s: %w", id, err)
	}
	tw := tar.NewWriter(w)
	k := &packer{ctx: ctx, merged: merged, tw: tw, sparse: guest.NewSparse(w, tw), seen: map[string]bool{},
		kinds: map[string]kinds{}, links: map[[2]uint64]string{}, delta: base != ""}
	if k.delta {
		for _, name := range names {
			fd, err := unix.Open(filepath.Join(p.layer(name), "fs"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("packing checkpoint %s: %w", id, err)
			}
			k.layers = append(k.layers, fds.add(fd))
		}
	}
	if err := k.run(); err != nil {
		return fmt.Errorf("packing checkpoint %s: %w", id, err)
	}
	return nil
}

// mergedView mounts a stack read-only, attached to nothing, with the ids on the disk.
func (p *Provider) mergedView(fds *descriptors, names, root []string) (int, error) {
	cache := filepath.Join(p.dir, cacheDir)
	// of those, only the tool's empty directories would be seen
	root = slices.DeleteFunc(slices.Clone(root), func(l string) bool {
		_, err := os.Lstat(l)
		return err != nil && filepath.Dir(l) == cache
	})
	lower, err := p.openLayers(fds, names, root, -1)
	if err != nil {
		return -1, err
	}
	for _, empty := range []string{filepath.Join(p.dir, checkpointsDir), cache} { // of everything saved
		if len(lower) >= 2 { // what the kernel wants
			break
		}
		fd, err := unix.Open(empty, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		lower = append(lower, fds.add(fd))
	}
	mnt, err := mountLayers(lower, nil, false)
	if err == nil {
		fds.add(mnt)
	}
	return mnt, err
}

// deletedName is the first entry of a delta: the paths that are no more, each ended by a zero byte.
const deletedName = ".outboard/deleted"

// packer writes a state, or what changed in some layers, as a tar.
type packer struct {
	ctx    context.Context
	merged int   // the state as it is seen
	layers []int // what changed is in these, top first
	delta  bool
	tw     *tar.Writer
	sparse *guest.Sparse

	seen  map[string]bool      // paths that a layer has an entry for; true: everything below is to be written anew
	kinds map[string]kinds     // what the layers have there
	links map[[2]uint64]string // device and inode of written files with several names: the first
}

// kinds is what several layers have at one path.
type kinds struct{ dir, other bool }

// changes looks through the layers and returns what is no more, and what to write then, parents first.
func (k *packer) changes() (deleted, write []string, err error) {
	for _, layer := range k.layers {
		for _, d := range workDirs {
			if fd, err := openPath(layer, d[1:], noLinks|unix.RESOLVE_BENEATH); err == nil {
				err = k.collect(fd, d[1:], 0)
				unix.Close(fd)
				if err != nil {
					return nil, nil, err
				}
				k.seen[d[1:]] = false
			}
		}
	}
	paths := make([]string, 0, len(k.seen))
	for p := range k.seen {
		paths = append(paths, p)
	}
	slices.SortFunc(paths, byPath)
	deleted, write = k.plan(paths)
	return deleted, write, nil
}

// byPath orders paths so that what is in a directory follows it at once.
func byPath(a, b string) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

func (k *packer) run() error {
	if !k.delta {
		for _, d := range workDirs {
			if err := k.tree(d[1:]); err != nil {
				return err
			}
		}
		return k.tw.Close()
	}
	deleted, write, err := k.changes()
	if err != nil {
		return err
	}
	list := strings.Join(deleted, "\x00")
	if list != "" {
		list += "\x00"
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: deletedName, Size: int64(len(list)), Mode: 0o600,
		Format: tar.FormatPAX}
	if err := k.tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.WriteString(k.tw, list); err != nil {
		return err
	}
	for _, p := range write {
		emit := k.one
		if k.seen[p] {
			emit = k.tree
		}
		if err := emit(p); err != nil {
			return err
		}
	}
	return k.tw.Close()
}

// collect notes the paths of one layer below dir. A directory that hides or moves what lies below it is written
// whole, and so is one that was something else in between.
func (k *packer) collect(dir int, at string, depth int) error {
	if depth > maxCopyDepth {
		return outboard.Errorf(outboard.Exhausted, "directories are nested more than %d deep", maxCopyDepth)
	}
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := at + "/" + name
		if len(k.seen) >= maxPackEntries {
			return outboard.Errorf(outboard.Exhausted, "more than %d files changed", maxPackEntries)
		}
		fd, err := openPath(dir, name, noLinks|unix.RESOLVE_BENEATH)
		has := k.kinds[p]
		if err != nil { // no directory
			has.other = true
			k.kinds[p], k.seen[p] = has, k.seen[p] || has.dir
			continue
		}
		has.dir = true
		whole, err := hides(dir, name)
		// A layer that had something else there, or its deletion, hid what lies below it.
		k.kinds[p], k.seen[p] = has, k.seen[p] || whole || has.other
		if err == nil {
			err = k.collect(fd, p, depth+1)
		}
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return k.ctx.Err()
}

// hides reports whether a directory of a layer is not merged with that of the same name below it.
func hides(dir int, name string) (bool, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	names, err := xattrNames(fd)
	return slices.ContainsFunc(names, func(n string) bool {
		return n == "trusted.overlay.opaque" || n == "trusted.overlay.redirect"
	}), err
}

// plan tells what to delete first, and what to write then.
func (k *packer) plan(paths []string) (deleted, write []string) {
	below := func(p, dir string) bool { return dir != "" && strings.HasPrefix(p, dir+"/") }
	var gone, whole string // the last path that is no more, or is written whole
	for _, p := range paths {
		if below(p, gone) || below(p, whole) {
			continue
		}
		var st unix.Stat_t
		if err := k.stat(p, &st); err != nil {
			deleted, gone = append(deleted, p), p
			continue
		}
		if k.seen[p] = k.seen[p] && st.Mode&unix.S_IFMT == unix.S_IFDIR; k.seen[p] {
			deleted, whole = append(deleted, p), p
		}
		write = append(write, p)
	}
	return deleted, write
}

// stat looks at a path of the merged view.
func (k *packer) stat(p string, st *unix.Stat_t) error {
	dir, err := openBelow(k.merged, path.Dir(p))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Fstatat(dir, path.Base(p), st, unix.AT_SYMLINK_NOFOLLOW)
}

// one writes a path alone, tree with everything below it.
func (k *packer) one(p string) error  { return k.path(p, false) }
func (k *packer) tree(p string) error { return k.path(p, true) }

func (k *packer) path(p string, all bool) error {
	dir, err := openBelow(k.merged, path.Dir(p))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return k.entry(dir, path.Base(p), p, all, 0)
}

func (k *packer) entry(dir int, name, p string, all bool, depth int) error {
	if err := k.ctx.Err(); err != nil {
		return err
	}
	if depth > maxCopyDepth {
		return outboard.Errorf(outboard.Exhausted, "directories are nested more than %d deep", maxCopyDepth)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	h := &tar.Header{Name: p, Mode: int64(st.Mode & 0o7777), ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return k.dir(dir, name, h, all, depth)
	}
	if id := [2]uint64{uint64(st.Dev), st.Ino}; st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		if first, ok := k.links[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return k.tw.WriteHeader(h)
		}
		k.links[id] = h.Name
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return k.file(dir, name, h, &st)
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, target)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(target[:n])
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return nil // sockets mean nothing without their process
	}
	return k.tw.WriteHeader(h)
}

func (k *packer) dir(dir int, name string, h *tar.Header, all bool, depth int) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p := h.Name
	h.Typeflag, h.Name = tar.TypeDir, p+"/"
	if err := guest.PackAttrs(h, fd); err != nil {
		return err
	}
	if err := k.tw.WriteHeader(h); err != nil || !all {
		return err
	}
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		if err := k.entry(fd, n, p+"/"+n, true, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (k *packer) file(dir int, name string, h *tar.Header, st *unix.Stat_t) error {
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := guest.PackAttrs(h, fd); err != nil {
		return err
	}
	if done, err := k.sparse.Pack(h, f, nil); done || err != nil {
		return err
	}
	if err := k.tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(k.tw, f, h.Size)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%q is shorter than it was", h.Name)
	}
	return err
}

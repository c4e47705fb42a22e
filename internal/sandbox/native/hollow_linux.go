package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// A program that changes a byte of a large file has the overlay copy the file, and the layer of each checkpoint
// has one. A file of a layer that a layer above it hides, in every stack that has the layer, can be seen by
// nobody: Sweep empties it. The name stays, so that nothing else changes for the kernel, which may have the layer
// mounted. Where it cannot be shown that a file is hidden, it stays.
const (
	contentsFile = "contents.json"
	// bigFile is how large a file is that is worth the look, on the disk.
	bigFile = 1 << 20
)

// contents is what there is to know of a layer that is not written to any more. It is found out once.
type contents struct {
	// Moved says that a directory of it has another name below: paths say nothing about what it hides.
	Moved bool             `json:"moved,omitempty"`
	Bytes int64            `json:"bytes"`         // on the disk
	Big   map[string]int64 `json:"big,omitempty"` // large files with one name, below fs
}

func (p *Provider) contents(name string) (*contents, error) {
	data, err := os.ReadFile(filepath.Join(p.layer(name), contentsFile))
	if err != nil {
		return nil, err
	}
	c := new(contents)
	return c, json.Unmarshal(data, c)
}

func (p *Provider) writeContents(name string, c *contents) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding a layer: %w", err)
	}
	file := filepath.Join(p.layer(name), contentsFile)
	if err := os.WriteFile(file+nextSuffix, data, 0o600); err != nil {
		return err
	}
	return os.Rename(file+nextSuffix, file)
}

// known is what this process has found out about layers. Another may have emptied files of one since: to do that
// again does no harm. It may also have removed one, and a copy may have its name now: which one it is, the file
// tells that was made with it.
type known struct {
	mu     sync.Mutex
	layers map[string]found
}

type found struct {
	contents
	ino     uint64
	changed int64
}

// get returns the contents of a layer, nil when nobody has looked.
func (p *Provider) get(name string) *contents {
	k := &p.known
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.layers[name]
	var st unix.Stat_t
	if !ok || unix.Lstat(filepath.Join(p.layer(name), stackFile), &st) != nil {
		return nil
	}
	if st.Ino != f.ino || st.Ctim.Nano() != f.changed {
		return nil
	}
	f.Big = maps.Clone(f.Big)
	return &f.contents
}

func (p *Provider) set(name string, c *contents) {
	var st unix.Stat_t
	if unix.Lstat(filepath.Join(p.layer(name), stackFile), &st) != nil {
		return
	}
	k := &p.known
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.layers == nil {
		k.layers = map[string]found{}
	}
	k.layers[name] = found{*c, st.Ino, st.Ctim.Nano()}
}

// only forgets all layers but some.
func (k *known) only(keep map[string][][]string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.layers, func(name string, _ found) bool { return keep[name] == nil })
}

// look finds out the contents of a layer, if nobody has.
func (p *Provider) look(ctx context.Context, name string) (*contents, error) {
	if c := p.get(name); c != nil {
		return c, nil
	}
	c, err := p.contents(name)
	if err != nil {
		if c, err = p.lookThrough(ctx, name); err == nil {
			err = p.writeContents(name, c)
		}
	}
	if err != nil {
		return nil, err
	}
	p.set(name, c)
	return c, nil
}

func (p *Provider) lookThrough(ctx context.Context, name string) (*contents, error) {
	fd, err := unix.Open(filepath.Join(p.layer(name), "fs"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	c := &contents{Big: map[string]int64{}}
	return c, c.add(ctx, fd, ".", 0)
}

func (c *contents) add(ctx context.Context, dir int, at string, depth int) error {
	if depth > maxCopyDepth {
		return outboard.Errorf(outboard.Exhausted, "directories are nested more than %d deep", maxCopyDepth)
	}
	names, err := readNames(dir)
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		size, p := st.Blocks*512, path.Join(at, name)
		c.Bytes += size
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if size >= bigFile && st.Nlink == 1 {
				c.Big[p] = size
			}
		case unix.S_IFDIR:
			if err := c.addDir(ctx, dir, name, p, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *contents) addDir(ctx context.Context, dir int, name, p string, depth int) error {
	sub, err := openDir(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(sub)
	attrs, err := xattrNames(sub)
	if err != nil {
		return err
	}
	c.Moved = c.Moved || slices.Contains(attrs, "trusted.overlay.redirect")
	return c.add(ctx, sub, p, depth+1)
}

// Weigh implements sandbox.Layers.
func (p *Provider) Weigh(ctx context.Context, id outboard.CheckpointID) (int64, error) {
	name, _, err := p.checkpointLayer(id)
	if err != nil {
		return 0, err
	}
	c, err := p.look(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("weighing checkpoint %s: %w", id, err)
	}
	return c.Bytes, nil
}

// stacks returns the layers that somebody may look at together, top first: those of every checkpoint that is kept,
// and of every sandbox. What a sandbox is about to lie on begins with a layer that is empty yet, which hides
// nothing. A flattened layer is only ever used below the layers that were above what it stands for.
func (p *Provider) stacks() (all [][]string, err error) {
	err = p.keptLayers(func(name string) error {
		s, err := p.loadStack(name)
		if err != nil {
			return fmt.Errorf("layer %s: %w", name, err)
		}
		all = append(all, append([]string{name}, s.Below...))
		return nil
	})
	if err != nil {
		return nil, err
	}
	ids, err := p.ids()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		b := place{id: id, dir: filepath.Join(p.dir, string(id))}
		if err := b.stacks(func(below []string) { all = append(all, below) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// stacks calls use with what each of a sandbox's writable layers lies on.
func (b place) stacks(use func(below []string)) error {
	names, err := readNamesAt(unix.AT_FDCWD, b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // destroyed meanwhile
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		number, next := strings.CutSuffix(strings.TrimSuffix(name, pushingSuffix), nextSuffix)
		if _, err := strconv.Atoi(number); err != nil {
			continue
		}
		st, err := readStack(b.path(name))
		if err != nil {
			if err = b.unreadable(err); err == nil || next { // half made, and nothing is above it
				continue
			}
			return fmt.Errorf("sandbox %s: %w", b.id, err)
		}
		use(st.Below)
	}
	return nil
}

// lookAll finds out the contents of all layers that are somebody's. One that is empty yet is nobody's: it is
// looked at when a checkpoint is it, or something lies on it. It reports whether there is a large file at all.
func (p *Provider) lookAll(ctx context.Context) (big bool, err error) {
	unlock, err := p.lockLayers(unix.LOCK_SH) // nothing is removed meanwhile
	if err != nil {
		return false, err
	}
	defer unlock()
	ids, err := p.ids()
	if err != nil {
		return false, err
	}
	var names []string
	for _, id := range ids {
		b := place{id: id, dir: filepath.Join(p.dir, string(id))}
		n, err := p.current(b)
		if err != nil {
			continue // nothing can be pushed on it
		}
		if st, err := b.stack(n); err == nil {
			names = append(names, st.Below...)
		}
	}
	err = p.keptLayers(func(name string) error { names = append(names, name); return nil })
	if err != nil {
		return false, err
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		c, err := p.look(ctx, name)
		if err != nil {
			return false, fmt.Errorf("layer %s: %w", name, err)
		}
		big = big || len(c.Big) > 0
	}
	return big, nil
}

// hollow empties the large files that nobody can see. Nobody builds on layers or reads them meanwhile; when
// somebody is at it, the next sweep will do.
func (p *Provider) hollow(ctx context.Context) error {
	if big, err := p.lookAll(ctx); err != nil || !big {
		return err
	}
	unlock, err := p.lockLayers(unix.LOCK_EX | unix.LOCK_NB)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := p.stacks()
	if err != nil {
		return err
	}
	above := map[string][][]string{} // what lies on each layer, in each stack
	for _, names := range all {
		for i, name := range names {
			above[name] = append(above[name], names[:i])
		}
	}
	p.known.only(above)
	known := map[string]*contents{}
	for name := range above {
		known[name] = p.get(name) // nil for one that is empty yet
	}
	for name, c := range known {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if c == nil {
			continue
		}
		if err := p.hollowLayer(name, c, above[name], known); err != nil {
			return fmt.Errorf("layer %s: %w", name, err)
		}
	}
	return nil
}

func (p *Provider) hollowLayer(name string, c *contents, above [][]string, known map[string]*contents) error {
	changed := false
	for file, size := range c.Big {
		hidden := !slices.ContainsFunc(above, func(names []string) bool { return !p.hidden(file, names, known) })
		if !hidden {
			continue
		}
		if err := p.empty(name, file); err != nil {
			return err
		}
		delete(c.Big, file)
		c.Bytes -= size
		changed = true
	}
	if !changed {
		return nil
	}
	_ = os.Remove(filepath.Join(p.layer(name), weightFile)) // it is another now
	p.set(name, c)
	return p.writeContents(name, c)
}

// hidden reports whether one of the layers above, top first, hides a file: has something else than a directory in
// its place. From there down no directory may have another name below, or the file might be seen under that.
func (p *Provider) hidden(file string, above []string, known map[string]*contents) bool {
	for _, name := range slices.Backward(above) {
		c := known[name]
		if c == nil || c.Moved {
			return false
		}
		if p.covers(name, file) {
			return true
		}
	}
	return false
}

// covers reports whether a layer has something at a path that is seen instead of a file below it.
func (p *Provider) covers(name, file string) bool {
	fd, err := p.openIn(name, path.Dir(file))
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstatat(fd, path.Base(file), &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return true
	}
	f, err := unix.Openat(fd, path.Base(file), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(f)
	attrs, err := xattrNames(f)
	return err == nil && !slices.Contains(attrs, "trusted.overlay.metacopy") // its content would be that below
}

// openIn opens a directory of a layer.
func (p *Provider) openIn(name, dir string) (int, error) {
	top, err := unix.Open(filepath.Join(p.layer(name), "fs"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(top)
	return openBelow(top, dir)
}

// empty takes the content of a file of a layer, if it still has one name.
func (p *Provider) empty(name, file string) error {
	dir, err := p.openIn(name, path.Dir(file))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, path.Base(file), unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return err
	}
	return os.NewSyscallError("ftruncate", unix.Ftruncate(fd, 0))
}

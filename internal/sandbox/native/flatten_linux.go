package native

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// Every push makes a stack one layer higher. Long before the limit a run of its layers is written as one, in the
// background: a flattened layer. It is made of what can be seen, with the run and without it, so it has neither
// redirections nor deletions of what nobody has; what comes above the run may lie on it instead. Layers are
// never changed: every checkpoint keeps the stack it was made with, and a sandbox lies on the flattened layer
// from its next push but one.
//
//	layers/squash_<random>      as any layer; its stack.json says what it stands for, and it is garbage until somebody lies on it
//	<sandbox>/squashed          a symbolic link to the name of the newest one, which keeps it
const (
	flattenPrefix = "squash_"
	flattenedLink = "squashed"
)

// flattening is the background work on the layers of one sandbox, per connection.
type flattening struct {
	mu   sync.Mutex
	stop context.CancelFunc // nil when nothing runs
	wg   sync.WaitGroup
	off  bool // closed
}

// flattenLater begins to shorten the sandbox's stack, if it is high and nobody is at it.
func (m *machine) flattenLater(height int) {
	q := &m.flattening
	q.mu.Lock()
	defer q.mu.Unlock()
	if height < m.p.flattenAt || q.off || q.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.stop = cancel
	q.wg.Go(func() {
		err := m.p.flatten(ctx, m.place)
		if err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) {
			m.p.log.Warn("layers not flattened", "sandbox", m.id, "err", err)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		cancel()
		q.stop = nil
	})
}

// stopFlattening ends what flattenLater began; the next connection begins anew.
func (m *machine) stopFlattening() {
	q := &m.flattening
	q.mu.Lock()
	q.off = true
	if q.stop != nil {
		q.stop()
	}
	q.mu.Unlock()
	q.wg.Wait()
}

// flatten writes a run of the layers of a sandbox as one. The layers' lock is held all the time: what is being
// made has no owner yet.
func (p *Provider) flatten(ctx context.Context, b place) error {
	select { // one at a time: it is the disk that takes the time
	case p.flattens <- struct{}{}:
		defer func() { <-p.flattens }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	unlock, err := p.lockLayers(unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer unlock()
	n, err := p.current(b)
	if err != nil {
		return err
	}
	st, err := b.stack(n)
	// the last one is to be used yet
	if err != nil || len(st.Below) < p.flattenAt || len(p.shortened(b, st.Below)) < len(st.Below) {
		return err
	}
	var weights []int64
	for _, name := range st.Below {
		w, err := p.weigh(ctx, name)
		if err != nil {
			return fmt.Errorf("weighing layer %s: %w", name, err)
		}
		weights = append(weights, w)
	}
	from, to := chooseRun(weights, p.flattenAt/2)
	name := flattenPrefix + rand.Text()
	if err := p.writeFlattened(ctx, name, st, from, to); err != nil {
		return errors.Join(fmt.Errorf("flattening %d layers: %w", to-from, err), removeTree(p.layer(name)))
	}
	return p.ownFlattened(ctx, b, name)
}

// ownFlattened makes a flattened layer that of a sandbox, in the place of the one before.
func (p *Provider) ownFlattened(ctx context.Context, b place, name string) error {
	unlock, err := b.lock(ctx) // against Destroy
	if err != nil {
		return errors.Join(err, removeTree(p.layer(name)))
	}
	defer unlock()
	link := b.path(flattenedLink)
	tmp := link + nextSuffix
	err = os.Remove(tmp)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Symlink(name, tmp)
	}
	if err == nil {
		err = os.Rename(tmp, link)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keeping a flattened layer: %w", err), removeTree(p.layer(name)))
	}
	return nil
}

// shortened returns a sandbox's layers with the flattened one in the place of what it stands for, if there is one.
func (p *Provider) shortened(b place, names []string) []string {
	name, err := os.Readlink(b.path(flattenedLink))
	if err != nil {
		return names
	}
	st, err := p.loadStack(name)
	if err != nil || len(st.Instead) == 0 || st.BootID != p.boot {
		return names
	}
	from := slices.Index(names, st.Instead[0])
	if from < 0 || len(names) < from+len(st.Instead) || !slices.Equal(names[from:from+len(st.Instead)], st.Instead) {
		return names
	}
	return slices.Concat(names[:from], []string{name}, names[from+len(st.Instead):])
}

// chooseRun returns which layers to write as one, by their weights: enough of them, one above the other, and
// none that is much heavier than it must be. What is heavy is written again only when there is much of its
// weight.
func chooseRun(weights []int64, enough int) (from, to int) {
	const lightest, step = 1 << 20, 4
	heaviest := slices.Max(weights)
	for limit := int64(lightest); ; limit *= step {
		if from, to = longestRun(weights, limit); to-from >= enough || limit >= heaviest {
			return from, to
		}
	}
}

// longestRun returns the longest part of weights in which all are within limit.
func longestRun(weights []int64, limit int64) (from, to int) {
	begin := 0
	for i, w := range weights {
		if w > limit {
			begin = i + 1
		} else if i+1-begin > to-from {
			from, to = begin, i+1
		}
	}
	return from, to
}

const weightFile = "weight"

// weigh returns what it would take to write a layer: bytes, and something for each file. It is found out once.
func (p *Provider) weigh(ctx context.Context, name string) (int64, error) {
	file := filepath.Join(p.layer(name), weightFile)
	if data, err := os.ReadFile(file); err == nil {
		if w, err := strconv.ParseInt(strings.TrimSuffix(string(data), "\n"), 10, 64); err == nil &&
			strings.HasSuffix(string(data), "\n") {
			return w, nil
		}
	}
	fd, err := unix.Open(filepath.Join(p.layer(name), "fs"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	w, err := weighDir(ctx, fd, 0)
	if err != nil {
		return 0, err
	}
	return w, os.WriteFile(file, []byte(strconv.FormatInt(w, 10)+"\n"), 0o600)
}

func weighDir(ctx context.Context, dir, depth int) (sum int64, err error) {
	const perFile = 4 << 10
	if depth > maxCopyDepth {
		return 0, outboard.Errorf(outboard.Exhausted, "directories are nested more than %d deep", maxCopyDepth)
	}
	names, err := readNames(dir)
	if err != nil || ctx.Err() != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return 0, err
		}
		sum += perFile + st.Blocks*512
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		sub, err := openDir(dir, name)
		if err != nil {
			return 0, err
		}
		w, err := weighDir(ctx, sub, depth+1)
		unix.Close(sub)
		if err != nil {
			return 0, err
		}
		sum += w
	}
	return sum, nil
}

func openDir(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// writeFlattened makes a layer that over st.Below[to:] is what st.Below[from:] is.
func (p *Provider) writeFlattened(ctx context.Context, name string, st *stack, from, to int) error {
	if err := p.newLayer(name, &stack{BootID: st.BootID, Root: st.Root, Below: st.Below[to:],
		Instead: st.Below[from:to]}); err != nil {
		return err
	}
	var fds descriptors
	defer fds.close()
	with, err := p.mergedView(&fds, st.Below[from:], st.Root)
	if err != nil {
		return err
	}
	without, err := p.mergedView(&fds, st.Below[to:], st.Root)
	if err != nil {
		return err
	}
	k := &packer{ctx: ctx, merged: with, seen: map[string]bool{}, kinds: map[string]kinds{}, delta: true}
	for _, l := range st.Below[from:to] {
		fd, err := unix.Open(filepath.Join(p.layer(l), "fs"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		k.layers = append(k.layers, fds.add(fd))
	}
	top, err := unix.Open(filepath.Join(p.layer(name), "fs"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	q := &flattener{ctx: ctx, with: with, without: without, top: fds.add(top), links: map[[2]uint64]string{}}
	deleted, write, err := k.changes()
	if err == nil {
		err = q.write(write, k.seen)
	}
	if err == nil {
		err = q.rejoin()
	}
	if err == nil {
		err = q.hide(deleted)
	}
	if err == nil {
		err = q.finish()
	}
	return err
}

// flattener writes a layer of what is seen with some layers and not without them.
type flattener struct {
	ctx           context.Context
	with, without int
	top           int                  // the new layer
	links         map[[2]uint64]string // files with several names: the first
	dirs          []string             // made, parents first; they get their times when all is in them
}

// write copies paths, parents first. whole says which directories are not merged with what is below.
func (q *flattener) write(paths []string, whole map[string]bool) error {
	for _, p := range paths {
		if err := q.parents(path.Dir(p)); err != nil {
			return err
		}
		dir, err := q.open(q.with, path.Dir(p))
		if err != nil {
			return err
		}
		to, err := q.open(q.top, path.Dir(p))
		if err == nil {
			err = q.entry(dir, to, path.Base(p), p, whole[p], 0)
			unix.Close(to)
		}
		unix.Close(dir)
		if err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
		if whole[p] {
			if err := q.cover(p); err != nil {
				return fmt.Errorf("%q: %w", p, err)
			}
		}
	}
	return nil
}

// parents makes what lies above a saved directory.
func (q *flattener) parents(dir string) error {
	if dir == "." {
		return nil
	}
	if fd, err := q.open(q.top, dir); err == nil {
		unix.Close(fd)
		return nil
	}
	return q.write([]string{dir}, nil)
}

func (q *flattener) open(view int, dir string) (int, error) {
	fd, err := openBelow(view, dir)
	if err != nil {
		return -1, fmt.Errorf("opening %q: %w", dir, err)
	}
	return fd, nil
}

// seenWithout reports whether there is anything of a path without the layers.
func (q *flattener) seenWithout(p string) bool {
	dir, err := openBelow(q.without, path.Dir(p))
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	return unix.Fstatat(dir, path.Base(p), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// cover makes a directory hide what is below it.
func (q *flattener) cover(p string) error {
	if !q.seenWithout(p) {
		return nil
	}
	fd, err := q.open(q.top, path.Dir(p))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	dir, err := openDir(fd, path.Base(p))
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // a file hides it anyway
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return os.NewSyscallError("fsetxattr", unix.Fsetxattr(dir, "trusted.overlay.opaque", []byte("y"), 0))
}

// hide marks as deleted what is below and no more.
func (q *flattener) hide(paths []string) error {
	for _, p := range paths {
		if !q.seenWithout(p) {
			continue
		}
		dir, err := openBelow(q.top, path.Dir(p))
		if err != nil {
			continue // what was above it is hidden
		}
		err = unix.Mknodat(dir, path.Base(p), unix.S_IFCHR, 0)
		unix.Close(dir)
		if err != nil && !errors.Is(err, unix.EEXIST) { // deleted and made anew
			return fmt.Errorf("hiding %q: %w", p, err)
		}
	}
	return nil
}

// rejoin gives files that were written the names that they have elsewhere, where nothing changed: they would be
// two files.
func (q *flattener) rejoin() error {
	if len(q.links) == 0 {
		return nil
	}
	for _, d := range workDirs {
		fd, err := q.open(q.with, d[1:])
		if err == nil {
			err = q.rejoinDir(fd, d[1:], 0)
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("joining the names of files: %w", err)
		}
	}
	return nil
}

func (q *flattener) rejoinDir(dir int, p string, depth int) error {
	if depth > maxCopyDepth {
		return outboard.Errorf(outboard.Exhausted, "directories are nested more than %d deep", maxCopyDepth)
	}
	names, err := readNames(dir)
	if err != nil || q.ctx.Err() != nil {
		return errors.Join(err, context.Cause(q.ctx))
	}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		switch first, written := q.links[[2]uint64{uint64(st.Dev), st.Ino}]; {
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			sub, err := openDir(dir, name)
			if err != nil {
				return err
			}
			err = q.rejoinDir(sub, p+"/"+name, depth+1)
			unix.Close(sub)
			if err != nil {
				return err
			}
		case written && st.Nlink > 1:
			if err := q.rejoinName(first, p, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// rejoinName makes dir/name the same file as first, if it is not there yet.
func (q *flattener) rejoinName(first, dir, name string) error {
	if err := q.parents(dir); err != nil {
		return err
	}
	to, err := q.open(q.top, dir)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := q.link(first, to, name); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// finish gives the directories their times.
func (q *flattener) finish() error {
	for _, p := range slices.Backward(q.dirs) {
		var st unix.Stat_t
		dir, err := q.open(q.with, path.Dir(p))
		if err != nil {
			return err
		}
		err = unix.Fstatat(dir, path.Base(p), &st, unix.AT_SYMLINK_NOFOLLOW)
		unix.Close(dir)
		if err != nil {
			return err
		}
		if dir, err = q.open(q.top, path.Dir(p)); err != nil {
			return err
		}
		err = setAttributes(dir, path.Base(p), &st)
		unix.Close(dir)
		if err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
	}
	return nil
}

// entry copies one name, with all that is in it.
func (q *flattener) entry(from, to int, name, p string, all bool, depth int) error {
	if q.ctx.Err() != nil {
		return context.Cause(q.ctx)
	}
	if depth > maxCopyDepth {
		return outboard.Errorf(outboard.Exhausted, "directories are nested more than %d deep", maxCopyDepth)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return q.dir(from, to, name, p, all, depth)
	}
	if st.Nlink > 1 {
		id := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := q.links[id]; ok {
			return q.link(first, to, name)
		}
		q.links[id] = p
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if err := flattenFile(from, to, name, &st); err != nil {
			return err
		}
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from, name, target)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(string(target[:n]), to, name); err != nil {
			return err
		}
	default:
		if err := unix.Mknodat(to, name, st.Mode, 0); err != nil {
			return err
		}
	}
	return setAttributes(to, name, &st)
}

// link gives a file that was written another name.
func (q *flattener) link(first string, to int, name string) error {
	dir, err := q.open(q.top, path.Dir(first))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Linkat(dir, path.Base(first), to, name, 0)
}

func (q *flattener) dir(from, to int, name, p string, all bool, depth int) error {
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return err
	}
	q.dirs = append(q.dirs, p)
	src, err := openDir(from, name)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	dst, err := openDir(to, name)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := copyXattrs(src, dst); err != nil || !all {
		return err
	}
	names, err := readNames(src)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := q.entry(src, dst, n, p+"/"+n, true, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// flattenFile copies the content and the attributes of a file, but for its holes.
func flattenFile(from, to int, name string, st *unix.Stat_t) error {
	in, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	src := os.NewFile(uintptr(in), name)
	defer src.Close()
	out, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(out), name)
	defer dst.Close()
	if err := copyXattrs(in, out); err != nil {
		return err
	}
	if err := dst.Truncate(st.Size); err != nil {
		return err
	}
	return eachData(src, st.Size, func(at, n int64) error {
		_, err := io.Copy(io.NewOffsetWriter(dst, at), io.NewSectionReader(src, at, n))
		return err
	})
}

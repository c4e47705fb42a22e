package guest

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// workspace knows the state of the saved directories at up to two labels, so that Save can tell what changed.
type workspace struct {
	mu      sync.Mutex // one Save or Load at a time
	scans   []*scan    // the newest last
	witness *witness   // nil where times tell of every write
}

const (
	// maxEntries bounds names under the saved directories; each costs some 250 bytes here, twice.
	maxEntries = 1_000_000
	// granule is how much later than a file's change time a look at it must be to be sure that a later change
	// shows: more than the tick of any kernel's coarse clock.
	granule = 20 * time.Millisecond
)

// scan is a complete look at the saved directories.
type scan struct {
	label  string
	at     time.Time // when it began
	order  []*item   // parents before children, names in order
	byPath map[string]*item

	// What a witness knows, each empty without one.
	watches map[int32]string // watch -> the directory's path
	watched map[string]bool  // those paths
	held    map[inode]bool   // files that could be written without a sign as the look began, and what nobody watches
	// what somebody who could write to it has let go of since, or has given or taken an attribute
	touched map[inode]bool
}

// item is one name under a saved directory. The marks of two looks at an unchanged one are the same.
type item struct {
	path string // as the tar has it: the name inside the sandbox, without the leading slash
	mark mark
	link string   // of symbolic links
	sum  [32]byte // of the content and attributes, when times may not tell of the next change
	racy bool     // sum counts
}

type mark struct {
	mode         uint32
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
	nlink        uint64
}

func markOf(st *syscall.Stat_t) mark {
	m := mark{mode: st.Mode, dev: uint64(st.Dev), ino: st.Ino, mtime: st.Mtim, ctime: st.Ctim}
	// what is inside has marks of its own; other fields of a directory say nothing or too much
	if m.is(syscall.S_IFDIR) {
		return m
	}
	m.size, m.nlink = st.Size, uint64(st.Nlink)
	return m
}

// same reports whether nothing shows that a name with this mark is not as it was. That a directory is another
// one says nothing either.
func (m mark) same(old mark) bool {
	if m.is(syscall.S_IFDIR) && old.is(syscall.S_IFDIR) {
		m.dev, m.ino = old.dev, old.ino
	}
	return m == old
}

// mark is markOf. Where a witness is needed, a directory's change time says nothing of its attributes.
func (s *server) mark(st *syscall.Stat_t) mark {
	m := markOf(st)
	if s.store.witness != nil && m.is(syscall.S_IFDIR) {
		m.ctime = syscall.Timespec{}
	}
	return m
}

func (m *mark) is(format uint32) bool { return m.mode&syscall.S_IFMT == format }

// saved reports whether names of this kind are part of a workspace. Sockets and devices mean nothing without
// their process.
func (m *mark) saved() bool {
	return m.is(syscall.S_IFREG) || m.is(syscall.S_IFDIR) || m.is(syscall.S_IFLNK) || m.is(syscall.S_IFIFO)
}

// look scans the saved directories. Roots that do not exist, and roots inside others, are passed over.
func (s *server) look(label string) (*scan, error) {
	sc := &scan{label: label, at: time.Now(), byPath: make(map[string]*item), touched: make(map[inode]bool)}
	w := s.store.witness
	if w != nil {
		w.begin(sc)
	}
	for _, root := range s.roots() {
		at, err := s.resolve(root, 0)
		if err != nil {
			continue
		}
		err = s.lookAt(sc, root, at)
		at.close()
		if err != nil {
			return nil, fmt.Errorf("scanning %s: %w", root, err)
		}
	}
	if w != nil && !w.end(sc, s.store.scans) {
		s.store.scans = nil
	}
	return sc, nil
}

// roots are the saved directories without those that lie in another.
func (s *server) roots() []string {
	return slices.DeleteFunc(slices.Clone(s.cfg.Roots), func(r string) bool {
		return slices.ContainsFunc(s.cfg.Roots, func(other string) bool {
			rest, ok := below(r, other)
			return ok && rest != ""
		})
	})
}

func (s *server) lookAt(sc *scan, root string, at place) error {
	fd, err := openDir(at.dir, at.name)
	if err == syscall.ENOENT || err == syscall.ENOTDIR {
		return nil
	}
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), root)
	defer dir.Close()
	prefix := strings.TrimPrefix(root, "/")
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	s.watchFor(sc, at.dir, at.name, prefix)
	top := &item{path: prefix, mark: s.mark(&st)}
	sc.add(top)
	if w := s.store.witness; w != nil {
		w.see(sc, top)
	}
	var reclose []func()
	defer func() {
		for _, f := range slices.Backward(reclose) {
			f()
		}
	}()
	return tree(dir, "", 0, func(n *node) (bool, error) {
		it := &item{path: path.Join(prefix, n.path), mark: s.mark(&n.st)}
		if !it.mark.saved() {
			return false, nil
		}
		if len(sc.order) >= maxEntries {
			return false, fmt.Errorf("more than %d files", maxEntries)
		}
		if it.mark.is(syscall.S_IFLNK) {
			link, err := readlinkAt(n.dir, n.name)
			if err != nil {
				return false, gone(n.path, err)
			}
			it.link = link
		}
		if n.is(syscall.S_IFDIR) && n.st.Mode&0o500 != 0o500 && os.Geteuid() != 0 {
			// Its owner closed it, and the guest has no power to read any directory.
			syscall.Fchmodat(n.dir, n.name, n.st.Mode&0o7777|0o500, 0)
			reclose = append(reclose, func() { s.reclose(it) })
		}
		if n.is(syscall.S_IFDIR) {
			s.watchFor(sc, n.dir, n.name, it.path)
		}
		sc.add(it)
		if w := s.store.witness; w != nil {
			w.see(sc, it)
		}
		return true, nil
	}, gone)
}

// watchFor has the witness watch a directory, if there is one.
func (s *server) watchFor(sc *scan, dir int, name, path string) {
	if s.store.witness != nil {
		s.store.witness.watch(sc, dir, name, path)
	}
}

// reclose gives an item's name its mode back.
func (s *server) reclose(it *item) {
	if at, err := s.within(it.path, 0, nil); err == nil {
		s.chmod(at, it, 0)
		at.close()
	}
}

// chmod gives an item's name its mode back, and more than it. That is no change.
func (s *server) chmod(at place, it *item, more uint32) {
	syscall.Fchmodat(at.dir, at.name, it.mark.mode&0o7777|more, 0)
	var st syscall.Stat_t
	if more == 0 && fstatat(at.dir, at.name, &st) == nil && st.Mtim == it.mark.mtime {
		it.mark.ctime = s.mark(&st).ctime
	}
}

// gone passes over what disappeared during a look.
func gone(p string, err error) error {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EINVAL) ||
		errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) || errors.Is(err, errNotRegular) {
		return nil
	}
	return fmt.Errorf("%q: %w", p, err)
}

func (sc *scan) add(it *item) {
	sc.order = append(sc.order, it)
	sc.byPath[it.path] = it
}

// hasAttrs reports whether names of this kind have attributes that are saved.
func (m *mark) hasAttrs() bool { return m.is(syscall.S_IFREG) || m.is(syscall.S_IFDIR) }

// uncertain reports whether times may not tell of the item's next change: the scan came too soon after its last
// one, or somebody holds it.
func (sc *scan) uncertain(it *item) bool {
	return it.mark.hasAttrs() && (sc.held[it.mark.inode()] || !time.Unix(it.mark.ctime.Unix()).
		Before(sc.at.Add(-granule)))
}

// unseen reports whether an item that looks the same in a newer scan may have been written since.
func (sc *scan) unseen(now *scan, it *item) bool {
	id := it.mark.inode()
	return it.mark.hasAttrs() && (now.held[id] || sc.touched[id])
}

// diff compares with an older scan: what is new or different, and what is no more (of a removed directory, only
// itself). Unchanged items keep what the older scan knew of their content.
func (s *server) diff(base, now *scan) (changed []*item, deleted []string, err error) {
	for _, it := range now.order {
		old := base.byPath[it.path]
		switch {
		case old == nil || !it.mark.same(old.mark) || old.link != it.link:
			changed = append(changed, it)
		case old.racy:
			sum, err := s.sum(it)
			if err != nil {
				return nil, nil, err
			}
			if sum != old.sum {
				changed = append(changed, it)
			} else if now.uncertain(it) {
				it.racy, it.sum = true, sum
			}
		case base.unseen(now, it):
			changed = append(changed, it)
		}
	}
	for _, it := range base.order {
		if now.byPath[it.path] != nil && sameKind(now.byPath[it.path], it) {
			continue
		}
		if parent := path.Dir(it.path); base.byPath[parent] != nil {
			p := now.byPath[parent]
			if p == nil || !p.mark.is(syscall.S_IFDIR) {
				continue // goes with its parent
			}
		}
		deleted = append(deleted, it.path)
	}
	return changed, deleted, nil
}

func sameKind(a, b *item) bool { return a.mark.mode&syscall.S_IFMT == b.mark.mode&syscall.S_IFMT }

// settle notes what files hold whose times may not tell, after a Load: nothing else runs then.
func (s *server) settle(sc *scan) (err error) {
	for _, it := range sc.order {
		if sc.uncertain(it) {
			it.racy = true
			if it.sum, err = s.sum(it); err != nil {
				return err
			}
		}
	}
	return nil
}

// sum hashes a file's content and attributes now, or a directory's attributes; of what is gone, nothing.
func (s *server) sum(it *item) (sum [32]byte, err error) {
	f, err := s.reach(it)
	if err != nil || f == nil {
		return sum, err
	}
	defer f.Close()
	h, attrs := sha256.New(), &tar.Header{Name: it.path}
	if it.mark.is(syscall.S_IFREG) {
		if _, err := io.Copy(h, f); err != nil {
			return sum, fmt.Errorf("reading %q: %w", it.path, err)
		}
	}
	if err := PackAttrs(attrs, int(f.Fd())); err != nil {
		return sum, err
	}
	sumAttrs(h, attrs)
	h.Sum(sum[:0])
	return sum, nil
}

// reach opens the file or directory of an item to be read, or returns nil when there is none at its path any
// more. A write after that changes its times, also one through a mapping: of a page that waits to be written to
// the disk the kernel notes no further one (clear_page_dirty_for_io in Linux's mm/page-writeback.c, which
// protects it anew), so the pages are sent there. This advice does so below an overlay as well, where
// sync_file_range does nothing. What has no disk notes no write through a mapping; for gVisor, which notes none,
// there is the witness.
func (s *server) reach(it *item) (*os.File, error) {
	f, err := s.find(it)
	if f == nil || err != nil || it.mark.is(syscall.S_IFDIR) {
		return f, err
	}
	const dontNeed = 4 // POSIX_FADV_DONTNEED
	if _, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0); errno != 0 &&
		errno != syscall.ENOSYS {
		f.Close()
		return nil, fmt.Errorf("%q: %w", it.path, os.NewSyscallError("fadvise", errno))
	}
	return f, nil
}

// find opens the regular file or the directory of an item, or returns nil when there is none at its path any more.
func (s *server) find(it *item) (*os.File, error) {
	at, err := s.within(it.path, 0, nil)
	if err != nil {
		return nil, gone(it.path, err)
	}
	defer at.close()
	f, err := it.open(at)
	if err == syscall.EACCES && os.Geteuid() != 0 { // its owner took the right to read from itself
		s.chmod(at, it, 0o400)
		f, err = it.open(at)
		s.chmod(at, it, 0)
	}
	if err != nil {
		return nil, gone(it.path, err)
	}
	return f, nil
}

func (it *item) open(at place) (*os.File, error) {
	if it.mark.is(syscall.S_IFDIR) {
		fd, err := openDir(at.dir, at.name)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), at.name), nil
	}
	f, _, err := openRegular(at.dir, at.name)
	return f, err
}

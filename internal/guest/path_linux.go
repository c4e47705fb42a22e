package guest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
)

// asTool runs f with the tool's identity for the file system: the kernel takes every file capability from the
// thread that f runs on, so that f reaches what the tool itself reaches and the guest is no confused deputy. f
// must not start goroutines.
func (s *server) asTool(f func() error) error {
	return s.as(account{uid: s.cfg.ToolUID, gid: s.cfg.ToolGID}, f)
}

// setFS sets the thread's file system ids, and checks that it worked: the calls themselves never fail.
func setFS(uid, gid int) error {
	if noFSIDs.Load() {
		return setEffective(uid, gid)
	}
	syscall.RawSyscall(syscall.SYS_SETFSGID, uintptr(gid), 0, 0)
	syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0)
	none := ^uintptr(0)
	g, _, _ := syscall.RawSyscall(syscall.SYS_SETFSGID, none, 0, 0)
	u, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, none, 0, 0)
	if int(u) == uid && int(g) == gid {
		return nil
	}
	if uid == os.Getuid() { // on the way back: what could be taken can be given up
		return errors.New("cannot leave the tool's identity")
	}
	noFSIDs.Store(true)
	return setEffective(uid, gid)
}

// noFSIDs says that the kernel has no identity for the file system alone; what it answers then means nothing.
var noFSIDs atomic.Bool

// setEffective sets the thread's effective ids, where a kernel (gVisor's) has none for the file system alone.
// They are taken in the order that leaves the right to take the other, and the real ones stay, so that they can
// be given back.
func setEffective(uid, gid int) error {
	same := ^uintptr(0)
	calls := [][2]uintptr{{syscall.SYS_SETRESGID, uintptr(gid)}, {syscall.SYS_SETRESUID, uintptr(uid)}}
	if uid == syscall.Getuid() { // back
		calls[0], calls[1] = calls[1], calls[0]
	}
	for _, c := range calls {
		if _, _, errno := syscall.RawSyscall(c[0], same, c[1], same); errno != 0 {
			return fmt.Errorf("cannot take the tool's identity: %w", errno)
		}
	}
	return nil
}

// place is a name in an open directory: a path whose every link but perhaps the last has been followed.
type place struct {
	dir  int
	name string // "." for the root directory
	path string // of dir, without any link
}

func (p place) close() { syscall.Close(p.dir) }

// walk options.
const (
	makeParents = 1 << iota
	keepLast    // do not follow a link in the last place
	noLinks     // refuse links anywhere
	anyway      // a directory on the way that does not exist ends the walk, with the rest of the path as its name
)

const maxLinks = 40 // as the kernel's

// resolve walks a path one component at a time. A relative one starts where tools begin. It never enters /proc
// or /sys, whose "self" would be the guest.
func (s *server) resolve(p string, opts int) (place, error) {
	if p == "" || strings.ContainsRune(p, 0) {
		return place{}, &os.PathError{Op: "open", Path: p, Err: syscall.EINVAL}
	}
	if !strings.HasPrefix(p, "/") {
		p = s.base() + "/" + p
	}
	if len(s.cfg.Map) > 0 {
		p = s.cfg.real(path.Clean(p))
	}
	root, err := openAt(-1, "/", oPath|syscall.O_DIRECTORY, 0)
	if err != nil {
		return place{}, err
	}
	w := walk{at: root, path: "/", rest: components(p), opts: opts}
	if err := w.run(); err != nil {
		syscall.Close(w.at)
		return place{}, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return place{dir: w.at, name: w.name, path: w.path}, nil
}

// real returns the canonical form of a path: absolute, with every link followed, as the tool's user sees it.
// What does not exist yet is named below the directory that does.
func (s *server) real(p string) (real string, err error) {
	err = s.asTool(func() error {
		at, err := s.resolve(p, anyway)
		if err != nil {
			return err
		}
		defer at.close()
		real = path.Clean(s.cfg.shown(path.Join(at.path, at.name)))
		return nil
	})
	return real, err
}

// within walks a path of a saved directory (without its leading slash, as in a tar) and follows no link below
// that directory. enter, when set, sees every directory on the way before it is entered, as a name in an open
// directory.
func (s *server) within(p string, opts int,
	enter func(path string, dir int, name string, st *syscall.Stat_t) error) (place, error) {
	full := "/" + p
	i := slices.IndexFunc(s.cfg.Roots, func(root string) bool { _, ok := below(full, root); return ok })
	if path.Clean(full) != full || i < 0 {
		return place{}, errors.New("not a clean path of a saved directory")
	}
	root, err := s.resolve(s.cfg.Roots[i], makeParents)
	rest, _ := below(full, s.cfg.Roots[i])
	if err != nil || rest == "" {
		return root, err
	}
	w := walk{at: root.dir, rest: append(components(rest), root.name), opts: opts | noLinks | keepLast, enter: enter}
	w.path = path.Dir(s.cfg.Roots[i])
	if err := w.run(); err != nil {
		syscall.Close(w.at)
		return place{}, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return place{dir: w.at, name: w.name}, nil
}

// walk is a resolve under way.
type walk struct {
	at    int      // directory reached
	path  string   // its path, without any link
	rest  []string // to go, last first
	name  string   // the result
	links int
	opts  int
	enter func(path string, dir int, name string, st *syscall.Stat_t) error
}

func components(p string) []string {
	parts := strings.Split(p, "/")
	parts = slices.DeleteFunc(parts, func(c string) bool { return c == "" || c == "." })
	slices.Reverse(parts)
	return parts
}

func (w *walk) run() error {
	for {
		n := len(w.rest)
		if n == 0 {
			w.name = "." // the root, or a path that ends in ".."
			return nil
		}
		name := w.rest[n-1]
		w.rest = w.rest[:n-1]
		if done, err := w.step(name, n == 1); done || err != nil {
			return err
		}
	}
}

// step goes into one component, or ends the walk at it.
func (w *walk) step(name string, last bool) (done bool, err error) {
	if last && name != ".." && w.opts&keepLast != 0 {
		w.name = name
		return true, nil
	}
	fd, err := openAt(w.at, name, oPath|syscall.O_NOFOLLOW, 0)
	if err == syscall.ENOENT && last {
		w.name = name
		return true, nil
	}
	if err == syscall.ENOENT && w.opts&anyway != 0 {
		slices.Reverse(w.rest)
		w.name = path.Join(append([]string{name}, w.rest...)...)
		return true, nil
	}
	if err == syscall.ENOENT && w.opts&makeParents != 0 {
		if err := syscall.Mkdirat(w.at, name, 0o755); err != nil && err != syscall.EEXIST {
			return false, err
		}
		fd, err = openAt(w.at, name, oPath|syscall.O_NOFOLLOW, 0)
	}
	if err != nil {
		return false, err
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return false, errors.Join(err, syscall.Close(fd))
	}
	switch kind := st.Mode & syscall.S_IFMT; {
	case kind == syscall.S_IFLNK:
		return false, errors.Join(w.follow(fd), syscall.Close(fd))
	case last && name != "..":
		w.name = name
		return true, syscall.Close(fd)
	case kind != syscall.S_IFDIR:
		return false, cmp.Or[error](syscall.Close(fd), syscall.ENOTDIR)
	case foreign(fd):
		syscall.Close(fd)
		return false, errForeign
	}
	w.path = path.Join(w.path, name)
	if w.enter != nil {
		if err := w.enter(strings.TrimPrefix(w.path, "/"), w.at, name, &st); err != nil {
			return false, errors.Join(err, syscall.Close(fd))
		}
	}
	syscall.Close(w.at)
	w.at = fd
	return false, nil
}

var errForeign = errors.New("files of /proc and /sys are only available to commands")

// follow puts the target of the link fd in front of what is left to walk.
func (w *walk) follow(fd int) error {
	if w.links++; w.links > maxLinks || w.opts&noLinks != 0 {
		return syscall.ELOOP
	}
	target, err := readlinkAt(fd, "")
	if err != nil {
		return err
	}
	if strings.HasPrefix(target, "/") {
		root, err := openAt(-1, "/", oPath|syscall.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		syscall.Close(w.at)
		w.at, w.path = root, "/"
	}
	w.rest = append(w.rest, components(target)...)
	return nil
}

// Limits of a tree walk.
const (
	// maxDepth bounds nesting, since every level keeps a descriptor open. Paths that programs can name are no
	// deeper than 2048.
	maxDepth = 1000
)

// node is one name found by a tree walk.
type node struct {
	dir  int    // its directory, open during the visit
	name string // in dir
	path string // from the walk's root, without a leading slash
	st   syscall.Stat_t
}

func (n *node) is(format uint32) bool { return n.st.Mode&syscall.S_IFMT == format }

// errTooDeep is a tree nested beyond maxDepth.
var errTooDeep = errors.New("directories are nested too deeply")

// tree visits everything below the open directory dir, names in order, without following links and without
// entering /proc or /sys. visit returns false to stay out of a directory. What cannot be opened or disappears is
// passed to skipped, which decides.
func tree(dir *os.File, prefix string, depth int,
	visit func(*node) (bool, error), skipped func(path string, err error) error) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return skipped(prefix, err)
	}
	slices.Sort(names)
	at := int(dir.Fd())
	var here syscall.Stat_t
	if err := syscall.Fstat(at, &here); err != nil {
		return err
	}
	if prefix != "" {
		prefix += "/"
	}
	for _, name := range names {
		n := node{dir: at, name: name, path: prefix + name}
		if err := fstatat(at, name, &n.st); err != nil {
			if err := skipped(n.path, err); err != nil {
				return err
			}
			continue
		}
		enter, err := visit(&n)
		if err != nil {
			return err
		}
		if !enter || !n.is(syscall.S_IFDIR) {
			continue
		}
		if err := subtree(&n, here.Dev, depth, visit, skipped); err != nil {
			return err
		}
	}
	return nil
}

func subtree(n *node, dev uint64, depth int, visit func(*node) (bool, error), skipped func(string, error) error) error {
	if depth >= maxDepth {
		return skipped(n.path, errTooDeep)
	}
	fd, err := openDir(n.dir, n.name)
	if err != nil {
		return skipped(n.path, err)
	}
	sub := os.NewFile(uintptr(fd), n.path)
	defer sub.Close()
	if uint64(n.st.Dev) != dev && foreign(fd) {
		return nil
	}
	return tree(sub, n.path, depth+1, visit, skipped)
}

// openTree opens the directory at p for a tree walk.
func (s *server) openTree(p string) (*os.File, error) { return s.openTreeWith(p, 0) }

// openTreeWith is openTree with options for the walk there.
func (s *server) openTreeWith(p string, opts int) (*os.File, error) {
	at, err := s.resolve(p, opts)
	if err != nil {
		return nil, err
	}
	defer at.close()
	fd, err := openDir(at.dir, at.name)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	if foreign(fd) {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "open", Path: p, Err: errForeign}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// readAll reads a file that is not larger than limit, whatever its size was before.
func readAll(f *os.File, limit int64) ([]byte, bool, error) {
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	return b, int64(len(b)) <= limit, err
}

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

const (
	// maxReadDir bounds the entries of one listing.
	maxReadDir = 100_000
	// maxAttrs bounds the extended attributes of one file that are read, names and values together.
	maxAttrs = 64 << 10
	// attrSpace is where WriteFile keeps attributes.
	attrSpace = "e2b."
)

// fsOp runs one operation on files for a user.
func (s *server) fsOp(ctx context.Context, h requestHead, body []byte, st *stream) (form.Message, error) {
	var a fsArg
	if err := decode(h.Arg, &a); err != nil {
		return nil, err
	}
	acc, err := s.account(a.User)
	if err != nil {
		return nil, err
	}
	p, err := s.userPath(acc, string(a.Path))
	if err != nil {
		return nil, err
	}
	f := fsCall{s: s, acc: acc, path: p}
	v, err := f.run(ctx, h.Op, a, &receiver{ctx: ctx, s: st, rest: body}, st)
	return v, fileError(p, err)
}

// realOp names what a path leads to, for a host that judges it before a file tool opens it.
func (s *server) realOp(h requestHead) (form.Message, error) {
	var a fsArg
	if err := decode(h.Arg, &a); err != nil {
		return nil, err
	}
	if len(a.Path) > maxPath {
		return nil, &Error{Code: Invalid, Message: "the path is too long"}
	}
	real, err := s.real(string(a.Path))
	if err != nil {
		return nil, &Error{Code: Invalid, Message: fmt.Sprintf("%s: %s", a.Path, plain(err))}
	}
	return &Entry{Path: Name(real)}, nil
}

// userPath makes a path absolute.
func (s *server) userPath(acc account, p string) (string, error) {
	switch {
	case strings.ContainsRune(p, 0) || len(p) > maxPath:
		return "", &Error{Code: Invalid, Message: "a path has a NUL or is too long"}
	case path.IsAbs(p):
		return path.Clean(p), nil
	case p == "~" || strings.HasPrefix(p, "~/"):
		p = p[1:]
	}
	return path.Join(acc.home, p), nil
}

// fsCall is one operation under way.
type fsCall struct {
	s      *server
	acc    account
	path   string
	users  map[uint32]string
	groups map[uint32]string
}

func (f *fsCall) run(ctx context.Context, op string, a fsArg, r *receiver, st *stream) (form.Message, error) {
	var err error
	switch op {
	case opStat:
		return f.stat()
	case opReadDir:
		err = f.readDir(ctx, max(1, a.Depth), st)
	case opMkdir:
		return f.mkdir()
	case opMove:
		to, err := f.s.userPath(f.acc, string(a.To))
		if err != nil {
			return nil, err
		}
		return f.move(to)
	case opRemove:
		err = f.access(func(opts int) error {
			at, err := f.s.resolve(f.path, keepLast|opts)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			defer at.close()
			return removeAll(at.dir, at.name, 0)
		})
	case opRead:
		err = f.read(ctx, a, st)
	case opWrite:
		if a.Whole {
			return f.replace(a.Attrs, r)
		}
		return f.write(a.Attrs, r)
	case opWatch:
		err = f.s.watch(ctx, f, a.Recursive, st)
	default:
		err = &Error{Code: Invalid, Message: "unknown operation " + op}
	}
	return form.None{}, err
}

// access runs do as the user, or, when the user may not, as the guest, which then follows no link: whoever asks
// through the host owns the whole sandbox, but a link that a program in it planted must not lead the guest
// elsewhere.
func (f *fsCall) access(do func(opts int) error) error {
	err := f.s.as(f.acc, func() error { return do(0) })
	if errors.Is(err, fs.ErrPermission) && !f.s.sameID {
		err = do(noLinks)
	}
	return err
}

// stat describes f.path.
func (f *fsCall) stat() (form.Message, error) {
	var e Entry
	err := f.access(func(opts int) error {
		at, err := f.s.resolve(f.path, keepLast|opts)
		if err != nil {
			return err
		}
		defer at.close()
		e, err = f.entry(at.dir, at.name, f.path)
		return err
	})
	// below a file there is nothing, which is an answer, and no mistake in the question
	if errors.Is(err, syscall.ENOTDIR) {
		err = &Error{Code: NotFound, Message: fmt.Sprintf("%q: %s", f.path, plain(err))}
	}
	return &e, err
}

// entry describes a name in an open directory that is shown as p.
func (f *fsCall) entry(dir int, name, p string) (Entry, error) {
	if f.users == nil {
		f.users, f.groups = f.s.names("passwd", 7), f.s.names("group", 4)
	}
	e := Entry{Path: Name(p)}
	fd, err := openAt(dir, name, oPath|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return e, &os.PathError{Op: "stat", Path: p, Err: err}
	}
	defer func() { syscall.Close(fd) }()
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return e, err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		target, to, err := f.target(dir, fd, p)
		if err == nil {
			syscall.Close(fd)
			fd, e.Target = target, Name(to)
			err = syscall.Fstat(fd, &st)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ELOOP) {
			return e, err
		}
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		e.Kind, e.Attrs = KindFile, f.attrs(fd)
	case syscall.S_IFDIR:
		e.Kind, e.Attrs = KindDirectory, f.attrs(fd)
	case syscall.S_IFLNK:
		e.Kind = KindLink
	default:
		e.Kind = KindOther
	}
	e.Size, e.Mode, e.ModTime = st.Size, st.Mode&0o7777, st.Mtim.Nano()/1000
	e.Owner, e.Group = nameOf(f.users, st.Uid), nameOf(f.groups, st.Gid)
	return e, nil
}

func nameOf(names map[uint32]string, id uint32) string {
	if n := names[id]; n != "" {
		return n
	}
	return strconv.FormatUint(uint64(id), 10)
}

// target opens what a link leads to, and returns its path.
func (f *fsCall) target(dir, link int, p string) (int, string, error) {
	to, err := readlinkAt(link, "")
	if err != nil {
		return -1, "", err
	}
	if !path.IsAbs(to) {
		to = f.s.cfg.shown(path.Join(path.Dir(p), to))
	}
	at, err := f.s.resolve(to, 0)
	if err != nil {
		return -1, "", err
	}
	defer at.close()
	fd, err := openAt(at.dir, at.name, oPath|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return -1, "", err
	}
	if real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil {
		to = f.s.cfg.shown(real)
	}
	return fd, to, nil
}

// attrs returns a file's user extended attributes; what cannot be read has none.
func (f *fsCall) attrs(fd int) map[string]string {
	p := "/proc/self/fd/" + strconv.Itoa(fd)
	buf := make([]byte, maxAttrs)
	n, err := syscall.Listxattr(p, buf)
	if err != nil || n == 0 {
		return nil
	}
	out := make(map[string]string)
	value := make([]byte, maxAttrs)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		key, ok := strings.CutPrefix(name, "user.")
		if !ok {
			continue
		}
		if n, err := syscall.Getxattr(p, name, value); err == nil {
			out[key] = strings.ToValidUTF8(string(value[:n]), "\uFFFD")
		}
	}
	return out
}

// readDir sends what is below a directory.
func (f *fsCall) readDir(ctx context.Context, depth int, st *stream) error {
	list := []Entry{}
	err := f.access(func(opts int) error {
		list = list[:0]
		root, err := f.s.openTreeWith(f.path, opts)
		if err != nil {
			return err
		}
		defer root.Close()
		return tree(root, "", 0, func(n *node) (bool, error) {
			e, err := f.entry(n.dir, n.name, path.Join(f.path, n.path))
			if err != nil {
				return false, nil // removed meanwhile
			}
			if len(list) >= maxReadDir {
				return false, &Error{Code: Invalid, Message: fmt.Sprintf("more than %d entries", maxReadDir)}
			}
			list = append(list, e)
			return n.is(syscall.S_IFDIR) && strings.Count(n.path, "/")+1 < depth, nil
		}, func(p string, err error) error {
			if p == "" || errors.Is(err, errTooDeep) {
				return err
			}
			return nil // what the user cannot read
		})
	})
	if errors.Is(err, syscall.ENOTDIR) {
		return &Error{Code: Invalid, Message: "path is not a directory: " + f.path}
	}
	if err != nil {
		return err
	}
	w := &sender{ctx: ctx, s: st}
	if err := json.NewEncoder(w).Encode(list); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	return st.end(ctx)
}

// mkdir makes a directory that belongs to the user, with its parents.
func (f *fsCall) mkdir() (form.Message, error) {
	err := f.access(func(opts int) error {
		at, err := f.s.resolve(f.path, makeParents|opts)
		if err != nil {
			return err
		}
		defer at.close()
		if err := syscall.Mkdirat(at.dir, at.name, 0o755); err != nil {
			var st syscall.Stat_t
			if err == syscall.EEXIST && fstatat(at.dir, at.name, &st) == nil &&
				st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				return &Error{Code: Conflict, Message: "directory already exists: " + f.path}
			}
			return err
		}
		if opts&noLinks == 0 {
			return nil
		}
		fd, err := openDir(at.dir, at.name)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		return syscall.Fchown(fd, f.acc.uid, f.acc.gid)
	})
	if errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOTDIR) {
		return nil, &Error{Code: Invalid, Message: "path already exists but it is not a directory: " + f.path}
	}
	if err != nil {
		return nil, err
	}
	return f.stat()
}

// move renames f.path.
func (f *fsCall) move(to string) (form.Message, error) {
	err := f.access(func(opts int) error {
		from, err := f.s.resolve(f.path, keepLast|opts)
		if err != nil {
			return err
		}
		defer from.close()
		var st syscall.Stat_t
		if err := fstatat(from.dir, from.name, &st); err != nil {
			return err
		}
		at, err := f.s.resolve(to, keepLast|makeParents|opts)
		if err != nil {
			return err
		}
		defer at.close()
		return syscall.Renameat(from.dir, from.name, at.dir, at.name)
	})
	if err != nil {
		return nil, err
	}
	f.path = to
	return f.stat()
}

// read sends a part of a regular file.
func (f *fsCall) read(ctx context.Context, a fsArg, st *stream) error {
	if a.Offset < 0 || a.Length < 0 {
		return &Error{Code: Invalid, Message: "negative range"}
	}
	var file *os.File
	err := f.access(func(opts int) error {
		at, err := f.s.resolve(f.path, opts)
		if err != nil {
			return err
		}
		defer at.close()
		var st syscall.Stat_t
		if fstatat(at.dir, at.name, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			return errIsDir
		}
		file, _, err = openRegular(at.dir, at.name)
		return err
	})
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(a.Offset, io.SeekStart); err != nil {
		return err
	}
	var r io.Reader = file
	if a.Length > 0 {
		r = io.LimitReader(file, a.Length)
	}
	w := &sender{ctx: ctx, s: st}
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, chunkSize)); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	return st.end(ctx)
}

// write replaces a file's content in place, so that programs which have it open, or watch it, see the change.
func (f *fsCall) write(attrs map[string]string, r io.Reader) (form.Message, error) {
	var file *os.File
	err := f.access(func(opts int) error {
		at, err := f.s.resolve(f.path, makeParents|opts)
		if err != nil {
			return err
		}
		defer at.close()
		file, err = f.create(at, opts&noLinks != 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{r}, make([]byte, chunkSize))
	if err == nil {
		err = f.setAttrs(int(file.Fd()), attrs)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	return f.stat()
}

// replace makes a file's content appear at once. Where the directory takes no second name, it writes into the file.
func (f *fsCall) replace(attrs map[string]string, r io.Reader) (form.Message, error) {
	var at place
	var half *os.File
	asGuest := false
	err := f.access(func(opts int) (err error) {
		if at, err = f.s.resolve(f.path, makeParents|opts); err != nil {
			return err
		}
		asGuest = opts&noLinks != 0
		if half, err = f.beside(at, asGuest); err != nil {
			at.close()
		}
		return err
	})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return f.write(attrs, r)
	}
	if err != nil {
		return nil, err
	}
	defer at.close()
	finish := func() error { return at.commit(half, r, func(fd int) error { return f.setAttrs(fd, attrs) }) }
	if asGuest {
		err = finish()
	} else {
		err = f.s.as(f.acc, finish)
	}
	if err != nil {
		return nil, err
	}
	return f.stat()
}

// beside makes the file that will take a place, with the mode of the one that is there.
func (f *fsCall) beside(at place, asGuest bool) (*os.File, error) {
	mode := uint32(0o644)
	var st syscall.Stat_t
	switch err := fstatat(at.dir, at.name, &st); {
	case err == syscall.ENOENT:
	case err != nil:
		return nil, err
	case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		return nil, errIsDir
	case st.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, errNotRegular
	default:
		mode = st.Mode & 0o777
		if err := writable(at); err != nil {
			return nil, err
		}
	}
	half, err := at.create(mode)
	if err != nil || !asGuest {
		return half, err
	}
	if err := syscall.Fchown(int(half.Fd()), f.acc.uid, f.acc.gid); err != nil {
		return nil, errors.Join(err, half.Close(), unlinkAt(at.dir, half.Name(), 0))
	}
	return half, nil
}

func (f *fsCall) create(at place, asGuest bool) (*os.File, error) {
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY
	fd, err := openAt(at.dir, at.name, flags, 0o666)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.path, Err: err}
	}
	var st syscall.Stat_t
	err = syscall.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&syscall.S_IFMT != syscall.S_IFREG || foreign(fd):
		err = errNotRegular
	case asGuest && int(st.Uid) != f.acc.uid:
		err = syscall.Fchown(fd, f.acc.uid, f.acc.gid)
	}
	if err == nil {
		err = syscall.Ftruncate(fd, 0)
	}
	if err != nil {
		return nil, errors.Join(err, syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), f.path), nil
}

// setAttrs makes attrs the only ones in attrSpace.
func (f *fsCall) setAttrs(fd int, attrs map[string]string) error {
	for key := range f.attrs(fd) {
		if name, ok := strings.CutPrefix(key, attrSpace); ok {
			if _, keep := attrs[name]; !keep {
				if err := syscall.Removexattr("/proc/self/fd/"+strconv.Itoa(fd), "user."+key); err != nil {
					return err
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		if err := setXattr(fd, "user."+attrSpace+name, attrs[name]); err != nil {
			return &Error{Code: Invalid, Message: fmt.Sprintf("metadata %q: %v", name, err)}
		}
	}
	return nil
}

func setXattr(fd int, name, value string) error {
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	v := append([]byte(value), 0)
	_, _, errno := syscall.Syscall6(syscall.SYS_FSETXATTR, uintptr(fd), uintptr(unsafe.Pointer(n)),
		uintptr(unsafe.Pointer(&v[0])),
		uintptr(len(value)), 0, 0)
	return errnoErr(errno)
}

package guest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxDeleted bounds the list of deleted paths in one tar.
const maxDeleted = 256 << 20

// load is Load of the protocol.
func (s *server) load(label string, r io.Reader) error {
	if label == "" {
		return &Error{Code: Invalid, Message: "a state needs a label"}
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	err := s.asTool(func() error { return s.unpack(r) })
	if err == nil {
		var sc *scan
		if sc, err = s.look(label); err == nil {
			err = s.settle(sc)
			s.store.keep(nil, sc)
		}
	}
	if err == nil || errors.Is(err, ErrDisconnected) {
		return err
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	code := Invalid
	if full(err) {
		code = Full
	}
	return &Error{Code: code, Message: "loading the workspace: " + err.Error()}
}

// unpack applies one tar after the other.
func (s *server) unpack(r io.Reader) error {
	br := bufio.NewReaderSize(r, chunkSize)
	for {
		if _, err := br.Peek(1); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		u := &unpacker{s: s, dirs: make(map[string]*tar.Header)}
		in := &ending{r: br}
		err := u.tar(tar.NewReader(in))
		if err == nil && in.zeros < endOfTar {
			err = errors.New("the tar is cut off")
		}
		if err := errors.Join(err, u.finish()); err != nil {
			return err
		}
	}
}

// endOfTar is how many zero bytes end a tar.
const endOfTar = 1024

// ending counts the zero bytes read last: package tar takes some cut-off tars for complete ones.
type ending struct {
	r     io.Reader
	zeros int
}

// Read reads and counts.
func (e *ending) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	tail := n - len(bytes.TrimRight(p[:n], "\x00"))
	if tail == n {
		tail += e.zeros
	}
	e.zeros = tail
	return n, err
}

// unpacker applies one tar. Directories are writable while it works; their modes and times come last.
type unpacker struct {
	s    *server
	dirs map[string]*tar.Header // by path: what a directory shall have in the end
}

func (u *unpacker) tar(tr *tar.Reader) error {
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the tar: %w", err)
		}
		if n == 0 && h.Name != deletedName {
			if err := u.clear(); err != nil {
				return err
			}
		}
		if n > 2*maxEntries {
			return fmt.Errorf("more than %d entries", 2*maxEntries)
		}
		if h.Name == deletedName {
			err = u.deletions(tr, h)
		} else {
			err = u.entry(tr, h)
		}
		if err != nil {
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
}

// clear empties the saved directories: the tar that follows is all there is.
func (u *unpacker) clear() error {
	for _, root := range u.s.roots() {
		dir, err := u.s.openTree(root)
		if errors.Is(err, syscall.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("clearing %s: %w", root, err)
		}
		names, err := dir.Readdirnames(-1)
		for _, name := range names {
			err = errors.Join(err, removeAll(int(dir.Fd()), name, 0))
		}
		if err = errors.Join(err, dir.Close()); err != nil {
			return fmt.Errorf("clearing %s: %w", root, err)
		}
	}
	return nil
}

// deletions applies the list at the head of a delta.
func (u *unpacker) deletions(tr io.Reader, h *tar.Header) error {
	if h.Size > maxDeleted {
		return fmt.Errorf("a list of %d bytes", h.Size)
	}
	b, err := io.ReadAll(tr)
	if err != nil {
		return err
	}
	for p := range strings.SplitSeq(strings.TrimSuffix(string(b), "\x00"), "\x00") {
		if p == "" {
			continue
		}
		at, err := u.place(p)
		if err != nil {
			return fmt.Errorf("deleting %q: %w", p, err)
		}
		err = removeAll(at.dir, at.name, 0)
		at.close()
		if err != nil {
			return fmt.Errorf("deleting %q: %w", p, err)
		}
	}
	return nil
}

// place finds the parent of an entry, making it when it is missing, without following any link.
func (u *unpacker) place(p string) (place, error) {
	return u.s.within(strings.TrimSuffix(p, "/"), makeParents, u.unlock)
}

// unlock sees every directory on the way to an entry. It notes how the directory looked, because making and
// removing names in it changes its time, and makes it writable, if it is the tool's and is not, until finish.
func (u *unpacker) unlock(p string, dir int, name string, st *syscall.Stat_t) error {
	if int(st.Uid) != u.s.cfg.ToolUID {
		return nil
	}
	if u.dirs[p] == nil {
		u.dirs[p] = &tar.Header{Mode: int64(st.Mode & 0o7777), ModTime: time.Unix(st.Mtim.Unix())}
	}
	if st.Mode&0o700 == 0o700 {
		return nil
	}
	return syscall.Fchmodat(dir, name, st.Mode&0o7777|0o700, 0)
}

// entry makes one name.
func (u *unpacker) entry(tr io.Reader, h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	at, err := u.place(h.Name)
	if err != nil {
		return err
	}
	defer at.close()
	if h.Typeflag == tar.TypeDir {
		u.dirs[name] = h
		return makeDir(at)
	}
	if u.isRoot(name) {
		return errors.New("a saved directory itself must be a directory")
	}
	if err := removeAll(at.dir, at.name, 0); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(at, tr, h)
	case tar.TypeLink:
		from, err := u.place(h.Linkname)
		if err != nil {
			return err
		}
		defer from.close()
		return link(from, at)
	case tar.TypeSymlink:
		if err := symlinkAt(h.Linkname, at.dir, at.name); err != nil {
			return err
		}
	case tar.TypeFifo:
		if err := makePipe(at, uint32(h.Mode)); err != nil {
			return err
		}
	default:
		return fmt.Errorf("type %q is not part of a workspace", h.Typeflag)
	}
	return setTimes(at.dir, at.name, timespec(h))
}

// link makes a second name. Of a pipe there are none in some kernels (gVisor's): there it is one of its own.
func link(from, at place) error {
	err := linkAt(from.dir, from.name, at.dir, at.name)
	var st syscall.Stat_t
	if err != syscall.EOPNOTSUPP && err != syscall.EPERM || fstatat(from.dir, from.name, &st) != nil ||
		st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return err
	}
	if err := makePipe(at, st.Mode); err != nil {
		return err
	}
	return setTimes(at.dir, at.name, st.Mtim)
}

// makePipe makes a named pipe, with all of its mode.
func makePipe(at place, mode uint32) error {
	if err := syscall.Mknodat(at.dir, at.name, syscall.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	return syscall.Fchmodat(at.dir, at.name, mode&0o777, 0)
}

func (u *unpacker) isRoot(name string) bool { return slices.Contains(u.s.cfg.Roots, "/"+name) }

func timespec(h *tar.Header) syscall.Timespec {
	ts := syscall.Timespec{}
	ts.Sec, ts.Nsec = h.ModTime.Unix(), int64(h.ModTime.Nanosecond())
	return ts
}

// makeDir makes a directory, or keeps the one that is there.
func makeDir(at place) error {
	var st syscall.Stat_t
	err := fstatat(at.dir, at.name, &st)
	if err == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return nil
	}
	if err == nil {
		err = unlinkAt(at.dir, at.name, 0)
	}
	if err != nil && err != syscall.ENOENT {
		return err
	}
	return syscall.Mkdirat(at.dir, at.name, 0o700)
}

// file makes a regular file. Set-id bits are dropped: inside they would mean nothing, outside too much.
func (u *unpacker) file(at place, tr io.Reader, h *tar.Header) error {
	if h.Size > maxFile {
		return fmt.Errorf("a file of %d bytes", h.Size)
	}
	fd, err := openAt(at.dir, at.name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), h.Name)
	_, err = io.Copy(&holes{f: f}, tr)
	if err == nil {
		err = f.Truncate(h.Size) // the end may be a hole
	}
	if err == nil {
		err = giveAttrs(fd, h)
	}
	if err == nil {
		err = syscall.Fchmod(fd, uint32(h.Mode&0o1777))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return setTimes(at.dir, at.name, timespec(h))
}

// holes writes a file and leaves out blocks of zeros, which read the same.
type holes struct {
	f   *os.File
	off int64
}

// block is the least that a file system leaves out.
const block = 4096

var zeroBlock [block]byte

// Write implements io.Writer.
func (w *holes) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n := min(block-int(w.off%block), len(p)-done)
		part := p[done : done+n]
		if !bytes.Equal(part, zeroBlock[:n]) {
			if _, err := w.f.WriteAt(part, w.off); err != nil {
				return done, err
			}
		}
		w.off += int64(n)
		done += n
	}
	return len(p), nil
}

// finish gives directories their modes and times, the deepest first: a parent may end up closed.
func (u *unpacker) finish() error {
	names := make([]string, 0, len(u.dirs))
	for name := range u.dirs {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	for _, name := range names {
		h := u.dirs[name]
		at, err := u.s.within(name, 0, nil)
		if err != nil {
			continue // deleted by a later entry
		}
		err = u.finishDir(at, h)
		at.close()
		if err != nil {
			return fmt.Errorf("finishing %q: %w", name, err)
		}
	}
	return nil
}

// finishDir finishes one directory, if it is still one, and the tool's.
func (u *unpacker) finishDir(at place, h *tar.Header) error {
	var st syscall.Stat_t
	if fstatat(at.dir, at.name, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR ||
		int(st.Uid) != u.s.cfg.ToolUID {
		return nil
	}
	var err error
	if h.Typeflag == tar.TypeDir { // else it has no entry, only some below it
		err = replaceAttrs(at, st.Mode&0o7777, h)
	}
	return errors.Join(err, setTimes(at.dir, at.name, timespec(h)), syscall.Fchmodat(at.dir, at.name,
		uint32(h.Mode&0o7777), 0))
}

// replaceAttrs makes a header's attributes those of a directory, of which it changes the mode to be able to.
func replaceAttrs(at place, mode uint32, h *tar.Header) error {
	if mode&0o700 != 0o700 {
		if err := syscall.Fchmodat(at.dir, at.name, mode|0o700, 0); err != nil {
			return err
		}
	}
	fd, err := openDir(at.dir, at.name)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return onlyAttrs(fd, h)
}

// removeAll removes a name and everything below it, without following links. A name that is not there is fine.
func removeAll(dir int, name string, depth int) error {
	err := unlinkAt(dir, name, 0)
	if err == nil || err == syscall.ENOENT {
		return nil
	}
	if err != syscall.EISDIR && err != syscall.EPERM || depth > maxDepth {
		return err
	}
	if syscall.Fchmodat(dir, name, 0o700, 0) != nil {
		return err
	}
	fd, err := openDir(dir, name)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeAll(fd, n, depth+1); err != nil {
			return err
		}
	}
	return unlinkAt(dir, name, atRemoveDir)
}

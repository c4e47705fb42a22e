package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"syscall"
)

const (
	// maxWatches bounds the watches of one guest, and maxWatched the directories of one: the kernel counts both
	// per user.
	maxWatches = 64
	maxWatched = 8192
)

const watchMask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_DELETE | syscall.IN_MOVED_FROM |
	syscall.IN_MOVED_TO | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR | syscall.IN_EXCL_UNLINK

// watcher is one watch: an inotify instance with a directory, or a tree of them.
type watcher struct {
	f    *fsCall
	file *os.File
	fd   int
	tree bool
	dirs map[int32]string // watch -> path below f.path, "" for itself
}

// watch sends the changes of a directory until it is gone or ctx ends.
func (s *server) watch(ctx context.Context, f *fsCall, recursive bool, st *stream) error {
	select {
	case s.watches <- struct{}{}:
		defer func() { <-s.watches }()
	default:
		return &Error{Code: Busy, Message: fmt.Sprintf("%d directories are watched already", maxWatches)}
	}
	fd, err := s.inotify(f.acc)
	if err != nil {
		return &Error{Code: Busy, Message: "watching: " + err.Error()}
	}
	w := &watcher{f: f, fd: fd, file: os.NewFile(uintptr(fd), "inotify"), tree: recursive, dirs: make(map[int32]string)}
	defer w.file.Close()
	err = f.access(func(opts int) error {
		root, err := s.openTreeWith(f.path, opts)
		if err != nil {
			return err
		}
		defer root.Close()
		return w.add(root, "", nil)
	})
	if errors.Is(err, syscall.ENOTDIR) {
		return &Error{Code: Invalid, Message: "path is not a directory: " + f.path}
	}
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { w.file.Close() })
	defer stop()
	if err := w.send(ctx, st, []Change{{Op: OpReady}}); err != nil {
		return err
	}
	return w.run(ctx, st)
}

// inotify makes an instance that counts against a user of this sandbox. Of the guest's own user the host's root
// may be the same, where there is no user namespace, and the kernel gives that one 128 instances for everything
// on the host.
func (s *server) inotify(acc account) (fd int, err error) {
	open := func() error {
		fd, err = syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
		return err
	}
	if acc.uid == os.Geteuid() || os.Geteuid() != 0 {
		err = open()
		return fd, err
	}
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		runtime.LockOSThread()
		const keep = ^uintptr(0)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, uintptr(acc.uid), keep); errno != 0 {
			err = errno
		} else {
			err = open()
		}
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, 0, keep); errno == 0 {
			runtime.UnlockOSThread() // else the thread ends with this goroutine
		}
	})
	<-done
	return fd, err
}

// add watches an open directory and, for a tree, what is below. found gets what is in a directory that is new:
// it may have been filled before it was watched.
func (w *watcher) add(dir *os.File, rel string, found func(rel string)) error {
	if len(w.dirs) >= maxWatched {
		return &Error{Code: Invalid, Message: fmt.Sprintf("more than %d directories below %s", maxWatched, w.f.path)}
	}
	wd, err := syscall.InotifyAddWatch(w.fd, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), watchMask)
	if err != nil {
		return err
	}
	w.dirs[int32(wd)] = rel
	if !w.tree {
		return nil
	}
	return tree(dir, "", 0, func(n *node) (bool, error) {
		below := path.Join(rel, n.path)
		if found != nil {
			found(below)
		}
		if !n.is(syscall.S_IFDIR) {
			return false, nil
		}
		fd, err := openDir(n.dir, n.name)
		if err != nil {
			return false, nil // the user may not look inside
		}
		sub := os.NewFile(uintptr(fd), n.name)
		defer sub.Close()
		return false, w.add(sub, below, found)
	}, func(string, error) error { return nil })
}

// run reads events until the watched directory is gone.
func (w *watcher) run(ctx context.Context, st *stream) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		var out []Change
		over := false
		for b := buf[:n]; len(b) > 0; {
			var e inotifyEvent
			if e, b = parseInotify(b); e.wd == 0 {
				break
			}
			over = w.take(e, &out) || over
		}
		if err := w.send(ctx, st, out); err != nil {
			return err
		}
		if over {
			return st.end(ctx)
		}
	}
}

// inotifyEvent is one event of the kernel.
type inotifyEvent struct {
	wd   int32
	mask uint32
	name string
}

// parseInotify takes one event off b; a wd of 0, which the kernel never gives, means that there is none.
func parseInotify(b []byte) (inotifyEvent, []byte) {
	if len(b) < syscall.SizeofInotifyEvent {
		return inotifyEvent{}, nil
	}
	n := int(binary.NativeEndian.Uint32(b[12:]))
	if n > len(b)-syscall.SizeofInotifyEvent {
		return inotifyEvent{}, nil
	}
	e := inotifyEvent{wd: int32(binary.NativeEndian.Uint32(b)), mask: binary.NativeEndian.Uint32(b[4:])}
	name, _, _ := bytes.Cut(b[16:16+n], []byte{0})
	e.name = string(name)
	return e, b[16+n:]
}

// take turns one event into changes. It reports whether the watch is over.
func (w *watcher) take(e inotifyEvent, out *[]Change) bool {
	if e.mask&syscall.IN_Q_OVERFLOW != 0 {
		*out = append(*out, Change{Op: OpOverflow})
		return false
	}
	rel, ok := w.dirs[e.wd]
	if !ok {
		return false
	}
	if e.mask&syscall.IN_IGNORED != 0 {
		delete(w.dirs, e.wd)
		return rel == ""
	}
	if e.mask&(syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF) != 0 {
		if rel == "" {
			op := OpRemove
			if e.mask&syscall.IN_MOVE_SELF != 0 {
				op = OpRename
			}
			*out = append(*out, Change{Op: op})
		}
		return false // of other directories their parent tells
	}
	name := path.Join(rel, e.name)
	for _, m := range []struct {
		bit uint32
		op  string
	}{
		{syscall.IN_CREATE | syscall.IN_MOVED_TO, OpCreate}, {syscall.IN_MODIFY, OpWrite}, {syscall.IN_ATTRIB, OpChmod},
		{syscall.IN_DELETE, OpRemove}, {syscall.IN_MOVED_FROM, OpRename},
	} {
		if e.mask&m.bit != 0 {
			*out = append(*out, Change{Name: Name(name), Op: m.op})
		}
	}
	if w.tree && e.mask&syscall.IN_ISDIR != 0 && e.mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0 {
		w.enter(name, out)
	}
	return false
}

// enter watches a directory that is new, and tells what was made in it before.
func (w *watcher) enter(rel string, out *[]Change) {
	err := w.f.access(func(opts int) error {
		dir, err := w.f.s.openTreeWith(path.Join(w.f.path, rel), opts)
		if err != nil {
			return err
		}
		defer dir.Close()
		return w.add(dir, rel, func(rel string) { *out = append(*out, Change{Name: Name(rel), Op: OpCreate}) })
	})
	if _, full := errors.AsType[*Error](err); full {
		*out = append(*out, Change{Op: OpOverflow})
	}
}

// send writes changes, one JSON object a line.
func (w *watcher) send(ctx context.Context, st *stream, changes []Change) error {
	out := &sender{ctx: ctx, s: st}
	for _, c := range changes {
		if err := json.NewEncoder(out).Encode(c); err != nil {
			return err
		}
	}
	return out.flush()
}

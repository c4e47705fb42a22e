//go:build linux

package sftp

import (
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// do runs one request and returns its answer.
func (s *server) do(kind byte, id uint32, p *packet) (reply, error) {
	switch kind {
	case fxOpen:
		return s.openFile(id, p)
	case fxOpendir:
		name, err := p.path()
		if err != nil {
			return nil, err
		}
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
		return s.opened(id, f, false, err)
	case fxClose, fxRead, fxWrite, fxFstat, fxFsetstat, fxReaddir:
		return s.onHandle(kind, id, p)
	case fxExtended:
		return s.extended(id, p)
	}
	return s.onPath(kind, id, p)
}

// opened answers with a handle.
func (s *server) opened(id uint32, f *os.File, appends bool, err error) (reply, error) {
	if err != nil {
		return nil, err
	}
	h, err := s.open(f, appends)
	if err != nil {
		return nil, err
	}
	return reply{}.byte(fxHandle).u32(id).str(h), nil
}

// Flags of open.
const (
	openRead = 1 << iota
	openWrite
	openAppend
	openCreate
	openTruncate
	openExclusive
)

func (s *server) openFile(id uint32, p *packet) (reply, error) {
	name, err := p.path()
	if err != nil || len(*p) < 4 {
		return nil, errBad
	}
	flags := p.u32()
	a, err := p.attrs()
	if err != nil {
		return nil, err
	}
	how := os.O_RDONLY
	switch flags & (openRead | openWrite) {
	case openRead | openWrite:
		how = os.O_RDWR
	case openWrite:
		how = os.O_WRONLY
	}
	for flag, bit := range map[uint32]int{openAppend: os.O_APPEND, openCreate: os.O_CREATE, openTruncate: os.O_TRUNC,
		openExclusive: os.O_EXCL} {
		if flags&flag != 0 {
			how |= bit
		}
	}
	f, err := os.OpenFile(name, how, os.FileMode(a.perm(0o666)&0o777))
	return s.opened(id, f, flags&openAppend != 0, err)
}

// onHandle runs a request about something open.
func (s *server) onHandle(kind byte, id uint32, p *packet) (reply, error) {
	name, ok := p.str()
	if !ok {
		return nil, errBad
	}
	h, err := s.handle(name)
	if err != nil {
		return nil, err
	}
	switch kind {
	case fxClose:
		delete(s.handles, name)
		err = h.f.Close()
	case fxRead:
		if len(*p) < 12 {
			return nil, errBad
		}
		return read(id, h, int64(p.u64()), p.u32())
	case fxWrite:
		if len(*p) < 12 {
			return nil, errBad
		}
		at := int64(p.u64())
		data, ok := p.str()
		if !ok {
			return nil, errBad
		}
		if h.append {
			_, err = io.WriteString(h.f, data)
		} else {
			_, err = h.f.WriteAt([]byte(data), at)
		}
	case fxFstat:
		fi, err := h.f.Stat()
		if err != nil {
			return nil, err
		}
		return reply{}.byte(fxAttrs).u32(id).attrs(fi), nil
	case fxFsetstat:
		a, aerr := p.attrs()
		if aerr != nil {
			return nil, aerr
		}
		err = change(a, handleOf(h.f))
	case fxReaddir:
		return readDir(id, h.f)
	}
	return status(id, err), nil
}

// read answers with what is at an offset, less than was asked for at the end of the file.
func read(id uint32, h *handle, at int64, n uint32) (reply, error) {
	if at < 0 {
		return nil, errBad
	}
	buf := make([]byte, min(n, maxData))
	got, err := h.f.ReadAt(buf, at)
	if errors.Is(err, syscall.ESPIPE) { // a pipe or a device has one position only
		got, err = h.f.Read(buf)
	}
	if got == 0 && n > 0 {
		if err == nil {
			err = io.EOF
		}
		return nil, err
	}
	return reply{}.byte(fxData).u32(id).str(string(buf[:got])), nil
}

// readDir answers with some more names of a directory.
func readDir(id uint32, f *os.File) (reply, error) {
	list, err := f.ReadDir(maxNames)
	if len(list) == 0 {
		if err == nil {
			err = io.EOF
		}
		return nil, err
	}
	n, names := uint32(0), reply{}
	for _, e := range list {
		fi, err := e.Info()
		if err != nil {
			continue // gone since
		}
		n++
		names = names.str(e.Name()).str(line(e.Name(), fi)).attrs(fi)
	}
	return append(reply{}.byte(fxName).u32(id).u32(n), names...), nil
}

// onPath runs a request about a name.
func (s *server) onPath(kind byte, id uint32, p *packet) (reply, error) {
	name, err := p.path()
	if err != nil {
		return nil, err
	}
	switch kind {
	case fxStat, fxLstat:
		look := os.Stat
		if kind == fxLstat {
			look = os.Lstat
		}
		fi, err := look(name)
		if err != nil {
			return nil, err
		}
		return reply{}.byte(fxAttrs).u32(id).attrs(fi), nil
	case fxRealpath:
		return named(id, real(name)), nil
	case fxReadlink:
		to, err := os.Readlink(name)
		if err != nil {
			return nil, err
		}
		return named(id, to), nil
	case fxSetstat, fxMkdir:
		a, aerr := p.attrs()
		if aerr != nil {
			return nil, aerr
		}
		if kind == fxMkdir {
			err = os.Mkdir(name, os.FileMode(a.perm(0o777)&0o777))
		} else {
			err = change(a, pathOf(name))
		}
	case fxRemove:
		err = syscall.Unlink(name)
	case fxRmdir:
		err = syscall.Rmdir(name)
	case fxRename, fxSymlink:
		to, terr := p.path()
		if terr != nil {
			return nil, terr
		}
		if kind == fxSymlink {
			err = os.Symlink(name, to) // the target first: as OpenSSH does, against the draft
			break
		}
		if _, err := os.Lstat(to); err == nil {
			return nil, errors.New("the new name exists") // version 3 replaces nothing; posix-rename does
		}
		err = os.Rename(name, to)
	default:
		return nil, errUnsupported
	}
	return status(id, err), nil
}

// named is the answer that is one name.
func named(id uint32, name string) reply {
	return reply{}.byte(fxName).u32(id).u32(1).str(name).str(name).u32(0)
}

// real is a name from the root, without links where it exists.
func real(name string) string {
	if !path.IsAbs(name) {
		if dir, err := os.Getwd(); err == nil {
			name = path.Join(dir, name)
		}
	}
	if r, err := filepath.EvalSymlinks(name); err == nil {
		return r
	}
	return path.Clean(name)
}

// changeable is a file whose attributes can be set, by its name or opened.
type changeable struct {
	truncate func(int64) error
	chmod    func(uint32) error
	chown    func(uid, gid int) error
	chtimes  func(a *attrs) error
}

func pathOf(name string) changeable {
	return changeable{
		truncate: func(n int64) error { return os.Truncate(name, n) },
		chmod:    func(mode uint32) error { return syscall.Chmod(name, mode) },
		chown:    func(uid, gid int) error { return os.Chown(name, uid, gid) },
		chtimes:  func(a *attrs) error { at, mt := a.times(); return os.Chtimes(name, at, mt) },
	}
}

func handleOf(f *os.File) changeable {
	return changeable{
		truncate: f.Truncate,
		chmod:    func(mode uint32) error { return syscall.Fchmod(int(f.Fd()), mode) },
		chown:    f.Chown,
		chtimes: func(a *attrs) error {
			return syscall.Futimes(int(f.Fd()), []syscall.Timeval{{Sec: int64(a.atime)}, {Sec: int64(a.mtime)}})
		},
	}
}

// linkOf is a link itself, which has no size and no mode of its own.
func linkOf(name string) changeable {
	return changeable{
		truncate: func(int64) error { return errUnsupported },
		chmod:    func(uint32) error { return errUnsupported },
		chown:    func(uid, gid int) error { return os.Lchown(name, uid, gid) },
		chtimes: func(a *attrs) error {
			const noFollow, cwd = 0x100, -0x64
			return utimes(cwd, name, a, noFollow)
		},
	}
}

// change sets the attributes that a client gave, in the order of the draft.
func change(a attrs, on changeable) error {
	var errs []error
	if a.flags&attrSize != 0 {
		errs = append(errs, on.truncate(int64(a.size)))
	}
	if a.flags&attrMode != 0 {
		errs = append(errs, on.chmod(a.mode&0o7777))
	}
	if a.flags&attrTimes != 0 {
		errs = append(errs, on.chtimes(&a))
	}
	if a.flags&attrOwner != 0 {
		errs = append(errs, on.chown(int(a.uid), int(a.gid)))
	}
	return errors.Join(errs...)
}

// home expands a leading ~, which is the user's own directory: of others there are none.
func home(name string) string {
	rest, ok := strings.CutPrefix(name, "~")
	if !ok || rest != "" && rest[0] != '/' {
		return name
	}
	return path.Join(os.Getenv("HOME"), rest)
}

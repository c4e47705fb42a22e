package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// transfer runs the operations that move files between the sandbox and the host.
func (s *server) transfer(ctx context.Context, h requestHead, body []byte, st *stream) (form.Message, error) {
	switch h.Op {
	case opSave:
		var a Save
		if err := decode(h.Arg, &a); err != nil {
			return nil, err
		}
		saved, err := s.save(ctx, a, st)
		return &saved, err
	case opLoad:
		var a loadArg
		if err := decode(h.Arg, &a); err != nil {
			return nil, err
		}
		return form.None{}, s.load(a.Label, &receiver{ctx: ctx, s: st, rest: body})
	case opPut, opGet, opList:
		var a fileArg
		if err := decode(h.Arg, &a); err != nil {
			return nil, err
		}
		err := s.file(ctx, h.Op, a, &receiver{ctx: ctx, s: st, rest: body}, st)
		return form.None{}, fileError(string(a.Path), err)
	}
	return nil, &Error{Code: Invalid, Message: "unknown operation " + h.Op}
}

func (s *server) file(ctx context.Context, op string, a fileArg, r *receiver, st *stream) error {
	p := string(a.Path)
	if !path.IsAbs(p) {
		return &Error{Code: Invalid, Message: "path is not absolute"}
	}
	w := &sender{ctx: ctx, s: st}
	var err error
	switch op {
	case opPut:
		return s.put(p, a, r)
	case opGet:
		err = s.get(p, w)
	case opList:
		err = s.list(p, w)
	}
	if err == nil {
		err = w.flush()
	}
	if err == nil {
		err = st.end(ctx)
	}
	return err
}

// fileError gives a failed file operation the code that fits.
func fileError(p string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	code := Internal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = NotFound
	case errors.Is(err, errNotRegular), errors.Is(err, errIsDir), errors.Is(err, errForeign), errors.Is(err,
		errTooDeep), errors.Is(err, fs.ErrPermission),
		errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL),
		errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EXDEV), errors.Is(err,
			fs.ErrExist):
		code = Invalid
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = Full
	}
	return &Error{Code: code, Message: fmt.Sprintf("%q: %s", p, plain(err))}
}

// put writes one file. The tool's identity does it wherever that may; only a directory that is not the tool's
// needs the guest's own, and then no link is followed.
func (s *server) put(p string, a fileArg, r io.Reader) error {
	mode := a.Mode & 0o777
	if mode == 0 {
		mode = 0o644
	}
	var at place
	var f *os.File
	open := func(opts int) (err error) {
		if at, err = s.resolve(p, makeParents|opts); err != nil {
			return err
		}
		if f, err = at.create(mode); err != nil {
			at.close()
		}
		return err
	}
	owner := false
	err := s.asTool(func() error { return open(keepLast) })
	if errors.Is(err, fs.ErrPermission) && !s.sameID {
		owner, err = true, open(keepLast|noLinks)
	}
	if err != nil {
		return err
	}
	defer at.close()
	finish := func() error {
		return at.commit(f, r, func(fd int) error { return s.own(fd, mode, a.ReadOnly, owner) })
	}
	if owner || a.ReadOnly {
		return finish()
	}
	return s.asTool(finish)
}

// own gives a file that was put its owner: the guest when the tool may not write it, else the tool.
func (s *server) own(fd int, mode uint32, readOnly, byGuest bool) error {
	if s.sameID {
		if readOnly {
			mode &^= 0o222
		}
		return syscall.Fchmod(fd, mode)
	}
	switch {
	case readOnly:
		if err := syscall.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
			return err
		}
		return syscall.Fchmod(fd, mode&^0o222|0o444)
	case byGuest:
		return syscall.Fchown(fd, s.cfg.ToolUID, s.cfg.ToolGID)
	}
	return nil
}

// get sends one regular file.
func (s *server) get(p string, w io.Writer) error {
	var f *os.File
	err := s.asTool(func() (err error) {
		f, _, err = s.open(p)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{f}, make([]byte, chunkSize))
	return err
}

// list sends the regular files below a directory as a JSON array.
func (s *server) list(p string, w io.Writer) error {
	stats, size := []statWire{}, 0
	err := s.asTool(func() error {
		root, err := s.openTree(p)
		if err != nil {
			return err
		}
		defer root.Close()
		return tree(root, "", 0, func(n *node) (bool, error) {
			if !n.is(syscall.S_IFREG) {
				return n.is(syscall.S_IFDIR), nil
			}
			const perFile = 100 // encoded, beside the path
			if size += perFile + (len(p)+len(n.path)+2)*4/3; size > maxList {
				return false, &Error{Code: Invalid, Message: fmt.Sprintf("more than %d files below %s", len(stats), p)}
			}
			stats = append(stats, statWire{
				Path: []byte(path.Join(p, n.path)), Size: n.st.Size, Mode: uint32(goMode(n.st.Mode)),
				ModTime: n.st.Mtim.Nano() / 1000,
			})
			return false, nil
		}, func(_ string, err error) error {
			if errors.Is(err, errTooDeep) {
				return err
			}
			return nil // what the tool itself cannot read, or removed meanwhile
		})
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(stats)
}

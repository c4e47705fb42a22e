//go:build linux

package sftp

import (
	"os"
	"syscall"
	"unsafe"
)

// extended runs a request of OpenSSH's.
func (s *server) extended(id uint32, p *packet) (reply, error) {
	name, ok := p.str()
	if !ok {
		return nil, errBad
	}
	if name == "limits@openssh.com" {
		return reply{}.byte(fxExtendedReply).u32(id).u64(maxPacket).u64(maxData).u64(maxData).u64(maxHandles), nil
	}
	first, err := p.path()
	if err != nil {
		return nil, err
	}
	switch name {
	case "posix-rename@openssh.com", "hardlink@openssh.com":
		to, terr := p.path()
		if terr != nil {
			return nil, terr
		}
		if name == "hardlink@openssh.com" {
			err = os.Link(first, to)
		} else {
			err = os.Rename(first, to)
		}
	case "fsync@openssh.com", "fstatvfs@openssh.com":
		h, herr := s.handle(first)
		if herr != nil {
			return nil, herr
		}
		if name == "fstatvfs@openssh.com" {
			var st syscall.Statfs_t
			if err := syscall.Fstatfs(int(h.f.Fd()), &st); err != nil {
				return nil, err
			}
			return space(id, &st), nil
		}
		err = h.f.Sync()
	case "statvfs@openssh.com":
		var st syscall.Statfs_t
		if err := syscall.Statfs(first, &st); err != nil {
			return nil, err
		}
		return space(id, &st), nil
	case "lsetstat@openssh.com":
		a, aerr := p.attrs()
		if aerr != nil {
			return nil, aerr
		}
		err = change(a, linkOf(first))
	case "expand-path@openssh.com":
		return named(id, real(home(first))), nil
	default:
		return nil, errUnsupported
	}
	return status(id, err), nil
}

// space describes a file system.
func space(id uint32, st *syscall.Statfs_t) reply {
	b := reply{}.byte(fxExtendedReply).u32(id)
	for _, v := range []uint64{uint64(st.Bsize), uint64(st.Frsize), st.Blocks, st.Bfree, st.Bavail, st.Files, st.Ffree,
		st.Ffree, 0, 0, uint64(st.Namelen)} {
		b = b.u64(v)
	}
	return b
}

// utimes sets the times of a name without following it where flags say so: package syscall has no such call.
func utimes(dir int, name string, a *attrs, flags int) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	ts := [2]syscall.Timespec{{Sec: int64(a.atime)}, {Sec: int64(a.mtime)}}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&ts)), uintptr(flags), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("utimensat", errno)
	}
	return nil
}

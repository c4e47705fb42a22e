//go:build linux

package sftp

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// packet is what is left to read of a request. A read beyond its end empties it and returns zeros; whoever reads
// looks at ok afterwards.
type packet []byte

func (p *packet) take(n int) []byte {
	if n < 0 || n > len(*p) {
		*p = nil
		return nil
	}
	b := (*p)[:n]
	*p = (*p)[n:]
	return b
}

func (p *packet) byte() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (p *packet) u32() uint32 {
	if b := p.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (p *packet) u64() uint64 {
	if b := p.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// str reads a string; ok is false where the packet ends before it does.
func (p *packet) str() (s string, ok bool) {
	if len(*p) < 4 {
		return "", false
	}
	n := p.u32()
	if uint64(n) > uint64(len(*p)) {
		return "", false
	}
	return string(p.take(int(n))), true
}

// maxName is what the kernel takes of a file's name. Answers repeat it, and must not be larger than clients take.
const maxName = 4096

// path reads a file's name; "" is the working directory.
func (p *packet) path() (string, error) {
	s, ok := p.str()
	if !ok {
		return "", errBad
	}
	if len(s) > maxName {
		return "", syscall.ENAMETOOLONG
	}
	if s == "" {
		s = "."
	}
	return s, nil
}

// Flags of attributes.
const (
	attrSize     = 1 << 0
	attrOwner    = 1 << 1
	attrMode     = 1 << 2
	attrTimes    = 1 << 3
	attrExtended = 1 << 31
)

// attrs are attributes that a client sends.
type attrs struct {
	flags        uint32
	size         uint64
	uid, gid     uint32
	mode         uint32
	atime, mtime uint32
}

func (p *packet) attrs() (a attrs, err error) {
	need := map[uint32]int{attrSize: 8, attrOwner: 8, attrMode: 4, attrTimes: 8}
	if len(*p) < 4 {
		return a, errBad
	}
	a.flags = p.u32()
	n := 0
	for flag, bytes := range need {
		if a.flags&flag != 0 {
			n += bytes
		}
	}
	if len(*p) < n {
		return a, errBad
	}
	if a.flags&attrSize != 0 {
		a.size = p.u64()
	}
	if a.flags&attrOwner != 0 {
		a.uid, a.gid = p.u32(), p.u32()
	}
	if a.flags&attrMode != 0 {
		a.mode = p.u32()
	}
	if a.flags&attrTimes != 0 {
		a.atime, a.mtime = p.u32(), p.u32()
	}
	return a, nil
}

// perm are the permission bits, or def where there are none.
func (a *attrs) perm(def uint32) uint32 {
	if a.flags&attrMode == 0 {
		return def
	}
	return a.mode & 0o7777
}

// times are the access and modification times.
func (a *attrs) times() (atime, mtime time.Time) {
	return time.Unix(int64(a.atime), 0), time.Unix(int64(a.mtime), 0)
}

// reply is an answer under construction.
type reply []byte

func (b reply) byte(v byte) reply  { return append(b, v) }
func (b reply) u32(v uint32) reply { return binary.BigEndian.AppendUint32(b, v) }
func (b reply) u64(v uint64) reply { return binary.BigEndian.AppendUint64(b, v) }
func (b reply) str(v string) reply { return append(b.u32(uint32(len(v))), v...) }

// extensions names what is done beyond version 3.
func (b reply) extensions() reply {
	for _, e := range [][2]string{{"posix-rename@openssh.com", "1"}, {"hardlink@openssh.com", "1"},
		{"fsync@openssh.com", "1"}, {"statvfs@openssh.com", "2"},
		{"fstatvfs@openssh.com", "2"}, {"lsetstat@openssh.com", "1"}, {"limits@openssh.com",
			"1"}, {"expand-path@openssh.com", "1"}} {
		b = b.str(e[0]).str(e[1])
	}
	return b
}

// attrs appends a file's attributes.
func (b reply) attrs(fi os.FileInfo) reply {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return b.u32(0)
	}
	return b.u32(attrSize | attrOwner | attrMode | attrTimes).u64(uint64(st.Size)).u32(st.Uid).u32(st.Gid).u32(st.Mode).
		u32(uint32(st.Atim.Sec)).u32(uint32(st.Mtim.Sec))
}

// line describes a file as ls -l does: what clients show, and never read.
func line(name string, fi os.FileInfo) string {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return name
	}
	kind := map[fs.FileMode]byte{fs.ModeDir: 'd', fs.ModeSymlink: 'l', fs.ModeNamedPipe: 'p', fs.ModeSocket: 's',
		fs.ModeDevice:                     'b',
		fs.ModeDevice | fs.ModeCharDevice: 'c'}[fi.Mode().Type()]
	if kind == 0 {
		kind = '-'
	}
	when := "Jan _2 15:04"
	if age := time.Since(fi.ModTime()); age < 0 || age > 180*24*time.Hour {
		when = "Jan _2  2006"
	}
	return fmt.Sprintf("%c%s %4d %-8d %-8d %8d %s %s", kind, fi.Mode().Perm().String()[1:], st.Nlink, st.Uid, st.Gid,
		st.Size, fi.ModTime().Format(when), name)
}

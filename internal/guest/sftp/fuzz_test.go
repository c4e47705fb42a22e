//go:build linux

package sftp

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// session is the input of a client that sends these requests after its greeting.
func session(requests ...reply) []byte {
	var b []byte
	for _, r := range append([]reply{reply{}.byte(fxInit).u32(3)}, requests...) {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(r))), r...)
	}
	return b
}

// FuzzServe serves what may come as a client. If this fails, one crashes the file server, keeps it busy, or gets
// answers that are no packets of the protocol.
func FuzzServe(f *testing.F) {
	to := func(kind byte, id uint32, names ...string) reply {
		r := reply{}.byte(kind).u32(id)
		for _, n := range names {
			r = r.str(n)
		}
		return r
	}
	f.Add(session(to(fxOpen, 1, "f").u32(openRead|openWrite|openCreate).u32(0), to(fxWrite, 2, "1").u64(3).str("text"),
		to(fxRead, 3, "1").u64(0).u32(100),
		to(fxFstat, 4, "1"), to(fxFsetstat, 5,
			"1").u32(attrSize|attrMode|attrTimes).u64(9).u32(0o600).u32(1).u32(2), to(fxExtended, 6, "fsync@openssh.com", "1"),
		to(fxExtended, 7, "fstatvfs@openssh.com", "1"), to(fxClose, 8, "1"), to(fxClose, 9, "1")))
	f.Add(session(to(fxMkdir, 1, "d").u32(attrMode).u32(0o700), to(fxOpendir, 2, "."), to(fxReaddir, 3, "1"),
		to(fxReaddir, 4, "1"), to(fxRealpath, 5, "d"),
		to(fxSymlink, 6, "d", "l"), to(fxReadlink, 7, "l"), to(fxRename, 8, "l", "m"), to(fxRemove, 9, "m"), to(fxRmdir,
			10, "d"), to(fxLstat, 11, "none")))
	f.Add(session(to(fxExtended, 1, "limits@openssh.com"), to(fxExtended, 2, "expand-path@openssh.com", "~"),
		to(fxExtended, 3, "statvfs@openssh.com", "."),
		to(fxExtended, 4, "posix-rename@openssh.com", "f", "g"), to(fxExtended, 5, "hardlink@openssh.com", "g", "h"),
		to(fxExtended, 6, "lsetstat@openssh.com", "h").u32(attrTimes).u32(1).u32(1), to(fxExtended, 7, "none@x"), to(77,
			8)))
	f.Add(append(session(), 0xff, 0xff, 0xff, 0xff, fxStat))
	// a name that is longer than its packet
	f.Add(append(session(), 0, 0, 0, 9, fxStat, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf0))
	f.Add(session(to(fxRealpath, 1, strings.Repeat("long", 50_000)), to(fxStat, 2, strings.Repeat("long", 60_000)),
		to(fxStat, 3, "f")))
	f.Fuzz(func(t *testing.T, in []byte) {
		if bytes.Contains(in, []byte("/")) || bytes.Contains(in, []byte("..")) {
			// beyond the directory: nothing but its user's rights confines this server, and this is nobody's
			// sandbox
			return
		}
		dir := t.TempDir()
		t.Chdir(dir)
		var out bytes.Buffer
		begun := time.Now()
		_ = Serve(bytes.NewReader(in), &out) // says what was wrong with the input
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%d bytes take %s", len(in), took)
		}
		for b := out.Bytes(); len(b) > 0; {
			if len(b) < 5 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) ||
				binary.BigEndian.Uint32(b) > maxPacket {
				t.Fatalf("an answer begins with %x, %d bytes before the end", b[:min(len(b), 8)], len(b))
			}
			b = b[4+binary.BigEndian.Uint32(b):]
		}
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil &&
				strings.HasPrefix(to, dir+"/") {
				t.Errorf("%s is still open", to)
			}
		}
	})
}

package native

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest"
)

// FuzzPack packs a directory that a program in a sandbox has made: each line of the script makes one thing, of a
// kind, a name, and content. If this fails, a program can make something that cannot be saved, or is saved as
// something else.
func FuzzPack(f *testing.F) {
	f.Add("f a text\nf b\nd d\nf d/f x\nl out ../../etc/shadow\nl loop loop\nh c a\np pipe\ns sock")
	f.Add("f odd\xff\tname x\nx odd\xff\tname user.note=a=b\nx odd\xff\tname user.=\nt odd\xff\tname 12345678901\nt " +
		"odd\xff\tname -1")
	f.Add("h 10000000 sparse\nz sparse 9000000\nm sparse 7777\nf " + strings.Repeat("n", 255) + " y")
	f.Fuzz(func(t *testing.T, script string) {
		top := t.TempDir()
		if err := os.Mkdir(filepath.Join(top, "workspace"), 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(filepath.Join(top, "workspace"))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		for line := range strings.SplitSeq(script[:min(len(script), 4<<10)], "\n") {
			makes(root, line)
		}
		want := map[string]byte{}
		err = filepath.Walk(filepath.Join(top, "workspace"), func(p string, fi os.FileInfo, err error) error {
			if err == nil && fi.Mode()&os.ModeSocket == 0 {
				want[strings.TrimPrefix(p, top+"/")] = kindOf(fi.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		merged, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(merged)
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		k := &packer{ctx: t.Context(), merged: merged, tw: tw, sparse: guest.NewSparse(&b, tw),
			links: map[[2]uint64]string{}}
		if err := errors.Join(k.tree("workspace"), tw.Close()); err != nil {
			t.Fatalf("it cannot be saved: %v", err)
		}
		got := map[string]byte{}
		for tr := tar.NewReader(&b); ; {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("what was saved cannot be read: %v", err)
			}
			name, kind := strings.TrimSuffix(h.Name, "/"), h.Typeflag
			if kind == tar.TypeLink {
				kind = got[h.Linkname]
			}
			got[name] = kind
			if kind != tar.TypeReg || h.Typeflag == tar.TypeLink {
				continue
			}
			data, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			have, err := root.ReadFile(strings.TrimPrefix(name, "workspace/"))
			if err != nil || !bytes.Equal(have, data) {
				t.Errorf("%q is saved with %d bytes, and has %d, %v", name, len(data), len(have), err)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("saved are %q, and there are %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	})
}

// makes does one line of a script, where it can be done.
func makes(root *os.Root, line string) {
	kind, rest, _ := strings.Cut(line, " ")
	name, arg, _ := strings.Cut(rest, " ")
	switch kind {
	case "f":
		_ = root.WriteFile(name, []byte(arg), 0o644)
	case "d":
		_ = root.Mkdir(name, 0o755)
	case "l":
		_ = root.Symlink(arg, name)
	case "h":
		_ = root.Link(arg, name)
	}
	dir, err := root.Open(".")
	// in the top only: these follow no root
	if err != nil || strings.Contains(name, "/") || strings.Trim(name, ".") == "" {
		return
	}
	defer dir.Close()
	fd := int(dir.Fd())
	size := int64(0)
	for _, c := range arg {
		size = (size*10 + int64(c-'0')) & 0xffffff
	}
	switch kind {
	case "p":
		_ = unix.Mknodat(fd, name, unix.S_IFIFO|0o644, 0)
	case "s":
		_ = unix.Mknodat(fd, name, unix.S_IFSOCK|0o644, 0)
	case "m":
		_ = unix.Fchmodat(fd, name, uint32(size)&0o1777, 0)
	case "t":
		ts := unix.NsecToTimespec(time.Unix(size<<12, 0).UnixNano())
		if strings.HasPrefix(arg, "-") {
			ts = unix.Timespec{Sec: -1 << 40, Nsec: 1}
		}
		_ = unix.UtimesNanoAt(fd, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	case "x", "z":
		f, err := root.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		defer f.Close()
		if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
			return
		}
		if kind == "z" { // a hole, and something behind it
			_, _ = f.WriteAt([]byte("end"), size)
			return
		}
		attr, value, _ := strings.Cut(arg, "=")
		if raw, err := hex.DecodeString(value); err == nil {
			value = string(raw)
		}
		if strings.HasPrefix(attr, "user.") {
			_ = unix.Fsetxattr(int(f.Fd()), attr, []byte(value), 0)
		}
	}
}

func kindOf(m os.FileMode) byte {
	switch {
	case m.IsDir():
		return tar.TypeDir
	case m&os.ModeSymlink != 0:
		return tar.TypeSymlink
	case m&os.ModeNamedPipe != 0:
		return tar.TypeFifo
	}
	return tar.TypeReg
}

package fleet

import (
	"archive/tar"
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// FuzzCopyArchive surveys what a client may upload for a COPY step. If this fails, an archive crashes the
// server, is told as its own fault, or a name of it that leaves the target, lies below a link, or is a device is
// taken.
func FuzzCopyArchive(f *testing.F) {
	add := func(source string, entries ...tar.Header) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		f.Add(source, b.Bytes())
	}
	add(".", tar.Header{Typeflag: tar.TypeDir, Name: "a/"}, tar.Header{Typeflag: tar.TypeReg, Name: "a/f"},
		tar.Header{Typeflag: tar.TypeLink, Name: "a/l", Linkname: "a/f"})
	add("a/*", tar.Header{Typeflag: tar.TypeSymlink, Name: "a/out", Linkname: "/etc"},
		tar.Header{Typeflag: tar.TypeReg, Name: "a/out/f"})
	add("../a", tar.Header{Typeflag: tar.TypeReg, Name: "../a"})
	add("a", tar.Header{Typeflag: tar.TypeFifo, Name: "a"}, tar.Header{Typeflag: tar.TypeReg, Name: "/a"})
	add("", tar.Header{Typeflag: tar.TypeReg, Name: "a\nb", PAXRecords: map[string]string{"path": "a/../../b"}})
	f.Fuzz(func(t *testing.T, source string, archive []byte) {
		c := &copying{step: outboard.TemplateStep{Source: source}}
		if err := c.survey(t.Context(), tar.NewReader(bytes.NewReader(archive))); err != nil {
			if kind := outboard.KindOf(err); kind != outboard.Invalid && kind != outboard.TooLarge {
				t.Errorf("%s: %v", kind, err)
			}
			return
		}
		for _, name := range slices.Sorted(maps.Keys(c.entries)) {
			if name != path.Clean(name) || path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") ||
				strings.ContainsRune(name, 0) {
				t.Errorf("%q is taken", name)
			}
			if c.base != "" && name != c.base && !strings.HasPrefix(name, c.base+"/") {
				t.Errorf("%q is taken, beyond %q", name, c.base)
			}
			e := c.entries[name]
			if !slices.Contains([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}, e.kind) ||
				e.mode&^0o777 != 0 {
				t.Errorf("%q is %q with mode %o", name, e.kind, e.mode)
			}
		}
	})
}

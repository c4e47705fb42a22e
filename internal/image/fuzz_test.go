package image

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// layerOf is a layer with entries of the given kinds and names.
func layerOf(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		h.Mode, h.ModTime = 0o755, time.Unix(1, 0)
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte("text")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzLayer unpacks what may come as a layer beside a file that is not its own. If this fails, one crashes the server, changes or links what is
// outside, leaves something that is neither file, directory nor link, or is told as the server's own fault.
func FuzzLayer(f *testing.F) {
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeDir, Name: "etc/"}, tar.Header{Typeflag: tar.TypeReg, Name: "etc/f"}, tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "etc/f"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "out/canary"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "../canary"}, tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "out"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "d/f"}, tar.Header{Typeflag: tar.TypeReg, Name: "d/.wh.f"}, tar.Header{Typeflag: tar.TypeReg, Name: "d/.wh..wh..opq"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: ".wh..."}, tar.Header{Typeflag: tar.TypeFifo, Name: "p"}, tar.Header{Typeflag: tar.TypeBlock, Name: "b"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "../canary"}, tar.Header{Typeflag: tar.TypeReg, Name: "/abs"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		canary := filepath.Join(top, "canary")
		if err := os.WriteFile(canary, []byte("outside"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(top, "layer"), 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(filepath.Join(top, "layer"))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		x := &extractor{root: root, limits: Limits{Entries: 100, Layer: 1 << 20, Name: 4096}}
		if err := x.extract(bytes.NewReader(data)); err != nil && outboard.KindOf(err) == outboard.Internal && !strings.Contains(err.Error(), "reading a layer") {
			t.Errorf("it is the server's fault: %v", err)
		}
		got, err := os.ReadFile(canary)
		names, derr := os.ReadDir(top)
		if err != nil || derr != nil || string(got) != "outside" || len(names) != 2 {
			t.Errorf("outside there is %q, %v, %v", got, names, err)
		}
		before, err := os.Stat(canary)
		if err != nil {
			t.Fatal(err)
		}
		if err := filepath.Walk(filepath.Join(top, "layer"), func(p string, fi os.FileInfo, err error) error {
			if err == nil && (os.SameFile(fi, before) || fi.Mode().Type()&^(os.ModeDir|os.ModeSymlink|os.ModeDevice|os.ModeCharDevice) != 0) {
				t.Errorf("%s is %v", p, fi.Mode())
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// FuzzUpload receives what may come as an image. If this fails, one crashes the server, leaves its directory, or is told as the server's own fault.
func FuzzUpload(f *testing.F) {
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "index.json"}, tar.Header{Typeflag: tar.TypeReg, Name: "oci-layout"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json"}, tar.Header{Typeflag: tar.TypeReg, Name: "../x"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "index.json"}, tar.Header{Typeflag: tar.TypeReg, Name: "./index.json"}))
	whole := layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "index.json"})
	f.Add(whole[:514]) // in the middle of an entry
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := New(Config{Dir: filepath.Join(t.TempDir(), "images")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Import(context.Background(), "example/fuzz:1", bytes.NewReader(data)); err == nil {
			t.Skip("an image")
		} else if kind := outboard.KindOf(err); kind != outboard.Invalid && kind != outboard.TooLarge {
			t.Errorf("%s: %v", kind, err)
		}
		if left, err := filepath.Glob(filepath.Join(s.cfg.Dir, "*", "*oci*")); err != nil || len(left) != 0 {
			t.Errorf("it left %v, %v", left, err)
		}
	})
}

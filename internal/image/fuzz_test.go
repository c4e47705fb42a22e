package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// FuzzLayer unpacks what may come as a layer beside a file that is not its own. If this fails, one crashes the
// server, changes or links what is outside, leaves something that is neither file, directory nor link, or is
// told as the server's own fault.
func FuzzLayer(f *testing.F) {
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeDir, Name: "etc/"}, tar.Header{Typeflag: tar.TypeReg, Name: "etc/f"},
		tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "etc/f"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: ".."},
		tar.Header{Typeflag: tar.TypeReg, Name: "out/canary"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "../canary"},
		tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "out"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "d/f"}, tar.Header{Typeflag: tar.TypeReg, Name: "d/.wh.f"},
		tar.Header{Typeflag: tar.TypeReg, Name: "d/.wh..wh..opq"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: ".wh..."}, tar.Header{Typeflag: tar.TypeFifo, Name: "p"},
		tar.Header{Typeflag: tar.TypeBlock, Name: "b"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "../canary"},
		tar.Header{Typeflag: tar.TypeReg, Name: "/abs"}))
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
		if err := x.extract(bytes.NewReader(data)); err != nil && outboard.KindOf(err) == outboard.Internal &&
			!strings.Contains(err.Error(), "reading a layer") {
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
			if err == nil && (os.SameFile(fi, before) || fi.Mode().
				Type()&^(os.ModeDir|os.ModeSymlink|os.ModeDevice|os.ModeCharDevice) != 0) {
				t.Errorf("%s is %v", p, fi.Mode())
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// FuzzUpload receives what may come as an image. If this fails, one crashes the server, leaves its directory, or
// is told as the server's own fault.
func FuzzUpload(f *testing.F) {
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "index.json"},
		tar.Header{Typeflag: tar.TypeReg, Name: "oci-layout"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json"},
		tar.Header{Typeflag: tar.TypeReg, Name: "../x"}))
	f.Add(layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "index.json"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./index.json"}))
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

// FuzzManifest imports a layout whose index, manifest and configuration are what may come, with digests that fit
// where they say INDEXED, CONFIGURED and LAYERED. If this fails, one crashes the server, is told as the server's
// own fault, or gives variables and limits that nothing could take.
func FuzzManifest(f *testing.F) {
	digest := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	layer := layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "etc/f"})
	const config = `{"architecture":"` + runtime.GOARCH + `","os":"linux","config":{"Env":["PATH=/bin","A=b"],"User":"1000:1000","WorkingDir":"/srv",
		"Entrypoint":["/bin/sh"],"Cmd":["-c","true"],"Labels":{"a":"b"},"Volumes":{"/v":{}}},"rootfs":{"type":"layers","diff_ids":["sha256:LAYERED"]}}`
	const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
		"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:CONFIGURED","size":SIZE},
		"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:LAYERED","size":%d}]}`
	const index = `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:INDEXED","size":SIZE,
		"platform":{"architecture":"` + runtime.GOARCH + `","os":"linux"}}]}`
	f.Add([]byte(index), fmt.Appendf(nil, manifest, len(layer)), []byte(config))
	f.Add([]byte(index), fmt.Appendf(nil, manifest, -1),
		[]byte(strings.ReplaceAll(config, `"PATH=/bin"`, `"=x","LD_PRELOAD","A\u0000=b"`)))
	f.Add([]byte(index), fmt.Appendf(nil, manifest, len(layer)), []byte(strings.ReplaceAll(config, "/srv", "../..")))
	f.Add([]byte(index), fmt.Appendf(nil, manifest, len(layer)), []byte(`{"rootfs":{"diff_ids":[]},"config":null}`))
	f.Fuzz(func(t *testing.T, index, manifest, config []byte) {
		fill := func(b []byte, name string, of []byte) []byte {
			return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte(name), []byte(digest(of))), []byte("SIZE"),
				fmt.Append(nil, len(of)))
		}
		config = bytes.ReplaceAll(config, []byte("LAYERED"), []byte(digest(layer)))
		manifest = fill(bytes.ReplaceAll(manifest, []byte("LAYERED"), []byte(digest(layer))), "CONFIGURED", config)
		index = fill(index, "INDEXED", manifest)
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for name, data := range map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`),
			"index.json":                       index,
			"blobs/sha256/" + digest(manifest): manifest, "blobs/sha256/" + digest(config): config, "blobs/sha256/" +
				digest(layer): layer} {
			err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data))})
			if err == nil {
				_, err = w.Write(data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{Dir: filepath.Join(t.TempDir(), "images")})
		if err != nil {
			t.Fatal(err)
		}
		i, err := s.Import(t.Context(), "example/fuzz:1", &b)
		if err != nil {
			if kind := outboard.KindOf(err); kind != outboard.Invalid && kind != outboard.TooLarge {
				t.Errorf("%s: %v", kind, err)
			}
			return
		}
		size := 0
		for name, value := range i.Settings.Env {
			if size += len(name) + len(value); name == "" || strings.ContainsAny(name, "=\x00") ||
				strings.ContainsRune(value, 0) {
				t.Errorf("the variable %q=%q is taken", name, value)
			}
		}
		if dir := i.Settings.Workdir; len(i.Settings.Env) > maxEnv || size > maxEnvBytes || dir != "" &&
			dir != filepath.Clean(dir) || dir != "" && dir[0] != '/' {
			t.Errorf("the settings are %+v", i.Settings)
		}
	})
}

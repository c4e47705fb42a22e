package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// releaseTarball writes a tarball like that of a release.
func releaseTarball(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: "outboard_1/" + name, Mode: 0o755,
			Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []io.Closer{w, z, f} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// An image that engines refuse, or whose program is not the one of its architecture, is found when somebody runs it.
func TestImageOfEachArchitecture(t *testing.T) {
	roots := filepath.Join(t.TempDir(), "roots.crt")
	if err := os.WriteFile(roots, []byte("authorities"), 0o644); err != nil {
		t.Fatal(err)
	}
	var tarballs []string
	for _, arch := range []string{"amd64", "arm64"} {
		tarballs = append(tarballs, releaseTarball(t, "outboard_1_linux_"+arch+".tar.gz",
			map[string]string{"outboard": "server " + arch, "outboard-guest": "guest " + arch, "LICENSE": "x"}))
	}
	o := options{out: filepath.Join(t.TempDir(), "a.tar"), version: "1", roots: roots, date: time.Unix(1e9, 0)}
	if err := write(o, tarballs); err != nil {
		t.Fatal(err)
	}
	first := read(t, o.out)
	if err := write(o, tarballs); err != nil || string(read(t, o.out)) != string(first) {
		t.Errorf("the same release became another archive: %v", err)
	}
	named, err := layout.ImageIndexFromPath(unpack(t, o.out))
	if err != nil {
		t.Fatal(err)
	}
	top, err := named.IndexManifest()
	if err != nil || len(top.Manifests) != 1 ||
		top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1" {
		t.Fatalf("the archive does not name one image: %v, %v", top, err)
	}
	index, err := named.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 {
		t.Fatalf("%d images: %v", len(manifest.Manifests), err)
	}
	for _, d := range manifest.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, img, d.Platform.Architecture)
	}
}

func checkImage(t *testing.T, img v1.Image, arch string) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil || config.Architecture != arch || config.OS != "linux" {
		t.Errorf("the image for %s says %s/%s: %v", arch, config.OS, config.Architecture, err)
	}
	found := map[string]string{}
	content := mutate.Extract(img)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = string(text) + h.Linkname
	}
	for name, want := range map[string]string{
		"usr/lib/outboard/outboard":         "server " + arch,
		"usr/lib/outboard/outboard-guest":   "guest " + arch,
		"usr/bin/outboard":                  "../lib/outboard/outboard",
		"etc/ssl/certs/ca-certificates.crt": "authorities",
	} {
		if found[name] != want {
			t.Errorf("%s is %q in the image for %s, want %q", name, found[name], arch, want)
		}
	}
}

// A tarball without the guest makes a server that cannot start a sandbox.
func TestTarballWithoutAProgramIsRefused(t *testing.T) {
	o := options{out: filepath.Join(t.TempDir(), "a.tar"), version: "1", roots: os.DevNull}
	for name, files := range map[string]map[string]string{
		"outboard_1_linux_amd64.tar.gz":  {"outboard": "x"},
		"outboard_1_darwin_amd64.tar.gz": {"outboard": "x", "outboard-guest": "x"},
	} {
		if err := write(o, []string{releaseTarball(t, name, files)}); err == nil {
			t.Errorf("%s became an image", name)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func unpack(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		} else if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

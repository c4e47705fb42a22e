// Ociimage writes the container image of a release: an OCI layout in a tar archive, as `docker load`, `podman load` and
// `outboard image import` take it. It needs no container engine and no network.
//
//	go run ./scripts/ociimage -o outboard_oci.tar -version 0.1.0 outboard_0.1.0_linux_amd64.tar.gz ...
//
// Each tarball of a release becomes the image of its architecture. The image holds the two programs and the certificate
// authorities of the machine that builds it, and nothing else: sandboxes in it begin with images of their own.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type options struct {
	out, version, commit, roots string
	date                        time.Time
}

func main() {
	var o options
	var date string
	flag.StringVar(&o.out, "o", "", "archive to write")
	flag.StringVar(&o.version, "version", "", "version of the release")
	flag.StringVar(&o.commit, "commit", "", "commit of the release")
	flag.StringVar(&date, "date", "", "when that was made, by RFC 3339; it is the time of every file")
	flag.StringVar(&o.roots, "roots", "/etc/ssl/certs/ca-certificates.crt", "certificate authorities, PEM")
	flag.Parse()
	err := func() (err error) {
		if o.date, err = time.Parse(time.RFC3339, cmp.Or(date, "1970-01-01T00:00:00Z")); err != nil {
			return err
		}
		return write(o, flag.Args())
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

// write makes one image for each tarball, and an index of them.
func write(o options, tarballs []string) error {
	if o.out == "" || o.version == "" || len(tarballs) == 0 {
		return errors.New("usage: ociimage -o ARCHIVE -version VERSION TARBALL [TARBALL]")
	}
	roots, err := os.ReadFile(o.roots)
	if err != nil {
		return fmt.Errorf("reading the certificate authorities: %w", err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, path := range tarballs {
		programs, err := readPrograms(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		platform, err := platformOf(path)
		if err != nil {
			return err
		}
		img, err := image(o, platform, rootTree(programs, roots))
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &platform}})
	}
	// One name for all architectures: engines choose below it.
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: index,
			Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": o.version}}})
	dir, err := os.MkdirTemp("", "ociimage-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, named); err != nil {
		return fmt.Errorf("writing the layout: %w", err)
	}
	return archive(dir, o)
}

var linuxTarball = regexp.MustCompile(`_linux_([a-z0-9]+)\.tar\.gz$`)

func platformOf(path string) (v1.Platform, error) {
	m := linuxTarball.FindStringSubmatch(path)
	if m == nil {
		return v1.Platform{}, fmt.Errorf("%s names no architecture: want ..._linux_ARCH.tar.gz", path)
	}
	return v1.Platform{OS: "linux", Architecture: m[1]}, nil
}

// readPrograms takes the programs out of a tarball of a release.
func readPrograms(path string) (map[string][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	programs := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if name := filepath.Base(h.Name); name == "outboard" || name == "outboard-guest" {
			if programs[name], err = io.ReadAll(r); err != nil {
				return nil, err
			}
		}
	}
	if len(programs) != 2 {
		return nil, errors.New("it does not hold outboard and outboard-guest")
	}
	return programs, nil
}

type file struct {
	name, link string
	mode       int64
	data       []byte
}

// rootTree is the image's root. The guest lies beside the program, where that looks for it.
func rootTree(programs map[string][]byte, roots []byte) (files []file) {
	for _, dir := range []string{"etc", "etc/ssl", "etc/ssl/certs", "usr", "usr/bin", "usr/lib", "usr/lib/outboard",
		"var", "var/lib", "var/lib/outboard"} {
		files = append(files, file{name: dir + "/", mode: 0o755})
	}
	return append(files,
		file{name: "tmp/", mode: 0o1777},
		file{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: roots},
		file{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/sbin/nologin\n")},
		file{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\n")},
		file{name: "usr/lib/outboard/outboard", mode: 0o755, data: programs["outboard"]},
		file{name: "usr/lib/outboard/outboard-guest", mode: 0o755, data: programs["outboard-guest"]},
		file{name: "usr/bin/outboard", link: "../lib/outboard/outboard", mode: 0o777})
}

// image is one layer and how it is started.
func image(o options, platform v1.Platform, files []file) (v1.Image, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: o.date, Typeflag: tar.TypeReg,
			Format: tar.FormatPAX}
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		case f.name[len(f.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("making the layer: %w", err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: o.date}
	if img, err = mutate.Append(img, mutate.Addendum{Layer: layer,
		History: v1.History{Created: created, CreatedBy: "scripts/ociimage"}}); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = platform.OS, platform.Architecture, created
	config.Config = v1.Config{
		Entrypoint:   []string{"/usr/bin/outboard"},
		Cmd:          []string{"serve"},
		Env:          []string{"PATH=/usr/bin", "OUTBOARD_DATA=/var/lib/outboard"},
		Volumes:      map[string]struct{}{"/var/lib/outboard": {}},
		ExposedPorts: map[string]struct{}{"7070/tcp": {}},
		Labels: map[string]string{"org.opencontainers.image.title": "outboard",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.commit, "org.opencontainers.image.licenses": "Apache-2.0"},
	}
	return mutate.ConfigFile(img, config)
}

// archive writes a layout as one file, whose bytes depend on nothing but its content.
func archive(dir string, o options) error {
	out, err := os.Create(o.out)
	if err != nil {
		return err
	}
	defer out.Close() // closed below, where that may fail
	w := tar.NewWriter(out)
	for _, pattern := range []string{"oci-layout", "index.json", "blobs/*/*"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, name := range names { // sorted
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			h := &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o644, Size: int64(len(data)), ModTime: o.date,
				Typeflag: tar.TypeReg}
			if err := w.WriteHeader(h); err != nil {
				return err
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
		}
	}
	return errors.Join(w.Close(), out.Close())
}

package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/outboard-dev/outboard"
)

// Import makes a name mean the image of an archive: what "docker save" writes, or a tar of an OCI layout
// directory. Nothing is fetched.
func (s *Store) Import(ctx context.Context, ref string, r io.Reader) (Image, error) {
	n, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	tmp, release, err := s.makeHeld("import-")
	if err != nil {
		return Image{}, fmt.Errorf("receiving an image: %w", err)
	}
	defer release()
	img, err := s.receive(ctx, tmp, r)
	if err != nil {
		return Image{}, err
	}
	unlock, err := s.lock(ctx, "name-"+hash(n.Name()), true)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	return s.install(ctx, Image{Name: n.Name(), Imported: true}, img)
}

// blobName is where a layout has its parts.
var blobName = regexp.MustCompile(`^blobs/sha256/[0-9a-f]{64}$`)

// receive writes an archive to the disk and finds the image in it.
func (s *Store) receive(ctx context.Context, dir string, r io.Reader) (v1.Image, error) {
	file := filepath.Join(dir, "image.tar")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("receiving an image: %w", err)
	}
	defer f.Close()
	n, err := io.Copy(f, io.LimitReader(&canceled{ctx, r}, maxUpload+1))
	if err != nil {
		return nil, fmt.Errorf("receiving an image: %w", err)
	}
	if n > maxUpload {
		return nil, outboard.Errorf(outboard.TooLarge, "the image's archive is larger than %d bytes", int64(maxUpload))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("receiving an image: %w", err)
	}
	sizes, err := s.survey(dir, f)
	if err != nil {
		return nil, err
	}
	if _, ok := sizes["index.json"]; ok {
		return s.ofLayout(filepath.Join(dir, "oci"))
	}
	if _, ok := sizes["manifest.json"]; ok {
		return s.ofArchive(file, sizes)
	}
	return nil, refused("the archive is neither an OCI layout nor what docker save writes").
		WithHint("docker save NAME | outboard image import - NAME")
}

// survey lists the regular files of an archive by name, and writes those of a layout out. A name that is there
// twice is refused: the two readers that follow could take different ones.
func (s *Store) survey(dir string, r io.Reader) (map[string]int64, error) {
	sizes := map[string]int64{}
	out := filepath.Join(dir, "oci")
	if err := os.MkdirAll(filepath.Join(out, "blobs", "sha256"), 0o700); err != nil {
		return nil, fmt.Errorf("receiving an image: %w", err)
	}
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			return sizes, nil
		}
		if err != nil {
			return nil, refused("its archive cannot be read: %w", err)
		}
		if n == maxUploadFiles {
			return nil, refused("its archive has more than %d files", maxUploadFiles)
		}
		if len(h.Name) > s.limits.Name {
			return nil, refused("its archive has a name of more than %d bytes", s.limits.Name)
		}
		name := strings.Clone(path.Clean(h.Name)) // a part of a header of up to 1 MiB, which would stay
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if _, twice := sizes[name]; twice {
			return nil, refused("its archive has %q twice", clip(name))
		}
		sizes[name] = h.Size
		if name == "index.json" || name == "oci-layout" || blobName.MatchString(name) {
			err := writeNew(filepath.Join(out, name), tr)
			if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
				return nil, refused("its archive ends within %q, or is damaged there: %w", clip(name), err)
			}
			if err != nil {
				return nil, fmt.Errorf("receiving an image: %w", err)
			}
		}
	}
}

func writeNew(file string, r io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// ofArchive opens what docker save writes.
func (s *Store) ofArchive(file string, sizes map[string]int64) (v1.Image, error) {
	open := func() (io.ReadCloser, error) { return os.Open(file) }
	if sizes["manifest.json"] > s.limits.Config {
		return nil, refused("its manifest is larger than %d bytes", s.limits.Config)
	}
	m, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, refused("its manifest cannot be read: %w", err)
	}
	if len(m) != 1 {
		return nil, refused("the archive holds %d images; it must hold one", len(m))
	}
	size, ok := sizes[path.Clean(m[0].Config)]
	if !ok || size > s.limits.Config {
		return nil, refused("its configuration is not in the archive, or is larger than %d bytes", s.limits.Config)
	}
	if n := len(m[0].Layers); n == 0 || n > s.limits.Layers {
		return nil, refused("it has %d layers; it must have 1 to %d", n, s.limits.Layers)
	}
	img, err := tarball.Image(open, nil)
	if err != nil {
		return nil, refused("%w", err)
	}
	return img, nil
}

// ofLayout opens the image of a layout directory that is for this machine.
func (s *Store) ofLayout(dir string) (v1.Image, error) {
	if fi, err := os.Stat(filepath.Join(dir, "index.json")); err != nil || fi.Size() > s.limits.Config {
		return nil, refused("its index is larger than %d bytes", s.limits.Config)
	}
	p, err := layout.FromPath(dir)
	if err != nil {
		return nil, refused("it is no OCI layout: %w", err)
	}
	index, err := p.ImageIndex()
	if err != nil {
		return nil, refused("%w", err)
	}
	top, err := index.IndexManifest()
	if err != nil {
		return nil, refused("its index cannot be read: %w", err)
	}
	// one name for an image of several architectures
	if len(top.Manifests) == 1 && top.Manifests[0].MediaType.IsIndex() {
		if index, top, err = s.below(dir, index, top.Manifests[0].Digest); err != nil {
			return nil, err
		}
	}
	d, err := s.choose(dir, top)
	if err != nil {
		return nil, err
	}
	img, err := index.Image(d.Digest)
	if err != nil {
		return nil, refused("%w", err)
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, refused("its manifest cannot be read: %w", err)
	}
	return img, s.small(dir, m.Config.Digest)
}

// below opens an index that another one names.
func (s *Store) below(dir string, index v1.ImageIndex, h v1.Hash) (v1.ImageIndex, *v1.IndexManifest, error) {
	if err := s.small(dir, h); err != nil {
		return nil, nil, err
	}
	inner, err := index.ImageIndex(h)
	if err != nil {
		return nil, nil, refused("%w", err)
	}
	m, err := inner.IndexManifest()
	if err != nil {
		return nil, nil, refused("the index in its index cannot be read: %w", err)
	}
	return inner, m, nil
}

// choose returns the manifest of an index that is for this machine.
func (s *Store) choose(dir string, m *v1.IndexManifest) (v1.Descriptor, error) {
	var found []v1.Descriptor
	for _, d := range m.Manifests {
		p := d.Platform
		if d.MediaType.IsImage() && (p == nil || p.OS == "linux" && p.Architecture == runtime.GOARCH) {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return v1.Descriptor{}, refused("its index has %d images for linux/%s; it must have one", len(found),
			runtime.GOARCH)
	}
	return found[0], s.small(dir, found[0].Digest)
}

// small refuses a part of a layout that is read into memory and is too large for that, whatever is said of its size.
func (s *Store) small(dir string, h v1.Hash) error {
	name := "blobs/" + h.Algorithm + "/" + h.Hex
	if !blobName.MatchString(name) {
		return refused("%q is no SHA-256", clip(h.String()))
	}
	fi, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		return refused("it has no %s", name)
	}
	if fi.Size() > s.limits.Config {
		return refused("%s is larger than %d bytes", name, s.limits.Config)
	}
	return nil
}

// Note decodes what is noted of a built layer.
func Note[T any](raw json.RawMessage) (note T, err error) {
	if err := json.Unmarshal(raw, &note); err != nil {
		return note, fmt.Errorf("reading about a layer: %w", err)
	}
	return note, nil
}

// Package image keeps what sandboxes begin with: the layers of OCI images, and layers that were
// built over them. A layer is a directory that is unpacked once, named by what is in it, and shared
// read-only by any number of sandboxes. Deleted files are in it in the overlay's own form.
//
// Invariants:
//   - Images come from strangers. Everything about one is bounded (limits.go), every digest is
//     checked, and nothing is written outside the layer's directory.
//   - Devices, pipes, set-id bits and extended attributes are left out. Of the configuration only
//     variables, directory and user are taken, as far as they can do no harm.
//   - A name means the image it meant at its first use here, until it is pulled again. That pin
//     outlives the layers.
//
// It never runs anything and knows no sandbox: its caller says who uses a layer.
//
// Start reading at Store.
package image

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// Config says where and how.
type Config struct {
	// Dir holds the images. It is made when missing, private to the user. Several processes of a host may share it.
	Dir string
	// Guard says which addresses registries may have. The zero value reaches the public internet only.
	Guard outbound.Guard
	// Roots are trusted as registries', nil = the system's.
	Roots *x509.CertPool
	// Credentials returns who to be at a registry, by its host name: a user and a password, or nothing. nil =
	// nobody anywhere.
	Credentials func(ctx context.Context, registry string) (user string, password outboard.Secret, err error)
	// Owners keeps the owners of files, which takes root. Without it everything belongs to this process.
	Owners bool
	// Limits bounds images.
	Limits Limits
	// Logger receives what has no caller to return to; nil discards.
	Logger *slog.Logger
}

// Store is the images of one host. It is safe for concurrent use, and by several processes.
type Store struct {
	cfg    Config
	limits Limits
	log    *slog.Logger
}

// Image is what a name means here. Its layers may be gone.
type Image struct {
	Name     string    `json:"name"`            // as it was asked for, in its full form
	Scope    string    `json:"scope,omitempty"` // whose login it was pulled with; "" = the server's: see Login
	Digest   string    `json:"digest"`          // of its manifest
	Layers   []string  `json:"layers"`          // names of layers, top first
	Bytes    int64     `json:"bytes"`           // of its layers, unpacked
	Settings Settings  `json:"settings"`
	Imported bool      `json:"imported,omitempty"` // it came from a file: nobody can pull it again
	PulledAt time.Time `json:"pulled_at"`
	UsedAt   time.Time `json:"used_at"`
	Present  bool      `json:"-"` // its layers are all here
}

// Settings are what an image says about the programs in it, as far as that is heeded.
type Settings struct {
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"` // absolute; "" = none
	User    string            `json:"user,omitempty"`    // a name or a number; "" = none
}

const (
	layersDir = "layers" // the directories of layers, by name
	namesDir  = "names"  // what names mean: an Image each, by the digest of the name
	tmpDir    = "tmp"    // what is being made
	locksDir  = "locks"
	infoDir   = "info"  // a layerInfo per layer
	givenDir  = "given" // an empty file for each scope that was given a layer's bytes: LAYER.HASH
	useLock   = "use"   // shared while somebody is about to use layers, exclusive while some are removed
)

// New returns a store.
func New(cfg Config) (*Store, error) {
	if cfg.Dir == "" {
		return nil, outboard.Errorf(outboard.Invalid, "images need a directory")
	}
	s := &Store{cfg: cfg, limits: cfg.Limits.withDefaults(), log: cfg.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []string{layersDir, namesDir, tmpDir, locksDir, infoDir, givenDir} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, d), 0o700); err != nil {
			return nil, outboard.Errorf(outboard.Unavailable, "making the directory of images: %w", err)
		}
	}
	return s, nil
}

// Login is who to be at registries for somebody else than the server. What was pulled with it is found with the
// same Scope only: a name must not give an image to who may not pull it. Layers are kept once and shared, but a
// digest gives nothing: who pulls an image that has a layer which is here already is given its bytes by the
// registry all the same, and the layer only if they are what the digest says.
type Login struct {
	Scope       string // "" = the server's own
	Credentials func(ctx context.Context, registry string) (user string, password outboard.Secret, err error)
}

// Registry returns the host, and the port if there is one, of the registry that an image is pulled from.
func Registry(ref string) (string, error) {
	r, err := parse(ref)
	if err != nil {
		return "", err
	}
	return r.Context().RegistryStr(), nil
}

// Resolve returns the image of a name with all its layers here, pulling what is missing.
func (s *Store) Resolve(ctx context.Context, ref string) (Image, error) {
	return s.ResolveAs(ctx, ref, s.Own())
}

// Imported reports whether a name means, for everybody, what an operator imported from a file.
func (s *Store) Imported(ref string) (bool, error) {
	r, err := parse(ref)
	if err != nil {
		return false, err
	}
	img, err := s.read(Image{Name: r.Name()}.key())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return img.Imported, err
}

// Own is the server's own login.
func (s *Store) Own() Login { return Login{Credentials: s.cfg.Credentials} }

// ResolveAs is Resolve with a login.
func (s *Store) ResolveAs(ctx context.Context, ref string, as Login) (Image, error) {
	r, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	key := Image{Name: r.Name(), Scope: as.Scope}.key()
	unlock, err := s.lock(ctx, "name-"+hash(key), true)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	img, err := s.read(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.pull(ctx, r, "", as)
	case err != nil:
		return img, err
	case !img.Present && img.Imported:
		return img, outboard.Errorf(outboard.NotFound, "the layers of image %s were removed, and it came from a file",
			img.Name).
			WithHint("outboard image import FILE %s", img.Name)
	case !img.Present:
		return s.pull(ctx, r, img.Digest, as)
	}
	if now := time.Now().UTC(); now.Sub(img.UsedAt) > time.Minute {
		img.UsedAt = now
		err = s.write(img)
	}
	return img, err
}

// Pull asks the registry what a name means now, and brings that here.
func (s *Store) Pull(ctx context.Context, ref string) (Image, error) {
	r, unlock, err := s.lockName(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	return s.pull(ctx, r, "", s.Own())
}

// Images returns what names mean here, by name.
func (s *Store) Images() ([]Image, error) {
	files, err := os.ReadDir(filepath.Join(s.cfg.Dir, namesDir))
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	var out []Image
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".json") {
			continue
		}
		img, err := s.readFile(filepath.Join(s.cfg.Dir, namesDir, f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Check says what is wrong with a name, as an Invalid error.
func Check(ref string) error {
	_, err := parse(ref)
	return err
}

// lockName reads the name of an image and takes its lock: one at a time says what it means.
func (s *Store) lockName(ctx context.Context, ref string) (name.Reference, func(), error) {
	r, err := parse(ref)
	if err != nil {
		return nil, nil, err
	}
	unlock, err := s.lock(ctx, "name-"+hash(r.Name()), true)
	return r, unlock, err
}

func parse(ref string) (name.Reference, error) {
	if len(ref) > maxRef {
		return nil, outboard.Errorf(outboard.Invalid, "the image's name is longer than %d characters", maxRef)
	}
	r, err := name.ParseReference(ref, name.WithDefaultTag("latest"))
	// what looks like a path is meant as one
	if err != nil || strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, ".") {
		return nil, outboard.Errorf(outboard.Invalid, "%q does not name an image: write it as NAME:TAG, "+
			"HOST/NAME:TAG or NAME@sha256:DIGEST", ref)
	}
	return r, nil
}

func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func (s *Store) read(key string) (Image, error) {
	return s.readFile(filepath.Join(s.cfg.Dir, namesDir, hash(key)+".json"))
}

// key is what the record of an image is found by.
func (i Image) key() string {
	if i.Scope == "" {
		return i.Name
	}
	return i.Name + "\x00" + i.Scope
}

func (s *Store) readFile(path string) (Image, error) {
	var img Image
	f, err := os.Open(path)
	if err != nil {
		return img, fmt.Errorf("reading an image's record: %w", err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxMeta)).Decode(&img); err != nil {
		return img, fmt.Errorf("reading an image's record: %w", err)
	}
	img.Present = !slices.ContainsFunc(img.Layers, func(l string) bool { return !s.has(l) })
	return img, nil
}

// write replaces an image's record in one step.
func (s *Store) write(img Image) error {
	return writeJSON(filepath.Join(s.cfg.Dir, namesDir, hash(img.key())+".json"), img)
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a record: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return fmt.Errorf("writing a record: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing a record: %w", err), os.Remove(f.Name()))
	}
	return nil
}

package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Base is a Debian system, or one like it, that debootstrap makes of packages.
type Base struct {
	Suite   string // bookworm, noble
	Variant string // minbase, buildd or standard
}

// basePrefix begins what names a Base in the place of a directory.
const basePrefix = "debootstrap:"

// baseVersion is part of every key: raise it when the same system is to be unpacked in another way.
const baseVersion = 1

var suiteRE = regexp.MustCompile(`^[a-z][a-z0-9.-]{0,40}$`)

// variants are what debootstrap calls them.
var variants = map[string]string{"minbase": "minbase", "buildd": "buildd", "standard": "-"}

// IsBase reports whether a root file system is one that debootstrap makes.
func IsBase(rootfs string) bool { return strings.HasPrefix(rootfs, basePrefix) }

// ParseBase reads debootstrap:SUITE[:VARIANT]. The variant is minbase unless it is said.
func ParseBase(rootfs string) (Base, error) {
	suite, variant, ok := strings.Cut(strings.TrimPrefix(rootfs, basePrefix), ":")
	if !ok {
		variant = "minbase"
	}
	if !IsBase(rootfs) || !suiteRE.MatchString(suite) || strings.Contains(suite, "..") || variants[variant] == "" {
		return Base{}, outboard.Errorf(outboard.Invalid, "%q is no system that debootstrap makes: write "+
			"debootstrap:SUITE or debootstrap:SUITE:VARIANT, the variant being minbase, buildd or standard", clip(rootfs))
	}
	return Base{suite, variant}, nil
}

// Unpack returns the layer with the packages of a system, unpacked and not set up: their own programs do that,
// and do not run here. It is made when it is not there, which takes debootstrap and root. mirror is where the
// packages are fetched from; "" = where this host's apt has its own from. What is fetched is signed by keys that
// the host has.
func (s *Store) Unpack(ctx context.Context, b Base, mirror string) (layer string, err error) {
	if mirror == "" {
		if mirror, err = aptMirror(ctx, b.Suite); err != nil {
			return "", err
		}
	}
	u, err := url.Parse(mirror)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return "", outboard.Errorf(outboard.Invalid,
			"the mirror for debootstrap is no http or https URL without a user").
			WithHint("set images.mirrors.debootstrap in the server's configuration")
	}
	key, err := json.Marshal(map[string]any{"debootstrap": b, "mirror": mirror, "version": baseVersion})
	if err != nil {
		return "", outboard.Errorf(outboard.Internal, "describing a layer: %w", err)
	}
	layer = Built(string(key))
	_, err = s.Build(ctx, layer, func(ctx context.Context, dir string) (any, error) {
		tree := filepath.Join(filepath.Dir(dir), "tree") // it goes with the half-made layer
		if err := debootstrap(ctx, b, mirror, tree); err != nil {
			return nil, err
		}
		return nil, s.take(ctx, tree, dir)
	})
	return layer, err
}

// take makes a layer of a tree by the rules for images: without devices and set-id bits, and within the limits.
func (s *Store) take(ctx context.Context, tree, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("making a layer: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("making a layer: %w", err)
	}
	defer root.Close()
	x := &extractor{root: root, limits: s.limits, owners: s.cfg.Owners}
	return archive(ctx, tree, x.extract)
}

// ending keeps the end of what is written to it.
type ending struct{ b []byte }

// maxEnding bounds what a failure shows of a program's output.
const maxEnding = 2 << 10

// Write implements io.Writer.
func (e *ending) Write(p []byte) (int, error) {
	e.b = append(e.b, p...)
	e.b = slices.Clone(e.b[max(0, len(e.b)-maxEnding):])
	return len(p), nil
}

// String is the last few lines, on one.
func (e *ending) String() string {
	lines := slices.DeleteFunc(strings.Split(strings.ToValidUTF8(string(bytes.TrimSpace(e.b)), ""), "\n"),
		func(l string) bool { return strings.TrimSpace(l) == "" })
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

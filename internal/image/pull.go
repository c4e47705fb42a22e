package image

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// pull brings an image here: what the name means at its registry, or with a digest that one. The name's lock is held.
func (s *Store) pull(ctx context.Context, r name.Reference, digest string, as Login) (Image, error) {
	from := r
	if digest != "" {
		from = r.Context().Digest(digest)
	}
	img, err := s.fetch(ctx, from, as)
	if err == nil {
		var out Image
		if out, err = s.install(ctx, Image{Name: r.Name(), Scope: as.Scope}, img); err == nil {
			return out, nil
		}
	}
	return Image{}, pullError(r.Name(), as, err)
}

// pullError says in a user's words why an image did not come.
func pullError(full string, as Login, err error) error {
	if e, ok := errors.AsType[*outboard.Error](err); ok {
		return outboard.Errorf(e.Kind, "pulling image %s: %w", full, err).WithHint("%s", e.Hint)
	}
	if r, ok := errors.AsType[*outbound.Refusal](err); ok {
		return outboard.Errorf(outboard.Denied, "pulling image %s: %w", full, r).
			WithHint("the operator can name its network in egress.private_networks of the server's configuration")
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok { // whose words name the resolver of this network
		if d.IsNotFound {
			return outboard.Errorf(outboard.NotFound, "pulling image %s: there is no registry named %s: its name "+
				"was not found", full, asked(d))
		}
		return outboard.Errorf(outboard.Unavailable, "pulling image %s: the name %s could not be resolved", full,
			asked(d))
	}
	if t, ok := errors.AsType[*transport.Error](err); ok {
		switch t.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			if as.Scope != "" {
				return outboard.Errorf(outboard.Denied, "pulling image %s: the registry refuses the user and "+
					"password, or has no such image", full)
			}
			return outboard.Errorf(outboard.Denied, "pulling image %s: the registry does not let this server have "+
				"it, or has no such image", full).
				WithHint("the operator can give a user and password for it in images.registries of the server's " +
					"configuration")
		case http.StatusNotFound:
			return outboard.Errorf(outboard.NotFound, "pulling image %s: the registry has no such image", full)
		}
		return outboard.Errorf(outboard.Unavailable, "pulling image %s: the registry answered %d", full, t.StatusCode)
	}
	return outboard.Errorf(outboard.Unavailable, "pulling image %s: %w", full, err)
}

// asked is the name that was looked up, as who named it writes it.
func asked(d *net.DNSError) string { return strings.TrimSuffix(d.Name, ".") }

// fetch asks a registry for an image for this machine's kind.
func (s *Store) fetch(ctx context.Context, r name.Reference, as Login) (v1.Image, error) {
	auth, err := as.authenticate(ctx, r.Context().RegistryStr())
	if err != nil {
		return nil, err
	}
	d, err := remote.Get(r, remote.WithContext(ctx), remote.WithTransport(s.transport()), remote.WithAuth(auth),
		remote.WithPlatform(platform()),
		remote.WithRetryBackoff(remote.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 3}))
	if err != nil {
		return nil, err
	}
	return d.Image()
}

func platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

func (as Login) authenticate(ctx context.Context, registry string) (authn.Authenticator, error) {
	if as.Credentials == nil {
		return authn.Anonymous, nil
	}
	user, password, err := as.Credentials(ctx, registry)
	if err != nil {
		return nil, fmt.Errorf("finding the credential for registry %s: %w", registry, err)
	}
	if user == "" && password.Reveal() == "" {
		return authn.Anonymous, nil
	}
	return &authn.Basic{Username: user, Password: password.Reveal()}, nil
}

// transport dials as the guard allows: registries, and where they send us for blobs and tokens, are addresses
// that others chose. The environment's proxies do not apply, since they would dial for us without that.
func (s *Store) transport() http.RoundTripper {
	guard := s.cfg.Guard
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			host = strings.TrimSuffix(strings.ToLower(host), ".")
			if why := outbound.CheckHost(host); why != "" {
				return nil, &outbound.Refusal{Why: why}
			}
			addrs, err := guard.Lookup(ctx, host)
			if err != nil {
				return nil, err
			}
			return outbound.Dial(ctx, addrs, port)
		},
		TLSClientConfig:       &tls.Config{RootCAs: s.cfg.Roots},
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   responseTimeout,
		ResponseHeaderTimeout: responseTimeout,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   2,
		DisableCompression:    true, // a layer's bytes are what its digest is of
	}
}

// install unpacks the layers of an image that are not here, and records what the name of out means.
func (s *Store) install(ctx context.Context, out Image, img v1.Image) (Image, error) {
	plan, err := s.inspect(img)
	if err != nil {
		return Image{}, err
	}
	now := time.Now().UTC()
	out.Digest, out.Settings, out.PulledAt, out.UsedAt, out.Present = plan.digest, settings(plan.config.Config), now, now, true
	for i, layer := range plan.layers {
		info, err := s.unpack(ctx, layer, plan.config.RootFS.DiffIDs[i], s.limits.Image-out.Bytes, out.Scope)
		if err != nil {
			return Image{}, fmt.Errorf("layer %d of %d: %w", i+1, len(plan.layers), err)
		}
		out.Bytes += info.Bytes
		out.Layers = append([]string{contentPrefix + plan.config.RootFS.DiffIDs[i].Hex}, out.Layers...)
	}
	return out, s.write(out)
}

// plan is an image whose descriptions have been checked.
type plan struct {
	digest string
	config *v1.ConfigFile
	layers []v1.Layer
}

// inspect reads what an image says about itself and refuses what does not add up, before anything large is transferred.
func (s *Store) inspect(img v1.Image) (p plan, err error) {
	refuse := func(format string, args ...any) (plan, error) {
		return plan{}, outboard.Errorf(outboard.Invalid, "the image is refused: "+format, args...)
	}
	m, err := img.Manifest()
	if err != nil {
		return p, fmt.Errorf("reading the manifest: %w", err)
	}
	if n := len(m.Layers); n == 0 || n > s.limits.Layers {
		return refuse("it has %d layers; it must have 1 to %d", n, s.limits.Layers)
	}
	if m.Config.Size < 0 || m.Config.Size > s.limits.Config {
		return refuse("its configuration has %d bytes; at most %d are read", m.Config.Size, s.limits.Config)
	}
	var size int64
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > s.limits.Download-size {
			return refuse("its layers are larger than %d bytes to transfer", s.limits.Download)
		}
		size += l.Size
		if !l.MediaType.IsLayer() || !l.MediaType.IsDistributable() || len(l.URLs) > 0 {
			return refuse("a layer is of type %q, or is to be fetched from elsewhere", l.MediaType)
		}
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return p, fmt.Errorf("reading the configuration: %w", err)
	}
	if got := sha256.Sum256(raw); m.Config.Digest.Algorithm != "sha256" ||
		m.Config.Digest.Hex != hex.EncodeToString(got[:]) {
		return refuse("its configuration is not what its manifest names (%s)", m.Config.Digest)
	}
	if p.config, err = img.ConfigFile(); err != nil {
		return refuse("its configuration cannot be read: %w", err)
	}
	if c := p.config; c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return refuse("it is for %s/%s, and this machine is linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	if got, want := len(p.config.RootFS.DiffIDs), len(m.Layers); got != want {
		return refuse("its configuration speaks of %d layers and its manifest of %d", got, want)
	}
	for _, d := range p.config.RootFS.DiffIDs {
		if b, err := hex.DecodeString(d.Hex); d.Algorithm != "sha256" || err != nil || len(b) != sha256.Size {
			return refuse("a layer has the digest %q, which is no SHA-256", d)
		}
	}
	digest, err := img.Digest()
	if err != nil {
		return p, fmt.Errorf("reading the manifest: %w", err)
	}
	p.digest = digest.String()
	p.layers, err = img.Layers()
	return p, err
}

// given is the file that says that a scope was given the bytes of a layer.
func (s *Store) given(layer, scope string) string {
	return filepath.Join(s.cfg.Dir, givenDir, layer+"."+hash(scope))
}

// unpack makes the directory of one layer. One that is here is not made again, but its bytes are read unless the
// scope was given them before: an image may name any digest. room is how many bytes the layer may have.
func (s *Store) unpack(ctx context.Context, l v1.Layer, diff v1.Hash, room int64,
	scope string) (info layerInfo, err error) {
	layer := contentPrefix + diff.Hex
	unlock, err := s.lock(ctx, layer, true)
	if err != nil {
		return layerInfo{}, err
	}
	defer unlock()
	given := s.given(layer, scope)
	defer func() {
		if err == nil {
			err = os.WriteFile(given, nil, 0o600)
		}
	}()
	if s.has(layer) {
		if _, err := os.Lstat(given); errors.Is(err, fs.ErrNotExist) {
			err = s.prove(ctx, l, diff, room)
			if err != nil {
				return layerInfo{}, err
			}
		} else if err != nil {
			return layerInfo{}, fmt.Errorf("asking who was given a layer: %w", err)
		}
		return s.info(layer)
	}
	tmp, release, err := s.makeHeld("unpack-")
	if err != nil {
		return layerInfo{}, fmt.Errorf("making a layer: %w", err)
	}
	defer release()
	dir := filepath.Join(tmp, "fs")
	info, err = s.unpackInto(ctx, dir, l, diff, room)
	if err != nil {
		return info, err
	}
	return info, s.keep(dir, layer, info)
}

// unpackInto writes a layer's content and checks that it is what the digest says.
func (s *Store) unpackInto(ctx context.Context, dir string, l v1.Layer, diff v1.Hash, room int64) (layerInfo, error) {
	content, err := l.Uncompressed()
	if err != nil {
		return layerInfo{}, fmt.Errorf("reading: %w", err)
	}
	defer content.Close()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return layerInfo{}, fmt.Errorf("making a layer: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return layerInfo{}, fmt.Errorf("making a layer: %w", err)
	}
	defer root.Close()
	limits := s.limits
	limits.Layer = min(limits.Layer, room)
	stream := s.counted(ctx, content, limits)
	x := &extractor{root: root, limits: limits, owners: s.cfg.Owners}
	if err := x.extract(stream); err != nil {
		return layerInfo{}, err
	}
	return layerInfo{Bytes: x.bytes, Entries: x.entries}, stream.finish(diff)
}

// prove reads a layer's content and checks that it is what the digest says.
func (s *Store) prove(ctx context.Context, l v1.Layer, diff v1.Hash, room int64) error {
	content, err := l.Uncompressed()
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	defer content.Close()
	limits := s.limits
	limits.Layer = min(limits.Layer, room)
	return s.counted(ctx, content, limits).finish(diff)
}

// counted is the content of a layer on its way: bounded, and its digest is computed.
type counted struct {
	io.Reader
	bound *io.LimitedReader
	sum   interface {
		io.Writer
		Sum([]byte) []byte
	}
}

// counted bounds content: a tar of files that fit is larger than they are by headers and padding, and by no more.
func (s *Store) counted(ctx context.Context, content io.Reader, limits Limits) *counted {
	c := &counted{bound: &io.LimitedReader{R: &canceled{ctx, content}, N: limits.Layer +
		int64(limits.Entries)*tarOverhead}, sum: sha256.New()}
	c.Reader = io.TeeReader(c.bound, c.sum)
	return c
}

// finish reads the rest, which the digest is of too, and compares.
func (c *counted) finish(diff v1.Hash) error {
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	if c.bound.N <= 0 {
		return outboard.Errorf(outboard.TooLarge, "the archive is larger than what it holds may be")
	}
	if got := hex.EncodeToString(c.sum.Sum(nil)); got != diff.Hex {
		return outboard.Errorf(outboard.Invalid, "the image is refused: a layer's content has the digest %s, and "+
			"its configuration says %s", got, diff.Hex)
	}
	return nil
}

// tarOverhead is what an entry of a tar may take beside its content: headers, a long name, padding.
const tarOverhead = 8 << 10

// canceled ends a read with a context.
type canceled struct {
	ctx context.Context
	r   io.Reader
}

func (c *canceled) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, outboard.Errorf(outboard.Canceled, "%w", context.Cause(c.ctx))
	}
	return c.r.Read(b)
}

//go:build linux

package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// hub is a registry on loopback that counts what is fetched.
type hub struct {
	host  string
	blobs atomic.Int64 // fetched
	allow atomic.Value // func(*http.Request) bool, nil = everything
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := new(hub)
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, ok := h.allow.Load().(func(*http.Request) bool); ok && !f(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:") {
			h.blobs.Add(1)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	h.host = strings.TrimPrefix(srv.URL, "http://")
	return h
}

// push stores an image and returns its name.
func (h *hub) push(t *testing.T, repo string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(h.host + "/" + repo)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatalf("pushing %s: %v", repo, err)
	}
	return ref.Name()
}

// file, dir, link and so on are entries of a layer.
func file(name, data string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, PAXRecords: map[string]string{contentKey: data}}
}

func dir(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }

func symlink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
}

func hardlink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to, Mode: 0o644}
}

// contentKey is where file keeps what goes into the archive.
const contentKey = "OUTBOARD.content"

func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range entries {
		data := h.PAXRecords[contentKey]
		if data != "" {
			h.PAXRecords = nil
			h.Size = int64(len(data))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// layerOf makes a layer of a tar, compressed as builders do.
func layerOf(t *testing.T, data []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf makes an image of layers, lowest first.
func imageOf(t *testing.T, cfg v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, configFile(t, img, cfg))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func configFile(t *testing.T, img v1.Image, cfg v1.Config) *v1.ConfigFile {
	t.Helper()
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.Config, cf.OS, cf.Architecture = cfg, "linux", runtime.GOARCH
	return cf
}

func newStore(t *testing.T, cfg image.Config) *image.Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "images")
	}
	cfg.Owners = os.Geteuid() == 0
	if cfg.Guard.Private == nil {
		cfg.Guard = outbound.Guard{Private: outbound.Loopback}
	}
	s, err := image.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// resolve brings an image here and returns the directories of its layers, lowest first.
func resolve(t *testing.T, s *image.Store, ref string) (image.Image, []string) {
	t.Helper()
	img, err := s.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatalf("resolving %s: %v", ref, err)
	}
	var dirs []string
	for _, l := range img.Layers {
		dirs = append([]string{s.Dir(l)}, dirs...)
	}
	return img, dirs
}

// wantRefused checks that an error is of a kind, and says why.
func wantRefused(t *testing.T, err error, kind outboard.Kind, why string) {
	t.Helper()
	if outboard.KindOf(err) != kind || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v\nwant %s: ...%s...", err, kind, why)
	}
}

func wantContent(t *testing.T, name, want string) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		t.Errorf("%s: %q, %v; want %q", name, got, err, want)
	}
}

func isWhiteout(t *testing.T, name string) bool {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); errors.Is(err, unix.ENOENT) {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func isOpaque(name string) bool {
	b := make([]byte, 8)
	n, err := unix.Lgetxattr(name, "user.overlay.opaque", b)
	return err == nil && string(b[:n]) == "y"
}

// pushRaw stores what an image says it is, whether or not it adds up: a registry of a stranger would serve it.
func (h *hub) pushRaw(t *testing.T, repo string, img *lying) string {
	t.Helper()
	h.push(t, repo+"-parts", img.Image)
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	name, tag, _ := strings.Cut(repo, ":")
	base := "http://" + h.host + "/v2/" + name
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(config))
	h.send(t, http.MethodPost, base+"/blobs/uploads/?digest="+digest, "application/octet-stream", config)
	h.send(t, http.MethodPut, base+"/manifests/"+tag, "application/vnd.docker.distribution.manifest.v2+json", manifest)
	return h.host + "/" + repo
}

func (h *hub) send(t *testing.T, method, url, kind string, body []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s: %s", method, url, resp.Status)
	}
}

var zeros = strings.Repeat("0", 64)

// index is an index of one image.
func index(algorithm, hex string) string {
	return fmt.Sprintf(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":2,"digest":"%s:%s"}]}`, algorithm, hex)
}

func emptyIndex() v1.ImageIndex { return empty.Index }

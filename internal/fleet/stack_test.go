//go:build linux

package fleet

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// imageServer is a registry on loopback with one image of these files, whose name it returns. owners are those
// of files that are not root's; nobody else may read them.
func imageServer(t *testing.T, cfg v1.Config, files map[string]string, owners ...map[string]int) string {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	owned := map[string]int{}
	for _, o := range owners {
		maps.Copy(owned, o)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for name, data := range files {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data)), Uid: owned[name],
			Gid: owned[name]}
		if h.Uid != 0 {
			h.Mode = 0o600
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser,
		error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		cf := &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: cfg}
		var old *v1.ConfigFile
		if old, err = img.ConfigFile(); err == nil {
			cf.RootFS, cf.History = old.RootFS, old.History
			img, err = mutate.ConfigFile(img, cf)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(srv.URL, "http://") + "/app:1")
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

// images is a store beside a rig's.
func images(t *testing.T) *image.Store {
	t.Helper()
	s, err := image.New(image.Config{Dir: filepath.Join(t.TempDir(), "images"), Owners: os.Geteuid() == 0,
		Guard: outbound.Guard{Private: outbound.Loopback}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// If this failed, the sandboxes of an environment with an image would have another root, or its layers would be
// removed under them.
func TestImage(t *testing.T) {
	r := newRig(t)
	r.provider = nativeProvider(t)
	ref := imageServer(t, v1.Config{Env: []string{"FROM_IMAGE=yes", "LD_PRELOAD=/evil"}},
		map[string]string{"etc/motd": "hello from the image"})
	store := images(t)
	f := r.fleet(func(c *Config) { c.Images = store })
	b := outboard.Box{ID: outboard.NewBoxID(), Env: outboard.EnvConfig{Kind: "cloud", Image: ref}, EndAt: time.Now().
		Add(time.Hour), Vars: map[string]string{"MINE": "1"}}
	b.Env.Networking.Mode = "none"
	if _, err := f.CreateBox(t.Context(), b, outboard.BlobRef{}); err != nil {
		t.Fatalf("making a box of an image: %v", err)
	}
	m, err := f.UseBox(t.Context(), tester, b.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := m.Get(t.Context(), "/etc/motd", &got); err != nil || got.String() != "hello from the image" {
		t.Errorf("/etc/motd: %q, %v", got.String(), err)
	}
	if err := m.Get(t.Context(), "/etc/os-release", io.Discard); err == nil {
		t.Error("the host's files show in the root of an image")
	}
	prune := func() image.Pruned {
		p, err := f.PruneImages(t.Context(), time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := prune(); p.Layers != 0 {
		t.Errorf("removed %d layers of a sandbox that runs", p.Layers)
	}
	if err := f.KillBox(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	if p := prune(); p.Layers != 1 {
		t.Errorf("removed %d layers that nobody uses; want 1", p.Layers)
	}
}

// If this failed, an image that cannot be had would give a sandbox of something else.
func TestImageRefused(t *testing.T) {
	r := newRig(t)
	r.provider = nativeProvider(t)
	env := outboard.EnvConfig{Kind: "cloud", Image: "127.0.0.1:1/none:1"}
	box := func(f *Fleet) error {
		_, err := f.CreateBox(t.Context(), outboard.Box{ID: outboard.NewBoxID(), Env: env, EndAt: time.Now().
			Add(time.Hour)}, outboard.BlobRef{})
		return err
	}
	store := images(t)
	for want, err := range map[string]error{
		"pulling image":      box(r.fleet(func(c *Config) { c.Images = store })),
		"makes no sandboxes": box(r.fleet(func(c *Config) { c.Provider = struct{ sandbox.Provider }{c.Provider} })),
	} {
		if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want ...%s...", err, want)
		}
	}
	if left := r.present(t); len(left) != 0 {
		t.Errorf("sandboxes left: %v", left)
	}
}

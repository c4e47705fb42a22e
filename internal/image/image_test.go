//go:build linux

package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// If this failed, sandboxes would begin with something else than the image: a missing layer, a deleted file that
// is back, a name that means another image today.
func TestPull(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{})
	below := layerOf(t, archive(t, dir("etc"), file("etc/kept", "kept"), file("etc/gone", "x"), dir("opt"),
		file("opt/old", "x")))
	above := layerOf(t, archive(t, file("etc/.wh.gone", ""), file("opt/.wh..wh..opq", ""), file("opt/new", "new"),
		file("bin/tool", "tool"),
		hardlink("bin/other", "bin/tool"), symlink("lib", "usr/lib"), file("var/.wh..wh.plnk", "")))
	ref := h.push(t, "team/app:1", imageOf(t, v1.Config{Env: []string{"A=b"}, WorkingDir: "/app", User: "web:web"},
		below, above))
	img, dirs := resolve(t, s, ref)
	if len(dirs) != 2 || img.Settings.Env["A"] != "b" || img.Settings.Workdir != "/app" || img.Settings.User != "web" {
		t.Errorf("got %+v", img)
	}
	wantContent(t, filepath.Join(dirs[0], "etc/kept"), "kept")
	wantContent(t, filepath.Join(dirs[1], "opt/new"), "new")
	wantContent(t, filepath.Join(dirs[1], "bin/other"), "tool")
	if !isWhiteout(t, filepath.Join(dirs[1], "etc/gone")) || !isOpaque(filepath.Join(dirs[1], "opt")) ||
		isOpaque(filepath.Join(dirs[1], "etc")) {
		t.Error("what the upper layer deletes is not marked as deleted")
	}
	if _, err := os.Lstat(filepath.Join(dirs[1], "var/.wh..wh.plnk")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a note of another file system became a file: %v", err)
	}
	fetched := h.blobs.Load()
	h.push(t, "team/app:1", imageOf(t, v1.Config{}, below))
	if again, _ := resolve(t, s, ref); again.Digest != img.Digest || h.blobs.Load() != fetched {
		t.Errorf("the name means %s now, after %s; %d parts fetched", again.Digest, img.Digest, h.blobs.Load()-fetched)
	}
	moved, err := s.Pull(t.Context(), ref)
	if err != nil || moved.Digest == img.Digest || len(moved.Layers) != 1 {
		t.Errorf("after a pull: %+v, %v", moved, err)
	}
	if n := h.blobs.Load() - fetched; n != 1 {
		t.Errorf("%d parts fetched for an image whose layer is here; want its configuration only", n)
	}
}

// If this failed, a name in a layer that is both deleted and there would come out as one of the two by chance.
func TestDeletedAndMadeAnew(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{})
	for i, entries := range [][]tar.Header{
		{file(".wh.d", ""), dir("d"), file("d/f", "new"), file(".wh.f", ""), file("f", "new"), file(".wh.e", ""),
			file("e/f", "new")},
		{dir("d"), file("d/f", "new"), file(".wh.d", ""), file("f", "new"), file(".wh.f", ""), file("e/f", "new"),
			file(".wh.e", "")},
	} {
		_, dirs := resolve(t, s, h.push(t, fmt.Sprintf("anew:%d", i),
			imageOf(t, v1.Config{}, layerOf(t, archive(t, entries...)))))
		wantContent(t, filepath.Join(dirs[0], "d/f"), "new")
		wantContent(t, filepath.Join(dirs[0], "e/f"), "new")
		wantContent(t, filepath.Join(dirs[0], "f"), "new")
		for _, d := range []string{"d", "e"} {
			if !isOpaque(filepath.Join(dirs[0], d)) {
				t.Errorf("order %d: what lies below in %s shows", i, d)
			}
		}
	}
}

// If this failed, sandboxes that start together would unpack an image once each, or one would see half of it.
func TestSingleFlight(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{})
	ref := h.push(t, "app:1", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("a", "a"))),
		layerOf(t, archive(t, file("b", "b")))))
	other := h.push(t, "app:2", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("a", "a")))))
	fetched := h.blobs.Load()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := ref
			if i%4 == 0 {
				name = other
			}
			img, err := s.Resolve(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			for _, l := range img.Layers {
				if files, err := os.ReadDir(s.Dir(l)); err != nil || len(files) != 1 {
					t.Errorf("layer %s: %v, %v", l, files, err)
				}
			}
		})
	}
	wg.Wait()
	if n := h.blobs.Load() - fetched; n != 4 { // two layers and two configurations
		t.Errorf("%d parts fetched; want 4", n)
	}
}

// If this failed, an image of a stranger could write outside its directory, fill the disk, or put devices and
// set-id programs there.
func TestHostileLayers(t *testing.T) {
	h := newHub(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"),
		0o600)); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		why     string
		kind    outboard.Kind
		entries []tar.Header
	}{
		{"leaves the layer", outboard.Invalid, []tar.Header{file("../evil", "x")}},
		{"leaves the layer", outboard.Invalid, []tar.Header{file("a/../../evil", "x")}},
		{"leaves the layer", outboard.Invalid, []tar.Header{file("f", "x"), hardlink("l", "../outside/secret")}},
		{"escapes", outboard.Invalid, []tar.Header{symlink("out", outside), file("out/evil", "x")}},
		{"escapes", outboard.Invalid, []tar.Header{symlink("out", outside), file("out/deep/evil", "x")}},
		{"escapes", outboard.Invalid, []tar.Header{symlink("out", "../../../../.."), file("out/evil", "x")}},
		{"escapes", outboard.Invalid, []tar.Header{symlink("out", outside), file("out/.wh.secret", "")}},
		{"escapes", outboard.Invalid, []tar.Header{symlink("out", outside), file("out/.wh..wh..opq", "")}},
		{"escapes", outboard.Invalid, []tar.Header{symlink("out", outside), hardlink("mine", "out/secret")}},
		{"no such file", outboard.Invalid, []tar.Header{hardlink("mine", outside+"/secret")}},
		{"which is no file", outboard.Invalid, []tar.Header{dir("d"), hardlink("mine", "d")}},
		{"has the name", outboard.Invalid, []tar.Header{file(".wh...", "")}},
		{"more than 8 entries", outboard.TooLarge, []tar.Header{dir("1"), dir("2"), dir("3"), dir("4"), dir("5"),
			dir("6"), dir("7"), dir("8"), dir("9")}},
		{"more than 4096 bytes", outboard.TooLarge, []tar.Header{file("a", strings.Repeat("x", 3000)),
			file("b", strings.Repeat("x", 3000))}},
		{"longer than 300 bytes", outboard.Invalid, []tar.Header{file(strings.Repeat("x/", 200)+"f", "x")}},
		{"not empty", outboard.Invalid, []tar.Header{dir("d"), file("d/f", "x"), file("d", "x")}},
	} {
		s := newStore(t, image.Config{Limits: image.Limits{Entries: 8, Layer: 4096, Name: 300}})
		if i == 0 { // the control: the same limits let an image through
			resolve(t, s, h.push(t, "fine:1",
				imageOf(t, v1.Config{},
					layerOf(t, archive(t, dir("a"), symlink("b", "a"), file("b/f", "x"), hardlink("l", "/a/f"))))))
		}
		_, err := s.Resolve(t.Context(), h.push(t, fmt.Sprintf("hostile:%d", i),
			imageOf(t, v1.Config{}, layerOf(t, archive(t, c.entries...)))))
		wantRefused(t, err, c.kind, c.why)
	}
	if files, err := os.ReadDir(outside); err != nil || len(files) != 1 {
		t.Errorf("outside: %v, %v", files, err)
	}
	wantContent(t, filepath.Join(outside, "secret"), "secret")
}

// forge changes the size and the type in the first header of an archive.
func forge(data []byte, size string, kind byte) {
	copy(data[124:136], size+"\x00")
	data[156] = kind
	sum := 8 * int(' ') // the checksum counts as spaces
	for i, b := range data[:512] {
		if i < 148 || i >= 156 {
			sum += int(b)
		}
	}
	copy(data[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// If this failed, a sparse file of some bytes in the archive, or a header beyond measure, could fill the disk or
// the memory.
func TestOversize(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{Limits: image.Limits{Layer: 1 << 20, Download: 4 << 20}})
	huge := archive(t, file("f", "x"))
	forge(huge, "77777777777", tar.TypeReg) // 8 GiB
	_, err := s.Resolve(t.Context(), h.push(t, "huge:1", imageOf(t, v1.Config{}, layerOf(t, huge))))
	wantRefused(t, err, outboard.TooLarge, "unpacks to more than")
	pax := archive(t, file("f", strings.Repeat("x", 2<<20)), file("g", "x"))
	forge(pax, "00010000000", tar.TypeXHeader) // the first file is a header of the second
	_, err = s.Resolve(t.Context(), h.push(t, "pax:1", imageOf(t, v1.Config{}, layerOf(t, pax))))
	wantRefused(t, err, outboard.Invalid, "no archive that can be read")
	_, err = s.Resolve(t.Context(),
		h.push(t, "fine:1", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("f", strings.Repeat("x", 1<<20)))))))
	if err != nil {
		t.Errorf("an image at the limit: %v", err)
	}
	small := newStore(t, image.Config{Limits: image.Limits{Download: 10}})
	_, err = small.Resolve(t.Context(), h.host+"/fine:1")
	wantRefused(t, err, outboard.Invalid, "larger than 10 bytes to transfer")
	both := imageOf(t, v1.Config{}, layerOf(t, archive(t, file("a", strings.Repeat("a", 3000)))),
		layerOf(t, archive(t, file("b", strings.Repeat("b", 3000)))))
	_, err = newStore(t, image.Config{Limits: image.Limits{Image: 5000}}).
		Resolve(t.Context(), h.push(t, "both:1", both))
	wantRefused(t, err, outboard.TooLarge, "unpacks to more than")
	if _, err = newStore(t, image.Config{Limits: image.Limits{Image: 6000}}).
		Resolve(t.Context(), h.host+"/both:1"); err != nil {
		t.Errorf("an image at the limit: %v", err)
	}
}

// If this failed, what a sandbox has no use for, and what could harm the host, would lie in the host's directories.
func TestSanitised(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{})
	data := archive(t,
		tar.Header{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o6755, Uid: 0},
		tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666},
		tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666},
		tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o666},
		tar.Header{Name: "far", Typeflag: tar.TypeReg, Mode: 0o644, Uid: 1 << 20, Gid: -1},
		tar.Header{Name: "sticky", Typeflag: tar.TypeDir, Mode: 0o1777},
		tar.Header{Name: "attrs", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{
			"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.security.capability": "x"}},
		file("twice", "first"), file("twice", "second"))
	_, dirs := resolve(t, s, h.push(t, "odd:1", imageOf(t, v1.Config{}, layerOf(t, data))))
	at := func(name string) string { return filepath.Join(dirs[0], name) }
	if fi, err := os.Lstat(at("suid")); err != nil || fi.Mode() != 0o755 {
		t.Errorf("the set-id program: %v, %v", fi, err)
	}
	for _, name := range []string{"dev/sda", "dev/null", "pipe"} {
		if _, err := os.Lstat(at(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	if fi, err := os.Lstat(at("sticky")); err != nil || fi.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("the sticky directory: %v, %v", fi, err)
	}
	list := make([]byte, 1024)
	if n, err := unix.Llistxattr(at("attrs"), list); err != nil || n != 0 {
		t.Errorf("extended attributes: %q, %v", list[:max(n, 0)], err)
	}
	wantContent(t, at("twice"), "second")
	var st unix.Stat_t
	if err := unix.Lstat(at("far"), &st); err != nil || os.Geteuid() == 0 && (st.Uid != 65534 || st.Gid != 65534) {
		t.Errorf("an owner beyond the range: %d:%d, %v", st.Uid, st.Gid, err)
	}
}

// lying is an image that says something else of itself.
type lying struct {
	v1.Image
	manifest func(*v1.Manifest)
	config   func(*v1.ConfigFile)
}

func (l *lying) ConfigFile() (*v1.ConfigFile, error) {
	c, err := l.Image.ConfigFile()
	if err == nil && l.config != nil {
		c = c.DeepCopy()
		l.config(c)
	}
	return c, err
}

func (l *lying) RawConfigFile() ([]byte, error) {
	c, err := l.ConfigFile()
	if err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

func (l *lying) ConfigName() (v1.Hash, error) {
	raw, err := l.RawConfigFile()
	if err != nil {
		return v1.Hash{}, err
	}
	hash, _, err := v1.SHA256(bytes.NewReader(raw))
	return hash, err
}

func (l *lying) Manifest() (*v1.Manifest, error) {
	m, err := l.Image.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	raw, err := l.RawConfigFile()
	if err != nil {
		return nil, err
	}
	m.Config.Size = int64(len(raw))
	if m.Config.Digest, err = l.ConfigName(); err == nil && l.manifest != nil {
		l.manifest(m)
	}
	return m, err
}

func (l *lying) RawManifest() ([]byte, error) {
	m, err := l.Manifest()
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

func (l *lying) Digest() (v1.Hash, error) {
	raw, err := l.RawManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	hash, _, err := v1.SHA256(bytes.NewReader(raw))
	return hash, err
}

// If this failed, an image whose parts are not what it names, or that is made to cost much, would be taken in.
func TestLyingImages(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{})
	honest := imageOf(t, v1.Config{}, layerOf(t, archive(t, file("f", "x"))), layerOf(t, archive(t, file("g", "x"))))
	for i, c := range []struct {
		why string
		img lying
	}{
		{"", lying{}}, // the control
		{"has the digest", lying{config: func(c *v1.ConfigFile) { c.RootFS.DiffIDs[1].Hex = strings.Repeat("0", 64) }}},
		{"speaks of 1 layers", lying{config: func(c *v1.ConfigFile) { c.RootFS.DiffIDs = c.RootFS.DiffIDs[:1] }}},
		{"it is for windows", lying{config: func(c *v1.ConfigFile) { c.OS = "windows" }}},
		{"it is for linux/s390x", lying{config: func(c *v1.ConfigFile) { c.Architecture = "s390x" }}},
		{"fetched from elsewhere",
			lying{manifest: func(m *v1.Manifest) { m.Layers[0].URLs = []string{"http://169.254.169.254/"} }}},
		{"is of type", lying{manifest: func(m *v1.Manifest) { m.Layers[0].MediaType = "application/x-sh" }}},
		{"larger than", lying{manifest: func(m *v1.Manifest) { m.Layers[0].Size = 1 << 62; m.Layers[1].Size = 1 << 62 }}},
		{"its configuration has", lying{manifest: func(m *v1.Manifest) { m.Config.Size = 1 << 40 }}},
		{"10000 layers", lying{manifest: func(m *v1.Manifest) {
			for len(m.Layers) < 10_000 {
				m.Layers = append(m.Layers, m.Layers[0])
			}
		}}},
	} {
		c.img.Image = honest
		_, err := s.Resolve(t.Context(), h.pushRaw(t, fmt.Sprintf("lying:%d", i), &c.img))
		if c.why == "" && err != nil {
			t.Errorf("the honest one: %v", err)
		}
		if c.why != "" {
			wantRefused(t, err, outboard.Invalid, c.why)
		}
	}
}

// If this failed, an image's configuration could make the programs of a sandbox load its code, trust its
// certificates or leave the gateway.
func TestHostileConfig(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{})
	long := "LONG=" + strings.Repeat("x", 40<<10)
	img, _ := resolve(t, s, h.push(t, "config:1", imageOf(t, v1.Config{
		Env: []string{"GOOD=1", "PATH=/opt/x:/bin", "LD_PRELOAD=/evil.so", "ld_library_path=/evil", "BASH_ENV=/evil",
			"HTTPS_PROXY=http://evil", "https_proxy=http://evil",
			"SSL_CERT_FILE=/evil", "DENO_CERT=/evil", "npm_config_cafile=/evil", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=/evil", "HOME=/evil", "OUTBOARD_X=1", "BASH_FUNC_ls%%=() { evil; }", "NOT A NAME=1", "=x", "plain", "NUL=a\x00b", long},
		WorkingDir: "/proc/1/root", User: "../../etc", Entrypoint: []string{"/proc/self/exe"}, Volumes: map[string]struct{}{"/": {}},
	}, layerOf(t, archive(t, file("f", "x"))))))
	if want := map[string]string{"GOOD": "1", "PATH": "/opt/x:/bin"}; !maps.Equal(img.Settings.Env, want) {
		t.Errorf("variables: %v; want %v", img.Settings.Env, want)
	}
	if img.Settings.Workdir != "" || img.Settings.User != "" {
		t.Errorf("got %+v", img.Settings)
	}
	for _, bad := range []string{"PATH", "Path"} {
		if image.SafeEnv(bad, "/bin:.") || image.SafeEnv(bad, "/bin:") {
			t.Errorf("%s with the working directory in it is taken", bad)
		}
	}
	for dir, want := range map[string]bool{"/": true, "/app": true, "/app/": true, "/process": true, "app": false,
		"": false, "/a/../b": false, "/proc": false, "/dev/fd": false} {
		if image.SafeDir(dir) != want {
			t.Errorf("the directory %q: %v", dir, !want)
		}
	}
}

// If this failed, whoever names an image could make the server speak to machines inside, and a private registry
// could not be used.
func TestGuard(t *testing.T) {
	h := newHub(t)
	ref := h.push(t, "app:1", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("f", "x")))))
	closed := newStore(t, image.Config{Guard: outbound.Guard{Private: []netip.Prefix{}}})
	_, err := closed.Resolve(t.Context(), ref)
	wantRefused(t, err, outboard.Denied, "not on the public internet")
	if _, err := newStore(t, image.Config{}).Resolve(t.Context(), ref); err != nil {
		t.Errorf("with its network named: %v", err)
	}
	for _, bad := range []string{"", "UPPER/case", "a b", "host/" + strings.Repeat("x", 600), "http://host/x", "/etc",
		"../x"} {
		if err := image.Check(bad); outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("%q as a name: %v", bad, err)
		}
	}
}

// If this failed, whoever names a registry that there is not would be told which resolver the server asks, in
// Go's words.
func TestNoSuchRegistry(t *testing.T) {
	for want, e := range map[string]net.DNSError{
		"pulling image nowhere.test/app:1: there is no registry named nowhere.test: its name was not found": {Err: "no such host", IsNotFound: true},
		"pulling image nowhere.test/app:1: the name nowhere.test could not be resolved":                     {Err: "i/o timeout", IsTimeout: true},
	} {
		s := newStore(t, image.Config{Guard: outbound.Guard{Private: outbound.Loopback,
			Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
				e.Name, e.Server = host, "10.0.0.1:53"
				return nil, &e
			}}})
		_, err := s.Resolve(t.Context(), "nowhere.test/app:1")
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// If this failed, a private image could not be pulled, or its password would go to another registry.
func TestCredentials(t *testing.T) {
	h := newHub(t)
	ref := h.push(t, "private:1", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("f", "x")))))
	h.allow.Store(func(r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		return user == "me" && password == "pass"
	})
	_, err := newStore(t, image.Config{}).Resolve(t.Context(), ref)
	wantRefused(t, err, outboard.Denied, "does not let this server have it")
	var asked []string
	s := newStore(t, image.Config{Credentials: func(_ context.Context, registry string) (string, outboard.Secret,
		error) {
		asked = append(asked, registry)
		return "me", outboard.NewSecret("pass"), nil
	}})
	if _, err := s.Resolve(t.Context(), ref); err != nil {
		t.Errorf("with the password: %v", err)
	}
	if len(asked) != 1 || asked[0] != h.host {
		t.Errorf("asked for %v", asked)
	}
}

// If this failed, an image that names the digest of another organization's private layer would have its content.
func TestDigestsGiveNothing(t *testing.T) {
	h := newHub(t)
	private := layerOf(t, archive(t, file("secret", "theirs")))
	theirs := h.push(t, "private:1", imageOf(t, v1.Config{}, private))
	s := newStore(t, image.Config{})
	if _, err := s.ResolveAs(t.Context(), theirs, image.Login{Scope: "them"}); err != nil {
		t.Fatal(err)
	}
	diff, err := private.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	liar := &lying{Image: imageOf(t, v1.Config{}, layerOf(t, archive(t, file("mine", "x")))),
		config: func(c *v1.ConfigFile) { c.RootFS.DiffIDs[0] = diff }}
	named := h.pushRaw(t, "mine:1", liar)
	for _, scope := range []string{"me", ""} {
		if img, err := s.ResolveAs(t.Context(), named, image.Login{Scope: scope}); err == nil {
			t.Errorf("scope %q has %v by its digest", scope, img.Layers)
		}
	}
	// The controls: who is given its bytes has it, whoever has it besides, and is not asked twice.
	if _, err := s.ResolveAs(t.Context(), h.push(t, "copy:1", imageOf(t, v1.Config{}, private)),
		image.Login{Scope: "me"}); err != nil {
		t.Errorf("an image that really has the layer: %v", err)
	}
	fetched := h.blobs.Load()
	if _, err := s.ResolveAs(t.Context(), h.push(t, "copy:2", imageOf(t, v1.Config{User: "u"}, private)),
		image.Login{Scope: "me"}); err != nil {
		t.Errorf("another image with the layer: %v", err)
	}
	if n := h.blobs.Load() - fetched; n != 1 { // its configuration
		t.Errorf("%d blobs were fetched for an image whose layer is held already", n)
	}
}

// If this failed, images could not come from files, or a hostile file would be taken for one.
func TestImport(t *testing.T) {
	s := newStore(t, image.Config{Limits: image.Limits{Config: 4096}})
	img := imageOf(t, v1.Config{Env: []string{"A=b"}}, layerOf(t, archive(t, file("f", "x"))),
		layerOf(t, archive(t, file("g", "y"))))
	tag, err := name.NewTag("local/app:1")
	if err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if err := tarball.Write(tag, img, &saved); err != nil {
		t.Fatal(err)
	}
	oci := t.TempDir()
	p, err := layout.Write(oci, emptyIndex())
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	tw := tar.NewWriter(&packed)
	if err := errors.Join(tw.AddFS(os.DirFS(oci)), tw.Close()); err != nil {
		t.Fatal(err)
	}
	several := layoutOfSeveral(t, img)
	for what, data := range map[string][]byte{"docker save": saved.Bytes(), "an OCI layout": packed.Bytes(),
		"one of several architectures": several} {
		if _, err := s.Import(t.Context(), "local/app:1", bytes.NewReader(data)); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		got, dirs := resolve(t, s, "local/app:1")
		if len(dirs) != 2 || got.Settings.Env["A"] != "b" || !got.Imported {
			t.Errorf("%s: %+v", what, got)
		}
		wantContent(t, filepath.Join(dirs[0], "f"), "x")
		wantContent(t, filepath.Join(dirs[1], "g"), "y")
	}
	pad := strings.Repeat(" ", 8192)
	nested := strings.Replace(index("sha256", zeros), "image.manifest", "image.index", 1)
	for why, data := range map[string][]byte{
		"neither an OCI layout":    archive(t, file("x", "y")),
		"cannot be read":           []byte(strings.Repeat("not a tar ", 100)),
		"twice":                    archive(t, file("manifest.json", "[]"), file("./manifest.json", "[]")),
		"holds 0 images":           archive(t, file("manifest.json", "[]")),
		"its manifest is larger":   archive(t, file("manifest.json", "[]"+pad)),
		"its configuration is not": archive(t, file("manifest.json", `[{"Config":"c","Layers":["l"]}]`)),
		"or is larger": archive(t, file("manifest.json", `[{"Config":"c","Layers":["l"]}]`),
			file("c", "{}"+pad)),
		"has 0 images for linux": archive(t, file("oci-layout", "{}"), file("index.json", `{"manifests":[]}`)),
		"its index is larger": archive(t, file("oci-layout", "{}"),
			file("index.json", `{"manifests":[]}`+pad)),
		"its index cannot be read": archive(t, file("oci-layout", "{}"),
			file("index.json", index("sha512", "../../../../etc/passwd"))),
		"it has no blobs/sha256/" + zeros: archive(t, file("oci-layout", "{}"),
			file("index.json", index("sha256", zeros))),
		"is larger than 4096": archive(t, file("oci-layout", "{}"),
			file("index.json", index("sha256", zeros)), file("blobs/sha256/"+zeros, "{}"+pad)),
		"sha256/" + zeros + " is larger": archive(t, file("oci-layout", "{}"), file("index.json", nested),
			file("blobs/sha256/"+zeros, "{}"+pad)),
		"it has no blobs/sha256": archive(t, file("oci-layout", "{}"), file("index.json", nested)),
		"the index in its index": archive(t, file("oci-layout", "{}"), file("index.json", nested),
			file("blobs/sha256/"+zeros, "[]")),
		"for linux/" + runtime.GOARCH: archive(t, file("oci-layout", "{}"), file("index.json", nested),
			file("blobs/sha256/"+zeros, nested)), // an index in itself
	} {
		_, err := s.Import(t.Context(), "local/app:2", bytes.NewReader(data))
		wantRefused(t, err, outboard.Invalid, why)
	}
}

// layoutOfSeveral packs a layout as builders and releases write it for several architectures: one name, behind
// which is an index.
func layoutOfSeveral(t *testing.T, img v1.Image) []byte {
	t.Helper()
	var inner v1.ImageIndex = emptyIndex()
	for _, arch := range []string{"none", runtime.GOARCH, "other"} {
		one := img
		if arch != runtime.GOARCH {
			one = imageOf(t, v1.Config{User: arch}, layerOf(t, archive(t, file("f", arch))))
		}
		inner = mutate.AppendManifests(inner, mutate.IndexAddendum{Add: one,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	dir := t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(emptyIndex(), mutate.IndexAddendum{Add: inner})); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	tw := tar.NewWriter(&packed)
	if err := errors.Join(tw.AddFS(os.DirFS(dir)), tw.Close()); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// If this failed, layers in use would be removed, those that nobody needs would stay, or a name would mean
// another image afterwards.
func TestPrune(t *testing.T) {
	h, s := newHub(t), newStore(t, image.Config{})
	one := h.push(t, "one:1", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("f", "1")))))
	two := h.push(t, "two:1", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("f", "2")))))
	img, dirs := resolve(t, s, one)
	_, dirs2 := resolve(t, s, two)
	built := image.Built("packages")
	fill := func(_ context.Context, dir string) (any, error) { return "note", os.Mkdir(dir, 0o755) }
	if _, err := s.Build(t.Context(), built, fill); err != nil {
		t.Fatal(err)
	}
	nobody := func() (map[string]bool, error) { return nil, nil }
	if got, err := s.Prune(t.Context(), time.Now().Add(-time.Hour), nil, nobody); err != nil || got.Layers != 0 {
		t.Errorf("pruning what was just used: %+v, %v", got, err)
	}
	// The second asks late: it was taken into use after the first look.
	asked := 0
	used := func() (map[string]bool, error) {
		asked++
		return map[string]bool{dirs[0]: true, dirs2[0]: asked > 1}, nil
	}
	soon := time.Now().Add(time.Minute)
	if got, err := s.Prune(t.Context(), soon, nil, used); err != nil || got.Layers != 1 {
		t.Errorf("pruning: %+v, %v; want the built layer", got, err)
	}
	wantContent(t, filepath.Join(dirs[0], "f"), "1")
	wantContent(t, filepath.Join(dirs2[0], "f"), "2")
	if got, err := s.Prune(t.Context(), soon, nil, nobody); err != nil || got.Layers != 2 {
		t.Errorf("pruning: %+v, %v; want both", got, err)
	}
	h.push(t, "one:1", imageOf(t, v1.Config{}, layerOf(t, archive(t, file("f", "moved")))))
	again, dirs := resolve(t, s, one)
	if again.Digest != img.Digest {
		t.Errorf("the name means %s after its layers were removed, and meant %s", again.Digest, img.Digest)
	}
	wantContent(t, filepath.Join(dirs[0], "f"), "1")
}

// If this failed, a layer whose making was cut short would be taken for the whole, or its remains would stay for ever.
func TestBuild(t *testing.T) {
	s := newStore(t, image.Config{})
	layer := image.Built("x")
	boom := errors.New("boom")
	half := func(_ context.Context, dir string) (any, error) { return nil, errors.Join(os.Mkdir(dir, 0o755), boom) }
	if _, err := s.Build(t.Context(), layer, half); !errors.Is(err, boom) {
		t.Errorf("a failing build: %v", err)
	}
	if _, err := os.Stat(s.Dir(layer)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the half-made layer: %v", err)
	}
	made := 0
	whole := func(_ context.Context, dir string) (any, error) {
		made++
		return map[string]string{"a": "b"}, errors.Join(os.Mkdir(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644))
	}
	for range 2 {
		raw, err := s.Build(t.Context(), layer, whole)
		note, nerr := image.Note[map[string]string](raw)
		if err != nil || nerr != nil || note["a"] != "b" {
			t.Errorf("building: %s, %v", raw, err)
		}
	}
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	left, err := os.ReadDir(filepath.Join(filepath.Dir(filepath.Dir(s.Dir(layer))), "tmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

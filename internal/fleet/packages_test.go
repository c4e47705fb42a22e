//go:build linux

package fleet

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/oci"
)

// npmServer is a registry of one package with a program, which counts what is asked of it.
func npmServer(t *testing.T) (address string, asked *atomic.Int64) {
	t.Helper()
	var tgz bytes.Buffer
	zw := gzip.NewWriter(&tgz)
	tw := tar.NewWriter(zw)
	for name, data := range map[string]string{"package/package.json": `{"name":"greet","version":"1.0.0","bin":{"greet":"greet.js"}}`,
		"package/greet.js": "#!/usr/bin/env node\nconsole.log('hello from a package')\n"} {
		if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755,
			Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(tgz.Bytes())
	asked = new(atomic.Int64)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch r.URL.Path {
		case "/greet":
			fmt.Fprintf(w, `{"name":"greet","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"greet","version":"1.0.0","bin":{"greet":"greet.js"},"dist":{"tarball":"http://%s/greet-1.0.0.tgz","integrity":"sha512-%s"}}}}`,
				r.Host, base64.StdEncoding.EncodeToString(sum[:]))
		case "/greet-1.0.0.tgz":
			_, _ = w.Write(tgz.Bytes())
		default:
			http.Error(w, `{"error":"there is no such package"}`, http.StatusNotFound)
		}
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return "http://registry.test:" + u.Port(), asked
}

// connected is a provider whose sandboxes can have a network.
type connected interface {
	sandbox.Provider
	sandbox.Networked
}

// packageFleet is a fleet whose sandboxes reach registry.test through a gateway, when its environment lets them.
func packageFleet(t *testing.T, r *rig, p connected, mirror string) *Fleet {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("layers are built as root only")
	}
	g, err := egress.New(egress.Config{Store: r.store, Provider: p, Dir: filepath.Join(t.TempDir(), "egress"),
		Guard: outbound.Guard{Private: outbound.Loopback, Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	store := images(t)
	r.provider = p
	return r.fleet(func(c *Config) { c.Images, c.Network, c.Mirrors = store, g, map[string]string{"npm": mirror} })
}

// boxWith makes a box of an environment and runs a command in it.
func boxWith(t *testing.T, f *Fleet, env outboard.EnvConfig, argv ...string) (string, error) {
	t.Helper()
	b := outboard.Box{ID: outboard.NewBoxID(), Env: env, EndAt: time.Now().Add(time.Hour)}
	if _, err := f.CreateBox(t.Context(), b, outboard.BlobRef{}); err != nil {
		return "", err
	}
	m, err := f.UseBox(t.Context(), tester, b.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, exit, err := m.StartProcess(t.Context(), ProcessStart{Argv: argv},
		func(e ProcessEvent) error { out.Write(e.Data); return nil })
	if err != nil || exit.Code != 0 {
		t.Errorf("%v: %+v, %v: %s", argv, exit, err, out.String())
	}
	if err := f.KillBox(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	return out.String(), nil
}

// If this failed, an environment's packages would not be there, be installed for every sandbox again, leave the
// network open for what uses them, or fail without a word why.
func TestPackages(t *testing.T) {
	if testing.Short() {
		t.Skip("a package manager takes seconds")
	}
	needNPM(t)
	r := newRig(t)
	mirror, asked := npmServer(t)
	f := packageFleet(t, r, nativeProvider(t), mirror)
	installOnce(t, f, asked)
	for _, c := range []struct {
		env  outboard.EnvConfig
		want string
	}{
		{outboard.EnvConfig{Packages: map[string][]string{"npm": {"absent-package"}}}, "404"},
		{outboard.EnvConfig{Packages: map[string][]string{"apt": {"jq"}}}, "apt packages need an image"},
		{outboard.EnvConfig{Packages: map[string][]string{"npm": {"greet"}},
			Image: imageServer(t, v1.Config{}, map[string]string{"etc/passwd": "root:x:0:0::/:/bin/sh\n"})}, "/bin/sh"},
	} {
		c.env.Kind, c.env.Networking.Mode = "cloud", "none"
		if _, err := boxWith(t, f, c.env, "true"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v; want ...%s...", c.env.Packages, err, c.want)
		}
	}
	if left := r.present(t); len(left) != 0 {
		t.Errorf("sandboxes left: %v", left)
	}
}

// If this failed, an environment with packages could not have another isolation than namespaces, or would not
// find its packages there.
func TestPackagesInContainers(t *testing.T) {
	if testing.Short() {
		t.Skip("a package manager takes seconds")
	}
	needNPM(t)
	guest, err := guestProgram()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"crun", "runsc"} {
		t.Run(name, func(t *testing.T) {
			program := name
			if built, err := filepath.Abs("../../bin/" + name); err == nil {
				if _, err := os.Stat(built); err == nil {
					program = built
				}
			}
			p, err := oci.New(oci.Config{Program: program, Dir: filepath.Join(t.TempDir(), "s"), Guest: guest})
			if err != nil && os.Getenv("CI") == "true" && os.Geteuid() == 0 {
				t.Fatal(err)
			}
			if err != nil {
				t.Skip(err)
			}
			r := newRig(t)
			mirror, asked := npmServer(t)
			installOnce(t, packageFleet(t, r, p, mirror), asked)
			if left := r.present(t); len(left) != 0 {
				t.Errorf("sandboxes left: %v", left)
			}
		})
	}
}

func needNPM(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("install npm to run this: ", err)
	}
}

// installOnce uses the same packages twice, in sandboxes without a network.
func installOnce(t *testing.T, f *Fleet, asked *atomic.Int64) {
	t.Helper()
	env := outboard.EnvConfig{Kind: "cloud", Packages: map[string][]string{"npm": {"greet@1.0.0"}, "pip": {}},
		Networking: outboard.Networking{Mode: "none"}}
	for _, list := range [][]string{{"greet@1.0.0"}, {"greet@1.0.0", "greet@1.0.0"}} { // the same list
		env.Packages["npm"] = list
		out, err := boxWith(t, f, env, "/bin/sh", "-c",
			"greet; node -e \"console.log(require.resolve('greet/greet.js'))\"; ls /var/tmp; test -w /opt/outboard "+
				"|| echo read-only")
		if err != nil {
			t.Fatal(err)
		}
		if want := "hello from a package\n/opt/outboard/lib/node_modules/greet/greet.js\nread-only\n"; out != want {
			t.Errorf("got %q; want %q", out, want)
		}
		if n := asked.Swap(0); n > 0 != (len(list) == 1) {
			t.Errorf("the registry was asked %d times for the list %v", n, list)
		}
	}
}

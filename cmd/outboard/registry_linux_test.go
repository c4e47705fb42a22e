package main

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
)

// guarded is a registry on loopback with an image app:1 to app:5, which lets in who knows a password: at once,
// or for a token that it gives.
func guarded(t *testing.T, bearer bool, password string) (host string) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := httptest.NewServer(inner)
	t.Cleanup(open.Close)
	push(t, strings.TrimPrefix(open.URL, "http://"))
	known := func(r *http.Request) bool {
		user, given, ok := r.BasicAuth()
		return ok && user == "me" && given == password
	}
	var srv *httptest.Server
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case bearer && r.URL.Path == "/token" && known(r):
			_ = json.NewEncoder(w).Encode(map[string]string{"token": "of-the-day"})
		case bearer && r.Header.Get("Authorization") == "Bearer of-the-day", !bearer && known(r):
			inner.ServeHTTP(w, r)
		case bearer && r.URL.Path != "/token":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"app\"", srv.URL+"/token"))
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="app"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func push(t *testing.T, host string) {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.Write([]byte("x")); err != nil {
		t.Fatal(err)
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
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", runtime.GOARCH, v1.Config{}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"1", "2", "3", "4", "5"} {
		ref, err := name.ParseReference(host + "/app:" + tag)
		if err == nil {
			err = remote.Write(ref, img)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// built waits for the end of the newest build of a template.
func (o *online) built(c *client.Client, name string) client.TemplateBuild {
	o.t.Helper()
	p := &post{t: o.t}
	var b client.TemplateBuild
	p.until(func() bool {
		var err error
		if b, err = findBuild(o.t.Context(), c, name, ""); err != nil {
			o.t.Fatal(err)
		}
		return b.Over()
	}, "the build is over")
	return b
}

// If this fails, a template or a box cannot be made of an image that takes a password, a wrong one gives a
// riddle, an organization has what another one's password pulled, or the password is kept or logged in the
// clear.
func TestRegistryLogin(t *testing.T) {
	var logs lockedBuffer
	o := &online{t: t, data: t.TempDir(),
		log: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		cfg: &config.Config{Egress: config.Egress{PrivateNetworks: []string{"127.0.0.0/8"}}}}
	o.start()
	t.Cleanup(func() {
		o.s.Stop()
		removeSandboxes(t, filepath.Join(o.data, "sandboxes"))
	})
	if o.s.Problem != nil {
		noSandbox(t, o.s.Problem)
	}
	org, err := o.c.CreateOrg(t.Context(), "second")
	if err != nil {
		t.Fatal(err)
	}
	key, err := readKey(o.data)
	if err != nil {
		t.Fatal(err)
	}
	second, err := client.New(client.Config{URL: o.s.URL, Key: key, Org: org.ID})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Close)
	vault, err := second.CreateVault(t.Context(), "registries")
	if err != nil {
		t.Fatal(err)
	}
	var passwords []string
	for kind, bearer := range map[string]bool{"basic": false, "bearer": true} {
		password := "right-" + rand.Text()
		passwords = append(passwords, password, "wrong-"+kind+"-password")
		image := guarded(t, bearer, password) + "/app:1"
		build := func(c *client.Client, image, password string) client.TemplateBuild {
			t.Helper()
			body := map[string]any{"name": kind, "image": image}
			if password != "" {
				body["registry"] = map[string]any{"username": "me", "password": password}
			}
			if _, err := c.BuildTemplate(t.Context(), body); err != nil {
				t.Fatal(err)
			}
			return o.built(c, kind)
		}
		failed := func(what string, b client.TemplateBuild, want string) {
			t.Helper()
			if b.State != "error" || !strings.Contains(b.Error.Message, want) ||
				strings.Contains(b.Error.Message, "assword-") {
				t.Errorf("%s, %s: %s %+v", kind, what, b.State, b.Error)
			}
		}
		failed("without a password", build(o.c, image, ""), "does not let this server have it")
		failed("with a wrong one", build(o.c, image, "wrong-"+kind+"-password"),
			"the registry refuses the user and password")
		if b := build(o.c, image, password); b.State != "ready" || *b.Layers != 1 {
			t.Errorf("%s, with the right one: %s %+v", kind, b.State, b.Error)
		}
		failed("another organization", build(second, image, ""), "does not let this server have it")
		if b := build(o.c, strings.Replace(image, "app:1", "app:2", 1), ""); b.State != "ready" {
			t.Errorf("%s, with the organization's: %s %+v", kind, b.State, b.Error)
		}
		if b, err := o.c.CreateBox(t.Context(), map[string]any{"image": image}); err != nil {
			t.Errorf("%s, a box of the image, with the organization's: %v", kind, err)
		} else if err := o.c.DeleteBox(t.Context(), b.ID); err != nil {
			t.Error(err)
		}
		if _, err := second.CreateBox(t.Context(), map[string]any{"image": image}); err == nil ||
			!strings.Contains(err.Error(), "does not let this server have it") {
			t.Errorf("%s, a box of another organization: %v", kind, err)
		}
		host, port, _ := strings.Cut(strings.TrimSuffix(image, "/app:1"), ":")
		number, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		byHand := map[string]any{"auth": map[string]any{"type": "outboard_header", "name": host + "_" + port,
			"hosts": []string{host}, "ports": []int{number},
			"value": "me:" + password, "format": "Basic {basic}"}}
		if _, err := second.CreateCredential(t.Context(), vault.ID, byHand); err != nil {
			t.Fatal(err)
		}
		if _, err := second.CreateBox(t.Context(), map[string]any{"image": image}); err != nil {
			t.Errorf("%s, a box of the other organization, with a credential made by hand: %v", kind, err)
		}
		var asked struct{ TemplateID, BuildID string }
		if status := o.call("POST", "/v3/templates", `{"name":"e2b-`+kind+`"}`, &asked); status != http.StatusAccepted {
			t.Fatalf("asking for a build: %d", status)
		}
		body := fmt.Sprintf(`{"fromImage":%q,"fromImageRegistry":{"type":"registry","username":"me","password":%q}}`,
			image, password)
		if status := o.call("POST", "/v2/templates/"+asked.TemplateID+"/builds/"+asked.BuildID, body,
			nil); status != http.StatusAccepted {
			t.Fatalf("starting a build: %d", status)
		}
		if b := o.built(o.c, "e2b-"+kind); b.State != "ready" {
			t.Errorf("%s, over the E2B API: %s %+v", kind, b.State, b.Error)
		}
	}
	for _, secret := range passwords {
		if where := o.holding(secret); len(where) > 0 || bytes.Contains(logs.Bytes(), []byte(secret)) {
			t.Errorf("a password lies in the clear in %q, or in the log", where)
		}
	}
	if len(o.holding("127.0.0.1_")) == 0 || !bytes.Contains(logs.Bytes(), []byte("template built")) {
		t.Error("nothing is found where passwords were looked for") // the control: the credential's name is there
	}
}

// holding lists the files of the data directory that have a text in them.
func (o *online) holding(text string) (files []string) {
	o.t.Helper()
	err := filepath.WalkDir(o.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // what goes while it is looked at
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(text)) {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return files
}

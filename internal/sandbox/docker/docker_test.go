//go:build linux

package docker_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/docker"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

var guestPath string

func TestMain(m *testing.M) { os.Exit(sandboxtest.Main(m, &guestPath)) }

// socket returns that of an engine for tests, or skips. In CI there must be one.
func socket(t *testing.T) string {
	t.Helper()
	s := os.Getenv("OUTBOARD_TEST_DOCKER")
	if s == "" && os.Getenv("CI") == "true" && os.Geteuid() == 0 {
		t.Fatal("no Docker engine: run scripts/deps, and the tests with scripts/with-dockerd")
	}
	if s == "" {
		t.Skip("no Docker engine: run the tests with scripts/with-dockerd, as root")
	}
	return s
}

func newProvider(t testing.TB, socket, dir string) *container.Provider {
	t.Helper()
	p, err := docker.New(docker.Config{Socket: socket, Dir: dir, Guest: guestPath})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// If this fails, sandboxes of an engine differ from what every other part of the system expects of a provider.
func TestConformance(t *testing.T) {
	sock, dir := socket(t), filepath.Join(t.TempDir(), "s")
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t testing.TB) sandbox.Provider {
			p := newProvider(t, sock, dir)
			t.Cleanup(func() {
				if ids, err := p.List(t.Context()); err != nil || len(ids) != 0 {
					t.Errorf("the suite left %v, %v", ids, err)
				}
			})
			return p
		},
		Part: sandboxtest.Few(),
		Kill: func(_ sandbox.Provider, id outboard.SandboxID) error { return sandboxtest.KillContainer(dir, id) },
	})
}

func create(t *testing.T, p sandbox.Provider, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	spec.ID, spec.Generation = outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), "g"
	sb, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		sb.Close()
		if err := p.Destroy(context.Background(), spec.ID); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return sb
}

// containers asks the engine itself what it has of a directory.
func containers(t *testing.T, sock, dir string) string { return ask(t, sock, "/containers/json", dir) }

func ask(t *testing.T, sock, what, dir string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sock)
	}}}
	filter := url.QueryEscape(`{"label":["dev.outboard.dir=` + dir + `"]}`)
	res, err := c.Get("http://docker" + what + "?all=1&filters=" + filter)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s, %v", res.Status, body, err)
	}
	return string(body)
}

// If this fails, a container whose directory is gone runs for ever, or one that another server made is destroyed.
func TestStray(t *testing.T) {
	sock := socket(t)
	dir, other := filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "o")
	p := newProvider(t, sock, dir)
	foreign := create(t, newProvider(t, sock, other), sandbox.Spec{})
	sb := create(t, p, sandbox.Spec{})
	if err := sb.Freeze(t.Context()); err != nil { // what is frozen must be removable as well
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, string(sb.ID()))); err != nil {
		t.Fatal(err)
	}
	if got := containers(t, sock, dir); !strings.Contains(got, string(sb.ID())) { // the control
		t.Fatalf("the engine does not have the container: %s", got)
	}
	again := newProvider(t, sock, dir)
	ids, err := again.List(t.Context())
	if err != nil || !slices.Equal(ids, []outboard.SandboxID{sb.ID()}) || !again.Stray(sb.ID()) ||
		again.Stray(foreign.ID()) {
		t.Fatalf("found %v, %v", ids, err)
	}
	if err := again.Destroy(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	if got := containers(t, sock, dir); strings.Contains(got, string(sb.ID())) {
		t.Errorf("it is still there: %s", got)
	}
	if got := sandboxtest.Bash(t, foreign, "1", "echo here"); got != "here\n" {
		t.Errorf("the other's says %q", got)
	}
}

// If this fails, a sandbox shows the root file system as it once was, or not as its layers say, or the engine's
// disk fills with images.
func TestImages(t *testing.T) {
	sock, dir := socket(t), filepath.Join(t.TempDir(), "s")
	p := newProvider(t, sock, dir)
	layer := func(files map[string]string) string {
		d := t.TempDir()
		for name, text := range files {
			path := filepath.Join(d, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	low := layer(map[string]string{"opt/a": "low", "opt/b": "low", "opt/c": "low"})
	top := layer(map[string]string{"opt/a": "top"})
	if err := os.Link(filepath.Join(top, "opt/a"), filepath.Join(top, "opt/l")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mknod(filepath.Join(top, "opt/b"), syscall.S_IFCHR, 0); err != nil { // deletes it
		t.Fatal(err)
	}
	over := create(t, p, sandbox.Spec{Layers: []string{top, low}})
	if got := sandboxtest.Bash(t, over, "1",
		"cd /opt; cat a c l; ls b 2>/dev/null || echo none; stat -c %h a"); got != "toplowtopnone\n2\n" {
		t.Errorf("the layers show %q", got)
	}

	root := layer(map[string]string{"opt/a": "first"})
	bind := func() sandbox.Spec { return sandbox.Spec{Rootfs: root} }
	read := func() string {
		t.Helper()
		sb := create(t, p, bind())
		var out bytes.Buffer
		if err := sb.ReadFile(t.Context(), guest.FileRef{Path: "/opt/a"}, 0, 1<<10, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := read(); got != "first" {
		t.Errorf("the directory shows %q", got)
	}
	if err := os.WriteFile(filepath.Join(root, "opt/a"), []byte("second"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "second" {
		t.Errorf("after a change the directory shows %q", got)
	}

	gone, other := filepath.Join(t.TempDir(), "gone"), filepath.Join(t.TempDir(), "other")
	images := func(dir string) string { return ask(t, sock, "/images/json", dir) }
	for _, d := range []string{gone, other} {
		q := newProvider(t, sock, d)
		sb := create(t, q, sandbox.Spec{})
		sb.Close()
		if err := q.Destroy(t.Context(), sb.ID()); err != nil {
			t.Fatal(err)
		}
		if got := images(d); !strings.Contains(got, "outboard/root") {
			t.Fatalf("no image was made: %s", got)
		}
		if err := os.RemoveAll(gone); err != nil { // the next one to make an image finds out
			t.Fatal(err)
		}
	}
	if got := images(gone); strings.Contains(got, "outboard/root") {
		t.Errorf("an image of a directory that is gone: %s", got)
	}
	create(t, newProvider(t, sock, filepath.Join(t.TempDir(), "third")), sandbox.Spec{})
	if got := images(other); !strings.Contains(got, "outboard/root") {
		t.Error("the image of another server was removed")
	}
}

// If this fails, the one whose sandboxes cannot be made is not told why, or not what to do.
func TestNoEngine(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for name, c := range map[string]struct {
		socket, version, says, hint string
		kind                        outboard.Kind
	}{
		"absent": {filepath.Join(dir, "none.sock"), "", "does not exist", "apt-get install docker.io",
			outboard.Unavailable},
		"dead":   {dead, "", "no Docker engine listens", "systemctl start docker", outboard.Unavailable},
		"remote": {"tcp://10.0.0.1:2375", "", "not the absolute path", "of this host", outboard.Invalid},
		"old": {"", `{"Version":"18.09","ApiVersion":"1.39","MinAPIVersion":"1.12","Os":"linux"}`, "too old",
			"20.10", outboard.Unavailable},
		"new": {"", `{"Version":"99","ApiVersion":"2.5","MinAPIVersion":"2.0","Os":"linux"}`, "too new",
			"update outboard", outboard.Unavailable},
		"windows": {"", `{"Version":"29","ApiVersion":"1.47","MinAPIVersion":"1.24","Os":"windows"}`, "of windows",
			"Linux containers", outboard.Unavailable},
		// the control
		"good": {"", `{"Version":"29","ApiVersion":"1.52","MinAPIVersion":"1.44","Os":"linux"}`, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			sock := c.socket
			if c.version != "" {
				sock = filepath.Join(dir, name)
				l, err := net.Listen("unix", sock)
				if err != nil {
					t.Fatal(err)
				}
				s := &httptest.Server{Listener: l,
					Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						io.WriteString(w, c.version)
					})}}
				s.Start()
				defer s.Close()
			}
			_, err := docker.Find(docker.Config{Socket: sock})
			if c.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e, ok := errors.AsType[*outboard.Error](err)
			if !ok || e.Kind != c.kind || !strings.Contains(err.Error(), c.says) || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("%v (%+v)", err, e)
			}
		})
	}
}

// If this fails, a sandbox that cannot start fails without its own words.
func TestLastWords(t *testing.T) {
	sock, dir := socket(t), filepath.Join(t.TempDir(), "s")
	broken := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho the engine of this boat is cold >&2\nexit 3\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	p, err := docker.New(docker.Config{Socket: sock, Dir: dir, Guest: broken})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Create(t.Context(), sandbox.Spec{ID: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox),
		Generation: "g"})
	if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(fmt.Sprint(err), "of this boat is cold") {
		t.Errorf("%v", err)
	}
	if got := containers(t, sock, dir); got != "[]\n" && got != "[]" {
		t.Errorf("a failed Create left %s", got)
	}
}

// If this fails, somebody is given less than what they asked for, and is not told.
func TestRefused(t *testing.T) {
	p := newProvider(t, socket(t), filepath.Join(t.TempDir(), "s"))
	create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{MemoryBytes: 256 << 20, CPUs: 1, Pids: 50}}) // the control
	for name, spec := range map[string]sandbox.Spec{"disk": {Limits: outboard.SandboxLimits{DiskBytes: 1 << 30}},
		"packages": {Build: true}} {
		spec.ID, spec.Generation = outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), "g"
		if sb, err := p.Create(t.Context(), spec); outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				sb.Close()
				_ = p.Destroy(t.Context(), spec.ID)
			}
		}
	}
}

// If this fails, what connects inside does not reach the gateway, or names of the host's servers show.
func TestNetwork(t *testing.T) {
	p := newProvider(t, socket(t), filepath.Join(t.TempDir(), "s"))
	if got := sandboxtest.Bash(t, create(t, p, sandbox.Spec{}), "dns", "cat /etc/resolv.conf"); got != "" {
		t.Errorf("the name servers: %q", got)
	}
	sb := create(t, p, sandbox.Spec{Network: &sandbox.Network{}})
	l, err := p.Listen(t.Context(), sb.ID(), nil)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	defer l.Close()
	met := make(chan string, 1)
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			fmt.Fprintf(conn, "met %s", line)
			conn.Close()
			met <- conn.LocalAddr().String()
		}
	}()
	if got := sandboxtest.Bash(t, sb, "n",
		"exec 3<>/dev/tcp/example.test/8443; echo hello >&3; cat <&3"); got != "met hello\n" {
		t.Fatalf("the connection: %q", got)
	}
	if to := <-met; to != "198.18.0.1:8443" {
		t.Errorf("meant to go to %s", to)
	}
}

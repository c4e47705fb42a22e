//go:build linux

package oci_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/oci"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

var guestPath string

func TestMain(m *testing.M) {
	// A host that lets a process open few files: what gVisor's kernel opens for a sandbox is a matter of this.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4096, Max: 4096}); err != nil {
		panic(err)
	}
	os.Exit(sandboxtest.Main(m, &guestPath))
}

// runtimeFor returns a runtime's program, or skips. In CI it must be there.
func runtimeFor(t *testing.T, name string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("container runtimes need root")
	}
	program := name
	if built, err := filepath.Abs("../../../bin/" + name); err == nil && name == "runsc" {
		if _, err := os.Stat(built); err == nil {
			program = built
		}
	}
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("no %s: %s", name, oci.InstallHint(name))
	}
	t.Skipf("no %s: %s", name, oci.InstallHint(name))
	return ""
}

func newProvider(t testing.TB, program, dir string) *container.Provider {
	t.Helper()
	p, err := oci.New(oci.Config{Program: program, Dir: dir, Guest: guestPath})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// If this fails, sandboxes of a runtime differ from what every other part of the system expects of a provider.
func TestConformance(t *testing.T) {
	for _, name := range []string{"crun", "runc", "runsc"} {
		t.Run(name, func(t *testing.T) {
			program := runtimeFor(t, name)
			dir := filepath.Join(t.TempDir(), "s")
			sandboxtest.Run(t, sandboxtest.Config{
				New: func(t testing.TB) sandbox.Provider {
					p := newProvider(t, program, dir)
					t.Cleanup(func() {
						if ids, err := p.List(t.Context()); err != nil || len(ids) != 0 {
							t.Errorf("the suite left %v, %v", ids, err)
						}
					})
					return p
				},
				OwnKernel: name == "runsc",
				Part:      sandboxtest.Few(),
				Kill: func(_ sandbox.Provider, id outboard.SandboxID) error {
					return sandboxtest.KillContainer(dir,
						id)
				},
			})
		})
	}
}

// each runs a test with every runtime.
func each(t *testing.T, f func(t *testing.T, p *container.Provider, dir string)) {
	for _, name := range []string{"crun", "runc", "runsc"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "s")
			f(t, newProvider(t, runtimeFor(t, name), dir), dir)
		})
	}
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
		if left, _ := filepath.Glob("/sys/fs/cgroup/*/outboard-containers/" + string(spec.ID)); len(left) > 0 {
			t.Errorf("control groups are left: %v", left)
		}
	})
	return sb
}

// If this fails, what connects inside does not reach the gateway, or the gateway does not know where it was
// meant to go, or tools reach the sockets themselves.
func TestNetwork(t *testing.T) {
	ca := certificate(t)
	each(t, func(t *testing.T, p *container.Provider, _ string) {
		sb := create(t, p, sandbox.Spec{Network: &sandbox.Network{CA: ca}})
		l, err := p.Listen(t.Context(), sb.ID(), ca)
		if err != nil {
			t.Fatalf("Listen: %v", err)
		}
		defer l.Close()
		met := make(chan string, 20) // one per connection
		go func() {                  // ends with the listener
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
		for i := range 12 { // more than are kept in reserve
			got := sandboxtest.Bash(t, sb, fmt.Sprint("n", i),
				"exec 3<>/dev/tcp/example.test/80; echo hello >&3; cat <&3; exec 3>&-")
			if got != "met hello\n" {
				t.Fatalf("connection %d: %q", i, got)
			}
			if to := <-met; to != "198.18.0.1:80" {
				t.Errorf("meant to go to %s", to)
			}
		}
		if got := sandboxtest.Bash(t, sb, "in",
			"ls /run/host 2>&1; echo x > /run/host/guest.sock"); !strings.Contains(got, "ermission denied") {
			t.Errorf("the host's directory: %q", got)
		}
		if got := sandboxtest.Bash(t, sb, "ca", "cmp <(tail -c 200 $SSL_CERT_FILE) <(tail -c 200 "+
			"/run/trust/ca-bundle.pem) && echo same"); got != "same\n" {
			t.Errorf("the bundle: %q", got)
		}
	})
}

// If this fails, a guest that somebody has taken over makes the host talk to a socket of the host.
func TestLinkedSocket(t *testing.T) {
	program := runtimeFor(t, "runc")
	dir := filepath.Join(t.TempDir(), "s")
	p := newProvider(t, program, dir)
	sb := create(t, p, sandbox.Spec{})
	again, err := p.Open(t.Context(), sb.ID()) // the control
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	again.Close()
	sock := filepath.Join(dir, string(sb.ID()), "host", "guest.sock")
	if err := os.Rename(sock, sock+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sock+".real", sock); err != nil {
		t.Fatal(err)
	}
	if again, err = p.Open(t.Context(), sb.ID()); err == nil {
		again.Close()
		t.Error("the host followed a link")
	}
}

// If this fails, tools that hold all files which a sandbox's kernel can open keep the sandbox from being
// removed, and so from being killed.
func TestExhaustedKernel(t *testing.T) {
	program := runtimeFor(t, "runsc")
	dir := filepath.Join(t.TempDir(), "s")
	p := newProvider(t, program, dir)
	for _, frozen := range []bool{false, true} {
		sb := create(t, p, sandbox.Spec{})
		if got := sandboxtest.Bash(t, sb, "before", "echo served > f; cat f"); got != "served\n" { // the control
			t.Fatalf("before: %q", got)
		}
		if frozen {
			if err := sb.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(filepath.Join(dir, string(sb.ID()), "pid"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(string(text))
		if err != nil {
			t.Fatal(err)
		}
		// What thousands of open files come to, whatever the host allows.
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := p.Destroy(ctx, sb.ID()); err != nil {
			t.Errorf("frozen %v: %v", frozen, err)
		}
	}
}

// If this fails, somebody is given less than the limits that they asked for, and is not told.
func TestRefused(t *testing.T) {
	each(t, func(t *testing.T, p *container.Provider, _ string) {
		create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{MemoryBytes: 256 << 20, CPUs: 1}}) // the control
		specs := map[string]sandbox.Spec{"disk": {Limits: outboard.SandboxLimits{DiskBytes: 1 << 30}}}
		if !slices.Contains(p.Capabilities().Limits, "pids") {
			specs["pids"] = sandbox.Spec{Limits: outboard.SandboxLimits{Pids: 50}}
		}
		for name, spec := range specs {
			spec.ID, spec.Generation = outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), "g"
			if sb, err := p.Create(t.Context(), spec); outboard.KindOf(err) != outboard.Unavailable {
				t.Errorf("%s: %v", name, err)
				if err == nil {
					sb.Close()
					_ = p.Destroy(t.Context(), spec.ID)
				}
			}
		}
	})
}

// If this fails, packages that were installed in one sandbox are missing in the next one, or bring what was that
// sandbox's own.
func TestCommit(t *testing.T) {
	ca := certificate(t)
	each(t, func(t *testing.T, p *container.Provider, dir string) {
		below := t.TempDir()
		for name, text := range map[string]string{"opt/gone": "x", "opt/kept": "kept", "opt/hidden/old": "x"} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(below, name)), 0o755),
				os.WriteFile(filepath.Join(below, name), []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		b := create(t, p, sandbox.Spec{Build: true, Layers: []string{below}, Network: &sandbox.Network{CA: ca}})
		// Giving files away is what package managers need and nobody else may.
		if said := asRoot(t, b, "set -e; mkdir -p /opt/new; echo built > /opt/new/f; chown 33:7 /opt/new/f; chmod "+
			"4755 /opt/new/f; ln /opt/new/f /opt/new/g; rm /opt/gone; "+
			"rm -r /opt/hidden; mkdir /opt/hidden; ln -s /etc /opt/new/link; mkfifo /opt/new/pipe; echo "+
			"built:x:77:77::/:/bin/sh >> /etc/passwd"); said != "" {
			t.Fatalf("building: %s", said)
		}
		layer := filepath.Join(filepath.Dir(dir), "layer")
		if err := p.Commit(t.Context(), b.ID(), layer); err != nil {
			t.Fatalf("making a layer: %v", err)
		}
		for range 2 { // two sandboxes with uids of their own
			c := create(t, p, sandbox.Spec{Layers: []string{layer, below}})
			got := sandboxtest.Bash(t, c, "1", "cat /opt/new/g /opt/kept; ls /opt /opt/hidden; stat -c '%u %g %a' "+
				"/opt/new/f; test -e /opt/new/pipe || echo no pipe; "+
				"grep -c built: /etc/passwd; id -un; cat /etc/resolv.conf; test -s "+
				"/etc/ssl/certs/ca-certificates.crt && echo certificates")
			if want := "built\nkept/opt:\nhidden\nkept\nnew\n\n/opt/hidden:\n33 7 755\nno pipe\n1\nuser\ncertificates\n"; got != want {
				t.Errorf("got %q\nwant %q", got, want)
			}
			if said := asRoot(t, c, "touch /tmp/x && chown 7 /tmp/x"); said == "" {
				t.Error("root of an ordinary sandbox gives files away")
			}
			if err := p.Commit(t.Context(), c.ID(), filepath.Join(t.TempDir(),
				"x")); outboard.KindOf(err) != outboard.Invalid {
				t.Errorf("a layer of an ordinary sandbox: %v", err)
			}
		}
	})
}

// asRoot runs a command as the sandbox's root and returns what it said, or how it ended.
func asRoot(t *testing.T, sb sandbox.Sandbox, command string) string {
	t.Helper()
	var said strings.Builder
	_, exit, err := sb.StartProcess(t.Context(), guest.ProcessStart{Argv: []string{"/bin/sh", "-c", command},
		User: "root", Cwd: "/"}, func(e guest.ProcessEvent) error {
		said.Write(e.Data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if exit.Code != 0 {
		fmt.Fprintf(&said, "exit status %d", exit.Code)
	}
	return said.String()
}

// If this fails, a host without the runtime is told something else than what to install.
func TestMissing(t *testing.T) {
	_, err := oci.Find(oci.Config{Program: "/nowhere/runsc"})
	e, ok := errors.AsType[*outboard.Error](err)
	if !ok || e.Kind != outboard.Unavailable || !strings.Contains(e.Hint, "make runsc") {
		t.Errorf("%v", err)
	}
}

func certificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

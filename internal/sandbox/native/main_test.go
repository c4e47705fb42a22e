//go:build linux

package native_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// Every test runs in the mode of the user who runs it. Under root, TestAsOrdinaryUser runs all of them again as
// somebody else, through these variables.
const (
	binariesEnv = native.SecondRun               // directory of the built programs: this is the second run
	createEnv   = "OUTBOARD_TEST_NATIVE_CREATE"  // "dir id": make that sandbox, say so, and wait to be killed
	flattenEnv  = "OUTBOARD_TEST_NATIVE_FLATTEN" // "dir id last n": go on with that sandbox from step n, and be killed
	// "dir": in a user namespace of one's own, forbid network namespaces and see New refuse
	refusedEnv = "OUTBOARD_TEST_NATIVE_REFUSED"
)

// binaries is where TestMain put the programs.
var binaries string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	binaries = os.Getenv(binariesEnv)
	if args := strings.Fields(os.Getenv(createEnv)); len(args) == 2 {
		return createAndWait(args[0], outboard.SandboxID(args[1]))
	}
	if args := strings.Fields(os.Getenv(flattenEnv)); len(args) == 4 {
		return stepUntilKilled(args[0], outboard.SandboxID(args[1]), outboard.CheckpointID(args[2]), args[3])
	}
	if dir := os.Getenv(refusedEnv); dir != "" {
		return refuseAndTry(dir)
	}
	if binaries == "" {
		dir, err := os.MkdirTemp("", "outboard-native-")
		if err == nil {
			binaries = dir
			defer os.RemoveAll(dir)
			err = build(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "building test programs:", err)
			return 1
		}
	}
	return m.Run()
}

// refuseAndTry says what New returns before and after the kernel is told to refuse one of the namespaces.
func refuseAndTry(dir string) int {
	try := func() error {
		_, err := native.New(native.Config{Dir: dir, Guest: guestPath()})
		return err
	}
	if err := try(); err != nil {
		fmt.Println("control:", err)
		return 1
	}
	if err := os.WriteFile("/proc/sys/user/max_net_namespaces", []byte("0"), 0o600); err != nil {
		fmt.Println(err)
		return 1
	}
	err := try()
	fmt.Println(outboard.KindOf(err), err)
	return 0
}

// build compiles the guest and the hostile program, and puts a copy of this test beside them for the other user.
func build(dir string) error {
	for name, pkg := range map[string]string{"guest": "../../../cmd/outboard-guest", "hostile": "./testdata/hostile"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := copyFile(filepath.Join(dir, "self"), self, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

func copyFile(to, from string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, mode); err != nil {
		return err
	}
	return os.Chmod(to, mode)
}

func guestPath() string   { return filepath.Join(binaries, "guest") }
func hostilePath() string { return filepath.Join(binaries, "hostile") }

// isRoot reports whether this run has uid ranges and cgroups of its own.
func isRoot() bool { return os.Geteuid() == 0 }

// newProvider returns a provider on a directory that goes with the test, in which nothing may be left.
func newProvider(t *testing.T) (*native.Provider, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sandboxes")
	return openProvider(t, native.Config{Dir: dir}), dir
}

func openProvider(t *testing.T, cfg native.Config) *native.Provider {
	t.Helper()
	cfg.Guest = guestPath()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	p, err := native.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ids, err := p.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := p.Destroy(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func newID() outboard.SandboxID { return outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox) }

// create makes a sandbox with the hostile program in its workspace.
func create(t *testing.T, p sandbox.Provider, spec sandbox.Spec) *testSandbox {
	t.Helper()
	if spec.ID == "" {
		spec.ID = newID()
	}
	spec.Generation = "g-" + string(spec.ID)
	s, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	b := &testSandbox{Sandbox: s}
	b.put(t, "/workspace/hostile", hostilePath())
	return b
}

// testSandbox is a sandbox in a test.
type testSandbox struct {
	sandbox.Sandbox
	calls int
	last  outboard.CheckpointID // pushed, or begun from
}

func (b *testSandbox) put(t *testing.T, path, from string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := b.Put(t.Context(), path, 0o755, false, f); err != nil {
		t.Fatal(err)
	}
}

// run runs one process inside and returns its output and exit status.
func (b *testSandbox) run(t *testing.T, argv ...string) (string, int) {
	t.Helper()
	b.calls++
	input, err := json.Marshal(map[string]any{"argv": argv})
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("%s/%d", b.ID(), b.calls)
	s := guest.Start{Key: key, Epoch: 1, Generation: b.Generation(), Digest: key, Op: "exec", Input: input,
		TimeoutMs: 60_000, OutputLimit: 100_000}
	r, err := b.Start(t.Context(), s)
	if err == nil && r.State != guest.StateDone {
		r, err = b.Wait(t.Context(), key, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.State != guest.StateDone || r.ExitCode == nil {
		return fmt.Sprintf("%s %s %s", r.State, r.Cause, r.Output), -1
	}
	return string(r.Output), *r.ExitCode
}

func (b *testSandbox) sh(t *testing.T, script string) string {
	t.Helper()
	out, _ := b.run(t, "/bin/sh", "-c", script)
	return out
}

// hostile runs the hostile program inside and returns its answers by name.
func (b *testSandbox) hostile(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out, code := b.run(t, append([]string{"/workspace/hostile"}, args...)...)
	if code != 0 {
		t.Fatalf("hostile %v exited with %d: %s", args, code, out)
	}
	return answers(out)
}

// onHost runs the hostile program here, for control.
func onHost(t *testing.T, args ...string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), hostilePath(), args...)
	cmd.Env = []string{"CONTROL=1"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("hostile %v on the host: %v", args, err)
	}
	return answers(string(out))
}

func answers(out string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		m[name] = value
	}
	return m
}

// TestAsOrdinaryUser: without it nothing would show that sandboxes work, and hold, for a user who is not root.
func TestAsOrdinaryUser(t *testing.T) {
	if testing.Short() {
		t.Skip("all tests of the package once more")
	}
	native.NeedRoot(t)
	const uid = 61234 // nobody's: no file on any host belongs to it
	home, err := os.MkdirTemp("", "outboard-user-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	if err := os.Chown(home, uid, uid); err != nil {
		t.Fatal(err)
	}
	// of the 20m that `make test` gives a package: root's own run takes less
	args := []string{"-test.v", "-test.timeout=12m"}
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "self"), args...)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "CI=" + os.Getenv("CI"),
		binariesEnv + "=" + binaries}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, t.Output()), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("tests as uid %d: %v", uid, err)
	}
	if n := strings.Count(out.String(), "--- PASS: "); n < 8 {
		t.Fatalf("only %d tests passed as uid %d", n, uid)
	}
}

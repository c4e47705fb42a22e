//go:build linux

package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/sftp"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

const (
	// bareVar makes a test binary a guest; its value is the guest's configuration.
	bareVar = "OUTBOARD_TEST_BARE_GUEST"
	// boxVar marks every process of a bare sandbox.
	boxVar = "OUTBOARD_TEST_SANDBOX"
	// The descriptors a bare guest inherits.
	listenerFD, lifelineFD = 3, 4
)

func init() {
	if os.Getenv(boxVar) != "" && len(os.Args) == 2 && os.Args[0] == "outboard-guest" &&
		os.Args[1] == guest.ProgramSFTP {
		if err := sftp.Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bare guest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if config := os.Getenv(bareVar); config != "" {
		os.Unsetenv(bareVar)
		if err := bareGuest(config); err != nil {
			fmt.Fprintln(os.Stderr, "bare guest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// bareGuest serves until its parent is gone.
func bareGuest(config string) error {
	var cfg guest.ServerConfig
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	f := os.NewFile(listenerFD, "listener")
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	f.Close()
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	cfg.Listener, cfg.Init = l, true // a guest is the parent of all orphans of its sandbox
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	syscall.CloseOnExec(lifelineFD)
	go func() {
		os.NewFile(lifelineFD, "lifeline").Read(make([]byte, 1))
		cancel()
	}()
	return guest.Serve(ctx, cfg)
}

// Bare is a sandbox.Provider that isolates nothing: its sandboxes are directories and a guest that runs as the
// caller. Programs inside see the host; only the file operations and relative paths know the sandbox's own
// directories.
type Bare struct {
	dir string

	mu    sync.Mutex
	boxes map[outboard.SandboxID]*bareBox
}

// bareBox is one sandbox. While its guest runs, cmd is set.
type bareBox struct {
	spec     sandbox.Spec
	dir      string
	made     chan struct{} // closed when Create has started the guest or failed to
	cmd      *exec.Cmd
	lifeline *os.File
	dead     chan struct{}
}

// NewBare returns a provider whose sandboxes end with the test.
func NewBare(t testing.TB) sandbox.Provider {
	t.Helper()
	dir, err := os.MkdirTemp("", "obare") // not t.TempDir: socket paths are limited to 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	b := &Bare{dir: dir, boxes: make(map[outboard.SandboxID]*bareBox)}
	t.Cleanup(func() {
		ids, _ := b.List(context.Background())
		for _, id := range ids {
			if err := b.Destroy(context.Background(), id); err != nil {
				t.Errorf("destroying bare sandbox: %v", err)
			}
		}
		os.RemoveAll(dir)
	})
	return b
}

// Dir is where a sandbox's directories are on this host.
func (b *Bare) Dir(id outboard.SandboxID) string { return filepath.Join(b.dir, string(id)) }

// Name returns "bare".
func (b *Bare) Name() string { return "bare" }

// Capabilities says that there are none.
func (b *Bare) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Isolation: "none", PTY: true, DeepTrees: true,
		Gaps: []string{"isolates nothing; for tests only"}}
}

// Create makes the directories and starts a guest.
func (b *Bare) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !outboard.ValidID(outboard.PrefixSandbox, string(spec.ID)) || spec.Generation == "" {
		return nil, outboard.Errorf(outboard.Invalid, "sandbox %q: bad id or no generation", spec.ID)
	}
	if spec.Isolation != "" && spec.Isolation != "none" {
		return nil, outboard.Errorf(outboard.Unavailable, "the bare provider has no isolation %q", spec.Isolation)
	}
	box := &bareBox{spec: spec, dir: filepath.Join(b.dir, string(spec.ID)), made: make(chan struct{})}
	b.mu.Lock()
	_, exists := b.boxes[spec.ID]
	if !exists {
		b.boxes[spec.ID] = box
	}
	b.mu.Unlock()
	if exists {
		return nil, outboard.Errorf(outboard.Conflict, "sandbox %s exists", spec.ID)
	}
	err := box.make()
	if err == nil {
		err = box.start()
	}
	close(box.made)
	if err != nil {
		return nil, errors.Join(outboard.Errorf(outboard.Internal, "making bare sandbox: %w", err),
			b.Destroy(ctx, spec.ID))
	}
	return b.Open(ctx, spec.ID)
}

func (x *bareBox) make() error {
	for _, dir := range []string{"workspace", "outputs", "uploads", "home", "state", "run"} {
		if err := os.MkdirAll(filepath.Join(x.dir, dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// start starts the guest's process on the box's directories, as often as one likes.
func (x *bareBox) start() error {
	sock := filepath.Join(x.dir, "s")
	os.Remove(sock)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	lf, err := l.File()
	if err != nil {
		return err
	}
	defer lf.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	config, err := json.Marshal(x.config())
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), bareVar+"="+string(config))
	cmd.ExtraFiles = []*os.File{lf, r}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	x.cmd, x.lifeline, x.dead = cmd, w, make(chan struct{})
	go func(dead chan struct{}) { // ends with the guest, which ends with the lifeline
		cmd.Wait()
		close(dead)
	}(x.dead)
	return nil
}

func (x *bareBox) config() guest.ServerConfig {
	at := func(name string) string { return filepath.Join(x.dir, name) }
	cfg := guest.ServerConfig{
		Generation: x.spec.Generation, State: at("state"), Run: at("run"), Workspace: sandbox.Workspace, Home: "/home/user",
		Roots: []string{sandbox.Workspace, sandbox.Outputs, "/home/user"}, ToolUID: os.Geteuid(), ToolGID: os.Getegid(),
		Env: []string{boxVar + "=" + string(x.spec.ID)},
		Map: []guest.Mapping{
			{From: sandbox.Workspace, To: at("workspace")}, {From: sandbox.Outputs, To: at("outputs")},
			{From: sandbox.Uploads, To: at("uploads")}, {From: "/home/user", To: at("home")},
		},
	}
	for k, v := range x.spec.Env {
		cfg.Env = append(cfg.Env, k+"="+v)
	}
	return cfg
}

// find returns a sandbox, and waits until it has been made; nil = there is none.
func (b *Bare) find(id outboard.SandboxID) *bareBox {
	b.mu.Lock()
	box := b.boxes[id]
	b.mu.Unlock()
	if box != nil {
		<-box.made
	}
	return box
}

// Open connects to a sandbox whose guest runs.
func (b *Bare) Open(ctx context.Context, id outboard.SandboxID) (sandbox.Sandbox, error) {
	box := b.find(id)
	if box == nil || !box.alive() {
		return nil, outboard.Errorf(outboard.NotFound, "no sandbox %s", id)
	}
	client, err := guest.Dial(ctx, "unix", filepath.Join(box.dir, "s"))
	if err != nil {
		return nil, box.explain(err)
	}
	client.Lost = box.explain
	hello, err := client.Hello(ctx)
	if err != nil {
		client.Close()
		return nil, err
	}
	if hello.Generation != box.spec.Generation {
		client.Close()
		return nil, outboard.Errorf(outboard.Internal, "guest of %s is of generation %s", id, hello.Generation)
	}
	return &bareSandbox{Client: client, spec: box.spec}, nil
}

func (x *bareBox) alive() bool {
	select {
	case <-x.dead:
		return false
	default:
		return x.dead != nil
	}
}

// explain turns the loss of a connection into NotFound when the guest's process is gone. The two are seen in
// either order, so it gives the process a moment.
func (x *bareBox) explain(err error) error {
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	select {
	case <-x.dead:
		return outboard.Errorf(outboard.NotFound, "sandbox %s is gone: %w", x.spec.ID, err)
	case <-patience.C:
		return outboard.Errorf(outboard.Unavailable, "sandbox %s: %w", x.spec.ID, err)
	}
}

// Crash kills the guest of a sandbox the way a power cut would; what it ran is orphaned. The directories stay
// until Destroy.
func (b *Bare) Crash(id outboard.SandboxID) error {
	box := b.find(id)
	if box == nil || box.cmd == nil {
		return outboard.Errorf(outboard.NotFound, "no sandbox %s", id)
	}
	err := box.cmd.Process.Kill()
	<-box.dead
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Restart starts the guest of a crashed sandbox again on the same directories, as a supervisor inside would.
func (b *Bare) Restart(id outboard.SandboxID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	box := b.boxes[id]
	if box == nil || box.alive() {
		return outboard.Errorf(outboard.Conflict, "sandbox %s does not exist or runs", id)
	}
	box.lifeline.Close()
	return box.start()
}

// Destroy kills the guest and every process it left, and removes the directories.
func (b *Bare) Destroy(_ context.Context, id outboard.SandboxID) error {
	box := b.find(id)
	if box == nil {
		return nil
	}
	if box.cmd != nil {
		box.cmd.Process.Kill()
		<-box.dead
		box.lifeline.Close()
	}
	for range 100 { // a process may fork between the look and the signal
		if killMarked(id) == 0 {
			break
		}
	}
	err := removeTree(box.dir)
	for range 10 { // a process that was just killed may still create a file
		if err == nil {
			break
		}
		err = removeTree(box.dir)
	}
	b.mu.Lock()
	delete(b.boxes, id)
	b.mu.Unlock()
	return err
}

// removeTree removes dir with everything below, directories that their owner closed included.
func removeTree(dir string) error {
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// killMarked kills every process of a sandbox and reports how many there were.
func killMarked(id outboard.SandboxID) int {
	mark, n := []byte(boxVar+"="+string(id)+"\x00"), 0
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || !strings.Contains("\x00"+string(env), "\x00"+string(mark)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}

// List returns everything that was created and not destroyed.
func (b *Bare) List(context.Context) ([]outboard.SandboxID, error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []outboard.SandboxID
	for _, e := range entries {
		ids = append(ids, outboard.SandboxID(e.Name()))
	}
	return ids, nil
}

// bareSandbox is one connection.
type bareSandbox struct {
	*guest.Client
	spec sandbox.Spec
}

// ID is the spec's.
func (s *bareSandbox) ID() outboard.SandboxID { return s.spec.ID }

// Generation is the spec's.
func (s *bareSandbox) Generation() string { return s.spec.Generation }

// Isolation is "none".
func (s *bareSandbox) Isolation() string { return "none" }

// Freeze is Unavailable.
func (s *bareSandbox) Freeze(context.Context) error {
	return outboard.Errorf(outboard.Unavailable, "the bare provider cannot freeze")
}

// Thaw is Unavailable.
func (s *bareSandbox) Thaw(context.Context) error {
	return outboard.Errorf(outboard.Unavailable, "the bare provider cannot thaw")
}

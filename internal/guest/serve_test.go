//go:build linux

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

const testGen = "gen-1"

// guestAt starts a server on dir (made when it has no state yet) and returns a client and what stops both.
func guestAt(t *testing.T, dir string) (*Client, func()) {
	t.Helper()
	return serveUntil(t, dir, configAt(t, dir))
}

func serveAt(t *testing.T, dir string, cfg ServerConfig) *Client {
	t.Helper()
	c, _ := serveUntil(t, dir, cfg)
	return c
}

// serveUntil starts a server and returns a client and what stops both.
func serveUntil(t *testing.T, dir string, cfg ServerConfig) (*Client, func()) {
	t.Helper()
	sock := filepath.Join(dir, "s")
	os.Remove(sock)
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, cfg) }()
	c, err := Dial(t.Context(), "unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return c, stop
}

func configAt(t *testing.T, dir string) ServerConfig {
	t.Helper()
	at := func(s string) string { return filepath.Join(dir, s) }
	for _, d := range []string{"state", "run", "workspace", "outputs", "home"} {
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return ServerConfig{
		Generation: testGen, State: at("state"), Run: at("run"), ToolUID: os.Geteuid(), ToolGID: os.Getegid(),
		Map: []Mapping{{"/workspace", at("workspace")}, {"/mnt/session/outputs", at("outputs")},
			{"/home/user", at("home")}},
	}
}

// newGuest starts a server on a fresh short directory.
func newGuest(t *testing.T) (*Client, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "og")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, _ := guestAt(t, dir)
	return c, dir
}

func bashStart(key, command string) Start {
	in, _ := json.Marshal(map[string]any{"command": command})
	return Start{Key: key, Epoch: 1, Generation: testGen, Digest: "d", Op: "bash", Input: in}
}

// runCall starts and waits.
func runCall(t *testing.T, c *Client, s Start) Result {
	t.Helper()
	if _, err := c.Start(t.Context(), s); err != nil {
		t.Fatalf("Start(%s): %v", s.Key, err)
	}
	r, err := c.Wait(t.Context(), s.Key, s.Epoch)
	if err != nil {
		t.Fatalf("Wait(%s): %v", s.Key, err)
	}
	if r.State != StateDone {
		t.Fatalf("Wait(%s) = %+v", s.Key, r)
	}
	return r
}

func code(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// If this fails, a model's shell forgets where it is, or reports another command's status.
func TestShellPersists(t *testing.T) {
	c, _ := newGuest(t)
	for i, step := range []struct {
		command, output string
		exit            int
	}{
		{"true", "", 0},
		{"cd /; X=5; f() { echo f$1; }", "", 0},
		{"echo $X; pwd; f 1; echo err >&2", "5\n/\nf1\nerr\n", 0},
		{"echo $OUTBOARD_CALL_KEY", "k3\n", 0},
		{"false", "", 1},
		{"nosuchcommand", "bash: nosuchcommand: command not found\n", 127},
		{"if then", "bash: syntax error near unexpected token `then'\n", 2},
		{"read line; echo \"got:$line\"", "got:\n", 0},
		{"echo one > /dev/stderr; echo two > /dev/stdout", "one\ntwo\n", 0},
		{"(exit 3)", "", 3},
		{"exit 3", "", 3},
		{"echo $X", "[new shell: the previous one exited with status 3; its working directory and environment are " +
			"gone]\n\n", 0},
	} {
		r := runCall(t, c, bashStart("k"+string(rune('0'+i)), step.command))
		if r.ExitCode == nil || *r.ExitCode != step.exit || string(r.Output) != step.output || r.Cause != "exited" {
			t.Errorf("%s: %+v output %q", step.command, r, r.Output)
		}
	}
}

func benchGuest(b *testing.B, dir string) *Client {
	b.Helper()
	var cfg ServerConfig
	for _, d := range []string{"state", "run", "workspace"} {
		os.Mkdir(filepath.Join(dir, d), 0o755)
	}
	cfg = ServerConfig{Generation: testGen, State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"),
		Workspace: filepath.Join(dir, "workspace"), ToolUID: os.Geteuid(), ToolGID: os.Getegid()}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		b.Fatal(err)
	}
	cfg.Listener = l
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, cfg) }()
	c, err := Dial(b.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(); cancel(); <-done })
	return c
}

func runBench(b *testing.B, c *Client, key string) {
	b.Helper()
	if _, err := c.Start(b.Context(), bashStart(key, "true")); err != nil {
		b.Fatal(err)
	}
	if r, err := c.Wait(b.Context(), key, 1); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
		b.Fatal(r, err)
	}
}

// Package sdk proves that unmodified official SDKs drive a whole session against bin/outboard. It is a module of
// its own, so that the server never depends on what it is measured by: the Go SDKs of both generations, and the
// OpenAPI document they ship.
//
// Each run goes through a proxy inside the test, which keeps every response; afterwards each one must validate
// against the OpenAPI document of the SDK that made the run.
package sdk

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary is the server under test.
func binary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("OUTBOARD_BIN")
	if path == "" {
		path = filepath.Join("..", "..", "bin", "outboard")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(abs); err != nil {
		t.Fatalf("there is no server to test: %v (run make build, or set OUTBOARD_BIN)", err)
	}
	return abs
}

// serve starts the server on a free port with an empty data directory and returns its address and admin key.
func serve(t *testing.T) (url, key string) {
	t.Helper()
	url, _, key = serveBoth(t)
	return url, key
}

// serveBoth is serve with the address of the E2B API too.
func serveBoth(t *testing.T) (url, e2b, key string) {
	t.Helper()
	data := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	settings := filepath.Join(t.TempDir(), "outboard.yaml")
	if err := os.WriteFile(settings, []byte("e2b_public_ports: true\n"), 0o600); err != nil { // what E2B's SDKs expect
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, binary(t), "serve", "--listen", "127.0.0.1:0", "--data", data, "--config", settings,
		"--json")
	cmd.Env = append(os.Environ(), "HOME="+data)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); cmd.Wait() })
	late := time.AfterFunc(time.Minute, cancel) // a server that never gets ready ends the read below
	defer late.Stop()
	var ready struct {
		Type, URL, Problem string
		E2B                string `json:"e2b_url"`
	}
	sc := bufio.NewScanner(out)
	for ready.Type != "ready" {
		if !sc.Scan() {
			t.Fatalf("the server ended before it was ready: %v", sc.Err())
		}
		if err := json.Unmarshal(sc.Bytes(), &ready); err != nil {
			t.Fatalf("line %q: %v", sc.Text(), err)
		}
	}
	go io.Copy(io.Discard, out) // ends with the process
	if ready.Problem != "" {
		t.Fatalf("the server can make no sandbox here: %s", ready.Problem)
	}
	b, err := os.ReadFile(filepath.Join(data, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	return ready.URL, ready.E2B, strings.TrimSpace(string(b))
}

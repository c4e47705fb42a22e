package main

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/server/doors"
)

// Broken if an upload begins before git has packed the work: a server gives up on a body that pauses, and a
// large repository takes longer.
func TestSlowGit(t *testing.T) {
	data, bin, repo := filepath.Join(t.TempDir(), "server"), t.TempDir(), t.TempDir()
	s, err := startServer(t.Context(), server.Config{Data: data, Config: &config.Config{},
		Env:   func(string) string { return "" },
		Serve: true, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	behind, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	const pause = time.Second
	front := httptest.NewServer(doors.Patient(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }}, pause, pause))
	t.Cleanup(front.Close)
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(bin, "ran")
	script := "#!/bin/sh\nfor a; do case $a in push) sleep 3; : >'" + ran + "';; esac; done\nexec '" + git +
		"' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repo, "a.txt"), []byte("a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=x", "-c", "user.email=x@x",
		"commit", "-qm", "one"}} {
		if out, err := exec.CommandContext(t.Context(), git, append([]string{"-C", repo}, args...)...).
			CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	key, err := readKey(data)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{in: strings.NewReader(""), out: io.Discard, errs: io.Discard, env: func(string) string { return "" }}
	c, err := a.dial(front.URL, key, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	// the control: a body that pauses is given up
	paused, err := net.Dial("tcp", strings.TrimPrefix(front.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer paused.Close()
	fmt.Fprintf(paused, "POST /v1/files HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Type: multipart/form-data; "+
		"boundary=b\r\nContent-Length: 1000\r\n\r\n--b", key)
	if got, err := io.ReadAll(paused); err != nil || strings.Contains(string(got), " 200 ") {
		t.Errorf("the control: %q, %v", got, err)
	}
	work, err := sendWork(t.Context(), a, c, repo, sendOptions{})
	if err != nil {
		t.Fatalf("sending with a slow git: %v", err)
	}
	if _, err := os.Stat(ran); err != nil || work.file.ID == "" {
		t.Errorf("the slow git did not run: %v; %+v", err, work.file)
	}
}

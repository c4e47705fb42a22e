//go:build linux

package native_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// said is a log that can be read while it is written.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write adds to it.
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *said) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), what)
}

// TestPutOff: places of a kind that cannot be made would be tried over and over, or keep those of others from
// being made.
func TestPutOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	var log said
	p, err := native.New(native.Config{Dir: dir, Warm: 1, Guest: guestPath(),
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	// no file system is so small
	specs := []sandbox.PoolSpec{{Spec: sandbox.Spec{Limits: outboard.SandboxLimits{DiskBytes: 1}}, Count: 1},
		{Spec: sandbox.Spec{}, Count: 1}}
	keep := func() {
		if err := p.Keep(specs); err != nil {
			t.Fatal(err)
		}
		p.PoolFilled()
	}
	for range 5 {
		keep()
	}
	if n := log.count("slot not made"); n != 1 {
		t.Errorf("%d tries within a second, want one", n)
	}
	if len(waiting(t, dir)) != 1 {
		t.Error("beside it, nothing of another kind was made")
	}
	for i, pause := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second} {
		p.ForgetPutOff()
		keep()
		keep()
		if n := log.count("again=" + pause.String()); n != 1 || log.count("slot not made") != i+2 {
			t.Errorf("after %d more tries it is put off for %v %d times", i+1, pause, n)
		}
	}
	for range 20 {
		p.ForgetPutOff()
		keep()
	}
	if log.count("again=10m0s") < 2 || log.count("again=20m") > 0 {
		t.Error("no pause, or the longest one, is not what it should be")
	}
}

// TestCloseWhileMaking: a server that ends would wait for a place that is just being made.
func TestCloseWhileMaking(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	var log said
	p, err := native.New(native.Config{Dir: dir, Warm: 1, Guest: guestPath(),
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Keep([]sandbox.PoolSpec{{Spec: sandbox.Spec{Limits: outboard.SandboxLimits{CPUs: 0.01}},
		Count: 1}}); err != nil {
		t.Fatal(err)
	}
	var pid int
	eventually(t, "no guest is started", func() bool {
		if pids := waiting(t, dir); len(pids) > 0 {
			pid = pids[0]
		}
		return pid != 0
	})
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // it never gets ready
		t.Fatal(err)
	}
	made := make(chan struct{})
	go func() { p.PoolFilled(); close(made) }()
	select {
	case <-made:
		t.Skip("SKIPPED: the guest was ready before it could be stopped")
	case <-time.After(2 * time.Second):
	}
	began := time.Now()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it waited %v", took)
	}
	if n := log.count("slot not made"); n != 0 {
		t.Errorf("what was given up is a warning")
	}
	if left, err := os.ReadDir(filepath.Join(dir, "shelf")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if !gone(pid) {
		t.Error("the guest is still there")
	}
}

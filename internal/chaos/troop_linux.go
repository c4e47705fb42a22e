package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
)

// readyWait bounds a process's start.
const readyWait = 30 * time.Second

// troop is the set of processes under test: one API server and some runners, on one data directory.
type troop struct {
	cfg    Config
	binary string
	listen string // fixed after the first start, so that clients find the server again
	url    string
	server *member
	crew   []*member
	once   sync.Once
}

// member is one process that is started again whenever it was killed.
type member struct {
	args []string
	log  *os.File
	cmd  *exec.Cmd
}

// muster starts the server, waits until it is ready, and then starts the runners.
func muster(ctx context.Context, cfg Config) (*troop, error) {
	bin, err := binary(cfg)
	if err != nil {
		return nil, err
	}
	t := &troop{cfg: cfg, binary: bin}
	if t.listen, err = freePort(); err != nil {
		return nil, err
	}
	t.url = "http://" + t.listen
	log, err := os.OpenFile(filepath.Join(cfg.Dir, "processes.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the processes' log: %w", err)
	}
	// The timer looks often enough to stop and drop sandboxes during the run.
	if err := os.WriteFile(filepath.Join(cfg.Dir, "config.yaml"), []byte("sandbox: {rest_every: 200ms}\n"),
		0o600); err != nil {
		log.Close()
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	common := []string{"serve", "--json", "--data", cfg.Dir}
	if cfg.DB != "" {
		common = append(common, "--db", cfg.DB)
	}
	t.server = &member{args: append(common[:len(common):len(common)], "--role", "api", "--listen", t.listen), log: log}
	for range max(cfg.Workers, 1) {
		t.crew = append(t.crew, &member{args: append(common[:len(common):len(common)], "--role", "worker"), log: log})
	}
	for _, m := range append([]*member{t.server}, t.crew...) {
		if err := t.start(ctx, m); err != nil {
			t.disband()
			return nil, err
		}
	}
	return t, nil
}

// freePort returns a loopback address nobody listens on.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// start runs a member and returns when it says that it is ready.
func (t *troop) start(ctx context.Context, m *member) error {
	cmd := exec.Command(t.binary, m.args...)
	cmd.Stderr = m.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting a process: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting a process: %w", err)
	}
	m.cmd = cmd
	ready := make(chan error, 1)
	go func() { // ends with the process, whose output it drains
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			var line struct{ Type string }
			if json.Unmarshal(sc.Bytes(), &line) == nil && line.Type == "ready" {
				ready <- nil
				break
			}
		}
		for sc.Scan() {
		}
		select {
		case ready <- fmt.Errorf("process ended before it was ready, see %s", m.log.Name()):
		default:
		}
	}()
	select {
	case err := <-ready:
		return err
	case <-time.After(readyWait):
		return fmt.Errorf("process was not ready within %s, see %s", readyWait, m.log.Name())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// client returns a client of the server, with the key it made at its first start.
func (t *troop) client() (*client.Client, error) {
	key, err := os.ReadFile(filepath.Join(t.cfg.Dir, "admin.key"))
	if err != nil {
		return nil, fmt.Errorf("reading the admin key: %w", err)
	}
	return client.New(client.Config{URL: t.url, Key: strings.TrimSpace(string(key)), UserAgent: "outboard-chaos"})
}

// kill does cfg.Kills kills, counts them by target, and starts again what a supervisor would.
func (t *troop) kill(ctx context.Context, cfg Config, counts map[string]int) error {
	rng := rand.New(rand.NewPCG(cfg.Seed, 0))
	for done := 0; done < cfg.Kills; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(20+rng.IntN(200)) * time.Millisecond): // the instant is the point
		}
		target, err := t.strike(ctx, rng)
		if err != nil {
			return err
		}
		if target == "" {
			continue // no sandbox was alive
		}
		counts[target]++
		if done++; done%25 == 0 && cfg.Talk != nil {
			fmt.Fprintf(cfg.Talk, "outboard: %d of %d kills\n", done, cfg.Kills)
		}
	}
	return nil
}

// strike kills one target and says what it was.
func (t *troop) strike(ctx context.Context, rng *rand.Rand) (string, error) {
	switch n := rng.IntN(10); {
	case n < 4:
		return "runner", t.replace(ctx, t.crew[rng.IntN(len(t.crew))])
	case n < 6:
		return "server", t.replace(ctx, t.server)
	case n < 8:
		return t.strikeSandbox(rng, "guest")
	default:
		return t.strikeSandbox(rng, "sandbox")
	}
}

// replace kills a process and starts its successor.
func (t *troop) replace(ctx context.Context, m *member) error {
	m.end(syscall.SIGKILL)
	return t.start(ctx, m)
}

// strikeSandbox kills in a random living sandbox: the guest alone (its first process), or every process.
func (t *troop) strikeSandbox(rng *rand.Rand, what string) (string, error) {
	all, err := machines(filepath.Join(t.cfg.Dir, "sandboxes"))
	if err != nil || len(all) == 0 {
		return "", err
	}
	m := all[rng.IntN(len(all))]
	pids := []int{m}
	if what == "sandbox" {
		pids = append(descendants(m), m)
	}
	hit := false
	for _, pid := range pids {
		hit = syscall.Kill(pid, syscall.SIGKILL) == nil || hit
	}
	if !hit {
		return "", nil
	}
	return what, nil
}

// end signals a process and reaps it.
func (m *member) end(sig syscall.Signal) {
	if m.cmd == nil {
		return
	}
	m.cmd.Process.Signal(sig)
	m.cmd.Wait()
	m.cmd = nil
}

// disband stops everything in an orderly way. It may be called twice.
func (t *troop) disband() {
	t.once.Do(func() {
		for _, m := range t.crew {
			m.end(syscall.SIGTERM)
		}
		t.server.end(syscall.SIGTERM)
		t.server.log.Close()
	})
}

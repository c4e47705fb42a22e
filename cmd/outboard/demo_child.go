package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/server"
)

const (
	// childStart bounds how long a server process may take to answer, on a slow and busy machine.
	childStart = 30 * time.Second
	// childStop is how long it may take to end before it is killed.
	childStop = 15 * time.Second
)

// child is a server in a process of its own.
type child struct {
	cmd    *exec.Cmd
	url    string
	log    string
	exited chan error // capacity 1: what Wait returned
	done   bool
}

// startChild starts `outboard serve` from this very program on a data directory and waits until it answers.
func startChild(ctx context.Context, env func(string) string, data string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	c := &child{log: filepath.Join(data, "server.log"), exited: make(chan error, 1)}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the server's log: %w", err)
	}
	defer log.Close()
	c.cmd = exec.Command(exe, "serve", "--listen", "127.0.0.1:0", "--data", data, "--json")
	c.cmd.Stderr = log
	c.cmd.Env = append(os.Environ(), "OUTBOARD_URL=", "OUTBOARD_CONFIG=", "OUTBOARD_DB=")
	ownGroup(c.cmd) // Ctrl-C at the demo is the demo's to handle
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a server: %w", err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a server: %w", err)
	}
	ready := make(chan readyLine, 1)
	go func() {
		var line readyLine
		s := bufio.NewScanner(out)
		for s.Scan() {
			if json.Unmarshal(s.Bytes(), &line) == nil && line.Type == "ready" {
				ready <- line
			}
		}
		c.exited <- c.cmd.Wait() // after the pipe has ended, as Wait wants it
	}()
	return c, c.await(ctx, ready)
}

func (c *child) await(ctx context.Context, ready <-chan readyLine) error {
	t := time.NewTimer(childStart)
	defer t.Stop()
	select {
	case line := <-ready:
		c.url = line.URL
		return nil
	case err := <-c.exited:
		c.done = true
		return outboard.Errorf(outboard.Unavailable, "the server ended before it answered: %w", err).
			WithHint("its log is %s", c.log)
	case <-t.C:
		return errors.Join(outboard.Errorf(outboard.Unavailable, "the server did not answer within %v", childStart),
			c.kill())
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), c.kill())
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the process as a power cut would, and returns when it is gone.
func (c *child) kill() error {
	if c.done {
		return nil
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing a server: %w", err)
	}
	<-c.exited
	c.done = true
	return nil
}

// stop asks the process to end, and kills it when it does not.
func (c *child) stop() error {
	if c.done {
		return nil
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return c.kill()
	}
	t := time.NewTimer(childStop)
	defer t.Stop()
	select {
	case err := <-c.exited:
		c.done = true
		if err != nil {
			return fmt.Errorf("a server did not end well: %w", err)
		}
		return nil
	case <-t.C:
		return errors.Join(fmt.Errorf("a server did not end within %v", childStop), c.kill())
	}
}

// sandboxInit returns the first process of a native sandbox, as its directory records it.
func sandboxInit(dir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return 0, fmt.Errorf("finding the sandbox's first process: %w", err)
	}
	var st struct {
		Pid   int    `json:"pid"`
		Start uint64 `json:"start"`
	}
	if err := json.Unmarshal(b, &st); err != nil || st.Pid <= 1 {
		return 0, fmt.Errorf("finding the sandbox's first process in %s: %w", dir,
			errors.Join(err, errors.New("no process is recorded")))
	}
	if server.ProcessStart(st.Pid) != fmt.Sprint(st.Start) {
		return 0, fmt.Errorf("the sandbox's first process %d is gone already", st.Pid)
	}
	return st.Pid, nil
}

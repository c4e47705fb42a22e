package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/spf13/pflag"
)

// A background server is `outboard serve` in a process that the command starting it leaves behind: the work goes
// on when the command ends. It serves one data directory, on a free port of the loopback address, and ends by
// itself after Config.Idle without work.

const (
	// maxServerLog is how large server.log may be when a server starts; a larger one becomes server.log.1.
	maxServerLog = 8 << 20
	// maxServerError bounds what is read of the log of a server that did not start.
	maxServerError = 64 << 10
	// foregroundEnv keeps work in the command that asks for it, as --foreground does.
	foregroundEnv = "OUTBOARD_FOREGROUND"
	// defaultIdle is how long a background server waits for work before it ends.
	defaultIdle = 10 * time.Minute
)

// program is the path of this program; tests that must start none replace it.
var program = os.Executable

func serverLogPath(data string) string { return filepath.Join(data, "server.log") }

// foregroundFlag adds --foreground to a command that needs work done.
func foregroundFlag(f *pflag.FlagSet, a *app) {
	f.BoolVar(&a.foreground, "foreground", false, "where no server runs, work in this command and stop with it, "+
		"without a background server")
}

// inBackground reports whether a command that needs work done leaves it to a background server.
func (a *app) inBackground() bool {
	return canDetach && !a.foreground && a.env(foregroundEnv) == ""
}

// background returns a connection to the server of a data directory, and starts one in the background when none
// runs. Of several commands at the same time one starts it.
func (a *app) background(ctx context.Context, data string) (*conn, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, dataError(data, err)
	}
	unlock, err := lockFile(ctx, filepath.Join(data, "up.lock"))
	if err != nil {
		return nil, dataError(data, err)
	}
	defer unlock()
	c, err := a.connectRunning(ctx)
	if c != nil || err != nil {
		return c, err
	}
	cfg, err := loadConfig(data, "", a.env)
	if err != nil {
		return nil, err
	}
	if err := checkDatabase(data, cfg.DB); err != nil {
		return nil, err
	}
	if err := startBackground(ctx, data, cmp.Or(cfg.Idle, defaultIdle)); err != nil {
		return nil, err
	}
	if c, err = a.connectRunning(ctx); c == nil && err == nil {
		err = outboard.Errorf(outboard.Unavailable, "the server that was started for %s is gone again", data).
			WithHint("its log is %s", serverLogPath(data))
	}
	return c, err
}

// startBackground starts a server that outlives this process, and returns when it answers.
func startBackground(ctx context.Context, data string, idle time.Duration) error {
	exe, err := program()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	log, from, err := openServerLog(data)
	if err != nil {
		return dataError(data, err)
	}
	defer log.Close()
	cmd := exec.Command(exe, "serve", "--background", "--idle", idle.String(), "--listen", "127.0.0.1:0", "--e2b",
		"off", "--ssh", "off",
		"--data", data, "--json")
	cmd.Stderr = log
	cmd.Env = append(os.Environ(), "OUTBOARD_URL=", "OUTBOARD_LISTEN=")
	detach(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting a server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting a server: %w", err)
	}
	ready := make(chan bool, 1)
	go func() { ready <- readReady(out) }()
	t := time.NewTimer(databaseWait + childStart)
	defer t.Stop()
	select {
	case ok := <-ready:
		if ok {
			return cmd.Process.Release()
		}
		return notStarted(data, from, cmd.Wait())
	case <-t.C:
		err = outboard.Errorf(outboard.Unavailable, "the server for %s does not answer", data).
			WithHint("its log is %s", serverLogPath(data))
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	cmd.Process.Kill()
	cmd.Wait()
	return err
}

// readReady waits for the line with which a server says that it answers; false when its output ends without one.
func readReady(out io.Reader) bool {
	s := bufio.NewScanner(out)
	for s.Scan() {
		var line readyLine
		if json.Unmarshal(s.Bytes(), &line) == nil && line.Type == "ready" {
			return true
		}
	}
	return false
}

// openServerLog opens the log of background servers, and returns where the next entry begins.
func openServerLog(data string) (*os.File, int64, error) {
	path := serverLogPath(data)
	if st, err := os.Stat(path); err == nil && st.Size() > maxServerLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// notStarted is the error with which a background server ended, from its log.
func notStarted(data string, from int64, ended error) error {
	f, err := os.Open(serverLogPath(data))
	if err != nil {
		return dataError(data, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, from, maxServerError))
	if err != nil {
		return dataError(data, err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	var last struct {
		Error struct {
			Message, Hint string
			Exit          int
		}
	}
	if json.Unmarshal(lines[len(lines)-1], &last) == nil && last.Error.Message != "" {
		return &exitError{last.Error.Exit, outboard.Errorf(outboard.Unavailable, "%s", last.Error.Message).
			WithHint("%s", last.Error.Hint)}
	}
	return outboard.Errorf(outboard.Unavailable, "the server for %s did not start: %v", data, ended).
		WithHint("its log is %s", serverLogPath(data))
}

// stopWait is how long a server may take to end when it is asked to.
const stopWait = 30 * time.Second

// reach connects to the server at an address of the data directory. nil: there is none any more. A server that
// lives and cannot be talked to is an error, because another one in its place would not see its sessions.
func (a *app) reach(ctx context.Context, data, key string, at address) (*conn, error) {
	c, err := a.dialPinned(at, key, data)
	if err != nil {
		return nil, err
	}
	err = talk(ctx, c.Client)
	if err == nil {
		return c, nil
	}
	c.Close()
	if !at.alive() {
		return nil, nil
	}
	if gone, bad := awaitEnd(ctx, data, at, firstLook); gone || bad != nil {
		return nil, bad
	}
	return nil, outboard.Errorf(outboard.Unavailable, "the server of %s lives (process %d at %s), and it cannot be "+
		"talked to: %w", data, at.PID, at.URL, err).
		WithHint("kill %d ends it; then start it again, or set OUTBOARD_URL to where it answers", at.PID)
}

// firstLook is how long a server that does not answer may take to end before that is an error: it may be stopping.
const firstLook = 3 * time.Second

// awaitEnd waits for a server to end, or to withdraw its address, for about as long as most.
func awaitEnd(ctx context.Context, data string, at address, most time.Duration) (bool, error) {
	end := time.NewTimer(most)
	defer end.Stop()
	look := time.NewTicker(50 * time.Millisecond) // a process that is not ours tells nobody of its end
	defer look.Stop()
	for {
		if now, ok := readAddress(data); !at.alive() || !ok || now.PID != at.PID {
			return true, nil
		}
		select {
		case <-look.C:
		case <-end.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// talk reports why a server cannot be talked to; what it answers is the command's business.
func talk(ctx context.Context, c *client.Client) error {
	_, err := c.Session(ctx, outboard.PrefixSession+"_0100000000000000000000")
	if dead, ok := errors.AsType[*client.TransportError](err); ok {
		return dead.Err
	}
	return nil
}

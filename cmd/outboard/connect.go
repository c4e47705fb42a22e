package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/server"
)

// need says what a command wants of a server, besides answers.
type need uint8

const (
	needWork need = 1 << iota // sessions must be run while the command lasts
	// it is about what is there already: a data directory whose name was mistyped is not made
	needThere

	needAnswers need = 0
)

// conn is a client, and the private server behind it if the command had to start one.
type conn struct {
	*client.Client
	data    string   // the data directory, which also holds what this machine remembers of sessions
	private *process // nil when the server is another process
	problem string   // why a server of this machine can make no sandbox, "" = it can, or it is not known
}

// Close ends the connection, and the private server.
func (c *conn) Close() {
	c.Client.Close()
	if c.private != nil {
		c.private.Stop()
	}
}

// connect finds the server: OUTBOARD_URL, else a server that runs on the data directory, else one that it
// starts: in the background when sessions are to be run, in this process for answers and with --foreground.
func (a *app) connect(ctx context.Context, want need) (*conn, error) {
	c, err := a.connectRunning(ctx)
	if c != nil || err != nil {
		return c, err
	}
	find := a.dataDir
	if want&needThere != 0 {
		find = a.dataThere
	}
	data, err := find()
	if err != nil {
		return nil, err
	}
	if want&needWork != 0 && a.inBackground() {
		return a.background(ctx, data)
	}
	return a.connectPrivate(ctx, data, want)
}

// dataThere is dataDir for what is about the sessions of a server. It refuses a directory that --data or
// OUTBOARD_DATA names and that does not exist. Where neither names one it is the default, and empty as yet.
func (a *app) dataThere() (string, error) {
	data, err := a.dataDir()
	name, without := "--data", cmp.Or(a.env("OUTBOARD_DATA"), a.defaultData())
	if a.data == "" {
		name, without = "OUTBOARD_DATA", a.defaultData()
	}
	if err != nil || a.data == "" && a.env("OUTBOARD_DATA") == "" || a.env("OUTBOARD_URL") != "" {
		return data, err
	}
	if _, err := os.Stat(data); errors.Is(err, fs.ErrNotExist) { // what else is wrong with it is said where it is used
		return "", outboard.Errorf(outboard.NotFound, "there is no data directory %s", data).
			WithHint("%s names the one that outboard run or outboard serve used; without it, it is %s", name, without)
	}
	return data, nil
}

// connectRunning finds a server that is another process, or returns nil.
func (a *app) connectRunning(ctx context.Context) (*conn, error) {
	data, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	if url := a.env("OUTBOARD_URL"); url != "" {
		if _, err := client.Address(url); err != nil {
			return nil, err
		}
		key := a.env("OUTBOARD_API_KEY")
		if key == "" {
			if key, err = a.loginKey(ctx, data, url); err != nil {
				return nil, err
			}
		}
		return a.dial(url, key, data, nil)
	}
	key, err := readKey(data)
	if err != nil {
		return nil, dataError(data, err)
	}
	addr, ok := readAddress(data)
	if !ok {
		return nil, nil
	}
	if key = cmp.Or(key, a.env("OUTBOARD_API_KEY")); key == "" {
		return nil, outboard.Errorf(outboard.Unauthenticated,
			"a server of %s runs (process %d at %s), and %s is not there", data, addr.PID, addr.URL, keyPath(data)).
			WithHint("set OUTBOARD_API_KEY, or make a new key: outboard key recover")
	}
	return a.reach(ctx, data, key, addr)
}

// privateGrace is how long a private server lets turns come to their next step when its command ends: somebody
// waits for the prompt, running calls go on in their sandboxes, and the next server picks up the rest.
const privateGrace = time.Second

// work makes sure that somebody runs sessions: the private server starts to, if it does not.
func (c *conn) work(ctx context.Context) error {
	if c.private == nil {
		return nil
	}
	return c.private.Work(ctx)
}

func (a *app) dial(url, key, data string, private *process) (*conn, error) {
	c, err := client.New(a.clientConfig(url, key))
	if err != nil {
		return nil, err
	}
	return &conn{Client: c, data: data, private: private}, nil
}

// dialPinned is dial for a server of this machine's data directory, which says itself what certificate it shows.
func (a *app) dialPinned(at address, key, data string) (*conn, error) {
	cfg := a.clientConfig(at.URL, key)
	cfg.Certificate = at.pin()
	if at.Kern != "" { // the process was verified, so nobody else hears the key on this machine
		cfg.Insecure = true
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	return &conn{Client: c, data: data, problem: at.Problem}, nil
}

func (a *app) clientConfig(url, key string) client.Config {
	return client.Config{URL: url, Key: key, Insecure: a.env("OUTBOARD_INSECURE") == "1",
		Org:       cmp.Or(a.org, a.env("OUTBOARD_ORG")),
		UserAgent: "outboard-cli/" + thisVersion().Version}
}

// connectPrivate starts a server in this process, on a port of its own, for as long as the command lasts.
func (a *app) connectPrivate(ctx context.Context, data string, want need) (*conn, error) {
	cfg, err := loadConfig(data, "", a.env)
	if err != nil {
		return nil, err
	}
	s, err := startServer(ctx, server.Config{Data: data, Config: cfg, Env: a.env, Logger: a.privateLogger(),
		Serve: true, Work: want&needWork != 0, Slots: cfg.Limits.Slots, Grace: privateGrace, Listen: "127.0.0.1:0"})
	if err != nil {
		return nil, err
	}
	key := a.env("OUTBOARD_API_KEY")
	if key == "" {
		if key, err = readKey(data); err == nil && key == "" {
			err = outboard.Errorf(outboard.Unauthenticated, "the store has an admin key, and %s does not hold it",
				keyPath(data)).
				WithHint("set OUTBOARD_API_KEY, or copy admin.key from the machine that made it")
		}
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	c, err := a.dial(s.URL, key, data, s)
	if err != nil {
		s.Stop()
	}
	return c, err
}

// logger returns a logger to stderr from the given level on, or from the one OUTBOARD_LOG names.
func (a *app) logger(level slog.Level) *slog.Logger {
	if name := a.env("OUTBOARD_LOG"); name != "" {
		if err := level.UnmarshalText([]byte(name)); err != nil {
			a.say("ignoring OUTBOARD_LOG=%q: levels are debug, info, warn, error", name)
		}
	}
	opts := &slog.HandlerOptions{Level: level}
	if a.json {
		return slog.New(slog.NewJSONHandler(a.errs, opts))
	}
	return slog.New(slog.NewTextHandler(a.errs, opts))
}

// runsDir is where this machine remembers what it sent to sessions.
func runsDir(data string) (string, error) {
	dir := filepath.Join(data, "runs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", dataError(data, err)
	}
	return dir, nil
}

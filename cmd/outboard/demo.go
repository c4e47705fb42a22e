package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/spf13/cobra"
)

// demoFiles are the sample project and the script of the agent that works on it.
//
//go:embed demo
var demoFiles embed.FS

const (
	demoTask   = "Please make the tests pass."
	demoSecond = "Thanks. Please write it into the changelog and run the tests again."
	// demoSlow marks the command during which the first server is killed.
	demoSlow = "./test.sh --slow"
	// demoHead is how long that command has run when it happens: it takes about four seconds.
	demoHead = 1200 * time.Millisecond
	// demoRest is how long the destroyed sandbox is left alone: longer than a server stays connected to one
	// after a turn. A call that is sent to a sandbox as it dies has an unknown outcome, which is right, and
	// another story.
	demoRest = 2500 * time.Millisecond
	// demoTime bounds the whole demo; it takes about ten seconds.
	demoTime = 90 * time.Second
)

func newDemo(a *app) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{Use: "demo", Short: "Watch an agent work while what drives it is killed: no key, no network",
		Args: exactArgs(),
		Long: "Start a throwaway server, let a scripted agent fix a failing test in a sandbox, kill the server " +
			"while a command runs, let\n" +
			"another take over, destroy the sandbox, and go on in a new one. Then prove from the session's log that nothing was lost and\n" +
			"nothing ran twice. Exits with 0 only if all of it held.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), a, keep) }}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the demo's data directory behind")
	return cmd
}

// demo is one performance.
type demo struct {
	a       *app
	dir     string // throwaway data directory
	caps    sandbox.Capabilities
	guest   *native.Provider
	server  *child
	c       *conn
	session client.Session
	work    *sending
	watch   *watch
	begun   time.Time

	killed time.Time // when the first server was killed
	took   time.Duration
	slow   string // the call that ran then
	lost   string // the sandbox that was destroyed
}

func runDemo(user context.Context, a *app, keep bool) (err error) {
	ctx, cancel := context.WithTimeoutCause(user, demoTime, fmt.Errorf("the demo took longer than %v", demoTime))
	defer cancel()
	dir, err := os.MkdirTemp("", "outboard-demo-")
	if err != nil {
		return fmt.Errorf("making a throwaway directory: %w", err)
	}
	d := &demo{a: a, dir: dir, begun: time.Now()}
	defer func() {
		// What failed is worth a look, unless nothing had begun, or somebody left: with Ctrl-C, or the reader of
		// the output.
		failed := err != nil && d.session.ID != "" && !errors.Is(err, syscall.EPIPE) && user.Err() == nil
		if cerr := d.clean(keep || failed); cerr != nil {
			err = errors.Join(err, fmt.Errorf("cleaning up: %w", cerr))
		}
	}()
	for _, act := range []func(context.Context) error{d.prepare, d.first, d.takeover, d.destroySandbox, d.second} {
		if err := act(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}
	}
	return d.finale(ctx)
}

// prepare lays out the project, finds out what can isolate here, and starts the first server.
func (d *demo) prepare(ctx context.Context) error {
	guest, err := server.FindGuest(d.a.env)
	if err != nil {
		return noIsolation(err)
	}
	d.guest, err = native.New(native.Config{Dir: filepath.Join(d.dir, "sandboxes"), Guest: guest})
	if err != nil {
		return noIsolation(err)
	}
	d.caps = d.guest.Capabilities()
	if err := layOut(filepath.Join(d.dir, "project")); err != nil {
		return err
	}
	script, err := demoFiles.ReadFile("demo/script.yaml")
	if err != nil {
		return fmt.Errorf("reading the demo's script: %w", err)
	}
	if err := os.Mkdir(filepath.Join(d.dir, "scripts"), 0o700); err != nil {
		return fmt.Errorf("writing the demo's script: %w", err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "scripts", "demo.yaml"), script, 0o600); err != nil {
		return fmt.Errorf("writing the demo's script: %w", err)
	}
	config := fmt.Sprintf("llm:\n  scripts:\n    dir: %q\n", filepath.Join(d.dir, "scripts"))
	if err := os.WriteFile(filepath.Join(d.dir, "config.yaml"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("writing the demo's configuration: %w", err)
	}
	d.say("an agent fixes a failing test in a sandbox (%s) while what drives it is killed", d.caps.Isolation)
	return d.start(ctx)
}

// layOut writes the sample project.
func layOut(dir string) error {
	return fs.WalkDir(demoFiles, "demo/project", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(strings.TrimPrefix(name, "demo/project")))
		if e.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		b, err := demoFiles.ReadFile(name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if filepath.Ext(name) == ".sh" {
			mode = 0o755
		}
		return os.WriteFile(to, b, mode)
	})
}

// start brings up a server process on the demo's directory and connects to it.
func (d *demo) start(ctx context.Context) (err error) {
	if d.server, err = startChild(ctx, d.a.env, d.dir); err != nil {
		return err
	}
	key, err := readKey(d.dir)
	if err != nil {
		return fmt.Errorf("reading the admin key: %w", err)
	}
	if d.c != nil {
		d.c.Close()
	}
	d.c, err = d.a.dial(d.server.url, key, d.dir, nil)
	return err
}

// first creates the session and watches it until the slow command runs.
func (d *demo) first(ctx context.Context) error {
	var err error
	if d.work, err = sendWork(ctx, d.a, d.c, filepath.Join(d.dir, "project"), sendOptions{plain: true}); err != nil {
		return err
	}
	env, err := findEnvironment(ctx, d.c.Client, "")
	if err != nil {
		return err
	}
	agent, err := agentByName(ctx, d.c.Client, "demo", map[string]any{"name": "demo", "model": "script/demo",
		"tools": []any{map[string]any{"type": toolsetName}}})
	if err != nil {
		return err
	}
	d.session, err = d.c.CreateSession(ctx, client.NewSession{Agent: agent, EnvironmentID: env, Title: demoTask,
		Metadata: map[string]string{workspaceKey: d.work.file.ID + ":" +
			fleet.WorkspaceGzip}, InitialEvents: []any{client.UserMessage(demoTask)}})
	if err != nil {
		return err
	}
	if err := d.work.bind(d.dir, d.session.ID); err != nil {
		return err
	}
	if err := (runOptions{}).announce(d.a, d.session, d.work); err != nil {
		return err
	}
	d.watch = &watch{a: d.a, c: d.c, id: d.session.ID, tl: d.a.newTimeline(),
		opt: client.FollowOptions{Past: true, Own: true}}
	d.watch.tl.users = true
	return d.until(ctx, func(ev client.Event) (bool, error) {
		if ev.Type != ownPrefix+"call.started" {
			return false, nil
		}
		p, err := decodeOwn(ev)
		if err != nil {
			return false, err
		}
		if c := d.watch.tl.calls[p.Call]; c == nil || !strings.Contains(c.what, demoSlow) {
			return false, nil
		}
		d.slow = p.Call
		return true, nil
	})
}

// until shows events until done says so, or the session rests.
func (d *demo) until(ctx context.Context, done func(client.Event) (bool, error)) error {
	d.watch.c = d.c
	for ev, err := range d.c.Follow(ctx, d.session.ID, d.watch.opt) {
		if err != nil {
			return err
		}
		if err := d.watch.show(ev); err != nil {
			return err
		}
		d.watch.opt.After = ev.ProcessedAt
		if stop, err := done(ev); stop || err != nil {
			return err
		}
		if rest, err := d.watch.rested(ctx, ev); err != nil || rest != "" {
			return errors.Join(err, fmt.Errorf("the session came to rest early (%s); server log: %s", rest,
				d.server.log))
		}
	}
	return context.Cause(ctx)
}

// resting is the done of until for a whole turn. A turn in doubt is shown, not hidden.
func resting(ev client.Event) (bool, error) {
	if ev.Type != "session.status_idle" {
		return false, nil
	}
	var w wireEvent
	if err := ev.Decode(&w); err != nil {
		return false, err
	}
	if w.Stop == nil || w.Stop.Type != restEndTurn {
		return false, fmt.Errorf("the session did not end its turn: %s", ev.Raw)
	}
	return true, nil
}

// takeover kills the server while the command runs and starts another, which must bring the turn to its end.
func (d *demo) takeover(ctx context.Context) error {
	if err := pause(ctx, demoHead); err != nil {
		return err
	}
	pid := d.server.pid()
	d.killed = time.Now()
	if err := d.server.kill(); err != nil {
		return err
	}
	d.mark("killed server %d with SIGKILL, while the command runs", pid)
	if err := d.start(ctx); err != nil {
		return err
	}
	d.took = time.Since(d.killed)
	d.mark("server %d took over, %v later; the command was not started again", d.server.pid(),
		d.took.Round(10*time.Millisecond))
	return d.until(ctx, resting)
}

// destroySandbox kills the first process of the session's sandbox, and everything in it with that.
func (d *demo) destroySandbox(ctx context.Context) error {
	ids, err := d.guest.List(ctx)
	if err != nil {
		return err
	}
	if len(ids) != 1 {
		return fmt.Errorf("the session has %d sandboxes, want one", len(ids))
	}
	pid, err := sandboxInit(filepath.Join(d.dir, "sandboxes", string(ids[0])))
	if err != nil {
		return err
	}
	if err := killProcess(pid); err != nil {
		return fmt.Errorf("killing the sandbox: %w", err)
	}
	d.lost = string(ids[0])
	d.mark("killed the sandbox: its first process, %d, and with it everything inside", pid)
	return pause(ctx, demoRest)
}

// pause lets time pass, for a person who watches or a process that works.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// second says something more to the session, which has to go on in a new sandbox.
func (d *demo) second(ctx context.Context) error {
	if _, err := d.c.Send(ctx, d.session.ID, client.UserMessage(demoSecond)); err != nil {
		return err
	}
	return d.until(ctx, resting)
}

// clean ends the servers, removes the sandboxes, and the directory unless it is kept.
func (d *demo) clean(keep bool) error {
	if d.c != nil {
		d.c.Close()
	}
	var err error
	if d.server != nil {
		err = d.server.stop()
	}
	if keep {
		d.say("kept: outboard --data %s ls", d.dir)
		return err
	}
	if d.guest != nil {
		ctx, cancel := context.WithTimeout(context.Background(), restTimeout)
		defer cancel()
		ids, lerr := d.guest.List(ctx)
		err = errors.Join(err, lerr)
		for _, id := range ids {
			err = errors.Join(err, d.guest.Destroy(ctx, id))
		}
		err = errors.Join(err, d.guest.Close())
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// mark shows something the demo did, among the events.
func (d *demo) mark(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if d.a.json {
		if err := d.a.object(map[string]any{"type": "demo", "text": text, "seconds": time.Since(d.begun).
			Seconds()}); err != nil {
			d.a.complain("output", err.Error(), "", exitFailed)
		}
		return
	}
	fmt.Fprintf(d.a.out, "%s\n", d.a.style().Warn("━━ "+text+" ━━"))
}

func (d *demo) say(format string, args ...any) { d.a.say(format, args...) }

// errDemo marks a demo that ran and did not hold what it claims.
func errDemo(failed int) error {
	return outboard.Errorf(outboard.Internal, "%d of the demo's claims did not hold; the data directory was kept",
		failed).WithCode("demo_failed")
}

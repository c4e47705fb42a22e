package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/worktree"
	"github.com/spf13/cobra"
)

// maxTask bounds a task read from standard input; it becomes one message.
const maxTask = 8 << 20

type runOptions struct {
	agent   string
	model   string
	from    string
	clean   bool
	include []string
	env     string
	check   string
	timeout time.Duration
	approve string
	detach  bool
	title   string
	vaults  []string
	budget  string
	allow   []string

	noInstructions bool
}

func newRun(a *app) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{Use: "run [flags] TASK|-", Short: "Start a session and watch it work",
		Args: rangeArgs(1, 1, "a task, or - to read it from standard input"),
		Long: "Start a session and show what it does until it comes to rest.\n\n" +
			"In a git repository the work as it is now, committed or not, but nothing ignored, is copied into the sandbox;\n" +
			"index, HEAD, branches and stash stay as they are. The result comes home with outboard diff and outboard apply.\n" +
			"Ctrl-C detaches and the session goes on: where no server runs, one is started in the background " +
			"(outboard up).",
		RunE: func(cmd *cobra.Command, args []string) error {
			task, err := readTask(a.in, args[0], "task", `outboard run "make the tests pass"`)
			if err != nil {
				return err
			}
			return runRun(cmd.Context(), a, o, task)
		}}
	f := cmd.Flags()
	f.StringVar(&o.agent, "agent", "", "agent: a YAML or JSON file, a name or an id")
	f.StringVarP(&o.model, "model", "m", "", "model, such as anthropic/NAME or script/steps ($OUTBOARD_MODEL)")
	f.StringVar(&o.from, "from", "", "directory to send, or none (default: the git repository around the current "+
		"directory)")
	f.BoolVar(&o.clean, "clean", false, "send the last commit and leave out uncommitted work")
	f.StringArrayVar(&o.include, "include", nil, "send ignored files of this pattern, too; may be repeated, and "+
		"stand in .outboardinclude")
	f.StringVar(&o.env, "env", "", "environment: a name or an id")
	f.StringSliceVar(&o.vaults, "vault", nil, "vault with secrets the session may use: a name or an id; see "+
		"outboard secret")
	f.StringVar(&o.budget, "budget", "", "most it may spend on its model, in dollars at list price; it stops there "+
		"with exit 7 until the budget is raised")
	f.StringSliceVar(&o.allow, "allow", nil, "host the session may reach besides what its environment allows, HOST "+
		"or HOST:PORT; may be repeated")
	f.StringVar(&o.check, "check", "",
		"command that judges the result in a fresh sandbox: decides between exit 0 and 8")
	spanVar(f, &o.timeout, "timeout", 0, "interrupt the session after this long and exit 124")
	f.StringVar(&o.approve, "approve", "", "ask before every tool call, or never (default: what the agent says)")
	f.BoolVarP(&o.detach, "detach", "d", false, "start and do not watch")
	f.BoolVar(&o.noInstructions, "no-instructions", false, "leave AGENTS.md and CLAUDE.md of the repository out of "+
		"the first message")
	foregroundFlag(f, a)
	f.StringVar(&o.title, "title", "", "title of the session (default: the task's first line)")
	return cmd
}

// readTask returns the task, from standard input when it is "-".
func readTask(in io.Reader, arg, what, example string) (string, error) {
	if arg == "-" {
		b, err := io.ReadAll(io.LimitReader(in, maxTask+1))
		if err != nil {
			return "", fmt.Errorf("reading the %s: %w", what, err)
		}
		if len(b) > maxTask {
			return "", outboard.Errorf(outboard.TooLarge, "the %s is over %d MB", what, maxTask>>20)
		}
		arg = string(b)
	}
	if strings.TrimSpace(arg) == "" {
		return "", usagef("the %s is empty", what).WithHint("%s", example)
	}
	return arg, nil
}

func runRun(ctx context.Context, a *app, o runOptions, task string) error {
	if o.approve != "" && o.approve != "ask" && o.approve != "never" {
		return usagef("--approve %q is not ask or never", o.approve)
	}
	if o.timeout < 0 {
		return usagef("--timeout must not be negative")
	}
	for _, h := range o.allow {
		if host, _, err := hostPort(h); err != nil || host == "" {
			return usagef("--allow %q is not HOST or HOST:PORT", h)
		}
	}
	if o.clean && len(o.include) > 0 {
		return usagef("--clean and --include exclude each other: the last commit has no ignored files")
	}
	c, err := a.connect(ctx, needWork)
	if err != nil {
		return err
	}
	defer c.Close()
	if c.private != nil && c.private.Problem != nil {
		return noIsolation(c.private.Problem)
	}
	if c.problem != "" {
		return noIsolation(errors.New(c.problem))
	}
	s, work, err := o.create(ctx, a, c, task)
	if err != nil {
		return err
	}
	if err := o.allowHosts(ctx, c, s.ID); err != nil {
		return err
	}
	if err := o.announce(a, s, work); err != nil {
		return err
	}
	if o.detach {
		if c.private != nil {
			a.say("no server runs, so nothing happens until one does: outboard serve, or outboard attach %s",
				sessionName(s.ID))
		}
		return nil
	}
	return o.watch(ctx, a, c, s, work)
}

// allowHosts lets the session reach what --allow names.
func (o runOptions) allowHosts(ctx context.Context, c *conn, id string) error {
	for _, h := range o.allow {
		host, port, err := hostPort(h)
		if err != nil {
			return err
		}
		if _, err := c.AllowNetwork(ctx, id, client.NetworkAllow{Host: host, Port: port,
			Scope: "session"}); err != nil {
			return err
		}
	}
	return nil
}

// noIsolation is the refusal of a host that cannot isolate: never fall back to running on it.
func noIsolation(err error) error {
	e := outboard.Errorf(outboard.Unavailable, "no sandbox can be made here: %w", err).WithCode(server.CodeNoIsolation)
	if inner, ok := errors.AsType[*outboard.Error](err); ok && inner.Hint != "" {
		return e.WithHint("%s", inner.Hint)
	}
	return e.WithHint("outboard doctor says what is missing")
}

// create makes the session, with the work if there is any.
func (o runOptions) create(ctx context.Context, a *app, c *conn, task string) (client.Session, *sending, error) {
	var none client.Session
	agent, err := findAgent(ctx, c.Client, o.agent)
	if err != nil {
		return none, nil, err
	}
	n := client.NewSession{Title: o.title}
	if n.Title == "" {
		first, _, _ := strings.Cut(strings.TrimSpace(task), "\n")
		n.Title = term.Line(first, 80)
	}
	if o.budget != "" {
		if n.Budget, err = wireBudget(o.budget); err != nil {
			return none, nil, err
		}
	}
	if n.Agent, err = o.overrides(ctx, a, c, agent); err != nil {
		return none, nil, err
	}
	if n.EnvironmentID, err = findEnvironment(ctx, c.Client, o.env); err != nil {
		return none, nil, err
	}
	for _, ref := range o.vaults {
		v, err := findVault(ctx, c.Client, ref, false)
		if err != nil {
			return none, nil, err
		}
		n.VaultIDs = append(n.VaultIDs, v.ID)
	}
	work, err := o.send(ctx, a, c)
	if err != nil {
		return none, nil, err
	}
	if n.InitialEvents, err = o.briefed(ctx, a, task, work); err != nil {
		return none, nil, errors.Join(err, work.discard(ctx, c))
	}
	if work != nil {
		n.Metadata = map[string]string{workspaceKey: work.file.ID + ":" + fleet.WorkspaceGzip}
	}
	s, err := c.CreateSession(ctx, n)
	if err != nil {
		return none, nil, errors.Join(explainModel(err, o.model), work.discard(ctx, c))
	}
	if work != nil {
		err = work.bind(c.data, s.ID)
	}
	return s, work, err
}

// explainModel adds what to do when the default model is not configured.
func explainModel(err error, model string) error {
	e, ok := errors.AsType[*outboard.Error](err)
	if ok && model == "" && strings.Contains(e.Message, `"`+defaultModel+`"`) {
		return outboard.Errorf(e.Kind, "no model is chosen: %s", e.Message).WithCode("no_model").
			WithHint("choose one with -m or OUTBOARD_MODEL, or name it in the configuration as llm.aliases.default " +
				"(outboard config init)")
	}
	return err
}

// overrides is how the session names its agent: by id, or with the model and tool policy of this command laid over it.
func (o runOptions) overrides(ctx context.Context, a *app, c *conn, agent string) (any, error) {
	model := o.model
	if model == "" && o.agent == "" {
		model = a.env("OUTBOARD_MODEL")
	}
	if model == "" && o.approve == "" {
		return agent, nil
	}
	out := client.Overrides{Type: "agent_with_overrides", ID: agent, Model: model}
	if o.approve == "" {
		return out, nil
	}
	full, err := c.Agent(ctx, agent)
	if err != nil {
		return nil, err
	}
	var tools []map[string]any
	if err := json.Unmarshal(full.Tools, &tools); err != nil {
		return nil, fmt.Errorf("reading the agent's tools: %w", err)
	}
	out.Tools = withPolicy(tools, map[string]string{"ask": "always_ask", "never": "always_allow"}[o.approve])
	return out, nil
}

// send takes and uploads the work that --from names. Without --from, a directory outside any repository is not
// sent: it might be a home directory.
func (o runOptions) send(ctx context.Context, a *app, c *conn) (*sending, error) {
	if o.from == "none" {
		return nil, nil
	}
	dir := o.from
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("finding the current directory: %w", err)
		}
		dir = wd
	}
	work, err := sendWork(ctx, a, c, dir, sendOptions{worktree.Options{Clean: o.clean, Include: o.include},
		o.from != ""})
	if o.from == "" && (outboard.KindOf(err) == outboard.NotFound || outboard.KindOf(err) == outboard.Unavailable &&
		work == nil) {
		a.say("starting with an empty workspace: %v; --from DIR sends a directory", err)
		return nil, nil
	}
	return work, err
}

type startedLine struct {
	Type    string `json:"type"`
	Session string `json:"session_id"`
	Name    string `json:"name"`
	Model   string `json:"model"`
	Files   int    `json:"files,omitempty"`
	Changed int    `json:"uncommitted,omitempty"`
}

// announce says what was started.
func (o runOptions) announce(a *app, s client.Session, work *sending) error {
	line := startedLine{Type: "session", Session: s.ID, Name: sessionName(s.ID), Model: s.Agent.Model.ID}
	context := "empty workspace"
	if work != nil {
		line.Files, line.Changed = work.snap.Files, work.snap.Changed
		context = fmt.Sprintf("context %s, %d uncommitted", count(line.Files, "file"), line.Changed)
	}
	if a.json {
		return a.object(line)
	}
	st := a.style()
	_, err := fmt.Fprintf(a.out, "▸ %s   model %s   %s\n", st.Bold(line.Name), term.Line(line.Model, 60), context)
	if work != nil {
		for _, n := range work.snap.Notes {
			a.say("%s", term.Line(n, 0))
		}
	}
	return err
}

// watch shows the session until it rests, runs the check, and turns the ending into an exit code.
func (o runOptions) watch(ctx context.Context, a *app, c *conn, s client.Session, work *sending) error {
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	w := a.newWatch(c, s.ID)
	follow := w.follow
	if a.interactive() {
		follow = w.followAsking
	}
	rest, err := follow(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return o.expire(a, c, s)
	case errors.Is(err, errQuit):
		a.say("detached from %s", sessionName(s.ID))
		return nil
	case detached(ctx):
		return w.detach()
	default:
		return err
	}
	return o.end(ctx, a, c, s, w, rest, work != nil)
}

// expire interrupts a session whose time is over.
func (o runOptions) expire(a *app, c *conn, s client.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_, err := c.Send(ctx, s.ID, client.Interrupt())
	name := sessionName(s.ID)
	e := outboard.Errorf(outboard.Exhausted, "%s did not finish within %v and was interrupted", name, o.timeout).
		WithCode("timeout").
		WithHint("outboard send %s \"go on\" continues it", name)
	return errors.Join(&exitError{exitTimeout, e}, err)
}

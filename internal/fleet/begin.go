package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// startTag names the process of a template's start command in its sandboxes.
const startTag = "outboard-start"

// settleKey is the key of the call that says where tools begin. Those of agents have another shape.
const settleKey = "outboard-settle"

// begin runs a template's start command in a fresh machine, as its user and in its directory, and returns when
// its ready command says so: at once where there is none.
func (f *Fleet) begin(ctx context.Context, m *machine, st stack) error {
	h := st.defaults()
	pid := 0
	if st.start != "" {
		var err error
		if pid, _, err = m.StartProcess(ctx, h.process(ProcessStart{Argv: shellArgv(st.start), Tag: startTag}),
			nil); err != nil {
			return plain(err)
		}
	}
	if st.ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ReadyTimeout)
	defer cancel()
	for {
		code, said, err := command(ctx, m, h.process(ProcessStart{Argv: shellArgv(st.ready)}))
		if err == nil && code == 0 {
			return nil
		}
		if gone := f.ended(ctx, m, pid); gone != nil {
			return gone
		}
		select {
		case <-time.After(readyEvery): // nobody tells when a command would give another answer
			continue
		case <-ctx.Done():
		}
		if context.Cause(ctx) != context.DeadlineExceeded {
			return context.Cause(ctx)
		}
		return outboard.Errorf(outboard.Unavailable, "the template's ready command did not succeed within %v: it "+
			"ended with status %d%s%s",
			ReadyTimeout, code, andSaid(said), words("\nthe start command said:\n",
				f.output(context.WithoutCancel(ctx), m, pid)))
	}
}

// settle gives a machine its defaults, and makes sure that they can be followed: the user exists, and so does
// the directory.
func (f *Fleet) settle(ctx context.Context, m *machine, h defaults) error {
	if h == (defaults{}) {
		return nil
	}
	dir := FileRef{Path: Name(h.dir), User: h.user}
	if h.dir == "" {
		dir.Path = "/"
	}
	_, err := m.Stat(ctx, dir)
	if is(err, guest.NotFound) {
		_, err = m.Mkdir(ctx, dir)
	}
	if err != nil {
		return fmt.Errorf("what the sandbox begins with says that its programs run as %q in %q: %w", h.user, h.dir,
			plain(err))
	}
	m.defaults = h
	return nil
}

// keptDirs are what checkpoints keep of a session's machine.
var keptDirs = []string{sandbox.Workspace, sandbox.Outputs, sandbox.Home}

// workdir is where an agent's tools begin: the directory that an image or a template names, where that is kept,
// and else "", the workspace. An agent that works where nothing is kept would lose its work with the machine.
func (st *stack) workdir() string {
	dir := st.settings.Workdir
	if !slices.ContainsFunc(keptDirs,
		func(kept string) bool { return dir == kept || strings.HasPrefix(dir, kept+"/") }) {
		return ""
	}
	return dir
}

// visits are the defaults of a session's machine: who visits it is who its tools are, and begins where they do.
func visits(r *outboard.SandboxReady) defaults {
	return defaults{dir: cmp.Or(r.Workdir, sandbox.Workspace)}
}

// unheeded says what of a stack's user does not hold in a session's machine, whose tools run as user, "" for the
// sandbox's own.
func (st *stack) unheeded(user string) string {
	wanted := st.settings.User
	switch {
	case wanted == "" || wanted == toolAccount || user != "":
		return ""
	case wanted == "root" || wanted == "0":
		return "its image or template runs programs as root; tools run as " + toolAccount
	}
	return fmt.Sprintf("its image or template runs programs as %s, which this provider's sandboxes do not; tools "+
		"run as %s", wanted, toolAccount)
}

// toolAccount is the sandbox's own user, who tools run as unless they can run as another.
const toolAccount = "user"

// settleCalls has an agent's tools begin in a directory. It is said once in the life of a machine, which remembers it.
func (f *Fleet) settleCalls(ctx context.Context, m *machine, epoch int64, dir string) error {
	if dir == "" {
		return nil
	}
	in, err := json.Marshal(map[string]string{"dir": dir})
	if err != nil {
		return fmt.Errorf("naming the directory where tools begin: %w", err)
	}
	s := guest.Start{Key: settleKey, Epoch: epoch, Generation: m.Generation(), Digest: settleKey, Op: guest.OpSettle,
		Input: in}
	res, err := m.Start(ctx, s)
	if err == nil && res.State != guest.StateDone {
		res, err = m.Wait(ctx, settleKey, epoch)
	}
	if err != nil {
		return err
	}
	if len(res.Output) > 0 {
		return outboard.Errorf(outboard.Unavailable, "the sandbox's tools cannot begin in %q: %s", dir, res.Output)
	}
	return m.Ack(ctx, settleKey, epoch)
}

// ended says that the start command has failed, once it has. One that ended well may have left something running.
func (f *Fleet) ended(ctx context.Context, m *machine, pid int) error {
	if pid == 0 {
		return nil
	}
	list, err := m.Processes(ctx)
	if err != nil {
		return nil // the next look says so
	}
	for _, p := range list {
		if p.Pid == pid && p.Exit != nil && (p.Exit.Code != 0 || p.Exit.Signal != 0) {
			return outboard.Errorf(outboard.Unavailable, "the template's start command ended with status %d before "+
				"it was ready%s", p.Exit.Code, words(", and said:\n", f.output(ctx, m, pid)))
		}
	}
	return nil
}

// output is the end of what a process has said so far.
func (f *Fleet) output(ctx context.Context, m *machine, pid int) string {
	if pid == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var t tail
	_, _ = m.AttachProcess(ctx, ProcessRef{Pid: pid}, 0, func(e ProcessEvent) error { // what there is of it is shown
		if e.Kind == Stdout || e.Kind == Stderr {
			t.add(e.Data)
		}
		return nil
	})
	return t.String()
}

// defaults returns what a stack says of its programs.
func (st *stack) defaults() defaults {
	return defaults{user: st.settings.User, dir: st.settings.Workdir}
}

package e2b

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"syscall"

	"github.com/outboard-dev/outboard/internal/control"
)

// selector names a process.
type selector struct {
	Pid int    `json:"pid"`
	Tag string `json:"tag"`
}

func (s selector) ref() control.ProcessRef { return control.ProcessRef{Pid: s.Pid, Tag: s.Tag} }

type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type ptyIn struct {
	Size control.TerminalSize `json:"size"`
}

type startIn struct {
	Process processConfig `json:"process"`
	PTY     *ptyIn        `json:"pty"`
	Tag     string        `json:"tag"`
	Stdin   *bool         `json:"stdin"` // absent means yes: older SDKs do not know it
}

// event is what a stream of a process says; one member is set.
type event struct {
	Start     *startEvent `json:"start,omitempty"`
	Data      *dataEvent  `json:"data,omitempty"`
	End       *endEvent   `json:"end,omitempty"`
	KeepAlive *struct{}   `json:"keepalive,omitempty"`
}

type startEvent struct {
	Pid int `json:"pid"`
}

type dataEvent struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	PTY    []byte `json:"pty,omitempty"`
}

type endEvent struct {
	ExitCode int    `json:"exitCode,omitempty"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
	Error    string `json:"error,omitempty"`
}

type eventOut struct {
	Event event `json:"event"`
}

// start starts a process and shows what it does. Its deadline is the process's own.
func (v *visit) start(c *call) error {
	var in startIn
	if err := message(c.body, &in); err != nil {
		return err
	}
	p := control.ProcessStart{Argv: append([]string{in.Process.Cmd}, in.Process.Args...), Env: in.Process.Envs,
		Cwd: in.Process.Cwd, User: v.user(),
		Tag: in.Tag, Stdin: in.Stdin == nil || *in.Stdin, TimeoutMs: c.left.Milliseconds()}
	if in.PTY != nil {
		p.Terminal = &in.PTY.Size
	}
	v.s.ctl.NoteBox(v.box.ID, "process started", map[string]string{"cmd": in.Process.Cmd, "user": p.User})
	_, exit, err := v.m.StartProcess(c.ctx, p, c.tell)
	return c.finish(exit, err)
}

// attach shows what a process does from now on.
func (v *visit) attach(c *call) error {
	var in struct {
		Process selector `json:"process"`
	}
	if err := message(c.body, &in); err != nil {
		return err
	}
	defer c.deadline()()
	exit, err := v.m.AttachProcess(c.ctx, in.Process.ref(), -1, c.tell)
	return c.finish(exit, err)
}

// tell passes an event on.
func (c *call) tell(e control.ProcessEvent) error {
	var out event
	switch e.Kind {
	case control.Started:
		out.Start = &startEvent{e.Pid}
		defer c.keepAlive(eventOut{event{KeepAlive: &struct{}{}}})
	case control.Stdout:
		out.Data = &dataEvent{Stdout: e.Data}
	case control.Stderr:
		out.Data = &dataEvent{Stderr: e.Data}
	case control.Terminal:
		out.Data = &dataEvent{PTY: e.Data}
	default:
		return nil
	}
	return c.send(eventOut{out})
}

// finish says how a process ended.
func (c *call) finish(exit control.ProcessExit, err error) error {
	if err != nil {
		return err
	}
	if exit.Timeout {
		return &rpcError{"deadline_exceeded", "the process was killed at its deadline"}
	}
	end := endEvent{ExitCode: exit.Code, Exited: exit.Signal == 0, Status: "exit status " + strconv.Itoa(exit.Code)}
	if exit.Signal != 0 {
		end.Status = "signal: " + syscall.Signal(exit.Signal).String()
		end.Error = end.Status
	} else if exit.Code != 0 {
		end.Error = end.Status
	}
	return c.send(eventOut{event{End: &end}})
}

// unaries are the calls with one answer.
func (v *visit) unaries() map[string]func(context.Context, []byte) (any, error) {
	return map[string]func(context.Context, []byte) (any, error){
		"List": v.list, "Update": v.update, "SendInput": v.sendInput, "SendSignal": v.sendSignal, "CloseStdin": v.closeStdin,
		"Stat": v.stat, "MakeDir": v.makeDir, "Move": v.move, "ListDir": v.listDir, "Remove": v.remove,
		"CreateWatcher": v.createWatcher, "GetWatcherEvents": v.watcherEvents, "RemoveWatcher": v.removeWatcher,
	}
}

type processOut struct {
	Config processConfig `json:"config"`
	Pid    int           `json:"pid"`
	Tag    string        `json:"tag,omitempty"`
}

func (v *visit) list(ctx context.Context, _ []byte) (any, error) {
	all, err := v.m.Processes(ctx)
	if err != nil {
		return nil, err
	}
	out := []processOut{}
	for _, p := range all {
		if p.Exit == nil && len(p.Argv) > 0 {
			out = append(out, processOut{processConfig{p.Argv[0], p.Argv[1:], p.Env, p.Cwd}, p.Pid, p.Tag})
		}
	}
	return map[string]any{"processes": out}, nil
}

func (v *visit) update(ctx context.Context, body []byte) (any, error) {
	var in struct {
		Process selector `json:"process"`
		PTY     *ptyIn   `json:"pty"`
	}
	if err := message(body, &in); err != nil {
		return nil, err
	}
	if in.PTY == nil {
		return struct{}{}, nil
	}
	return struct{}{}, v.m.ResizeProcess(ctx, in.Process.ref(), in.PTY.Size)
}

func (v *visit) sendInput(ctx context.Context, body []byte) (any, error) {
	var in struct {
		Process selector `json:"process"`
		Input   struct {
			Stdin []byte `json:"stdin"`
			PTY   []byte `json:"pty"`
		} `json:"input"`
	}
	if err := message(body, &in); err != nil {
		return nil, err
	}
	return struct{}{}, v.m.InputProcess(ctx, in.Process.ref(), bytes.NewReader(append(in.Input.Stdin, in.Input.PTY...)))
}

func (v *visit) closeStdin(ctx context.Context, body []byte) (any, error) {
	var in struct {
		Process selector `json:"process"`
	}
	if err := message(body, &in); err != nil {
		return nil, err
	}
	return struct{}{}, v.m.CloseInput(ctx, in.Process.ref())
}

func (v *visit) sendSignal(ctx context.Context, body []byte) (any, error) {
	var in struct {
		Process selector `json:"process"`
		Signal  any      `json:"signal"`
	}
	if err := message(body, &in); err != nil {
		return nil, err
	}
	var sig syscall.Signal
	switch name, _ := in.Signal.(string); {
	case strings.HasSuffix(name, "SIGKILL"), in.Signal == float64(syscall.SIGKILL):
		sig = syscall.SIGKILL
	case strings.HasSuffix(name, "SIGTERM"), in.Signal == float64(syscall.SIGTERM):
		sig = syscall.SIGTERM
	default:
		return nil, &rpcError{"unimplemented", "only SIGNAL_SIGTERM and SIGNAL_SIGKILL can be sent"}
	}
	return struct{}{}, v.m.SignalProcess(ctx, in.Process.ref(), int(sig))
}

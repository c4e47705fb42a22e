package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// maxCells bounds a side of a terminal.
const maxCells = 10_000

// hangUpTime is how long a terminal's program may take to end by itself.
const hangUpTime = 2 * time.Second

// loginShell is what runs in a terminal when the client names no program.
const loginShell = `if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l`

// terminal is one WebSocket with a terminal of the box behind it.
type terminal struct {
	s   *Server
	r   *request
	m   control.Sandbox
	ws  *wsConn
	sid string // its session; "" = the terminal ends with the connection

	mu  sync.Mutex
	ref control.ProcessRef // Pid 0 before it runs
}

// status is a message of text to the client.
type status struct {
	Type    string `json:"type"` // ready, exit or error
	Code    *int   `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// pty opens a terminal. Binary messages are what is typed and shown; messages of text are
// {"type":"resize","cols","rows"} from the client, and ready, exit and error from here. Without a session a
// terminal ends with its connection. A session has one, which stays: who comes back sees what is kept of its
// output.
func (s *Server) pty(r *request) error {
	size, err := r.size()
	if err != nil {
		return err
	}
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	start := control.ProcessStart{Argv: []string{"/bin/sh", "-c", loginShell}, Cwd: workspace, Terminal: &size,
		Patient: true, HangUp: true,
		Env: map[string]string{"TERM": "xterm-256color"}}
	if shell := r.URL.Query().Get("shell"); shell != "" {
		start.Argv = []string{shell}
	}
	sid, err := s.session(r, m)
	if err != nil {
		return err
	}
	if sid != "" {
		start = inSession(sid, start)
	}
	done, err := s.ctl.OpenStream(r.Context(), r.by.In())
	if err != nil {
		return err
	}
	defer done()
	ws, err := upgrade(r.w, r.Request)
	if err != nil {
		return err
	}
	t := &terminal{s: s, r: r, m: m, ws: ws, sid: sid}
	t.serve(start)
	return nil
}

// size reads the terminal's size from the query.
func (r *request) size() (control.TerminalSize, error) {
	size := control.TerminalSize{Cols: 80, Rows: 24}
	for name, to := range map[string]*uint16{"cols": &size.Cols, "rows": &size.Rows} {
		v := r.URL.Query().Get(name)
		if v == "" {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxCells {
			return size, outboard.Errorf(outboard.Invalid, "%s must be 1 to %d, not %q", name, maxCells, clip(v))
		}
		*to = uint16(n)
	}
	return size, nil
}

// serve passes on what is typed and shown until the program or the connection ends.
func (t *terminal) serve(start control.ProcessStart) {
	ctx, cancel := context.WithCancel(t.r.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { t.s.ctl.While(ctx, cancel, t.r.by) })
	wg.Go(func() { t.ws.ping(ctx, cancel) })
	wg.Go(func() { t.stay(ctx) })
	ready := make(chan struct{})
	wg.Go(func() {
		defer cancel()
		select {
		case <-ready:
			t.listen(ctx)
		case <-ctx.Done():
		}
	})
	stop := context.AfterFunc(ctx, func() { // whoever reads from the client, or writes to it, returns
		_ = t.ws.conn.SetDeadline(time.Now())
	})
	defer stop()
	exit, err := t.run(ctx, start, ready)
	if ctx.Err() != nil {
		t.leave()
		t.ws.conn.Close()
		return
	}
	cancelled := stop()
	if err != nil {
		_, body := explain(control.BoxError(err))
		t.tell(status{Type: "error", Message: body.Error})
		t.leave()
		t.ws.end(wsFailed, body.Error)
		return
	}
	if cancelled {
		t.tell(status{Type: "exit", Code: new(code(exit))})
		t.ws.end(wsNormal, "")
	}
}

// run starts the terminal's program, or goes on with the session's, and returns how it ended.
func (t *terminal) run(ctx context.Context, start control.ProcessStart,
	ready chan struct{}) (control.ProcessExit, error) {
	each := func(e control.ProcessEvent) error {
		switch e.Kind {
		case control.Started:
			t.mu.Lock()
			t.ref.Pid = e.Pid
			t.mu.Unlock()
			close(ready)
			return t.tell(status{Type: "ready"})
		case control.Terminal:
			return t.ws.write(wsBinary, e.Data)
		case control.Lost:
			return outboard.Errorf(outboard.Exhausted, "the client reads its output too slowly; a part of it is lost")
		}
		return nil
	}
	if t.sid != "" {
		old, err := running(ctx, t.m, start.Tag)
		if err != nil {
			return control.ProcessExit{}, err
		}
		if old != 0 {
			ref := control.ProcessRef{Pid: old}
			if err := t.m.ResizeProcess(ctx, ref, *start.Terminal); err != nil {
				return control.ProcessExit{}, err
			}
			return t.m.AttachProcess(ctx, ref, 0, each)
		}
	}
	_, exit, err := t.m.StartProcess(ctx, start, each)
	return exit, err
}

// running finds the process of a tag that has not ended, or 0.
func running(ctx context.Context, m control.Sandbox, tag string) (int, error) {
	all, err := m.Processes(ctx)
	for _, p := range all {
		if p.Tag == tag && p.Exit == nil {
			return p.Pid, err
		}
	}
	return 0, err
}

// listen takes what the client sends until it leaves.
func (t *terminal) listen(ctx context.Context) {
	for {
		kind, msg, err := t.ws.read()
		if bad, ok := errors.AsType[*wsError](err); ok {
			t.ws.end(bad.code, bad.why)
		}
		if err != nil {
			return
		}
		if kind == wsBinary {
			err = t.m.InputProcess(ctx, t.ref, bytes.NewReader(msg))
		} else {
			err = t.control(ctx, msg)
		}
		if err != nil {
			_, body := explain(control.BoxError(err))
			t.tell(status{Type: "error", Message: body.Error})
		}
	}
}

// control does what a message of text asks for.
func (t *terminal) control(ctx context.Context, msg []byte) error {
	var in struct {
		Type string `json:"type"`
		Cols uint16 `json:"cols"`
		Rows uint16 `json:"rows"`
	}
	if err := control.DecodeJSON(msg, &in); err != nil || in.Type != "resize" {
		return outboard.Errorf(outboard.Invalid, `a message of text must be {"type":"resize","cols":...,"rows":...}`)
	}
	if in.Cols < 1 || in.Rows < 1 || in.Cols > maxCells || in.Rows > maxCells {
		return outboard.Errorf(outboard.Invalid, "cols and rows must be 1 to %d", maxCells)
	}
	return t.m.ResizeProcess(ctx, t.ref, control.TerminalSize{Cols: in.Cols, Rows: in.Rows})
}

// stay gives the box more time for as long as the terminal is open.
func (t *terminal) stay(ctx context.Context) {
	tick := time.NewTicker(keep / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := t.s.ctl.ExtendBox(ctx, t.r.by, t.r.id(), keep); err != nil {
			t.s.log.Debug("a box with an open terminal was not given more time", "box", t.r.id(), "err", err)
		}
	}
}

// leave ends what nobody could find again.
func (t *terminal) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sid != "" || t.ref.Pid == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.r.Context()), endTimeout)
	defer cancel()
	_ = endPeerClosed(ctx, t.m, t.ref) // the guest has told it, since nobody is attached any more
}

// hangUp ends a terminal's program as the end of the terminal does: an interactive shell passes the signal on to
// its jobs, which have process groups of their own.
func hangUp(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
	err := m.SignalProcess(ctx, ref, int(syscall.SIGHUP))
	if err == nil {
		err = endPeerClosed(ctx, m, ref)
	}
	return err
}

// endPeerClosed gives a program that was told of the end of its terminal the time to end by itself, and kills it then.
func endPeerClosed(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
	wait, cancel := context.WithTimeout(ctx, hangUpTime)
	defer cancel()
	_, err := m.AttachProcess(wait, ref, 0, func(control.ProcessEvent) error { return nil })
	if err != nil && ctx.Err() == nil {
		err = m.SignalProcess(ctx, ref, int(syscall.SIGKILL))
	}
	if bad, ok := errors.AsType[*control.Refusal](err); ok && bad.Code == "not_found" {
		return nil // it has ended
	}
	return err
}

func (t *terminal) tell(st status) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return t.ws.write(wsText, b)
}

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Boxes, sandboxes that a client makes for itself: Outboard's own resource, in the wire's style. Its processes
// are streams of server-sent events; its files are bodies.

const (
	// defaultBoxTTL is how long a sandbox lives that nobody set a time for.
	defaultBoxTTL = time.Hour
	// boxTimeout bounds what a sandbox's machine is asked that has an end of its own.
	boxTimeout = time.Minute
)

type boxIn struct {
	Template  *string           `json:"template"`
	Image     *string           `json:"image"`
	Env       map[string]string `json:"env"`
	Metadata  map[string]string `json:"metadata"`
	Timeout   *int64            `json:"timeout_seconds"`
	OnTimeout *string           `json:"on_timeout"`
	Limits    *limitsIn         `json:"limits"`
	Network   *boxNetworkIn     `json:"network"`
}

type limitsIn struct {
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	Pids        int     `json:"pids"`
	DiskBytes   int64   `json:"disk_bytes"`
}

type boxOut struct {
	Type      string            `json:"type"` // "sandbox"
	ID        string            `json:"id"`
	State     string            `json:"state"`
	Template  string            `json:"template"`
	Metadata  map[string]string `json:"metadata"`
	CreatedAt time.Time         `json:"created_at"`
	StartedAt time.Time         `json:"started_at"`
	EndAt     time.Time         `json:"end_at"`
	OnTimeout string            `json:"on_timeout"`
}

func showBox(b outboard.Box) boxOut {
	out := boxOut{Type: "sandbox", ID: string(b.ID), State: string(b.State), Template: b.Template, Metadata: b.Metadata,
		CreatedAt: b.CreatedAt,
		StartedAt: b.StartedAt, EndAt: b.EndAt, OnTimeout: "kill"}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if b.OnTimeout.Pause {
		out.OnTimeout = "pause"
	}
	return out
}

func boxID(r *request) outboard.BoxID { return outboard.BoxID(r.PathValue("box")) }

func (s *server) createBox(r *request) (any, error) {
	var in boxIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p := control.BoxSpec{Vars: in.Env, Metadata: in.Metadata, TTL: defaultBoxTTL}
	if in.Image != nil {
		p.Image = *in.Image
	}
	if in.Template != nil {
		p.Template = *in.Template
	}
	if in.Timeout != nil {
		p.TTL = boxTTL(*in.Timeout)
	}
	if in.Network != nil {
		p.Net, p.Headers = in.Network.settings(), in.Network.headers()
	}
	if l := in.Limits; l != nil {
		p.Limits = outboard.SandboxLimits{MemoryBytes: l.MemoryBytes, CPUs: l.CPUs, Pids: l.Pids,
			DiskBytes: l.DiskBytes}
	}
	if in.OnTimeout != nil {
		switch *in.OnTimeout {
		case "kill":
		case "pause":
			p.OnTimeout = outboard.TimeoutPolicy{Pause: true, Resume: true}
		default:
			return nil, bad("on_timeout: must be kill or pause, not %q", clip(*in.OnTimeout))
		}
	}
	b, err := s.ctl.CreateBox(r.Context(), r.by, p)
	if err != nil {
		return nil, err
	}
	return showBox(b), nil
}

// boxTTL is a number of seconds; what overflows is too long in any case, and refused for it.
func boxTTL(sec int64) time.Duration {
	const most = int64(1 << 32)
	return time.Duration(max(min(sec, most), -most)) * time.Second
}

func (s *server) listBoxes(r *request) (any, error) {
	all, err := s.ctl.Boxes(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	data := make([]boxOut, len(all))
	for i := range all {
		data[i] = showBox(all[i])
	}
	return map[string]any{"data": data, "next_page": nil}, nil
}

func (s *server) getBox(r *request) (any, error) {
	b, err := s.ctl.Box(r.Context(), r.by, boxID(r))
	if err != nil {
		return nil, err
	}
	return showBox(b), nil
}

func (s *server) deleteBox(r *request) (any, error) {
	if err := s.ctl.KillBox(r.Context(), r.by, boxID(r)); err != nil {
		return nil, err
	}
	return deletedOut{r.PathValue("box"), "sandbox_deleted"}, nil
}

func (s *server) pauseBox(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	b, err := s.ctl.PauseBox(r.Context(), r.by, boxID(r), false)
	if err != nil {
		return nil, err
	}
	return showBox(b), nil
}

type ttlIn struct {
	Timeout *int64 `json:"timeout_seconds"`
}

func (r *request) boxTTL() (time.Duration, error) {
	var in ttlIn
	if err := r.decode(&in); err != nil {
		return 0, err
	}
	if in.Timeout == nil {
		return 0, bad("timeout_seconds: required")
	}
	return boxTTL(*in.Timeout), nil
}

func (s *server) resumeBox(r *request) (any, error) {
	ttl, err := r.boxTTL()
	if err != nil {
		return nil, err
	}
	b, _, err := s.ctl.ResumeBox(r.Context(), r.by, boxID(r), ttl)
	if err != nil {
		return nil, err
	}
	return showBox(b), nil
}

func (s *server) timeoutBox(r *request) (any, error) {
	ttl, err := r.boxTTL()
	if err != nil {
		return nil, err
	}
	b, err := s.ctl.SetBoxTTL(r.Context(), r.by, boxID(r), ttl)
	if err != nil {
		return nil, err
	}
	return showBox(b), nil
}

type processIn struct {
	Argv     []string              `json:"argv"`
	Env      map[string]string     `json:"env"`
	Cwd      *string               `json:"cwd"`
	User     *string               `json:"user"`
	Stdin    *bool                 `json:"stdin"`
	Terminal *control.TerminalSize `json:"terminal"`
	Timeout  *int64                `json:"timeout_seconds"`
}

// processEvent is an event of a process's stream.
type processEvent struct {
	Type     string `json:"type"` // process.started, process.output, process.lost, process.ended; or an error object
	Pid      int    `json:"pid,omitempty"`
	Stream   string `json:"stream,omitempty"` // stdout, stderr, terminal
	Data     []byte `json:"data,omitempty"`   // base64
	Cursor   int64  `json:"cursor"`           // where to attach again
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty"`
	SignalNo int    `json:"signal_number,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`

	MemoryLimit int64 `json:"memory_limit_bytes,omitempty"` // it was hit meanwhile, and a program ended for it
}

// startProcess starts a process and streams what it does. The client's leaving does not end it.
func (s *server) startProcess(r *request) (any, error) {
	var in processIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	m, err := s.ctl.UseBox(r.Context(), r.by, boxID(r))
	if err != nil {
		return nil, err
	}
	p := control.ProcessStart{Argv: in.Argv, Env: in.Env, Terminal: in.Terminal, Stdin: in.Stdin != nil && *in.Stdin}
	if in.Cwd != nil {
		p.Cwd = *in.Cwd
	}
	if in.User != nil {
		p.User = *in.User
	}
	if in.Timeout != nil {
		p.TimeoutMs = boxTTL(*in.Timeout).Milliseconds()
	}
	return nil, s.processStream(r,
		func(ctx context.Context, f func(control.ProcessEvent) error) (control.ProcessExit, error) {
			_, exit, err := m.StartProcess(ctx, p, f)
			return exit, err
		})
}

// attachProcess streams what a process does from a cursor on.
func (s *server) attachProcess(r *request) (any, error) {
	ref, err := r.process()
	if err != nil {
		return nil, err
	}
	var from int64
	if text := r.query.Get("from"); text != "" {
		if from, err = strconv.ParseInt(text, 10, 64); err != nil || from < -1 {
			return nil, bad("from: must be a cursor, 0 for the oldest output or -1 for now, not %q", clip(text))
		}
	}
	m, err := s.ctl.UseBox(r.Context(), r.by, boxID(r))
	if err != nil {
		return nil, err
	}
	return nil, s.processStream(r,
		func(ctx context.Context, f func(control.ProcessEvent) error) (control.ProcessExit, error) {
			return m.AttachProcess(ctx, ref, from, f)
		})
}

// process reads which process the path names.
func (r *request) process() (control.ProcessRef, error) {
	n, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil || n < 1 {
		return control.ProcessRef{}, bad("%q is not a process id", clip(r.PathValue("pid")))
	}
	return control.ProcessRef{Pid: n}, nil
}

// boxStream writes events; its keepalives come from another goroutine.
type boxStream struct {
	s  *server
	mu sync.Mutex
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (b *boxStream) write(text string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.rc.SetWriteDeadline(time.Now().Add(b.s.writeTimeout)); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := io.WriteString(b.w, text); err != nil {
		return err
	}
	return b.rc.Flush()
}

func (b *boxStream) event(e processEvent) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return b.write("event: " + e.Type + "\ndata: " + string(data) + "\n\n")
}

// keepalive writes a comment now and then until ctx ends.
func (b *boxStream) keepalive(ctx context.Context) {
	tick := time.NewTicker(b.s.keepalive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if b.write(": keepalive\n\n") != nil {
				return // the stream's own writes fail too
			}
		}
	}
}

// processStream answers with the events that run is told. A refusal before the first one is an ordinary error,
// what fails later the last event.
func (s *server) processStream(r *request,
	run func(context.Context, func(control.ProcessEvent) error) (control.ProcessExit, error)) error {
	done, err := s.ctl.OpenStream(r.Context(), r.by.In())
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(r.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.ctl.While(ctx, cancel, r.by) })
	b := &boxStream{s: s, w: r.w, rc: http.NewResponseController(r.w)}
	streams := map[control.ProcessKind]string{control.Stdout: "stdout", control.Stderr: "stderr",
		control.Terminal: "terminal"}
	begun := false
	var cursor int64
	exit, err := run(ctx, func(e control.ProcessEvent) error {
		cursor = e.Cursor
		switch e.Kind {
		case control.Started:
			begun = true
			h := r.w.Header()
			h.Set("Content-Type", "text/event-stream")
			h.Set("Cache-Control", "no-store")
			h.Set("X-Content-Type-Options", "nosniff")
			wg.Go(func() { b.keepalive(ctx) })
			return b.event(processEvent{Type: "process.started", Pid: e.Pid, Cursor: e.Cursor})
		case control.Lost:
			return b.event(processEvent{Type: "process.lost", Cursor: e.Cursor})
		}
		return b.event(processEvent{Type: "process.output", Stream: streams[e.Kind], Data: e.Data, Cursor: e.Cursor})
	})
	switch {
	case err != nil && !begun:
		return control.BoxError(err)
	case err != nil && ctx.Err() != nil: // the client has gone, or must not hear more
		s.cut(r, err)
	case err != nil:
		s.log.Warn("stream of a process failed", "request", requestID(ctx), "path", r.URL.Path, "err", err)
		_ = b.write(errorFrame(ctx, control.BoxError(err))) // who does not take it has gone
		return nil
	}
	out := processEvent{Type: "process.ended", Cursor: cursor, TimedOut: exit.Timeout, MemoryLimit: exit.MemoryLimit}
	if exit.Signal != 0 {
		out.Signal, out.SignalNo = syscall.Signal(exit.Signal).String(), exit.Signal
	} else {
		out.ExitCode = &exit.Code
	}
	_ = b.event(out) // who does not take it has gone
	return nil
}

// onProcess runs one request about a process.
func (s *server) onProcess(r *request,
	do func(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error) (any, error) {
	ref, err := r.process()
	if err != nil {
		return nil, err
	}
	m, err := s.ctl.UseBox(r.Context(), r.by, boxID(r))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), boxTimeout)
	defer cancel()
	if err := do(ctx, m, ref); err != nil {
		return nil, control.BoxError(err)
	}
	return map[string]any{"type": "process", "pid": ref.Pid}, nil
}

// inputProcess writes the body to a process's input; with eof=true that ends there.
func (s *server) inputProcess(r *request) (any, error) {
	eof, err := r.flag("eof")
	if err != nil {
		return nil, err
	}
	return s.onProcess(r, func(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
		err := m.InputProcess(ctx, ref, http.MaxBytesReader(r.w, r.Body, outboard.MaxBody))
		if err == nil && eof {
			err = m.CloseInput(ctx, ref)
		}
		return err
	})
}

func (s *server) resizeProcess(r *request) (any, error) {
	var in control.TerminalSize
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	return s.onProcess(r, func(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
		return m.ResizeProcess(ctx, ref, in)
	})
}

func (s *server) signalProcess(r *request) (any, error) {
	var in struct {
		Signal int `json:"signal"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	return s.onProcess(r, func(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
		return m.SignalProcess(ctx, ref, in.Signal)
	})
}

// onFile runs one request about a file.
func (s *server) onFile(r *request,
	do func(ctx context.Context, m control.Sandbox, ref control.FileRef) (any, error)) (any, error) {
	ref := control.FileRef{Path: control.Name(r.query.Get("path")), User: r.query.Get("user")}
	if ref.Path == "" {
		return nil, bad("path: required")
	}
	m, err := s.ctl.UseBox(r.Context(), r.by, boxID(r))
	if err != nil {
		return nil, err
	}
	out, err := do(r.Context(), m, ref)
	return out, control.BoxError(err)
}

type boxFileOut struct {
	Type    string    `json:"type"` // "sandbox_file"
	Path    string    `json:"path"`
	Kind    string    `json:"kind"`
	Size    int64     `json:"size_bytes"`
	Mode    string    `json:"mode"`
	Owner   string    `json:"owner"`
	ModTime time.Time `json:"modified_at"`
	Target  string    `json:"target,omitempty"`
}

func showBoxFile(e control.Entry) boxFileOut {
	return boxFileOut{"sandbox_file", string(e.Path), e.Kind, e.Size, fmt.Sprintf("%04o", e.Mode), e.Owner,
		time.UnixMicro(e.ModTime).UTC(), string(e.Target)}
}

func (s *server) readBoxFile(r *request) (any, error) {
	return s.onFile(r, func(ctx context.Context, m control.Sandbox, ref control.FileRef) (any, error) {
		e, err := m.Stat(ctx, ref)
		if err != nil {
			return nil, err
		}
		h := r.w.Header()
		h.Set("Content-Disposition", "attachment")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Type", "application/octet-stream")
		if e.Kind != "file" {
			return nil, bad("path: %q is not a regular file", clip(string(ref.Path)))
		}
		h.Set("Content-Length", strconv.FormatInt(e.Size, 10))
		if e.Size > 0 {
			if err := m.ReadFile(ctx, ref, 0, e.Size, r.w); err != nil {
				s.cut(r, err)
			}
		}
		return nil, nil
	})
}

func (s *server) writeBoxFile(r *request) (any, error) {
	return s.onFile(r, func(ctx context.Context, m control.Sandbox, ref control.FileRef) (any, error) {
		ref.Whole = true
		e, err := m.WriteFile(ctx, ref, nil, http.MaxBytesReader(r.w, r.Body, outboard.MaxFile))
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			err = outboard.Errorf(outboard.TooLarge, "the file is larger than %d bytes", outboard.MaxFile)
		}
		return showBoxFile(e), err
	})
}

func (s *server) removeBoxFile(r *request) (any, error) {
	return s.onFile(r, func(ctx context.Context, m control.Sandbox, ref control.FileRef) (any, error) {
		return deletedOut{string(ref.Path), "sandbox_file_deleted"}, m.Remove(ctx, ref)
	})
}

// listBoxFiles describes a path, and with depth=N what is below it.
func (s *server) listBoxFiles(r *request) (any, error) {
	depth := 0
	if text := r.query.Get("depth"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1000 {
			return nil, bad("depth: must be 0 to 1000, not %q", clip(text))
		}
		depth = n
	}
	return s.onFile(r, func(ctx context.Context, m control.Sandbox, ref control.FileRef) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, boxTimeout)
		defer cancel()
		e, err := m.Stat(ctx, ref)
		if err != nil {
			return nil, err
		}
		data := []boxFileOut{showBoxFile(e)}
		if depth > 0 && e.Kind == "directory" {
			list, err := m.ReadDir(ctx, ref, depth)
			if err != nil {
				return nil, err
			}
			for _, e := range list {
				data = append(data, showBoxFile(e))
			}
		}
		return map[string]any{"data": data}, nil
	})
}

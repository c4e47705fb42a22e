package bridge

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type execIn struct {
	Argv      []string `json:"argv"`
	TimeoutMs int64    `json:"timeout_ms"` // 0 = none
	Cwd       string   `json:"cwd"`        // "" = the workspace, or where the session is
}

// exec runs a command and streams what it says. Who goes away leaves no process behind: nobody could ask for its end.
func (s *Server) exec(r *request) error {
	var in execIn
	if err := r.decode(&in); err != nil {
		return err
	}
	if len(in.Argv) == 0 || in.TimeoutMs < 0 {
		return outboard.Errorf(outboard.Invalid, "argv must name a program, and timeout_ms must not be negative")
	}
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	sid, err := s.session(r, m)
	if err != nil {
		return err
	}
	start := control.ProcessStart{Argv: in.Argv, Cwd: in.Cwd, TimeoutMs: in.TimeoutMs}
	if sid != "" {
		start = inSession(sid, start)
	} else {
		start.Cwd = cmp.Or(in.Cwd, workspace)
	}
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
	out := &stream{w: r.w, rc: http.NewResponseController(r.w)}
	exit, err := run(ctx, m, start, out.tell)
	switch {
	case err != nil && !out.begun:
		return control.BoxError(err)
	case err != nil:
		_, body := explain(control.BoxError(err))
		_ = out.json("error", body) // who does not take it has gone
	case exit.Timeout:
		_ = out.json("error", errorBody{"the command ran into its timeout and was ended", "exec_timeout"})
	default:
		if out.flush() == nil {
			_ = out.json("exit", map[string]int{"exit_code": code(exit)})
		}
	}
	return nil
}

// decode reads a JSON body. What is not known is ignored; none at all is an empty object.
func (r *request) decode(v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(r.w, r.Body, maxJSON))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return outboard.Errorf(outboard.TooLarge, "the request body is larger than %d bytes", maxJSON)
	}
	if err != nil {
		return outboard.Errorf(outboard.Invalid, "reading the request body: %w", err)
	}
	if len(b) == 0 {
		return nil
	}
	return control.DecodeJSON(b, v)
}

// code is how a shell tells of an end.
func code(exit control.ProcessExit) int {
	if exit.Signal != 0 {
		return 128 + exit.Signal
	}
	return exit.Code
}

// run runs a process and ends it, with all it started, when ctx or each does; the guest ends one whose server
// was killed.
func run(ctx context.Context, m control.Sandbox, p control.ProcessStart,
	each func(control.ProcessEvent) error) (control.ProcessExit, error) {
	pid := 0
	p.HangUp = true
	_, exit, err := m.StartProcess(ctx, p, func(e control.ProcessEvent) error {
		if e.Kind == control.Started {
			pid = e.Pid
		}
		return each(e)
	})
	if err != nil && pid != 0 {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		_ = m.SignalProcess(stop, control.ProcessRef{Pid: pid}, int(syscall.SIGKILL)) // it may have ended by itself
	}
	return exit, err
}

// stream is an answer of server-sent events.
type stream struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
	rest  map[string][]byte // the beginning of a character whose end has not come, by the event's name
}

// tell passes on what a process says. Some clients decode each event as text by itself, so none ends within a
// character.
func (o *stream) tell(e control.ProcessEvent) error {
	name := ""
	switch e.Kind {
	case control.Started:
		o.begun, o.rest = true, map[string][]byte{}
		h := o.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		return o.write("")
	case control.Stdout:
		name = "stdout"
	case control.Stderr:
		name = "stderr"
	case control.Lost:
		return outboard.Errorf(outboard.Exhausted, "the client reads its output too slowly; a part of it is lost")
	default:
		return nil
	}
	data := append(o.rest[name], e.Data...)
	n := whole(data)
	o.rest[name] = append([]byte(nil), data[n:]...)
	return o.bytes(name, data[:n])
}

// whole is how much of b ends with a whole character. What is no text is passed on as it is.
func whole(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

// flush sends what waits for more.
func (o *stream) flush() error {
	return errors.Join(o.bytes("stdout", o.rest["stdout"]), o.bytes("stderr", o.rest["stderr"]))
}

func (o *stream) bytes(name string, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return o.event(name, base64.StdEncoding.EncodeToString(b))
}

func (o *stream) json(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.event(name, string(b))
}

func (o *stream) event(name, data string) error {
	return o.write("event: " + name + "\ndata: " + data + "\n\n")
}

func (o *stream) write(text string) error {
	if err := o.rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := io.WriteString(o.w, text); err != nil {
		return err
	}
	return o.rc.Flush()
}

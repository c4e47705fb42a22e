package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Limits of a session.
const (
	maxEnv      = 32 // variables, and maxEnvText the bytes of one
	maxEnvText  = 1 << 10
	maxCommand  = 128 << 10 // as the kernel has it for one argument
	auditedText = 4 << 10   // of a command: the beginning tells what it was
	maxCols     = 10_000    // of a terminal, and rows
	// tellTime bounds telling a program that its client is gone.
	tellTime = 5 * time.Second
	// inputPiece is what is passed to a program at a time.
	inputPiece = 32 << 10
)

// The shells run what OpenSSH would: the user's login shell, or a command by it. An image without bash has sh.
const (
	loginShell = `if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l`
	runShell   = `if [ -x /bin/bash ]; then exec /bin/bash -c "$1"; fi; exec /bin/sh -c "$1"`
)

// session is one channel that runs a program. Its requests are handled by one goroutine; the program has another.
type session struct {
	c    *conn
	ch   ssh.Channel
	env  map[string]string
	size *control.TerminalSize // nil without a terminal

	feeding sync.WaitGroup // who passes input on; ends with the channel

	mu  sync.Mutex
	m   control.Sandbox // nil before the program runs
	pid int
}

// session runs a channel until its program has ended, or the client closes it.
func (c *conn) session(ctx context.Context, n ssh.NewChannel) {
	ch, reqs, err := n.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &session{c: c, ch: ch, env: map[string]string{}}
	ran := make(chan struct{})
	started := false
	defer func() {
		if started {
			cancel(nil)
			<-ran
		}
	}()
	for req := range reqs { // ends with the channel, which the end of the program closes
		ok := false
		switch {
		case req.Type == "shell" || req.Type == "exec" || req.Type == "subsystem":
			var p *program
			if !started {
				p, ok = s.program(req)
			}
			if ok {
				started = true
				go func() {
					defer close(ran)
					defer s.feeding.Wait()
					defer ch.Close()
					defer c.s.recover("session", c.sc.RemoteAddr().String())
					s.run(ctx, p)
				}()
			}
		default:
			ok = s.request(ctx, req, started)
		}
		if req.WantReply {
			req.Reply(ok, nil)
		}
	}
}

// program is what a client wants to run.
type program struct {
	action  string // of the audit
	command string
	start   control.ProcessStart
}

// program reads a request that starts something.
func (s *session) program(req *ssh.Request) (*program, bool) {
	if req.Type == "shell" {
		return &program{"ssh.shell", "", control.ProcessStart{Argv: []string{"/bin/sh", "-c", loginShell}}}, true
	}
	var arg struct{ Text string }
	if ssh.Unmarshal(req.Payload, &arg) != nil || len(arg.Text) > maxCommand || strings.ContainsRune(arg.Text, 0) {
		return nil, false
	}
	if req.Type == "exec" {
		return &program{"ssh.exec", arg.Text,
			control.ProcessStart{Argv: []string{"/bin/sh", "-c", runShell, "sh", arg.Text}}}, true
	}
	return &program{"ssh.sftp", "", control.ProcessStart{Program: control.ProgramSFTP}}, arg.Text == "sftp"
}

// request handles what is asked of a channel beside starting its program. What is not known is refused: agents
// and displays are not forwarded, since what runs in the sandbox would have them.
func (s *session) request(ctx context.Context, req *ssh.Request, started bool) bool {
	switch req.Type {
	case "env":
		var kv struct{ Name, Value string }
		if started || ssh.Unmarshal(req.Payload, &kv) != nil || !passed(kv.Name, kv.Value) || len(s.env) >= maxEnv {
			return false
		}
		s.env[kv.Name] = kv.Value
		return true
	case "pty-req":
		var pty struct {
			Term                      string
			Cols, Rows, Width, Height uint32
			Modes                     string
		}
		if started || ssh.Unmarshal(req.Payload, &pty) != nil || !passed("TERM", pty.Term) {
			return false
		}
		s.size = sizeOf(pty.Cols, pty.Rows)
		if pty.Term != "" {
			s.env["TERM"] = pty.Term
		}
		return true
	case "window-change":
		var w struct{ Cols, Rows, Width, Height uint32 }
		if s.size == nil || ssh.Unmarshal(req.Payload, &w) != nil {
			return false
		}
		size := sizeOf(w.Cols, w.Rows)
		return s.tell(ctx, func(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
			return m.ResizeProcess(ctx, ref, *size)
		})
	case "signal":
		var sig struct{ Name string }
		if ssh.Unmarshal(req.Payload, &sig) != nil || signals[sig.Name] == 0 {
			return false
		}
		return s.tell(ctx, func(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
			return m.SignalProcess(ctx, ref, signals[sig.Name])
		})
	}
	return false
}

// passed reports whether a variable of the client's is given to its program: those that say how to speak, and
// none that say what to load.
func passed(name, value string) bool {
	known := name == "LANG" || name == "TERM" || strings.HasPrefix(name, "LC_")
	odd := func(r rune) bool { return r < ' ' || r > '~' }
	return known && len(name)+len(value) <= maxEnvText && !strings.ContainsFunc(name+value, odd) &&
		!strings.Contains(name, "=")
}

func sizeOf(cols, rows uint32) *control.TerminalSize {
	return &control.TerminalSize{Cols: uint16(min(cols, maxCols)), Rows: uint16(min(rows, maxCols))}
}

// signals by the names of RFC 4254. Their numbers are those of Linux, where sandboxes are.
var signals = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10,
	"SEGV": 11, "USR2": 12,
	"PIPE": 13, "ALRM": 14, "TERM": 15}

// tell does something with the program, if it runs.
func (s *session) tell(ctx context.Context, f func(context.Context, control.Sandbox, control.ProcessRef) error) bool {
	s.mu.Lock()
	m, pid := s.m, s.pid
	s.mu.Unlock()
	if m == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	return f(ctx, m, control.ProcessRef{Pid: pid}) == nil
}

// run runs the program and says how it ended.
func (s *session) run(ctx context.Context, p *program) {
	exit, err := s.follow(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			fmt.Fprintf(s.ch.Stderr(), "outboard: %s\r\n", told(err))
			s.ended("exit-status", ssh.Marshal(struct{ Status uint32 }{255}))
		}
		return
	}
	if exit.Signal == 0 {
		s.ended("exit-status", ssh.Marshal(struct{ Status uint32 }{uint32(exit.Code)}))
		return
	}
	for name, n := range signals {
		if n == exit.Signal {
			s.ended("exit-signal", ssh.Marshal(struct {
				Name string
				Core bool
				Text string
				Lang string
			}{Name: name}))
			return
		}
	}
	s.ended("exit-status", ssh.Marshal(struct{ Status uint32 }{128 + uint32(exit.Signal)}))
}

func (s *session) ended(how string, payload []byte) {
	if s.ch.CloseWrite() == nil {
		_, _ = s.ch.SendRequest(how, false, payload) // who does not take it has gone
	}
}

// told is an error as a client may read it.
func told(err error) string {
	if err = control.BoxError(err); outboard.KindOf(err) == outboard.Internal {
		return "internal error"
	}
	return outboard.PublicOf(err)
}

// follow records the program, wakes the sandbox, and passes both ways until the program has ended.
func (s *session) follow(ctx context.Context, p *program) (exit control.ProcessExit, err error) {
	if err := s.c.visit.Record(ctx, p.action,
		map[string]string{"command": strings.ToValidUTF8(p.command[:min(len(p.command), auditedText)],
			"?")}); err != nil {
		return exit, err
	}
	m, release, err := s.c.visit.Sandbox(ctx)
	if err != nil {
		return exit, err
	}
	defer release()
	start := p.start
	start.Env, start.Terminal, start.Stdin, start.Patient, start.HangUp = s.env, s.size, s.size == nil, true, true
	if start.Program != "" {
		start.Terminal, start.Stdin = nil, true
	}
	input, stop := context.WithCancel(ctx)
	defer stop()
	each := func(e control.ProcessEvent) error {
		if e.Kind == control.Started {
			s.mu.Lock()
			s.m, s.pid = m, e.Pid
			s.mu.Unlock()
			s.feeding.Go(func() { s.feed(input, m, e.Pid, start.Terminal != nil) })
		}
		return s.show(e)
	}
	_, exit, err = m.StartProcess(ctx, start, each)
	if _, refused := errors.AsType[*control.Refusal](err); refused && s.running() == 0 && s.c.visit.Session != "" {
		start.Cwd = "/" // the agent removed the directory in which its tools begin
		_, exit, err = m.StartProcess(ctx, start, each)
	}
	if err != nil {
		s.hangUp(ctx)
	}
	return exit, err
}

func (s *session) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// show passes output on. It waits while the client takes none, and the program waits with it.
func (s *session) show(e control.ProcessEvent) error {
	var w io.Writer = s.ch
	switch e.Kind {
	case control.Stderr:
		w = s.ch.Stderr()
	case control.Lost:
		return outboard.Errorf(outboard.Unavailable, "some output of the program was lost")
	}
	_, err := w.Write(e.Data)
	return err
}

// feed passes the client's input on to its end.
func (s *session) feed(ctx context.Context, m control.Sandbox, pid int, tty bool) {
	defer s.c.s.recover("input", s.c.sc.RemoteAddr().String())
	ref, buf := control.ProcessRef{Pid: pid}, make([]byte, inputPiece)
	for {
		n, err := s.ch.Read(buf)
		if n > 0 && m.InputProcess(ctx, ref, bytes.NewReader(buf[:n])) != nil {
			_, _ = io.Copy(io.Discard, s.ch) // it reads no more; a client that still sends must not wait for it
			return
		}
		if err == nil {
			continue
		}
		const endOfFile = "\x04"
		if tty {
			_ = m.InputProcess(ctx, ref, strings.NewReader(endOfFile))
		} else {
			_ = m.CloseInput(ctx, ref)
		}
		return
	}
}

// hangUp tells a program that its client is gone, as the end of a terminal line would; one whose client may not
// go on is killed.
func (s *session) hangUp(ctx context.Context) {
	sig := signals["HUP"]
	if errors.Is(context.Cause(ctx), errCut) {
		sig = signals["KILL"]
	}
	s.tell(context.WithoutCancel(ctx), func(ctx context.Context, m control.Sandbox, ref control.ProcessRef) error {
		return m.SignalProcess(ctx, ref, sig)
	})
}

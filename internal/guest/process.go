package guest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// Operations on long-lived processes.
const (
	opProcStart  = "process.start"
	opProcAttach = "process.attach"
	opProcInput  = "process.input"
	opProcEOF    = "process.eof"
	opProcResize = "process.resize"
	opProcSignal = "process.signal"
	opProcList   = "process.list"
)

// ProcessStart asks for one process that may outlive whoever asked. Unlike a call it has no receipt: asking
// twice starts two.
type ProcessStart struct {
	Argv      []string
	Env       map[string]string
	Cwd       string // as a path of FileRef; "" = the user's home
	User      string // a name of the sandbox's /etc/passwd; "" = the tool's user
	Stdin     bool
	Terminal  *Size
	Tag       string // a second name to find it by
	TimeoutMs int64
	Program   string // instead of Argv: a part of the guest's own program, run as the user. See ProgramSFTP
	Patient   bool   // output waits for the attachment of this start however long that takes nothing
	// SIGHUP when the attachment of this start ends before it does, by whatever end of whoever attached
	HangUp bool
}

// ProgramSFTP serves files on standard input and output, by the SSH File Transfer Protocol; see package sftp.
const ProgramSFTP = "sftp"

// Size is a terminal's. Clients of the servers' APIs write it, too.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// ProcessRef names a process by pid or, when Pid is 0, by tag.
type ProcessRef struct {
	Pid int
	Tag string
}

// ProcessInfo describes a process that was started here.
type ProcessInfo struct {
	Pid       int               `json:"pid"`
	Tag       string            `json:"tag,omitempty"`
	Argv      []string          `json:"argv"`
	Env       map[string]string `json:"env,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user"`
	Terminal  bool              `json:"terminal,omitempty"`
	StartedUs int64             `json:"started_us"`
	Exit      *ProcessExit      `json:"exit,omitempty"` // nil while it runs
}

// ProcessExit is how a process ended.
type ProcessExit struct {
	Code    int  `json:"code"`             // -1 when a signal ended it
	Signal  int  `json:"signal,omitempty"` // that signal
	Timeout bool `json:"timeout,omitempty"`

	// MemoryLimit is that of Result, of the time that somebody was attached.
	MemoryLimit int64 `json:"-"`
}

// ProcessEvent is one piece of a process's life. Cursor is where the output stands after it: attaching from
// there continues.
type ProcessEvent struct {
	Kind   ProcessKind
	Cursor int64
	Pid    int    // of Started
	Data   []byte // valid until the callback returns
}

// ProcessKind says what a ProcessEvent is.
type ProcessKind uint8

// The kinds of a ProcessEvent.
const (
	Started  ProcessKind = iota + 1 // always first
	Stdout                          // Data was written to standard output
	Stderr                          // and this to standard error
	Terminal                        // and this to the terminal
	Lost                            // output before Cursor was asked for and is no longer kept
)

// From is where attaching begins: at the oldest output that is kept, or after the newest.
const (
	FromStart int64 = 0
	FromNow   int64 = -1
)

// processAttach is the argument of attach.
type processAttach struct {
	ProcessRef
	From int64
}

// processStart is the argument of start.
type processStart struct {
	ProcessStart
	Attach bool
}

// processControl is the argument of input, EOF, resize and signal.
type processControl struct {
	ProcessRef
	Size   Size
	Signal int
}

// StartProcess starts a process. With f it stays attached: f sees every event, Started first, and the answer is
// how it ended. An error of f, and the end of ctx, end the attachment and leave the process alone. Without f it
// returns once the process runs, with its pid.
func (c *Client) StartProcess(ctx context.Context, p ProcessStart,
	f func(ProcessEvent) error) (int, ProcessExit, error) {
	q := request{op: opProcStart, arg: &processStart{p, f != nil}}
	if f == nil {
		var ref ProcessRef
		err := c.ask(ctx, q, &ref)
		return ref.Pid, ProcessExit{}, err
	}
	exit, err := c.follow(ctx, q, f)
	return 0, exit, err
}

// AttachProcess shows what a process does from a cursor on; see StartProcess for f.
func (c *Client) AttachProcess(ctx context.Context, ref ProcessRef, from int64,
	f func(ProcessEvent) error) (ProcessExit, error) {
	return c.follow(ctx, request{op: opProcAttach, arg: &processAttach{ref, from}}, f)
}

func (c *Client) follow(ctx context.Context, q request, f func(ProcessEvent) error) (ProcessExit, error) {
	var exit ProcessExit
	q.out = &eventWriter{f: f}
	before, known := c.memory()
	err := c.ask(ctx, q, &exit)
	if err == nil {
		exit.MemoryLimit = c.since(before, known)
	}
	return exit, err
}

// InputProcess writes r to a process's standard input or terminal, waiting while the process does not read.
func (c *Client) InputProcess(ctx context.Context, ref ProcessRef, r io.Reader) error {
	return c.ask(ctx, request{op: opProcInput, arg: &processControl{ProcessRef: ref}, in: r}, nil)
}

// CloseInput closes a process's standard input. It is idempotent, and Invalid for a terminal.
func (c *Client) CloseInput(ctx context.Context, ref ProcessRef) error {
	return c.ask(ctx, request{op: opProcEOF, arg: &processControl{ProcessRef: ref}}, nil)
}

// ResizeProcess changes the size of a process's terminal.
func (c *Client) ResizeProcess(ctx context.Context, ref ProcessRef, size Size) error {
	return c.ask(ctx, request{op: opProcResize, arg: &processControl{ProcessRef: ref, Size: size}}, nil)
}

// SignalProcess signals a process and its group. After SIGKILL it returns when the process is gone.
func (c *Client) SignalProcess(ctx context.Context, ref ProcessRef, signal int) error {
	return c.ask(ctx, request{op: opProcSignal, arg: &processControl{ProcessRef: ref, Signal: signal}}, nil)
}

// Processes lists what was started here and still runs, or ended a short time ago.
func (c *Client) Processes(ctx context.Context) ([]ProcessInfo, error) {
	var buf limitedBuffer
	if err := c.ask(ctx, request{op: opProcList, out: &buf, max: maxList}, nil); err != nil {
		return nil, err
	}
	var list []ProcessInfo
	if err := json.Unmarshal(buf.b, &list); err != nil {
		return nil, c.garbage(err)
	}
	return list, nil
}

// limitedBuffer collects a stream that request.max bounds.
type limitedBuffer struct{ b []byte }

// Write appends p.
func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	return len(p), nil
}

// A process's events travel as records in the guest's stream: kind (1), cursor (8), length (4), data; integers
// are big endian.
const (
	recordHead = 1 + 8 + 4
	// maxPiece bounds the data of one record. It is what the guest reads from a pipe at a time.
	maxPiece = 32 << 10
)

// appendRecord encodes one event.
func appendRecord(b []byte, kind ProcessKind, cursor int64, data []byte) []byte {
	b = append(b, byte(kind))
	b = binary.BigEndian.AppendUint64(b, uint64(cursor))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// eventWriter decodes the records written to it. What is no record breaks the protocol.
type eventWriter struct {
	f    func(ProcessEvent) error
	rest []byte // of an incomplete record; at most recordHead+maxPiece
	seen bool   // Started has come
	at   int64
}

// Write passes on every record that p completes.
func (w *eventWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	b := w.rest
	for len(b) >= recordHead {
		n := binary.BigEndian.Uint32(b[9:])
		if n > maxPiece {
			return 0, fmt.Errorf("%w: record of %d bytes", errFrame, n)
		}
		if len(b) < recordHead+int(n) {
			break
		}
		e := ProcessEvent{Kind: ProcessKind(b[0]), Cursor: int64(binary.BigEndian.Uint64(b[1:])),
			Data: b[recordHead : recordHead+int(n)]}
		if err := w.check(&e); err != nil {
			return 0, err
		}
		if err := w.f(e); err != nil {
			return 0, err
		}
		b = b[recordHead+int(n):]
	}
	w.rest = append(w.rest[:0], b...)
	return len(p), nil
}

// check holds the guest to the order it promises: Started once and first, cursors that never go back.
func (w *eventWriter) check(e *ProcessEvent) error {
	if e.Kind < Started || e.Kind > Lost || (e.Kind == Started) == w.seen || e.Cursor < w.at {
		return fmt.Errorf("%w: process event %d at %d after %d", errFrame, e.Kind, e.Cursor, w.at)
	}
	w.at = e.Cursor
	if e.Kind != Started {
		return nil
	}
	pid, err := strconv.Atoi(string(e.Data))
	if err != nil || pid <= 0 {
		return fmt.Errorf("%w: pid %q", errFrame, e.Data)
	}
	w.seen, e.Pid, e.Data = true, pid, nil
	return nil
}

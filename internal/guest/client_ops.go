package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// The operations of the wire.
const (
	opHello = "hello"
	opStart = "start"
	opWait  = "wait"
	opKill  = "kill"
	opAck   = "ack"
	opSave  = "save"
	opLoad  = "load"
	opPut   = "put"
	opGet   = "get"
	opList  = "list"
)

// maxList bounds the encoded answer to List; more files are a refusal.
const maxList = 32 << 20

// waitArg is the argument of wait.
type waitArg struct {
	Key   string
	Epoch int64
	Lines bool // tell the call's newest line, too
}

// keyArg is the argument of kill and ack.
type keyArg struct {
	Key   string
	Epoch int64
}

// loadArg is the argument of load.
type loadArg struct {
	Label string
}

// fileArg is the argument of put, get and list. Path is bytes: names inside need not be UTF-8.
type fileArg struct {
	Path     []byte
	Mode     uint32
	ReadOnly bool
}

// ErrVersion is wrapped by the error of Hello where the guest is one of another version of the protocol.
var ErrVersion = errors.New("guest speaks protocol version")

// Hello asks the guest who it is. A guest of another protocol version is an error.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	f, err := c.do(ctx, request{op: opHello})
	if err != nil {
		return Hello{}, err
	}
	h, err := readHello(f.head)
	if err != nil {
		return Hello{}, c.garbage(err)
	}
	if h.Version != ProtocolVersion {
		return Hello{}, fmt.Errorf("%w %d, this host %d", ErrVersion, h.Version, ProtocolVersion)
	}
	return h, nil
}

// Start starts a call, or finds it when its key is known. The answer is the call's state, with the outcome when
// it ended at once; else Wait gets that.
func (c *Client) Start(ctx context.Context, s Start) (Result, error) {
	input := s.Input
	if len(input) > maxInput {
		return Result{}, &Error{Code: Invalid, Message: fmt.Sprintf("input of %d bytes; at most %d", len(input),
			maxInput)}
	}
	before, known := c.memory()
	r, err := c.result(ctx, request{op: opStart, arg: &s, body: input}, s.Key)
	return c.measured(r, err, before, known)
}

// Wait returns when the call is no longer running: done, killed, or accepted (before a restart of the guest:
// outcome unknown).
func (c *Client) Wait(ctx context.Context, key string, epoch int64) (Result, error) {
	return c.Follow(ctx, key, epoch, nil)
}

// Follow is Wait that also hands the newest line of the call's output to line while the call runs: at most lineSize
// bytes of it, as the
// guest sent them, and a few times a second. It is called on the caller's goroutine; nil is Wait.
func (c *Client) Follow(ctx context.Context, key string, epoch int64, line func(string)) (Result, error) {
	before, known := c.marked(key)
	r, err := c.result(ctx, request{op: opWait, arg: &waitArg{key, epoch, line != nil}, line: line}, key)
	return c.measured(r, err, before, known)
}

// Kill ends a call and returns what became of it. A key that was never started can never be started afterwards.
func (c *Client) Kill(ctx context.Context, key string, epoch int64) (Result, error) {
	before, known := c.marked(key)
	r, err := c.result(ctx, request{op: opKill, arg: &keyArg{key, epoch}}, key)
	return c.measured(r, err, before, known)
}

// Ack lets the guest drop a call's output. It is idempotent.
func (c *Client) Ack(ctx context.Context, key string, epoch int64) error {
	return c.ask(ctx, request{op: opAck, arg: &keyArg{key, epoch}}, nil)
}

// Save writes the workspace, or what changed since s.Base, to w as a tar.
func (c *Client) Save(ctx context.Context, s Save, w io.Writer) (Saved, error) {
	var saved Saved
	n := &counter{w: w}
	if err := c.ask(ctx, request{op: opSave, arg: &s, out: n}, &saved); err != nil {
		return Saved{}, err
	}
	if saved.Bytes != n.n || saved.Changed != (n.n > 0) {
		return Saved{}, fmt.Errorf("guest sent %d bytes of workspace and claims %d", n.n, saved.Bytes)
	}
	return saved, nil
}

// Load applies tars made by Save, one after the other in r, oldest first; label names the resulting state.
func (c *Client) Load(ctx context.Context, label string, r io.Reader) error {
	return c.ask(ctx, request{op: opLoad, arg: &loadArg{label}, in: r}, nil)
}

// Put writes one file with its parents.
func (c *Client) Put(ctx context.Context, path string, mode uint32, readOnly bool, r io.Reader) error {
	return c.ask(ctx, request{op: opPut, arg: &fileArg{Path: []byte(path), Mode: mode, ReadOnly: readOnly}, in: r}, nil)
}

// Get reads one regular file.
func (c *Client) Get(ctx context.Context, path string, w io.Writer) error {
	return c.ask(ctx, request{op: opGet, arg: &fileArg{Path: []byte(path)}, out: w}, nil)
}

// List returns the regular files below dir.
func (c *Client) List(ctx context.Context, dir string) ([]Stat, error) {
	var buf bytes.Buffer
	if err := c.ask(ctx, request{op: opList, arg: &fileArg{Path: []byte(dir)}, out: &buf, max: maxList},
		nil); err != nil {
		return nil, err
	}
	var wire []statWire
	if err := json.Unmarshal(buf.Bytes(), &wire); err != nil {
		return nil, c.garbage(err)
	}
	stats := make([]Stat, len(wire))
	for i, s := range wire {
		stats[i] = Stat{Path: string(s.Path), Size: s.Size, Mode: s.Mode, ModTime: s.ModTime}
	}
	return stats, nil
}

// statWire is Stat with a path of bytes.
type statWire struct {
	Path    []byte `json:"path"`
	Size    int64  `json:"size"`
	Mode    uint32 `json:"mode"`
	ModTime int64  `json:"mod_time_us"`
}

// ask runs an exchange whose answer decodes into v.
func (c *Client) ask(ctx context.Context, q request, v form.Message) error {
	f, err := c.do(ctx, q)
	if err != nil || v == nil {
		return err
	}
	if err := form.DecodeText(f.head, v); err != nil {
		return c.garbage(err)
	}
	return nil
}

// result runs an exchange that answers with a Result; the output travels as the frame's body.
func (c *Client) result(ctx context.Context, q request, key string) (Result, error) {
	f, err := c.do(ctx, q)
	if err != nil {
		return Result{}, err
	}
	var r Result
	if err := form.DecodeText(f.head, &r); err != nil {
		return Result{}, c.garbage(err)
	}
	if r.Key != key || !validState(r.State) || !validCause(r.Cause) || len(r.FullPath) > maxPath ||
		!utf8.ValidString(r.FullPath) {
		return Result{}, c.garbage(errors.New("no possible answer about this call"))
	}
	r.Output = f.body
	if len(r.Output) == 0 {
		r.Output = nil
	}
	return r, nil
}

func validState(s string) bool {
	return s == StateAccepted || s == StateRunning || s == StateDone || s == StateKilled
}

// maxPath bounds a path that the guest names.
const maxPath = 4096

func validCause(s string) bool {
	return s == "" || s == causeExited || s == causeTimeout || s == causeKilled || s == causeError
}

// garbage drops the connection of a guest that does not speak the protocol.
func (c *Client) garbage(err error) error {
	c.fail(fmt.Errorf("%w: %w", errFrame, err))
	return c.translate(c.cause())
}

// counter counts what passes.
type counter struct {
	w io.Writer
	n int64
}

// Write passes p on.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

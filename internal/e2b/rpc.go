package e2b

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// The Connect protocol with JSON: a unary call is one JSON body each way; of a stream, requests and answers are
// envelopes of one byte of flags, four of length and JSON, and the last envelope says how it went.

// rpcError is an error of the Connect protocol.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error returns code and message.
func (e *rpcError) Error() string { return e.Code + ": " + e.Message }

// rpcStatuses maps the codes of unary calls to HTTP.
var rpcStatuses = map[string]int{
	"invalid_argument": 400, "failed_precondition": 400, "unauthenticated": 401, "permission_denied": 403, "not_found": 404,
	"already_exists": 409, "resource_exhausted": 429, "canceled": 499, "internal": 500, "unknown": 500, "unimplemented": 501,
	"unavailable": 503, "deadline_exceeded": 504,
}

// envelope flags.
const flagEnd = 0x02

// errGone says that the machine, or the connection to it, is lost under a request.
var errGone = errors.New("the sandbox is gone")

// errOver says that a stream has ended.
var errOver = errors.New("the stream has ended")

// explain turns an error of a machine into one of the protocol, or errGone.
func explain(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*rpcError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*control.Refusal](err); ok {
		code := refusals[e.Code].rpc
		if code == "" {
			code = "internal"
		}
		return &rpcError{code, e.Message}
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded): // its cause may be a text of ours
		return &rpcError{"deadline_exceeded", "the deadline of the request is over"}
	case ctx.Err() != nil:
		return &rpcError{"canceled", "the request was given up"}
	case outboard.KindOf(err) == outboard.Invalid:
		return &rpcError{"invalid_argument", err.Error()}
	}
	return errGone
}

// rpc runs a call by its name.
func (v *visit) rpc(name string) {
	if v.Method != http.MethodPost {
		fail(v.w, outboard.Errorf(outboard.Invalid, "%s takes POST only", v.URL.Path))
		return
	}
	if u, ok := v.unaries()[name]; ok {
		v.unary(u)
		return
	}
	if f, ok := map[string]func(*call) error{"Start": v.start, "Connect": v.attach, "WatchDir": v.watchDir}[name]; ok {
		done, err := v.s.ctl.OpenStream(v.Context(), v.box.Org)
		if err != nil {
			reply(v.w, http.StatusTooManyRequests, rpcError{"resource_exhausted", outboard.PublicOf(err)})
			return
		}
		defer done()
		v.stream(f)
		return
	}
	reply(v.w, http.StatusNotImplemented, rpcError{"unimplemented", name + " is not built here"})
}

// unary is one call with one answer.
func (v *visit) unary(f func(ctx context.Context, body []byte) (any, error)) {
	body, err := io.ReadAll(http.MaxBytesReader(v.w, v.Body, maxMessage))
	if err != nil {
		reply(v.w, http.StatusBadRequest, rpcError{"invalid_argument", "reading the request: " + err.Error()})
		return
	}
	ctx, cancel := unary(v.Request)
	defer cancel()
	out, err := f(ctx, body)
	if err == nil {
		reply(v.w, http.StatusOK, out)
		return
	}
	var e *rpcError
	if err = explain(ctx, err); errors.As(err, &e) {
		reply(v.w, rpcStatuses[e.Code], e)
		return
	}
	gone(v.w, v.box.ID)
}

// maxMessage bounds one message of an RPC: the SDKs send input in pieces.
const maxMessage = 8 << 20

// message decodes an RPC's JSON. What is not known is ignored.
func message(body []byte, v any) error {
	if len(body) == 0 {
		return nil
	}
	if err := control.DecodeJSON(body, v); err != nil {
		return &rpcError{"invalid_argument", outboard.PublicOf(err)}
	}
	return nil
}

// call is one stream under way. send may be called from several goroutines.
type call struct {
	ctx  context.Context
	body []byte // the request's message
	left time.Duration

	mu   sync.Mutex
	w    http.ResponseWriter
	rc   *http.ResponseController
	idle *time.Timer
	gap  time.Duration
	over bool // set by close
}

// send writes one message.
func (c *call) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.write(0, b)
}

func (c *call) write(flags byte, b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return errOver
	}
	if c.idle != nil {
		c.idle.Reset(c.gap)
	}
	// A connection without deadlines is one of a test.
	if err := c.rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	out := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b)))
	if _, err := c.w.Write(append(out, b...)); err != nil {
		return err
	}
	return c.rc.Flush()
}

// close ends what the call sends. The writer is the server's again when the handler returns: a timer that wrote
// to it later would write into somebody else's answer, or into nothing, which ends the process.
func (c *call) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.idle != nil {
		c.idle.Stop()
	}
}

// defaultKeepalive is how often a stream without news says that it lives, where the client asks for nothing else.
const defaultKeepalive = 90 * time.Second

// stream runs a call whose answer is a stream.
func (v *visit) stream(f func(*call) error) {
	body, err := readEnvelope(http.MaxBytesReader(v.w, v.Body, maxMessage+envelopeHead))
	if err != nil || !strings.HasPrefix(v.Header.Get("Content-Type"), "application/connect+json") {
		reply(v.w, http.StatusUnsupportedMediaType, rpcError{"invalid_argument",
			"expected one message of application/connect+json"})
		return
	}
	c := &call{ctx: v.Context(), body: body, w: v.w, rc: http.NewResponseController(v.w), gap: defaultKeepalive}
	if n, err := strconv.Atoi(v.Header.Get("Keepalive-Ping-Interval")); err == nil && n > 0 && n <= 3600 {
		c.gap = time.Duration(n) * time.Second
	}
	if ms, err := strconv.ParseInt(v.Header.Get("Connect-Timeout-Ms"), 10, 64); err == nil && ms > 0 {
		c.left = time.Duration(min(ms, int64(365*24*time.Hour/time.Millisecond))) * time.Millisecond
	}
	v.w.Header().Set("Content-Type", "application/connect+json")
	defer c.close()
	err = f(c)
	if v.Context().Err() != nil {
		// the client has gone, or the server goes: what it has is not all, and must not end as if it were
		panic(http.ErrAbortHandler)
	}
	end := []byte("{}")
	if err != nil {
		var e *rpcError
		if err = explain(c.ctx, err); !errors.As(err, &e) {
			panic(http.ErrAbortHandler) // the SDKs tell the loss of a sandbox by a connection that is cut
		}
		if end, err = json.Marshal(map[string]any{"error": e}); err != nil {
			return
		}
	}
	_ = c.write(flagEnd, end) // who does not take it has gone
}

// deadline bounds the call by the client's own deadline.
func (c *call) deadline() context.CancelFunc {
	if c.left == 0 {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.left)
	c.ctx = ctx
	return cancel
}

// keepAlive makes the call send v whenever it has said nothing for a while.
func (c *call) keepAlive(v any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = time.AfterFunc(c.gap, func() { _ = c.send(v) }) // who does not take it has gone
}

const envelopeHead = 5

// readEnvelope reads the one message of a request.
func readEnvelope(r io.Reader) ([]byte, error) {
	var head [envelopeHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if head[0] != 0 || n > maxMessage {
		return nil, errors.New("not a plain message")
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// ErrDisconnected is wrapped by every error of a Client whose connection is lost, was closed, or was dropped
// because the guest broke the protocol. It says nothing about the calls under way: connect again and ask.
var ErrDisconnected = errors.New("connection to the guest lost")

// maxPending bounds the exchanges under way on one connection.
const maxPending = 1024

// Client is the host's end of one connection to a guest. Its methods may be called from any goroutine; each
// returns when it is answered, when ctx ends, or when the connection is lost, whatever the guest does. Refusals
// are *Error.
type Client struct {
	// Lost, when set before the first use, translates errors that wrap ErrDisconnected: a provider knows what
	// the loss of the connection says about the machine.
	Lost func(error) error

	// Memory, when set before the first use, counts what the sandbox's limit on memory has done; false = it is
	// not known.
	Memory func() (MemoryCount, bool)

	w    *wire
	gone chan struct{} // closed by fail
	wg   sync.WaitGroup

	mu      sync.Mutex
	err     error // why gone is closed
	last    uint32
	pending map[uint32]*exchange
	marks   map[string]MemoryCount // of calls under way that were started here, by their key
}

// exchange is one request under way.
type exchange struct {
	*stream
	settled chan struct{} // closed by the reading goroutine once answer is set
	answer  frame
	lines   chan string // capacity 1: the newest line; nil = none was asked for
}

// Dial connects to a listening guest.
func Dial(ctx context.Context, network, address string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connecting to the guest: %w", err)
	}
	return NewClient(conn), nil
}

// NewClient speaks to a guest over conn, which it owns from here. Close ends it.
func NewClient(conn net.Conn) *Client {
	c := &Client{w: newWire(conn), gone: make(chan struct{}), pending: make(map[uint32]*exchange)}
	c.wg.Go(c.read)
	return c
}

// Close drops the connection and waits for its goroutines. Calls go on inside.
func (c *Client) Close() error {
	c.fail(errors.New("closed by this side"))
	c.wg.Wait()
	return nil
}

// Connected reports whether neither side has closed the connection yet. It asks the kernel of this host, not the guest.
func (c *Client) Connected() bool {
	select {
	case <-c.gone:
		return false
	default:
		return !peerClosed(c.w.conn) // the reader learns of that a moment later
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", ErrDisconnected, err)
		close(c.gone)
		c.w.conn.Close()
	}
}

func (c *Client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// read hands frames to their exchanges until the connection ends.
func (c *Client) read() {
	r := bufio.NewReaderSize(c.w.conn, readAhead)
	for {
		f, err := readFrame(r)
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Client) dispatch(f frame) error {
	c.mu.Lock()
	x, last := c.pending[f.id], c.last
	if x != nil && (f.kind == kindResponse || f.kind == kindFailure) {
		delete(c.pending, f.id)
	}
	c.mu.Unlock()
	if f.id == 0 || f.id > last {
		return fmt.Errorf("%w: answer to request %d, which was never made", errFrame, f.id)
	}
	if x == nil {
		return nil // given up by its caller; the guest may not know yet
	}
	switch f.kind {
	case kindResponse, kindFailure:
		x.ended()
		x.answer = f
		close(x.settled)
	case kindData:
		return x.arrived(f.body)
	case kindEnd:
		x.ended()
	case kindCredit:
		return x.credited()
	case kindLine:
		return x.wrote(f)
	default:
		return fmt.Errorf("%w: kind %d from a guest", errFrame, f.kind)
	}
	return nil
}

// wrote takes a line frame. A line that nobody has taken yet gives way to it.
func (x *exchange) wrote(f frame) error {
	if x.lines == nil || len(f.head) > 0 || len(f.body) == 0 || len(f.body) > lineSize {
		return fmt.Errorf("%w: a line of %d bytes", errFrame, len(f.body))
	}
	select {
	case <-x.lines:
	default:
	}
	x.lines <- string(f.body) // only this goroutine sends
	return nil
}

// listen hands the newest lines to line until the answer is there, no more often than lineEvery whatever the guest
// does.
func (x *exchange) listen(ctx context.Context, line func(string)) {
	lines := x.lines
	var again <-chan time.Time
	for {
		select {
		case text := <-lines:
			line(text)
			lines, again = nil, time.After(lineEvery)
		case <-again:
			lines, again = x.lines, nil
		case <-x.settled:
			return
		case <-x.gone:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (c *Client) open(lines bool) (*exchange, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if len(c.pending) >= maxPending || c.last == ^uint32(0) {
		return nil, fmt.Errorf("guest: %d requests under way on one connection", len(c.pending))
	}
	c.last++
	settled := make(chan struct{})
	x := &exchange{stream: newStream(c.last, c.w, c.gone, settled), settled: settled}
	if lines {
		x.lines = make(chan string, 1)
	}
	c.pending[c.last] = x
	return x, nil
}

// abandon forgets an exchange whose caller gave up, and tells the guest without waiting for it.
func (c *Client) abandon(x *exchange) {
	c.mu.Lock()
	_, open := c.pending[x.id]
	delete(c.pending, x.id)
	if open && c.err == nil {
		c.wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), cancelPatience)
			defer cancel()
			if err := c.w.send(ctx, frame{kind: kindCancel, id: x.id}); err != nil {
				c.fail(err)
			}
		})
	}
	c.mu.Unlock()
}

// cancelPatience is how long a guest may take to read a cancellation before its connection counts as dead.
const cancelPatience = 10 * time.Second

// request describes one exchange for do.
type request struct {
	op   string
	arg  form.Message
	body []byte       // sent with the request; longer than a chunk becomes a stream
	in   io.Reader    // sent as a stream
	out  io.Writer    // takes the guest's stream; nil: a guest that sends one breaks the protocol
	max  int64        // of the guest's stream; 0 = maxStream
	line func(string) // takes the newest lines of a call; nil: a guest that sends one breaks the protocol
}

// do runs one exchange and returns its answer.
func (c *Client) do(ctx context.Context, q request) (frame, error) {
	f, err := c.try(ctx, q)
	return f, c.translate(err)
}

func (c *Client) translate(err error) error {
	if c.Lost != nil && errors.Is(err, ErrDisconnected) {
		return c.Lost(err)
	}
	return err
}

func (c *Client) try(ctx context.Context, q request) (frame, error) {
	x, err := c.open(q.line != nil)
	if err != nil {
		return frame{}, err
	}
	f, err := c.run(ctx, x, q)
	if err != nil {
		c.abandon(x)
		if we, ok := errors.AsType[*wireError](err); ok {
			c.fail(we.err)
		}
		if errors.Is(err, errFrame) {
			c.fail(err)
		}
		if ctx.Err() != nil {
			return frame{}, context.Cause(ctx)
		}
		if cause := c.cause(); cause != nil {
			return frame{}, cause
		}
		return frame{}, err
	}
	if f.kind == kindFailure {
		return frame{}, refusal(f.head)
	}
	return f, nil
}

func (c *Client) run(ctx context.Context, x *exchange, q request) (frame, error) {
	more := q.in != nil || len(q.body) > chunkSize
	head := newHead(q.op, q.arg, more)
	if len(head) > maxFrame/2 {
		return frame{}, &Error{Code: Invalid, Message: "request is too large"}
	}
	now := min(len(q.body), chunkSize)
	if err := c.w.send(ctx, frame{kind: kindRequest, id: x.id, head: head, body: q.body[:now]}); err != nil {
		return frame{}, err
	}
	if more {
		if err := x.feed(ctx, q, now); err != nil && err != errStopped {
			return frame{}, err
		}
	}
	if q.line != nil {
		x.listen(ctx, q.line)
	}
	if err := x.take(ctx, q); err != nil {
		return frame{}, err
	}
	select {
	case <-x.settled:
		return x.answer, nil
	default:
	}
	select {
	case <-x.settled:
		return x.answer, nil
	case <-ctx.Done():
		return frame{}, context.Cause(ctx)
	case <-c.gone:
		return frame{}, ErrDisconnected
	}
}

// feed sends what did not fit the request, then the caller's reader.
func (x *exchange) feed(ctx context.Context, q request, now int) error {
	w := &sender{ctx: ctx, s: x.stream}
	if _, err := w.Write(q.body[now:]); err != nil {
		return err
	}
	if q.in != nil {
		// The sender must be hidden from io.Copy's shortcuts: readers with WriteTo would hold whole files in memory.
		if _, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{q.in},
			make([]byte, chunkSize)); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	return x.end(ctx)
}

// take gives the guest's stream to the caller's writer.
func (x *exchange) take(ctx context.Context, q request) error {
	limit := q.max
	if limit == 0 {
		limit = maxStream
	}
	for n := int64(0); ; {
		b, err := x.recv(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if n += int64(len(b)); q.out == nil || n > limit {
			return fmt.Errorf("%w: %d bytes of data, %d allowed", errFrame, n, limit)
		}
		if _, err := q.out.Write(b); err != nil {
			return err
		}
	}
}

// refusal decodes an Error of the guest, with bounded strings.
func refusal(head []byte) error {
	var e Error
	if err := form.DecodeText(head, &e); err != nil || e.Code == "" {
		return &Error{Code: Internal, Message: "guest failed without a readable reason"}
	}
	e.Code, e.Message = e.Code[:min(len(e.Code), 64)], e.Message[:min(len(e.Message), 4096)]
	return &e
}

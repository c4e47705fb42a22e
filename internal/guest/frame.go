package guest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Limits of the wire, the same at both ends.
const (
	// maxFrame bounds one frame, so that a peer cannot make this side allocate more than that per connection.
	maxFrame = 1 << 20
	// chunkSize is the body of one data frame: large enough that the framing costs nothing, small enough to interleave.
	chunkSize = 64 << 10
	// readAhead is the buffer of a connection's reader: enough for the frames of a call. Larger ones are read past it.
	readAhead = 4 << 10
	// window is how many data frames of one stream may be under way. A slow consumer stops its own stream, not
	// the connection.
	window = 16
	// creditBatch is how many consumed data frames one credit frame gives back.
	creditBatch = window / 2
	// maxStream bounds one stream in bytes, against a peer that never ends.
	maxStream = 64 << 30
	// maxInput bounds the input of one call. The control plane takes request bodies of 32 MiB, so no tool input
	// is larger.
	maxInput = 32 << 20
	// maxOutput bounds the output returned with one result; it has to fit a frame. More stays in the file.
	maxOutput = 512 << 10
	// defaultOutput is the output limit of a call that names none: what a model is shown.
	defaultOutput = 100_000
	// lineSize bounds the newest line of a running call: more than a terminal shows in a row.
	lineSize = 200
	// lineEvery is how often a running call's newest line may be told: a person cannot read faster.
	lineEvery = 250 * time.Millisecond
)

// kind is what a frame is for.
type kind uint8

const (
	kindRequest  kind = iota + 1 // head: requestHead; body: start of the input
	kindResponse                 // ends an exchange; head: the result
	kindFailure                  // ends an exchange; head: Error
	kindData                     // body: the next bytes of the sender's stream
	kindEnd                      // the sender's stream is complete
	kindCredit                   // creditBatch more data frames may follow
	kindCancel                   // the caller gave up on the exchange
	kindLine                     // body: the newest line of the call that the exchange waits for
)

// frame is one message. On the wire: length of the rest (4 bytes), kind (1), id (4), length of head (4), head,
// body; integers are big endian.
type frame struct {
	kind kind
	id   uint32
	head []byte // of a request, a response or a failure: a message
	body []byte
}

const (
	lengthSize = 4
	fixedSize  = 1 + 4 + 4 // after the length
)

// errFrame is a peer that does not speak the protocol.
var errFrame = errors.New("broken frame")

// appendFrame encodes f. It panics when f is too large: senders cut their data before.
func appendFrame(b []byte, f frame) []byte {
	n := fixedSize + len(f.head) + len(f.body)
	if n > maxFrame {
		panic(fmt.Sprintf("guest: frame of %d bytes", n))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = append(b, byte(f.kind))
	b = binary.BigEndian.AppendUint32(b, f.id)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.head)))
	b = append(b, f.head...)
	return append(b, f.body...)
}

// readFrame reads one frame. It returns io.EOF only between frames, and wraps errFrame for bytes that are no frame.
func readFrame(r *bufio.Reader) (frame, error) {
	var fixed [lengthSize + fixedSize]byte
	if _, err := io.ReadFull(r, fixed[:lengthSize]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(fixed[:])
	if n < fixedSize || n > maxFrame {
		return frame{}, fmt.Errorf("%w: length %d", errFrame, n)
	}
	if _, err := io.ReadFull(r, fixed[lengthSize:]); err != nil {
		return frame{}, noEOF(err)
	}
	f := frame{kind: kind(fixed[4]), id: binary.BigEndian.Uint32(fixed[5:])}
	head := binary.BigEndian.Uint32(fixed[9:])
	rest := n - fixedSize
	if f.kind < kindRequest || f.kind > kindLine || head > rest {
		return frame{}, fmt.Errorf("%w: kind %d, head %d of %d", errFrame, f.kind, head, rest)
	}
	data := make([]byte, rest)
	if _, err := io.ReadFull(r, data); err != nil {
		return frame{}, noEOF(err)
	}
	f.head, f.body = data[:head:head], data[head:]
	return f, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// wire is the sending half of a connection, shared by all exchanges on it.
type wire struct {
	conn net.Conn
	sem  chan struct{} // capacity 1: who holds its element may write
}

func newWire(conn net.Conn) *wire { return &wire{conn: conn, sem: make(chan struct{}, 1)} }

// send writes one frame, or gives up with ctx. A frame that was cut in the middle costs the connection, which
// send closes; giving up before the first byte costs nothing.
func (w *wire) send(ctx context.Context, f frame) error {
	select {
	case w.sem <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-w.sem }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	buf := appendFrame(make([]byte, 0, lengthSize+fixedSize+len(f.head)+len(f.body)), f)
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		w.conn.SetWriteDeadline(time.Unix(1, 0)) // a peer that does not read must not hold the caller
		close(cut)
	})
	n, err := w.conn.Write(buf)
	if !stop() {
		<-cut
		w.conn.SetWriteDeadline(time.Time{})
	}
	if n == 0 && ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return context.Cause(ctx)
	}
	if err != nil {
		w.conn.Close()
		return &wireError{err}
	}
	return nil
}

// wireError marks an error after which the connection cannot be used.
type wireError struct{ err error }

// Error returns the cause's text.
func (e *wireError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *wireError) Unwrap() error { return e.err }

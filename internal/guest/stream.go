package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// stream is one exchange's flow of bytes, one in each direction. The methods arrived, ended and credited belong
// to the goroutine that reads the connection and never block; the others to the one that runs the exchange.
type stream struct {
	id      uint32
	w       *wire
	gone    <-chan struct{} // closed when the connection is lost
	stopped <-chan struct{} // closed when the peer needs no more data; may be nil
	in      chan []byte     // capacity window; closed after the peer's last data
	credits chan struct{}   // capacity window; one element per data frame we may send
	closed  bool            // in is closed; reading goroutine only
	taken   int             // frames consumed since the last credit
	total   int64
}

// errStopped is a send after the peer has answered already.
var errStopped = errors.New("peer needs no more data")

func newStream(id uint32, w *wire, gone, stopped <-chan struct{}) *stream {
	s := &stream{id: id, w: w, gone: gone, stopped: stopped, in: make(chan []byte, window),
		credits: make(chan struct{}, window)}
	for range window {
		s.credits <- struct{}{}
	}
	return s
}

// arrived takes a data frame from the peer.
func (s *stream) arrived(body []byte) error {
	if s.closed {
		return fmt.Errorf("%w: data after the end", errFrame)
	}
	if len(body) > chunkSize {
		return fmt.Errorf("%w: data of %d bytes", errFrame, len(body))
	}
	select {
	case s.in <- body:
		return nil
	default:
		return fmt.Errorf("%w: data beyond the window", errFrame)
	}
}

// ended closes the peer's stream; a second end is harmless.
func (s *stream) ended() {
	if !s.closed {
		s.closed = true
		close(s.in)
	}
}

// credited takes a credit frame from the peer.
func (s *stream) credited() error {
	for range creditBatch {
		select {
		case s.credits <- struct{}{}:
		default:
			return fmt.Errorf("%w: credit beyond the window", errFrame)
		}
	}
	return nil
}

// recv returns the next bytes of the peer's stream, or io.EOF after the last.
func (s *stream) recv(ctx context.Context) ([]byte, error) {
	var b []byte
	var ok bool
	select {
	case b, ok = <-s.in:
	default:
		select {
		case b, ok = <-s.in:
		case <-s.gone:
			return nil, ErrDisconnected
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if !ok {
		return nil, io.EOF
	}
	if s.total += int64(len(b)); s.total > maxStream {
		return nil, fmt.Errorf("%w: stream over %d bytes", errFrame, int64(maxStream))
	}
	if s.taken++; s.taken == creditBatch {
		s.taken = 0
		if err := s.w.send(ctx, frame{kind: kindCredit, id: s.id}); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// send sends bytes as data frames, waiting for the peer to consume.
func (s *stream) send(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		select {
		case <-s.credits:
		case <-s.stopped:
			return errStopped
		case <-s.gone:
			return ErrDisconnected
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		n := min(len(p), chunkSize)
		if err := s.w.send(ctx, frame{kind: kindData, id: s.id, body: p[:n]}); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// end says that everything was sent.
func (s *stream) end(ctx context.Context) error {
	return s.w.send(ctx, frame{kind: kindEnd, id: s.id})
}

// sender is the stream as an io.Writer that cuts its input into whole chunks. flush sends the rest; it does not
// end the stream.
type sender struct {
	ctx context.Context
	s   *stream
	buf []byte
	n   int64
}

// Write sends every chunk that p completes.
func (w *sender) Write(p []byte) (int, error) {
	w.n += int64(len(p))
	if w.buf == nil {
		w.buf = make([]byte, 0, chunkSize)
	}
	for rest := p; len(rest) > 0; {
		n := min(len(rest), chunkSize-len(w.buf))
		w.buf, rest = append(w.buf, rest[:n]...), rest[n:]
		if len(w.buf) == chunkSize {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func (w *sender) flush() error {
	err := w.s.send(w.ctx, w.buf)
	w.buf = w.buf[:0]
	return err
}

// receiver is the stream as an io.Reader.
type receiver struct {
	ctx  context.Context
	s    *stream
	rest []byte
}

// Read returns what the peer sent next.
func (r *receiver) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		b, err := r.s.recv(r.ctx)
		if err != nil {
			return 0, err
		}
		r.rest = b
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

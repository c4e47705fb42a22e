package egress

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
)

// crypto/tls reads and writes a connection record by record, 16 KiB at most, and each is a system call. What is large passes with four
// records a call: the wire is what lies between TLS and the socket, and holds bytes of records for a moment, on either way.

// wire is a socket under TLS. One goroutine reads at a time; writes may come from several.
type wire struct {
	net.Conn

	in     *[]byte // from wires, what a read has brought beyond the record that was asked for; nil = nothing
	ahead  []byte  // the rest of it
	large  bool    // reads bring more than a record
	nowait bool    // Read gives what is there

	mu    sync.Mutex
	out   *[]byte // from wires, while writes are held back
	held  int     // bytes of it
	owing error   // of a write that was held back; all later ones fail with it
}

// wires are buffers of wires.
var wires = sync.Pool{New: func() any { b := make([]byte, wireBuffer); return &b }}

// Read implements net.Conn. With nowait it fails with a timeout where it would wait, which crypto/tls does not take for an end.
func (w *wire) Read(b []byte) (int, error) {
	if len(w.ahead) == 0 {
		switch {
		case w.nowait:
			return 0, os.ErrDeadlineExceeded
		case !w.large || len(b) == 0:
			return w.Conn.Read(b)
		}
		if err := w.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(b, w.ahead)
	if w.ahead = w.ahead[n:]; len(w.ahead) == 0 {
		wires.Put(w.in)
		w.in, w.ahead = nil, nil
	}
	return n, nil
}

// fill reads as much as there is, and waits for the first byte of it.
func (w *wire) fill() error {
	b := wires.Get().(*[]byte)
	n, err := w.Conn.Read(*b)
	if n == 0 {
		wires.Put(b)
		return err
	}
	w.in, w.ahead = b, (*b)[:n] // an error comes again with the next read
	return nil
}

// Write implements net.Conn.
func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owing != nil {
		return 0, w.owing
	}
	if w.out == nil {
		return w.Conn.Write(b)
	}
	if w.held+len(b) > len(*w.out) {
		if w.flush(); w.owing != nil {
			return 0, w.owing
		}
	}
	if len(b) > len(*w.out) {
		return w.Conn.Write(b)
	}
	w.held += copy((*w.out)[w.held:], b)
	return len(b), nil
}

// flush sends what is held back. w.mu is held.
func (w *wire) flush() {
	if w.held > 0 && w.owing == nil {
		_, w.owing = w.Conn.Write((*w.out)[:w.held])
	}
	w.held = 0
}

// hold holds writes back until release, which sends them in one piece.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		w.out = wires.Get().(*[]byte)
	}
}

func (w *wire) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out != nil {
		w.flush()
		wires.Put(w.out)
		w.out = nil
	}
	return w.owing
}

// secured is TLS on a wire.
type secured struct {
	*tls.Conn
	wire *wire
}

// Read returns as many records as are there and fit into b. It waits for the first of them only.
func (s *secured) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if s.wire.large = n >= largeRecord; !s.wire.large {
		return n, err
	}
	s.wire.nowait = true
	for err == nil && len(s.wire.ahead) > 0 && len(b)-n >= maxRecord {
		var more int
		more, err = s.Conn.Read(b[n:])
		n += more
	}
	s.wire.nowait = false
	if err == os.ErrDeadlineExceeded && n > 0 { // nowait's own: a real one comes again with the next read
		err = nil
	}
	return n, err
}

// spoken reports whether the other side has said more than was read, as far as it has come here.
func (w *wire) spoken() bool { return len(w.ahead) > 0 }

// Write sends b. What is longer than a record leaves in one piece.
func (s *secured) Write(b []byte) (int, error) {
	if len(b) <= maxRecord {
		return s.Conn.Write(b)
	}
	s.wire.hold()
	n, err := s.Conn.Write(b)
	if e := s.wire.release(); err == nil && e != nil {
		return 0, e
	}
	return n, err
}

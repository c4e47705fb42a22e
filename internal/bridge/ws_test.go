//go:build linux

package bridge

import (
	"bufio"
	"bytes"
	be "encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// sent is a frame as a client sends it. Its mask is all zeros, which leaves the data as it is.
func sent(head byte, data string) []byte {
	b := []byte{head}
	switch n := len(data); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = be.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = be.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	return append(append(b, 0, 0, 0, 0), data...)
}

// reading returns a WebSocket whose client sends what feed yields, and takes what it is sent.
func reading(feed func(yield func([]byte) bool)) *wsConn {
	here, there := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, there) }()
	r, w := io.Pipe()
	go func() {
		for b := range feed {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
		w.Close()
	}()
	return &wsConn{conn: closing{here, r}, r: bufio.NewReader(r)}
}

// closing ends the client's side as well.
type closing struct {
	net.Conn
	r *io.PipeReader
}

// Close implements net.Conn.
func (c closing) Close() error { return errors.Join(c.r.Close(), c.Conn.Close()) }

// If this fails, a client fills the server's memory with one message that comes in small parts.
func TestMessagesAreBounded(t *testing.T) {
	for what, c := range map[string]struct {
		part string
		n    int // parts, each but the last with more to come
		want uint16
	}{
		"small parts": {strings.Repeat("x", 125), 2*maxMessage/125 + 1, wsTooBig},
		"one part":    {strings.Repeat("x", maxMessage+1), 1, wsTooBig},
		"empty parts": {"", 1000, 0},
		"at the edge": {strings.Repeat("x", maxMessage/64), 64, 0},
		"beyond it":   {strings.Repeat("x", maxMessage/64), 65, wsTooBig},
	} {
		c2 := reading(func(yield func([]byte) bool) {
			for i := range c.n {
				head := byte(wsMore)
				if i == 0 {
					head = wsBinary
				}
				if i == c.n-1 {
					head |= 0x80
				}
				if !yield(sent(head, c.part)) || !yield(sent(0x80|wsPing, "there?")) {
					return
				}
			}
		})
		_, msg, err := c2.read()
		bad, ok := errors.AsType[*wsError](err)
		switch {
		case c.want == 0 && (err != nil || len(msg) != c.n*len(c.part)):
			t.Errorf("%s: %d bytes, %v", what, len(msg), err)
		case c.want != 0 && (!ok || bad.code != c.want):
			t.Errorf("%s: %d bytes, %v", what, len(msg), err)
		}
		c2.conn.Close()
	}
}

// FuzzWebSocket feeds the reader of frames what a client may send. If this fails, one crashes the server, fills
// its memory, or is taken for somebody who sent what is no message.
func FuzzWebSocket(f *testing.F) {
	f.Add(sent(0x80|wsBinary, "ls\n"))
	f.Add(append(append(sent(wsText, `{"type":`), sent(0x80|wsPing, "")...), sent(0x80|wsMore, `"resize"}`)...))
	f.Add(sent(0x80|wsClose, "\x03\xe8bye"))
	f.Add(sent(0x80|wsBinary, strings.Repeat("x", 200)))
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &wsConn{conn: nowhere{}, r: bufio.NewReader(bytes.NewReader(data))}
		for got := 0; ; {
			kind, msg, err := c.read()
			if bad, ok := errors.AsType[*wsError](err); ok && bad.code != wsProtocol && bad.code != wsTooBig ||
				err != nil && !ok && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			if got += len(msg); kind != wsText && kind != wsBinary || len(msg) > maxMessage || got > len(data) {
				t.Fatalf("kind %d, %d bytes of %d", kind, len(msg), len(data))
			}
		}
	})
}

// nowhere takes what is written to it.
type nowhere struct{ net.Conn }

// Write implements net.Conn.
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// SetWriteDeadline implements net.Conn.
func (nowhere) SetWriteDeadline(time.Time) error { return nil }

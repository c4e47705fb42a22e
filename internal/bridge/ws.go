package bridge

import (
	"bufio"
	"context"
	"crypto/sha1" //nolint:gosec // RFC 6455 names it; it protects nothing
	"encoding/base64"
	be "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// The parts of RFC 6455 that a terminal needs: the server's side, without extensions.

// Kinds of frames, and why a connection is closed.
const (
	wsMore   = 0x0
	wsText   = 0x1
	wsBinary = 0x2
	wsClose  = 0x8
	wsPing   = 0x9
	wsPong   = 0xa

	wsNormal   = 1000
	wsProtocol = 1002
	wsTooBig   = 1009
	wsFailed   = 1011

	// wsMagic is what the answer to a client's key is made with, by the RFC.
	wsMagic = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	// maxMessage bounds a message of a client: what somebody pastes.
	maxMessage = 1 << 20
	// pingEvery keeps connections open that pass through proxies, and finds out who has gone.
	pingEvery = 30 * time.Second
)

// wsConn is one WebSocket. One goroutine reads; any may write.
type wsConn struct {
	conn net.Conn
	r    *bufio.Reader
	mu   sync.Mutex // of writing
}

// upgrade makes a WebSocket of a request. Who is not asking for one gets an error, and the connection stays HTTP.
func upgrade(w http.ResponseWriter, r *http.Request) (*wsConn, error) {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	switch {
	case !token(r.Header, "Connection", "upgrade") || !token(r.Header, "Upgrade", "websocket"):
		return nil, outboard.Errorf(outboard.Invalid, "a terminal needs a WebSocket: Connection: Upgrade, Upgrade: "+
			"websocket")
	case r.Header.Get("Sec-WebSocket-Version") != "13" || err != nil || len(key) != 16:
		return nil, outboard.Errorf(outboard.Invalid, "the WebSocket's handshake is not one of version 13")
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "taking over the connection: %w", err)
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + wsMagic)) //nolint:gosec // as above
	answer := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n"
	err = conn.SetDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = io.WriteString(conn, answer)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		return nil, outboard.Errorf(outboard.Canceled, "answering the WebSocket's handshake: %w", err)
	}
	return &wsConn{conn: conn, r: rw.Reader}, nil
}

// token reports whether a header that is a list has an element.
func token(h http.Header, name, want string) bool {
	for _, v := range h.Values(name) {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), want) {
				return true
			}
		}
	}
	return false
}

// wsError is why the server ends a connection.
type wsError struct {
	code uint16
	why  string
}

// Error says why.
func (e *wsError) Error() string { return e.why }

// read returns the next message, whole. The end of the connection is io.EOF. It answers pings.
func (c *wsConn) read() (kind byte, msg []byte, err error) {
	for {
		final, op, data, err := c.frame(maxMessage - len(msg))
		if err != nil {
			return 0, nil, err
		}
		switch {
		case op == wsPing:
			if err := c.write(wsPong, data); err != nil {
				return 0, nil, err
			}
			continue
		case op == wsPong:
			continue
		case op == wsClose:
			_ = c.write(wsClose, data[:min(2, len(data))]) // as the RFC asks; it may have gone
			return 0, nil, io.EOF
		case op == wsMore && kind == 0, op != wsMore && kind != 0:
			return 0, nil, &wsError{wsProtocol, "a message's parts are out of order"}
		case op == wsText || op == wsBinary:
			kind = op
		case op != wsMore:
			return 0, nil, &wsError{wsProtocol, fmt.Sprintf("frames of kind %d are not known", op)}
		}
		if msg = append(msg, data...); final {
			return kind, msg, nil
		}
	}
}

// frame reads one frame of at most most bytes. Those of a client are masked.
func (c *wsConn) frame(most int) (final bool, op byte, data []byte, err error) {
	var head [2]byte
	if _, err = io.ReadFull(c.r, head[:]); err != nil {
		return false, 0, nil, io.EOF
	}
	final, op = head[0]&0x80 != 0, head[0]&0x0f
	size := uint64(head[1] & 0x7f)
	if head[0]&0x70 != 0 || head[1]&0x80 == 0 || op >= wsClose && (!final || size > 125) {
		return false, 0, nil, &wsError{wsProtocol, "a frame is not as RFC 6455 has it"}
	}
	var ext [8]byte
	switch size {
	case 126:
		_, err = io.ReadFull(c.r, ext[:2])
		size = uint64(be.BigEndian.Uint16(ext[:2]))
	case 127:
		_, err = io.ReadFull(c.r, ext[:])
		size = be.BigEndian.Uint64(ext[:])
	}
	if err != nil {
		return false, 0, nil, io.EOF
	}
	if op < wsClose && size > uint64(max(most, 0)) { // the others are short, by what was asked above
		return false, 0, nil, &wsError{wsTooBig, fmt.Sprintf("a message is longer than %d bytes", maxMessage)}
	}
	mask := make([]byte, 4+size)
	if _, err = io.ReadFull(c.r, mask); err != nil {
		return false, 0, nil, io.EOF
	}
	data = mask[4:]
	for i := range data {
		data[i] ^= mask[i%4]
	}
	return final, op, data, nil
}

// write sends one message. Who does not take it within writeTimeout has gone.
func (c *wsConn) write(op byte, data []byte) error {
	head := []byte{0x80 | op}
	switch n := len(data); {
	case n < 126:
		head = append(head, byte(n))
	case n <= 0xffff:
		head = be.BigEndian.AppendUint16(append(head, 126), uint16(n))
	default:
		head = be.BigEndian.AppendUint64(append(head, 127), uint64(n))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(append(head, data...))
	return err
}

// end says why, and closes the connection.
func (c *wsConn) end(code uint16, why string) {
	_ = c.write(wsClose, append(be.BigEndian.AppendUint16(nil, code), why[:min(len(why), 120)]...)) // it may have gone
	c.conn.Close()
}

// ping keeps the connection open until ctx ends, and ends it by cancel when nobody is there.
func (c *wsConn) ping(ctx context.Context, cancel context.CancelFunc) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := c.write(wsPing, nil); err != nil && !errors.Is(err, context.Canceled) {
			cancel()
			return
		}
	}
}

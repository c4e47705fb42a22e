package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Most of what leaves a sandbox are plain HTTP/1.1 requests on kept connections. They are served here, by one goroutine per connection
// and with one write per answer. Whatever is not plain (simple says what that is) goes to the HTTP server of the standard library, with
// its connection and for good: nothing here reads a request in a way of its own that could be read in another.

// session is one such connection.
type session struct {
	port *port
	conn *conn    // what came from the sandbox
	top  net.Conn // conn, or TLS on it
	in   *bufio.Reader
	out  *bufio.Writer

	// Of the request under way: who looks whether its client is still there, and ends it if not.
	look  *time.Timer
	mu    sync.Mutex
	over  bool      // the request is
	asked *effect   // to end
	left  chan bool // capacity 1: look has run, and whether the client was gone
}

var (
	quickReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, quickBuffer) }}
	quickWriters = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, quickBuffer) }}
)

// quick serves a connection on which TLS, where there is any, has ended.
func (p *port) quick(c *conn, top net.Conn) {
	s := &session{port: p, conn: c, top: top, in: quickReaders.Get().(*bufio.Reader), out: quickWriters.Get().(*bufio.Writer)}
	s.in.Reset(top)
	s.out.Reset(top)
	stop := context.AfterFunc(p.g.ctx, func() { c.Close() })
	defer func() {
		stop()
		s.in.Reset(nil)
		s.out.Reset(nil)
		quickReaders.Put(s.in)
		quickWriters.Put(s.out)
	}()
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler {
				p.g.log.Error("serving a request failed", "panic", v, "stack", string(debug.Stack()))
			}
			top.Close()
		}
	}()
	for wait := helloTimeout; ; wait = idleTimeout {
		plain, err := s.head(wait)
		switch {
		case err != nil:
			top.Close()
			return
		case !plain && !s.conn.flow.tls && s.speaksSSH():
			p.refuseSSH(c)
			return
		case !plain:
			s.handOver()
			return
		case !s.one():
			top.Close()
			return
		}
	}
}

// head waits for the head of a request and looks whether it is plain, without taking it.
func (s *session) head(wait time.Duration) (plain bool, err error) {
	if s.in.Buffered() == 0 {
		_ = s.top.SetReadDeadline(time.Now().Add(wait)) // a dead socket fails below
		least := 1
		if len(s.conn.head) == 1 {
			least = 2 // sniff has read a byte, behind which is the rest: no head is so short
		}
		if _, err := s.in.Peek(least); err != nil {
			return false, err
		}
	}
	b, err := s.in.Peek(s.in.Buffered())
	if err != nil {
		return false, err
	}
	n := bytes.Index(b, []byte("\r\n\r\n"))
	return n >= 0 && simple(b[:n+2]), nil
}

// handOver gives the connection to the HTTP server, with what has been read of it.
func (s *session) handOver() {
	_ = s.top.SetReadDeadline(time.Time{})
	b, _ := s.in.Peek(s.in.Buffered()) // cannot fail: it is buffered
	read := bytes.Clone(b)
	if s.top == net.Conn(s.conn) {
		s.conn.head = append(read, s.conn.head...)
		s.port.g.conns.give(s.conn)
		return
	}
	s.port.g.conns.give(&conn{Conn: s.top, head: read, flow: s.conn.flow})
}

// one serves the request whose head is there. false ends the connection.
func (s *session) one() (more bool) {
	r, err := http.ReadRequest(s.in)
	if err != nil {
		_, _ = io.WriteString(s.top, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") // it ends in any case
		return false
	}
	if r.ContentLength > 0 { // at most maxHeld
		_ = s.top.SetReadDeadline(time.Now().Add(idleTimeout))
		b := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, b); err != nil {
			return false
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
	}
	e := newEffect(s.port.g.ctx, s.port.g.now)
	defer e.cancel(nil)
	s.watch(e)
	defer func() {
		if s.gone() { // after a panic as well: the reader is let go of
			more = false
		}
	}()
	w := &reply{conn: s.top, out: s.out, header: http.Header{}, head: r.Method == http.MethodHead}
	s.port.serve(w, r, s.conn.flow, e)
	return w.finish() == nil
}

// watch ends a request when its client goes away, until gone is called. It begins to look only once the request has lasted, because most
// are over before. Meanwhile nobody else reads.
func (s *session) watch(e *effect) {
	s.over, s.asked = false, e // nobody looks now
	if s.look == nil {
		s.left = make(chan bool, 1)
		s.look = time.AfterFunc(watchAfter, s.lookAfter)
		return
	}
	s.look.Reset(watchAfter)
}

// lookAfter waits for the client to go or for the request to be over.
func (s *session) lookAfter() {
	s.mu.Lock()
	over, e := s.over, s.asked
	if !over {
		_ = s.top.SetReadDeadline(time.Time{})
	}
	s.mu.Unlock()
	if over {
		s.left <- false
		return
	}
	_, err := s.in.Peek(1)
	gone := err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	if gone {
		e.cancel(nil)
	}
	s.left <- gone
}

// gone ends watch and reports whether the client is gone.
func (s *session) gone() bool {
	if s.look.Stop() {
		return false
	}
	s.mu.Lock()
	s.over = true
	_ = s.top.SetReadDeadline(past)
	s.mu.Unlock()
	return <-s.left
}

// simple reports whether a head (its lines, each with its end) is one that all of HTTP's readers read alike: a method, an absolute path, clean
// header lines, one host, at most a short body of known length, and nothing about the connection.
func simple(head []byte) bool {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if !requestLine(line) {
		return false
	}
	hosts, lengths := 0, 0
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || !token(name) || !clean(value) {
			return false
		}
		switch value := strings.Trim(string(value), " \t"); strings.ToLower(string(name)) {
		case "host":
			hosts++
		case "content-length":
			n, err := strconv.ParseUint(value, 10, 31)
			if lengths++; err != nil || n > maxHeld {
				return false
			}
		case "connection":
			if !strings.EqualFold(value, "keep-alive") {
				return false
			}
		case "transfer-encoding", "te", "trailer", "upgrade", "expect", "proxy-connection", "http2-settings":
			return false
		}
	}
	return hosts == 1 && lengths <= 1
}

func requestLine(line []byte) bool {
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, _ := bytes.Cut(rest, []byte(" "))
	if len(method) == 0 || string(method) == http.MethodConnect || string(version) != "HTTP/1.1" || len(target) == 0 || target[0] != '/' {
		return false
	}
	for _, c := range method {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// token reports whether a header's name is one of letters, digits and hyphens.
func token(name []byte) bool {
	for _, c := range name {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return len(name) > 0
}

// clean reports whether a header's value has no control character.
func clean(value []byte) bool {
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

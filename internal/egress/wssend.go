package egress

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net/http"
)

// guardFrames looks at the messages that a client sends over a WebSocket to a host that has a placeholder.
func (p *port) guardFrames(resp *http.Response, req Request, inj *Injection) {
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || !inj.guards() || resp.StatusCode != http.StatusSwitchingProtocols {
		return
	}
	resp.Body = &sending{ReadWriteCloser: rw, inj: inj, refused: p.cut(resp, req, "credentials", http.StatusForbidden)}
}

// countFrames counts what a client sends over a connection that has switched protocols: it is no body, and leaves all the same.
func (p *port) countFrames(resp *http.Response, req Request) {
	if rw, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &metered{ReadWriteCloser: rw, usage: p.usage, refused: p.cut(resp, req, "budget", http.StatusTooManyRequests)}
	}
}

// cut returns what records that a connection was ended for what its client sent.
func (p *port) cut(resp *http.Response, req Request, rule string, status int) func(why error) {
	ctx := context.WithoutCancel(resp.Request.Context()) // the record is written whoever has gone
	return func(why error) {
		p.refused(ctx, req, rule, detail{Status: status, Reason: why.Error()})
		p.say(slog.LevelInfo, "connection ended", "host", req.Host, "why", why)
	}
}

// metered is a connection whose client's bytes count against the budget.
type metered struct {
	io.ReadWriteCloser
	usage   *usage
	refused func(error)
	over    bool
}

// Write sends nothing that the budget does not hold, and ends the connection then.
func (m *metered) Write(b []byte) (int, error) {
	if m.over {
		return 0, errOverBudget
	}
	if !m.usage.sent(len(b)) {
		m.over = true
		m.refused(errOverBudget)
		m.Close()
		return 0, errOverBudget
	}
	return m.ReadWriteCloser.Write(b)
}

// CloseWrite passes the end of what the client says on.
func (m *metered) CloseWrite() error { return closeWrite(m.ReadWriteCloser) }

// maxSending bounds the bytes that wait with a value that could hold a key: its own in frames of one byte each, and pings between.
const maxSending = 16 * maxMember

// sending is a WebSocket whose client's messages are looked at as bodies are. What holds a key of the client's own is not sent, and ends
// the connection; so does what is no frame. Whole frames are neither changed nor made: bytes wait, then go as they came.
type sending struct {
	io.ReadWriteCloser
	inj     *Injection
	refused func(error)

	head []byte   // of the frame, until it is whole
	left uint64   // payload of the frame that has not come
	mask [4]byte  // of the frame
	at   int      // in mask
	data bool     // the frame is of a message, not a ping or the like
	last bool     // it ends its message
	look *guarded // at the message
	wait []byte   // read, not yet sent
	err  error
}

// Write sends what may be sent.
func (s *sending) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	for _, c := range b {
		if s.take(c); s.err != nil {
			s.refused(s.err)
			s.Close()
			return 0, s.err
		}
	}
	if s.look != nil && len(s.look.wait) > 0 {
		if len(s.wait) > maxSending {
			s.err = errUnread
			s.refused(s.err)
			s.Close()
			return 0, s.err
		}
		return len(b), nil
	}
	_, err := s.ReadWriteCloser.Write(s.wait)
	s.wait = s.wait[:0]
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite passes the end of what the client says on. A value that waits was cut off by it, and is not sent.
func (s *sending) CloseWrite() error { return closeWrite(s.ReadWriteCloser) }

// take looks at one byte.
func (s *sending) take(c byte) {
	s.wait = append(s.wait, c)
	if s.left == 0 {
		s.begin(c)
		return
	}
	c ^= s.mask[s.at&3]
	s.at++
	if s.left--; s.data {
		s.say(c)
	}
	if s.left == 0 {
		s.ended()
	}
}

// begin takes a byte of a frame's head.
func (s *sending) begin(c byte) {
	const final, reserved, opcode, control, masked = 0x80, 0x70, 0x0f, 0x8, 0x80
	s.head = append(s.head, c)
	first := s.head[0]
	if first&reserved != 0 || first&opcode > 2 && first&opcode < 8 || first&opcode > 10 {
		s.err = errUnread
		return
	}
	if len(s.head) < 2 {
		return
	}
	n, size := 2, uint64(s.head[1]&0x7f)
	if first&control != 0 && (first&final == 0 || size > 125) {
		s.err = errUnread
		return
	}
	switch size {
	case 126:
		n = 4
	case 127:
		n = 10
	}
	end := n
	if s.head[1]&masked != 0 {
		end += 4
	}
	if len(s.head) < end {
		return
	}
	switch n {
	case 4:
		size = uint64(binary.BigEndian.Uint16(s.head[2:]))
	case 10:
		size = binary.BigEndian.Uint64(s.head[2:])
	}
	s.mask = [4]byte{}
	copy(s.mask[:], s.head[n:end])
	s.left, s.at, s.data, s.last = size, 0, first&control == 0, first&final != 0
	if s.head = s.head[:0]; s.data && (s.look == nil || first&opcode != 0) { // a message begins
		s.look = &guarded{inj: s.inj}
	}
	if s.left == 0 {
		s.ended()
	}
}

// say looks at a byte of a message.
func (s *sending) say(c byte) {
	s.look.take(c)
	s.look.out = s.look.out[:0] // what is sent are the frames
	s.err = s.look.err
}

// ended ends a frame, and its message with its last.
func (s *sending) ended() {
	if !s.data || !s.last {
		return
	}
	s.look.end()
	s.err = s.look.err
	s.look = nil
}

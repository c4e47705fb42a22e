package egress

import "io"

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

// maxSending bounds the bytes that wait with a value that could hold a key: its own in frames of one byte each,
// and pings between.
const maxSending = 16 * maxMember

// sending is a WebSocket whose client's frames are looked at. What is no frame of a client is not sent, and ends
// the connection. At a host that has a placeholder, so does a message that holds a key of the client's own:
// messages are looked at as bodies are. Whole frames are neither changed nor made: bytes wait, then go as they
// came.
type sending struct {
	io.ReadWriteCloser
	inj     *Injection
	refused func(error)

	head  []byte // of the frame, until it is whole
	frame frameHead
	left  uint64 // payload of the frame that has not come
	at    int    // in the frame's mask
	turns turns
	look  *guarded // at the message; nil = nobody looks
	wait  []byte   // read, not yet sent
	err   error
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
	c ^= s.frame.mask[s.at&3]
	s.at++
	if s.left--; s.look != nil && s.frame.op&opControl == 0 {
		s.say(c)
	}
	if s.left == 0 {
		s.ended()
	}
}

// begin takes a byte of a frame's head.
func (s *sending) begin(c byte) {
	s.head = append(s.head, c)
	h, n, err := parseFrame(s.head)
	if err == nil && n == 0 {
		return // it is not whole
	}
	if err == nil && !h.masked { // every client masks
		err = errFrames
	}
	if err == nil {
		err = s.turns.next(h)
	}
	if s.err = err; err != nil {
		return
	}
	s.head, s.frame, s.left, s.at = s.head[:0], h, h.size, 0
	if h.op&opControl == 0 && h.op != opContinued && s.inj.guards() { // a message begins
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
	if s.look == nil || s.frame.op&opControl != 0 || !s.frame.final {
		return
	}
	s.look.end()
	s.err = s.look.err
	s.look = nil
}

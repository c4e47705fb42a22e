package guest

import (
	"bytes"
	"io"
	"strconv"
)

// maxComplaint bounds one line of complaints.
const maxComplaint = 128

// complaints passes a call's output on without what its shell says whenever a signal ended a command, as it does with all but the last
// of many pipelines (yes | head -1): that it could not set the terminal back. An interactive bash cannot be told that it has none, and
// whoever reads this takes it for an error of the command. Only the shell itself knows its process id as the one that speaks, so
// nothing that a command writes is taken for it.
type complaints struct {
	w    io.Writer
	head []byte // every complaint begins with this
	held []byte // may become one
}

func newComplaints(w io.Writer, shell int) *complaints {
	return &complaints{w: w, head: append(strconv.AppendInt([]byte("bash: ["), int64(shell), 10), ": "...)}
}

// Write passes on what is no complaint and cannot become one.
func (c *complaints) Write(p []byte) (int, error) {
	b := p
	if len(c.held) > 0 {
		b = append(c.held, p...)
	}
	for {
		i := bytes.Index(b, c.head)
		if i < 0 {
			i = len(b) - c.begun(b)
			c.w.Write(b[:i])
			c.held = append([]byte(nil), b[i:]...)
			return len(p), nil
		}
		c.w.Write(b[:i])
		b = b[i:]
		end := bytes.IndexByte(b[:min(len(b), maxComplaint)], '\n')
		switch {
		case end >= 0 && bytes.Contains(b[:end], []byte(")] tcsetattr: ")):
			c.w.Write(b[:bytes.LastIndex(b[:end], c.head)])
			b = b[end+1:]
		case end < 0 && len(b) < maxComplaint:
			c.held = append([]byte(nil), b...)
			return len(p), nil
		default:
			c.w.Write(b[:len(c.head)])
			b = b[len(c.head):]
		}
	}
}

// begun returns how much of the end of b may be the beginning of a complaint.
func (c *complaints) begun(b []byte) int {
	for n := min(len(b), len(c.head)-1); n > 0; n-- {
		if bytes.HasSuffix(b, c.head[:n]) {
			return n
		}
	}
	return 0
}

// flush passes on what did not become one.
func (c *complaints) flush() {
	c.w.Write(c.held)
	c.held = nil
}

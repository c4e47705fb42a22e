package guest

import (
	"bytes"
	"io"
	"strconv"
)

// maxNoise bounds one line of noise.
const maxNoise = 128

// shellNoise passes a call's output on without what its shell says whenever a signal ended a command, as it does
// with all but the last of many pipelines (yes | head -1): that it could not set the terminal back. An
// interactive bash cannot be told that it has none, and whoever reads this takes it for an error of the command.
// Only the shell itself knows its process id as the one that speaks, so nothing that a command writes is taken
// for it.
type shellNoise struct {
	w    io.Writer
	head []byte // all noise begins with this
	held []byte // may become one
}

func newShellNoise(w io.Writer, shell int) *shellNoise {
	return &shellNoise{w: w, head: append(strconv.AppendInt([]byte("bash: ["), int64(shell), 10), ": "...)}
}

// Write passes on what is no noise and cannot become one.
func (c *shellNoise) Write(p []byte) (int, error) {
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
		end := bytes.IndexByte(b[:min(len(b), maxNoise)], '\n')
		switch {
		case end >= 0 && bytes.Contains(b[:end], []byte(")] tcsetattr: ")):
			c.w.Write(b[:bytes.LastIndex(b[:end], c.head)])
			b = b[end+1:]
		case end < 0 && len(b) < maxNoise:
			c.held = append([]byte(nil), b...)
			return len(p), nil
		default:
			c.w.Write(b[:len(c.head)])
			b = b[len(c.head):]
		}
	}
}

// begun returns how much of the end of b may be the beginning of noise.
func (c *shellNoise) begun(b []byte) int {
	for n := min(len(b), len(c.head)-1); n > 0; n-- {
		if bytes.HasSuffix(b, c.head[:n]) {
			return n
		}
	}
	return 0
}

// flush passes on what did not become one.
func (c *shellNoise) flush() {
	c.w.Write(c.held)
	c.held = nil
}

package guest

import (
	"bytes"
	"context"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// progress is the newest line that a running call has written. It costs the output no more than a look at its end.
type progress struct {
	mu      sync.Mutex
	open    []byte        // the line that has not ended, its first lineSize bytes
	last    []byte        // the last line with more than blanks in it
	changed chan struct{} // closed with the next output; nil = nobody waits for it
}

// lookedAt is how much of the end of one write is searched for its last line.
const lookedAt = 4 << 10

// add takes the next output. A carriage return ends a line as well: that is how programs draw a progress bar.
func (p *progress) add(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cut := len(b) - lookedAt; cut > 0 {
		b, p.open = b[cut:], p.open[:0]
	}
	if end := lineEnd(b); end >= 0 {
		whole := bytes.TrimRight(b[:end], " \t\r\n")
		if start := lineEnd(whole); start >= 0 {
			whole, p.open = whole[start+1:], p.open[:0]
		}
		if p.openWith(whole); !blank(p.open) {
			p.last = append(p.last[:0], p.open...)
		}
		b, p.open = b[end+1:], p.open[:0]
	}
	p.openWith(b)
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

func (p *progress) openWith(b []byte) {
	p.open = append(p.open, b[:min(len(b), lineSize-len(p.open))]...)
}

func lineEnd(b []byte) int { return max(bytes.LastIndexByte(b, '\n'), bytes.LastIndexByte(b, '\r')) }

func blank(b []byte) bool { return len(bytes.TrimSpace(b)) == 0 }

// now returns the newest line, "" when there is none, and what is closed when there may be another.
func (p *progress) now() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	line := p.open
	if blank(line) {
		line = p.last
	}
	for i := 1; i < utf8.UTFMax && i <= len(line); i++ { // half of a letter was cut off, or is still to come
		if at := len(line) - i; utf8.RuneStart(line[at]) {
			if !utf8.FullRune(line[at:]) {
				line = line[:at]
			}
			break
		}
	}
	return string(line), p.changed
}

// forget lets go of the line of a call that has ended.
func (p *progress) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open, p.last = nil, nil
}

// tell hands each new line to say until the call is done, at most one per lineEvery and always the newest. say
// reports whether
// it could send the line; one that it could not is tried again, unless another has taken its place by then.
func (p *progress) tell(ctx context.Context, done <-chan struct{}, say func(string) bool) {
	sent := ""
	for {
		line, changed := p.now()
		var again <-chan time.Time
		if line != "" && line != sent {
			if say(line) {
				sent = line
			}
			changed, again = nil, time.After(lineEvery)
		}
		select {
		case <-changed:
		case <-again:
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// offer sends a frame if that takes no waiting: nothing else is being sent, and the connection has room. It reports
// whether the
// frame was sent.
func (w *wire) offer(f frame) bool {
	conn, ok := w.conn.(syscall.Conn)
	if !ok {
		return false
	}
	select {
	case w.sem <- struct{}{}:
	default:
		return false
	}
	defer func() { <-w.sem }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	buf := appendFrame(nil, f)
	n := 0
	err = raw.Write(func(fd uintptr) bool {
		n, _ = syscall.Write(int(fd), buf) // whatever fails here fails for the next frame that has to be sent
		return true
	})
	if err != nil || n <= 0 {
		return false
	}
	if n < len(buf) { // a frame that has begun must be completed
		if _, err := w.conn.Write(buf[n:]); err != nil {
			w.conn.Close()
			return false
		}
	}
	return true
}

package guest

import (
	"context"
	"sync"
	"time"
)

// outlog is the newest output of a process, for any number of attachments that read it at their own pace.
// Nothing is dropped before every attachment has taken it, but for one that has not taken anything for
// stallPatience: a slow reader slows the process, and a dead one does not stop it. A patient attachment is
// waited for until it leaves.
type outlog struct {
	mu      sync.Mutex
	chunks  []chunk
	size    int   // bytes in chunks
	head    int64 // cursor after the newest byte
	waiting int   // pumps that wait for an attachment
	ended   bool
	subs    map[*attachment]bool
	changed chan struct{} // closed and replaced at every change
}

// chunk is one piece of output; its bytes are never changed.
type chunk struct {
	kind ProcessKind
	at   int64 // cursor before it
	data []byte
}

// attachment is one reader.
type attachment struct {
	at      int64     // everything before was taken
	moved   time.Time // when it last took something, or had nothing to take
	patient bool      // output waits for it for as long as it is there
}

func (l *outlog) init() {
	l.subs, l.changed = make(map[*attachment]bool), make(chan struct{})
}

func (l *outlog) changeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// add appends output. It waits for attachments that would lose something by it.
func (l *outlog) add(kind ProcessKind, data []byte) {
	if len(data) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended {
		wait := l.stalledLocked(len(data))
		if wait <= 0 {
			break
		}
		changed := l.changed
		l.waiting++
		l.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		l.mu.Lock()
		l.waiting--
	}
	if l.ended {
		return
	}
	for a := range l.subs {
		if a.at == l.head {
			a.moved = time.Now()
		}
	}
	l.chunks = append(l.chunks, chunk{kind, l.head, append([]byte(nil), data...)})
	l.head += int64(len(data))
	l.size += len(data)
	for l.size > keptBytes {
		l.size -= len(l.chunks[0].data)
		l.chunks = l.chunks[1:]
	}
	l.changeLocked()
}

// stalledLocked returns how long n more bytes have to wait for the attachments, 0 when they need not.
func (l *outlog) stalledLocked(n int) time.Duration {
	var wait time.Duration
	for a := range l.subs {
		if a.at < l.head && l.head+int64(n)-a.at > keptBytes {
			if a.patient {
				return stallPatience // and then looked at again
			}
			wait = max(wait, time.Until(a.moved.Add(stallPatience)))
		}
	}
	return wait
}

// join adds an attachment that begins at a cursor, FromStart or FromNow.
func (l *outlog) join(from int64) *attachment {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from < 0 || from > l.head {
		from = l.head
	}
	a := &attachment{at: from, moved: time.Now()}
	l.subs[a] = true
	return a
}

func (l *outlog) leave(a *attachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subs, a)
	l.changeLocked()
}

// next appends the records that follow to buf, at least one unless the process has ended.
func (l *outlog) next(ctx context.Context, a *attachment, buf []byte) (_ []byte, ended bool, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a.at == l.head && !l.ended {
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
			l.mu.Lock()
		case <-ctx.Done():
			l.mu.Lock()
			return nil, false, context.Cause(ctx)
		}
	}
	oldest := l.head - int64(l.size)
	if a.at < oldest {
		buf = appendRecord(buf, Lost, oldest, nil)
		a.at = oldest
	}
	const enough = chunkSize
	for _, c := range l.chunks {
		end := c.at + int64(len(c.data))
		if end <= a.at {
			continue
		}
		if len(buf) > enough {
			break
		}
		buf = appendRecord(buf, c.kind, end, c.data[max(0, a.at-c.at):])
		a.at = end
	}
	a.moved = time.Now()
	l.changeLocked()
	return buf, l.ended, nil
}

// endLocked says that no more output counts.
func (l *outlog) endLocked() {
	l.ended = true
	l.changeLocked()
}

// blocked reports whether output waits for an attachment.
func (l *outlog) blocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting > 0
}

package native

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// Most calls change nothing, and after each of them Push is asked. What it found then needs little to be found
// again: the same layer on top, with nothing written to it, of a sandbox that lives. unchangedHint remembers it,
// per connection.
type unchangedHint struct {
	mu     sync.Mutex
	known  bool
	n      int                   // nothing was written to <n>
	parent outboard.CheckpointID // when this was the newest checkpoint
	init   *process
	closed bool
}

// unchangedSince reports whether Push would find now what it found last. The sandbox must live after its layer
// was looked at, because the files of one that has ended are removed.
func (m *machine) unchangedSince(parent outboard.CheckpointID) bool {
	q := &m.unchanged
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.known && q.parent == parent && !m.written(q.n) && q.init.alive()
}

// remember keeps that nothing was written to <n> since parent.
func (m *machine) remember(n int, parent outboard.CheckpointID) {
	q := &m.unchanged
	q.mu.Lock()
	defer q.mu.Unlock()
	q.findLocked(m)
	q.known, q.n, q.parent = q.init != nil, n, parent
}

// lives reports whether init has not ended. known is false where nobody can say.
func (q *unchangedHint) lives(m *machine) (lives, known bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.findLocked(m)
	if q.init == nil {
		return false, false
	}
	return q.init.alive(), true
}

// findLocked gets hold of init, until the connection closes.
func (q *unchangedHint) findLocked(m *machine) {
	if q.init == nil && !q.closed {
		q.init, _ = findProcess(m.state)
	}
}

// forget is called when the connection closes.
func (q *unchangedHint) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.known, q.closed = false, true
	if q.init != nil {
		q.init.close()
		q.init = nil
	}
}

// alive reports whether the process has not ended.
func (pr *process) alive() bool {
	fds := []unix.PollFd{{Fd: int32(pr.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n == 0 && err == nil
}

// isEmpty reports whether a directory is there and has no entries. That it has none is known only at its end: a
// signal, such as the runtime sends to a goroutine that runs for long, ends a read after the entries that it has
// got so far (filldir64 in Linux's fs/readdir.c), which may be no more than ".".
func isEmpty(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	buf := make([]byte, 1024) // room for "." and "..", and for one more of the longest name
	for {
		n, err := uninterrupted(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil {
			return false
		}
		if n == 0 {
			return true
		}
		if _, entries, _ := unix.ParseDirent(buf[:n], 1, nil); entries > 0 {
			return false
		}
	}
}

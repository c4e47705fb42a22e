package store

import (
	"sync"

	"github.com/outboard-dev/outboard"
)

// maxCached bounds the headers a process remembers, at about half a KiB each.
const maxCached = 4096

// cache remembers headers that were committed, so that the next commit to the session need not read it first. It
// is never trusted: every UPDATE that was planned on a header demands that the database's still has the same
// head and epoch, and what a commit is refused for is looked up afresh. The same head means the same log, of
// which all the rest follows.
type cache struct {
	mu   sync.Mutex
	rows map[outboard.SessionID]row
}

// copyTo adds a copy of the session's header to rows, if there is one.
func (c *cache) copyTo(rows map[outboard.SessionID]*row, id outboard.SessionID) {
	if rows[id] != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.rows[id]; ok {
		rows[id] = &r
	}
}

// put remembers headers as they are in the database now.
func (c *cache) put(rows map[outboard.SessionID]*row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil {
		c.rows = map[outboard.SessionID]row{}
	}
	for id, r := range rows {
		if r == nil {
			continue
		}
		if len(c.rows) >= maxCached {
			for old := range c.rows { // any one
				delete(c.rows, old)
				break
			}
		}
		clean := *r
		clean.base, clean.dirty, clean.full, clean.placed, clean.released, clean.claimed = r.Head, false, false, false, false, false
		c.rows[id] = clean
	}
}

// drop forgets a header.
func (c *cache) drop(id outboard.SessionID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rows, id)
}

// clear forgets all headers.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.rows)
}

package guest

// MemoryCount is what the host's kernel counts of a sandbox with a limit on memory.
type MemoryCount struct {
	Ended   int64 // programs that were ended for want of memory, whoever's want it was
	Refused int64 // times that the limit stood in the way and nothing could be given up; -1 = it does not count them
	Peak    int64 // where it does not: the most that there ever was, in bytes
	Limit   int64 // in bytes
}

// Hit reports whether the limit ended a program since before. That one was ended is not enough: where the whole
// host runs out of memory its kernel ends programs of sandboxes that are far from their limits.
func (n MemoryCount) Hit(before MemoryCount) bool { return n.Ended > before.Ended && n.met(before) }

// met reports whether the limit stood in the way since before. A peak below it by what a kernel asks for at once
// proves that it never did.
func (n MemoryCount) met(before MemoryCount) bool {
	const atOnce = 4 << 20 // a huge page, and what each processor keeps in hand
	if n.Refused < 0 {
		return n.Peak >= n.Limit-atOnce
	}
	return n.Refused > before.Refused
}

// memory asks for the count. It is the host's: a guest that somebody has taken over cannot make it up.
func (c *Client) memory() (MemoryCount, bool) {
	if c.Memory == nil {
		return MemoryCount{}, false
	}
	return c.Memory()
}

// since returns the limit that ended a program since a count, or 0.
func (c *Client) since(before MemoryCount, known bool) int64 {
	if !known {
		return 0
	}
	now, known := c.memory()
	if !known || !now.Hit(before) {
		return 0
	}
	return now.Limit
}

// mark keeps what was counted when a call began that goes on, until its end is told: by another request.
func (c *Client) mark(key string, before MemoryCount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.marks[key]; ok || len(c.marks) >= maxPending {
		return
	}
	if c.marks == nil {
		c.marks = map[string]MemoryCount{}
	}
	c.marks[key] = before
}

// marked returns what was counted when a call began, or now where this connection did not see it begin.
func (c *Client) marked(key string) (MemoryCount, bool) {
	c.mu.Lock()
	before, ok := c.marks[key]
	c.mu.Unlock()
	if ok {
		return before, true
	}
	return c.memory()
}

func (c *Client) unmark(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.marks, key)
}

// measured is result, with the limit on memory that was hit since before.
func (c *Client) measured(r Result, err error, before MemoryCount, known bool) (Result, error) {
	switch {
	case err == nil && r.State == StateRunning:
		if known {
			c.mark(r.Key, before)
		}
	case err == nil:
		c.unmark(r.Key)
		if r.State == StateDone {
			r.MemoryLimit = c.since(before, known)
		}
	}
	return r, err
}

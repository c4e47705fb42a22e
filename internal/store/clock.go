package store

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"
)

const (
	// catchUp is how a clock that is ahead of the host's comes back to it: it loses one part in so many, so that
	// time never stands still (leases would not end) and never goes back (what has ended would begin again).
	catchUp = 16
	// clockBehind is how far the host's clock may be behind the newest record before somebody is told: servers
	// of one database differ.
	clockBehind = time.Minute
)

// clock is the host's, but it never goes back: what has expired stays so when somebody sets the host's clock.
// While the process runs, what passes is measured by the monotonic clock; a step forward of the host's clock is
// taken over, a step back is not. It is safe for concurrent use.
type clock struct {
	read func() time.Time

	mu   sync.Mutex
	at   time.Time // the last reading, with the monotonic clock's where it has one
	last time.Time // what was last said; zero before the first time
}

// now returns the time, without a monotonic reading.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.read()
	said := t.Round(0)
	if said.Before(c.last) { // it was set back
		passed := max(0, t.Sub(c.at))
		said = c.last.Add(passed - passed/catchUp)
	}
	c.at, c.last = t, said
	return said
}

// notBefore makes the clock say at least floor from now on.
func (c *clock) notBefore(floor time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if floor.After(c.last) {
		c.at, c.last = c.read(), floor
	}
}

// HostNow is the host's clock as it is: for what other systems judge by theirs, such as the time in a signature.
func (s *Store) HostNow() time.Time { return s.hostNow() }

// Now is the time by which everything that expires is judged: the host's, or a later one that this process or
// the database has seen. It never goes back.
func (s *Store) Now() time.Time { return s.now() }

const newestAuditSQL = `SELECT at FROM audit ORDER BY num DESC LIMIT 1`

// seen takes over the newest time that the database has seen, by the last record of the audit: whatever
// authority was used left one.
func (s *Store) seen(ctx context.Context, c *clock) error {
	var at int64
	err := s.queryRow(ctx, newestAuditSQL).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return s.fail("reading the time of the newest audit record", err)
	}
	newest := timeOf(at)
	if behind := newest.Sub(c.read()); behind > clockBehind {
		s.log.Error("the host's clock is behind the newest record of the database, and time goes on from there; set "+
			"the clock, or if the record is wrong, start with --trust-clock",
			"behind", behind.Round(time.Second), "newest", newest)
	}
	c.notBefore(newest)
	return nil
}

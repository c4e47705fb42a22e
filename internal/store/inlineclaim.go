package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
)

// InlineClaim lets the writer claim, for a local worker, a session that a commit of this process makes runnable.
// Such a session is the worker's with that very commit, and costs no claim of its own. Each is as if it had been
// claimed right after the commit: it needs the worker's lease, raises the epoch, and is given up like any other.
// Only SQLite makes inline claims; with PostgreSQL the processes share what comes in.
type InlineClaim struct {
	Worker outboard.WorkerID
	// Reserve asks for room for one session more of an organization. It must not wait.
	Reserve func(outboard.OrgID) bool
	// Cancel gives back room that was not needed.
	Cancel func(outboard.OrgID)
	// Take hands over a session for which room was reserved: its header, and the events of the commit, which are
	// the newest of its log. It must not wait.
	Take func(outboard.Header, []outboard.Event)
}

// AddInlineClaim makes a claim known until stop is called; after stop has returned, nothing of it is called any more.
func (s *Store) AddInlineClaim(o *InlineClaim) (stop func()) {
	s.claimsMu.Lock()
	defer s.claimsMu.Unlock()
	s.inlineClaims = append(s.inlineClaims, o)
	return func() {
		s.claimsMu.Lock()
		defer s.claimsMu.Unlock()
		s.inlineClaims = slices.DeleteFunc(s.inlineClaims, func(x *InlineClaim) bool { return x == o })
	}
}

// taking is the use of one inline claim by one group. A nil one takes nothing.
type taking struct {
	*InlineClaim
	reserved, used map[outboard.OrgID]int
}

// takingLocked returns the inline claim for the next group, or nil. s.claimsMu is held.
func (s *Store) takingLocked() *taking {
	if !s.d.claimsInline() || len(s.inlineClaims) == 0 {
		return nil
	}
	return &taking{s.inlineClaims[len(s.inlineClaims)-1], map[outboard.OrgID]int{}, map[outboard.OrgID]int{}}
}

// again forgets what an attempt to commit had taken; the room stays reserved.
func (t *taking) again() {
	if t != nil {
		clear(t.used)
	}
}

// take claims a session for the worker if c, just applied to it, was no append of a worker and left something to do.
func (t *taking) take(r *row, c *Commit, now time.Time) {
	if t == nil || c.Epoch > 0 || r.Worker != "" || r.readyAt == 0 || r.readyAt > micros(now) {
		return
	}
	if t.used[r.Org] == t.reserved[r.Org] {
		if !t.Reserve(r.Org) {
			return
		}
		t.reserved[r.Org]++
	}
	t.used[r.Org]++
	r.Worker, r.claimed, r.placed, r.full = t.Worker, true, true, true
	r.Epoch++
}

// took reports whether the group has made work for the worker.
func (t *taking) took() bool { return t != nil && len(t.used) > 0 }

// settle hands over what the group has taken, or with rows nil gives the room back.
func (t *taking) settle(group []*pending, rows map[outboard.SessionID]*row) {
	if t == nil {
		return
	}
	for _, r := range rows {
		if r == nil || !r.claimed {
			continue
		}
		var events []outboard.Event
		for _, p := range group {
			if p.err == nil && p.commit.Session == r.ID {
				events = append(events, p.events...)
			}
		}
		t.reserved[r.Org]--
		t.Take(r.Header, events)
	}
	for org, n := range t.reserved {
		for range n {
			t.Cancel(org)
		}
	}
}

// live reports whether the worker's lease holds, in the transaction of a group; a group without inputs need not know.
func (d *sqliteDialect) live(ctx context.Context, c *rawConn, k *taking, group []*pending,
	now time.Time) (bool, error) {
	if k == nil || !slices.ContainsFunc(group, func(p *pending) bool { return p.commit.Epoch == 0 }) {
		return false, nil
	}
	var until int64
	err := c.row(ctx, liveSQL, string(k.Worker), micros(now)).Scan(&until)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

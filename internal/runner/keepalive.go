package runner

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
)

const (
	// keepAliveTime is how long a sandbox stays connected and awake after a turn. A program that talks to a
	// session sends its next message within it, and is spared a freeze, a thaw and a connection; a person's
	// pause is far longer.
	keepAliveTime = 2 * time.Second
	// maxKeptAlive bounds the sandboxes of one process that run without a turn.
	maxKeptAlive = 64
	// tidyEvery is how often what was kept is looked through.
	tidyEvery = time.Second
)

// keepAlive holds the leases of turns that have just ended. Until a lease is released, fleet gives the session's
// next turn of this process the same connection. Its methods may be called from any goroutine.
type keepAlive struct {
	mu   sync.Mutex
	kept map[outboard.SessionID]keptLease
}

// keptLease is a lease that nobody uses just now, and the calls it is still to be told about, under the epoch of
// the last turn.
type keptLease struct {
	lease   *fleet.Lease
	unacked []string // call keys
	epoch   int64
	until   time.Time
}

// keep takes over a lease, and returns one to be released in its place, or nil.
func (l *keepAlive) keep(id outboard.SessionID, k keptLease) *fleet.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.kept[id]
	if old.lease == nil && len(l.kept) >= maxKeptAlive {
		return k.lease
	}
	if l.kept == nil {
		l.kept = map[outboard.SessionID]keptLease{}
	}
	k.unacked, k.until = append(old.unacked, k.unacked...), time.Now().Add(keepAliveTime)
	l.kept[id] = k
	return old.lease
}

// takeUnacked hands what a session's sandbox is still to be told to the turn that uses it next: its epoch is the
// one the guest listens to.
func (l *keepAlive) takeUnacked(id outboard.SessionID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.kept[id]
	if !ok {
		return nil
	}
	unacked := k.unacked
	k.unacked = nil
	l.kept[id] = k
	return unacked
}

// expired gives back the boxes whose time ends before now.
func (l *keepAlive) expired(now time.Time) []keptLease {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []keptLease
	for id, k := range l.kept {
		if k.until.Before(now) {
			out = append(out, k)
			delete(l.kept, id)
		}
	}
	return out
}

// tidy lets go what sessions left behind that nobody came back for, until ctx ends; then all of it.
func (w *worker) tidy(ctx context.Context) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		now := time.Now()
		w.states.expire(now)
		if ctx.Err() != nil {
			now = now.Add(2 * keepAliveTime)
		}
		parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
		for _, k := range w.keepAlive.expired(now) {
			w.forget(parting, k)
			w.release(ctx, k.lease)
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

// forget acknowledges what a box is still to be told. A lost acknowledgement costs disk in the sandbox and
// nothing else.
func (r *Runner) forget(ctx context.Context, k keptLease) {
	for _, key := range k.unacked {
		if err := k.lease.Ack(ctx, key, k.epoch); err != nil {
			r.log.Debug("acknowledging a call", "sandbox", k.lease.ID(), "call", key, "err", err)
		}
	}
}

// release lets a sandbox go. Fleet freezes it only if no call runs in it and nobody else uses it.
func (r *Runner) release(ctx context.Context, lease *fleet.Lease) {
	if err := r.cfg.Fleet.Release(ctx, lease); err != nil {
		r.log.Warn("letting a sandbox go", "sandbox", lease.ID(), "err", err)
	}
}

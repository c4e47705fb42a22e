package runner

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
)

const (
	// lingerTime is how long a sandbox stays connected and awake after a turn. A program that talks to a session sends its next
	// message within it, and is spared a freeze, a thaw and a connection; a person's pause is far longer.
	lingerTime = 2 * time.Second
	// maxLingering bounds the sandboxes of one process that run without a turn.
	maxLingering = 64
	// tidyEvery is how often what was kept is looked through.
	tidyEvery = time.Second
)

// lingering are the boxes of turns that have just ended. Until a box is released, fleet gives the session's next turn of this
// process the same connection. Its methods may be called from any goroutine.
type lingering struct {
	mu   sync.Mutex
	kept map[outboard.SessionID]lingerer
}

// lingerer is a box that nobody uses just now, and the calls it is still to be told about, under the epoch of the last turn.
type lingerer struct {
	box     *fleet.Box
	unacked []string // call keys
	epoch   int64
	until   time.Time
}

// keep takes over a box, and returns one to be released in its place, or nil.
func (l *lingering) keep(id outboard.SessionID, k lingerer) *fleet.Box {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.kept[id]
	if old.box == nil && len(l.kept) >= maxLingering {
		return k.box
	}
	if l.kept == nil {
		l.kept = map[outboard.SessionID]lingerer{}
	}
	k.unacked, k.until = append(old.unacked, k.unacked...), time.Now().Add(lingerTime)
	l.kept[id] = k
	return old.box
}

// takeUnacked hands what a session's box is still to be told to the turn that uses it next: its epoch is the one the guest listens to.
func (l *lingering) takeUnacked(id outboard.SessionID) []string {
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
func (l *lingering) expired(now time.Time) []lingerer {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []lingerer
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
		w.folds.expire(now)
		if ctx.Err() != nil {
			now = now.Add(2 * lingerTime)
		}
		parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
		for _, k := range w.lingering.expired(now) {
			w.forget(parting, k)
			w.release(ctx, k.box)
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

// forget acknowledges what a box is still to be told. A lost acknowledgement costs disk in the sandbox and nothing else.
func (r *Runner) forget(ctx context.Context, k lingerer) {
	for _, key := range k.unacked {
		if err := k.box.Ack(ctx, key, k.epoch); err != nil {
			r.log.Debug("acknowledging a call", "sandbox", k.box.ID(), "call", key, "err", err)
		}
	}
}

// release lets a sandbox go. Fleet freezes it only if no call runs in it and nobody else uses it.
func (r *Runner) release(ctx context.Context, box *fleet.Box) {
	if err := r.cfg.Fleet.Release(ctx, box); err != nil {
		r.log.Warn("letting a sandbox go", "sandbox", box.ID(), "err", err)
	}
}

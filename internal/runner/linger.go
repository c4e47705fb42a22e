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

type lingerer struct {
	box   *fleet.Box
	until time.Time
}

// keep takes over a box, and returns one to be released in its place, or nil.
func (l *lingering) keep(id outboard.SessionID, box *fleet.Box) *fleet.Box {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.kept[id].box
	if old == nil && len(l.kept) >= maxLingering {
		return box
	}
	if l.kept == nil {
		l.kept = map[outboard.SessionID]lingerer{}
	}
	l.kept[id] = lingerer{box, time.Now().Add(lingerTime)}
	return old
}

// expired gives back the boxes whose time ends before now.
func (l *lingering) expired(now time.Time) []*fleet.Box {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*fleet.Box
	for id, k := range l.kept {
		if k.until.Before(now) {
			out = append(out, k.box)
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
		for _, box := range w.lingering.expired(now) {
			w.release(ctx, box)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// release lets a sandbox go. Fleet freezes it only if no call runs in it and nobody else uses it.
func (r *Runner) release(ctx context.Context, box *fleet.Box) {
	if err := r.cfg.Fleet.Release(ctx, box); err != nil {
		r.log.Warn("letting a sandbox go", "sandbox", box.ID(), "err", err)
	}
}

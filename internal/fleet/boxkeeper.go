package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// keepBoxes ends boxes in time and looks at what they use, until ctx ends. What fails is logged and tried again
// at the next tick.
func (f *Fleet) keepBoxes(ctx context.Context) {
	tick := time.NewTicker(BoxTick)
	defer tick.Stop()
	var sampled time.Time
	for {
		if err := f.expireBoxes(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("ending boxes", "err", err)
		}
		if now := f.now(); now.Sub(sampled) >= SampleEvery {
			sampled = now
			f.sampleBoxes(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// expireBoxes kills or pauses the boxes whose time is over.
func (f *Fleet) expireBoxes(ctx context.Context) error {
	due, err := f.cfg.Store.DueBoxes(ctx, f.cfg.Host, f.now())
	if err != nil {
		return err
	}
	for _, b := range due {
		if err := f.expireBox(ctx, b); err != nil && outboard.KindOf(err) != outboard.NotFound {
			f.log.Warn("ending a box", "box", b.ID, "err", err)
		}
	}
	return nil
}

// expireBox ends a box as it was when it was due. A client may give it more time while that goes on: whoever is
// first in the row wins.
func (f *Fleet) expireBox(ctx context.Context, b outboard.Box) error {
	over := func(now *outboard.Box) error {
		if now.EndAt.After(f.now()) || now.State != outboard.BoxRunning {
			return outboard.Errorf(outboard.NotFound, "box %s was given more time", b.ID)
		}
		return nil
	}
	f.log.Info("a box's time is over", "box", b.ID, "pause", b.OnTimeout.Pause)
	if b.OnTimeout.Pause {
		_, err := f.pauseBox(ctx, clock, b.ID, b.OnTimeout.DropMemory, over)
		if outboard.KindOf(err) == outboard.Conflict {
			return nil
		}
		return err
	}
	return f.endBox(store.Removing(ctx), b.ID, func(now outboard.Box) error {
		if err := over(&now); err != nil {
			return err
		}
		f.recordEnd(ctx, &now, clock)
		return nil
	}, func(ctx context.Context, id outboard.BoxID) error { return f.cfg.Store.DeleteDueBox(ctx, id, f.now()) })
}

// sampleBoxes looks at what every box that this process is connected to uses.
func (f *Fleet) sampleBoxes(ctx context.Context) {
	f.mu.Lock()
	boxes := slices.Collect(maps.Values(f.boxes))
	f.mu.Unlock()
	for _, l := range boxes {
		select {
		case l.sem <- struct{}{}:
		default:
			continue // it is changing
		}
		if l.use != nil {
			if m, ok := l.use.machine.Sandbox.(sandbox.Measured); ok {
				if u, err := m.Usage(ctx); err == nil {
					l.sample(f.now(), u)
				}
			}
		}
		l.leave()
	}
}

func (l *liveBox) sample(now time.Time, u sandbox.Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := BoxSample{At: now, Usage: u}
	if wall := now.Sub(l.lastAt).Seconds() * u.CPUs; !l.lastAt.IsZero() && wall > 0 && u.CPU >= l.last.CPU {
		s.CPUPercent = min(100, 100*(u.CPU-l.last.CPU).Seconds()/wall)
	}
	l.last, l.lastAt = u, now
	l.samples = append(l.samples, s)
	l.samples = l.samples[max(0, len(l.samples)-MaxSamples):]
}

// BoxSamples returns what a box used, oldest first, and BoxLog what happened to it. Both are of this process's
// time only.
func (f *Fleet) BoxSamples(id outboard.BoxID) []BoxSample {
	f.mu.Lock()
	l := f.boxes[id]
	f.mu.Unlock()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.samples)
}

// BoxLog returns the newest lines of a box's log, oldest first.
func (f *Fleet) BoxLog(id outboard.BoxID) []BoxLine {
	f.mu.Lock()
	l := f.boxes[id]
	f.mu.Unlock()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.log)
}

// NoteBox adds a line to a box's log.
func (f *Fleet) NoteBox(id outboard.BoxID, message string, fields map[string]string) {
	f.mu.Lock()
	l := f.boxes[id]
	f.mu.Unlock()
	if l != nil {
		l.note(f.now(), message, fields)
	}
}

// releaseBoxes drops the connections to all boxes. Their machines live on.
func (f *Fleet) releaseBoxes() {
	f.mu.Lock()
	boxes := slices.Collect(maps.Values(f.boxes))
	f.mu.Unlock()
	for _, l := range boxes {
		l.sem <- struct{}{}
		f.cut(l)
		l.leave()
	}
}

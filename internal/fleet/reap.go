package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// reaper is the goroutine that Start owns.
type reaper struct {
	mu   sync.Mutex
	stop context.CancelFunc // nil when not running
	wg   sync.WaitGroup
}

// Start reaps and starts the timer, which first lets sandboxes rest that were left alone while no server ran.
// Stop ends it, and so does ctx. Starting twice is starting once.
func (f *Fleet) Start(ctx context.Context) error {
	f.reaper.mu.Lock()
	defer f.reaper.mu.Unlock()
	if f.cfg.Provider == nil || f.reaper.stop != nil {
		return nil
	}
	if err := f.reap(ctx); err != nil {
		return fmt.Errorf("looking for sandboxes that nobody owns: %w", err)
	}
	if err := f.lostBuilds(ctx); err != nil {
		return fmt.Errorf("looking for builds that nobody is at: %w", err)
	}
	if err := f.reconnect(ctx); err != nil {
		return fmt.Errorf("looking for sandboxes to serve: %w", err)
	}
	ctx, f.reaper.stop = context.WithCancel(ctx)
	f.reaper.wg.Go(func() { f.keepBoxes(ctx) })
	f.reaper.wg.Go(func() { f.keep(ctx) })
	f.reaper.wg.Go(func() { f.tidy(ctx) })
	return nil
}

// tidy lets sandboxes rest and removes what nobody owns, until ctx ends. Start has just reaped.
func (f *Fleet) tidy(ctx context.Context) {
	tick := time.NewTicker(f.cfg.RestEvery)
	defer tick.Stop()
	for {
		if err := f.poolTemplates(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("having sandboxes of templates wait", "err", err)
		}
		if err := f.rest(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("stopping sandboxes that rest", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := f.reap(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("reaping sandboxes", "err", err)
		}
		if err := f.reapGone(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("reaping sandboxes of hosts that are gone", "err", err)
		}
		if err := f.lostBuilds(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("looking for builds that nobody is at", "err", err)
		}
		if err := f.thinLater(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("thinning checkpoints", "err", err)
		}
	}
}

// Stop waits for the reaper, and lets go of the boxes: they live on. It may be called twice, and before Start.
func (f *Fleet) Stop() {
	f.stopBuilds()
	f.unmaking.stop()
	f.unmaking.wg.Wait()
	f.reaper.mu.Lock()
	defer f.reaper.mu.Unlock()
	defer f.releaseBoxes()
	if f.reaper.stop != nil {
		f.reaper.stop()
		f.reaper.wg.Wait()
		f.reaper.stop = nil
	}
}

// reap destroys machines that nobody owns and marks rows whose machine is gone. Rows are read before machines: a
// machine has a row before it exists, so one that is missing from a later list is really gone. What fails for
// one machine is logged and tried again the next time.
func (f *Fleet) reap(ctx context.Context) error {
	ctx = store.Removing(ctx)
	rows, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, "")
	if err != nil {
		return err
	}
	lctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	ids, err := f.cfg.Provider.List(lctx)
	if err != nil {
		return fmt.Errorf("listing machines: %w", err)
	}
	present := map[outboard.SandboxID]bool{}
	for _, id := range ids {
		present[id] = true
	}
	for _, row := range rows {
		if !f.made(row) {
			continue // another provider's server on this host looks after it
		}
		if err := f.reapRow(ctx, row, present[row.ID]); err != nil {
			f.log.Warn("reaping a sandbox", "sandbox", row.ID, "err", err)
		}
		delete(present, row.ID)
	}
	for id := range present {
		if err := f.reapStray(ctx, id); err != nil {
			f.log.Warn("reaping a sandbox", "sandbox", id, "err", err)
		}
	}
	if err := f.forgetLocks(rows); err != nil {
		f.log.Warn("removing locks that nobody has", "err", err)
	}
	if err := f.forgetLayers(ctx, rows); err != nil {
		f.log.Warn("removing layers that nobody needs", "err", err)
	}
	return nil
}

// reapStray removes a machine that no undestroyed row of this host named when the rows were read.
func (f *Fleet) reapStray(ctx context.Context, id outboard.SandboxID) error {
	row, err := f.cfg.Store.Sandbox(ctx, id)
	switch {
	case outboard.KindOf(err) == outboard.NotFound:
	case err != nil:
		return err
	case row.State != stateDestroyed:
		return nil // made since, or by a server with another host name
	}
	f.log.Info("destroying a sandbox without a row", "sandbox", id)
	return f.destroyMachine(ctx, id)
}

// reapRow looks at one row that is not destroyed.
func (f *Fleet) reapRow(ctx context.Context, row outboard.Sandbox, present bool) error {
	if row.State == stateStopped && !present {
		return f.reapStopped(ctx, row)
	}
	why, force, err := f.garbage(ctx, row, present)
	if err != nil || why == "" {
		return err
	}
	if !force {
		if f.cfg.Dir == "" && f.now().Sub(row.UpdatedAt) < MakeTimeout {
			return nil // another process may be making it, or about to log it
		}
		release, ok := f.unused(row.ID)
		if !ok {
			return nil
		}
		defer release()
		// Its user may have finished, logged or destroyed it between the first look and the lock.
		now, err := f.cfg.Store.Sandbox(ctx, row.ID)
		if err == nil && now.State == stateDestroyed {
			f.removeLock(row.ID) // our look made it again
		}
		if err != nil || now.State != row.State {
			return err
		}
		if why, _, err = f.garbage(ctx, row, present); err != nil || why == "" {
			return err
		}
	}
	f.log.Info("destroying a sandbox", "sandbox", row.ID, "session", row.Session, "why", why)
	if row.State == stateStopping && !force {
		if cur, _, err := f.current(ctx, row.Session); err != nil || cur == "" { // the log has it that it is stopped
			return errors.Join(err, f.destroyTo(ctx, row, stateStopped))
		}
	}
	return f.destroy(ctx, row)
}

// garbage says why a row's machine has no owner, or "". With force it goes even if a process uses it.
func (f *Fleet) garbage(ctx context.Context, row outboard.Sandbox, present bool) (why string, force bool, err error) {
	if !present {
		return "the machine is gone", false, nil
	}
	if row.Session == "" {
		_, err := f.cfg.Store.BoxOf(ctx, row.ID)
		if outboard.KindOf(err) == outboard.NotFound {
			return "no box has it", false, nil
		}
		return "", false, err
	}
	h, err := f.cfg.Store.Session(ctx, row.Session)
	switch {
	case outboard.KindOf(err) == outboard.NotFound:
		return "its session was deleted", true, nil
	case err != nil:
		return "", false, err
	case h.Phase == outboard.PhaseTerminated:
		return "its session is archived", true, nil
	}
	cur, gone, err := f.current(ctx, row.Session)
	switch {
	case err != nil:
		return "", false, err
	case gone == row.ID:
		return "its session was rewound", true, nil // whoever still holds it does so for nothing
	case cur != row.ID:
		return "its session uses another one", false, nil
	}
	return "", false, nil
}

// current returns the machine that the session's log names, or "", and the one that its newest rewind gave up,
// if no other has come since.
func (f *Fleet) current(ctx context.Context, id outboard.SessionID) (cur, gone outboard.SandboxID, err error) {
	q := store.EventQuery{Desc: true, Limit: 8, Types: []outboard.EventType{outboard.TypeSandboxReady,
		outboard.TypeSandboxLost,
		outboard.TypeSessionRewound, outboard.TypeSessionForked}}
	for {
		events, err := f.cfg.Store.Events(ctx, id, q)
		if err != nil {
			return "", "", err
		}
		for i := range events {
			p, err := events[i].Decode()
			if err != nil {
				return "", "", err
			}
			switch p := p.(type) {
			case *outboard.SandboxReady:
				return p.Sandbox, "", nil
			case *outboard.SessionRewound:
				if p.Machine {
					return "", p.Sandbox, nil
				}
			default: // lost, or its parent's before the fork
				return "", "", nil
			}
		}
		if len(events) < q.Limit {
			return "", "", nil
		}
		q.Before = events[len(events)-1].Seq
	}
}

// Tidy destroys what the session's log no longer names, as the reaper would within ReapEvery.
func (f *Fleet) Tidy(ctx context.Context, id outboard.SessionID) error {
	if f.cfg.Provider == nil {
		return nil
	}
	rows, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, id)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !f.made(row) {
			continue
		}
		if err := f.reapRow(ctx, row, true); err != nil {
			return err
		}
	}
	return nil
}

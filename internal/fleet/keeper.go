package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// keeper makes this host's checkpoints durable: one after the other, those of a session oldest first, so that a
// durable one's ancestors are durable. What it has to do is in rows; it remembers only what it was told will
// become a row, to look again soon.
type keeper struct {
	mu       sync.Mutex
	expected map[outboard.CheckpointID]time.Time // pushed, and to be committed by the caller
	// layers seen without a row, and since when: another process may be about to commit it
	strange   map[outboard.CheckpointID]time.Time
	committed map[outboard.CheckpointID]bool  // layers seen with a row: without it they are a deleted session's
	weights   map[outboard.CheckpointID]int64 // of layers that are kept
	wake      chan struct{}                   // capacity 1

	forgetting sync.Mutex  // one round of forgetLayers at a time
	heavy      atomic.Bool // something large was stored: its layers take as much again
}

// expect says that a row with a checkpoint of this host is about to be committed.
func (k *keeper) expect(id outboard.CheckpointID) {
	k.mu.Lock()
	k.expected[id] = time.Now()
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// expecting forgets what has been waited for too long, and reports whether there is more.
func (k *keeper) expecting() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, since := range k.expected {
		if time.Since(since) > MakeTimeout { // its caller gave up or died
			delete(k.expected, id)
		}
	}
	return len(k.expected) > 0
}

// seen remembers that a checkpoint has a row.
func (k *keeper) seen(id outboard.CheckpointID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.committed[id] = true
}

// stale reports whether nothing will come of a checkpoint without a row: it had one, or it has had none for too long.
func (k *keeper) stale(id outboard.CheckpointID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.committed[id] {
		return true
	}
	since, ok := k.strange[id]
	if !ok {
		k.strange[id] = time.Now()
		return false
	}
	if time.Since(since) < MakeTimeout {
		return false
	}
	delete(k.strange, id)
	return true
}

// known forgets those that were seen without a row and have one by now, or are gone, and of those with a row
// what is not kept any more.
func (k *keeper) known(strange map[outboard.CheckpointID]bool, kept []outboard.CheckpointID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	here := map[outboard.CheckpointID]bool{}
	for _, id := range kept {
		here[id] = true
	}
	maps.DeleteFunc(k.committed, func(id outboard.CheckpointID, _ bool) bool { return !here[id] })
	maps.DeleteFunc(k.weights, func(id outboard.CheckpointID, _ int64) bool { return !here[id] })
	maps.DeleteFunc(k.strange, func(id outboard.CheckpointID, _ time.Time) bool { return !strange[id] })
}

func (k *keeper) done(id outboard.CheckpointID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.expected, id)
}

// keep makes checkpoints durable until ctx ends.
func (f *Fleet) keep(ctx context.Context) {
	layers := f.layers()
	if layers == nil {
		return
	}
	pause := time.Duration(0)
	for {
		err := f.keepAll(ctx, layers)
		if err != nil && ctx.Err() == nil {
			f.log.Warn("making checkpoints durable", "err", err)
		}
		if f.keeper.heavy.Swap(false) {
			if err := f.forgetHeavy(ctx); err != nil && ctx.Err() == nil {
				f.log.Warn("removing layers that nobody needs", "err", err)
			}
		}
		if pause = pauseAfter(err, pause); pause > 0 {
			select { // whatever is pushed meanwhile
			case <-time.After(pause):
				continue
			case <-ctx.Done():
				f.keepLast(ctx)
				return
			}
		}
		again := ReapEvery
		if f.keeper.expecting() {
			again = keepEvery
		}
		t := time.NewTimer(again)
		select {
		case <-ctx.Done():
			t.Stop()
			f.keepLast(ctx)
			return
		case <-t.C:
		case <-f.keeper.wake:
			t.Stop()
			select { // the row comes with the commit that the caller is about to make
			case <-time.After(keepEvery):
			case <-ctx.Done():
				f.keepLast(ctx)
				return
			}
		}
	}
}

// unstored is an error of the place where checkpoints are stored, or of the database: none of them can be made durable.
type unstored struct{ error }

// Unwrap returns what happened.
func (e unstored) Unwrap() error { return e.error }

// pauseAfter is how long the keeper waits after a round that ended with err, the last pause having been that; 0
// = it does not.
func pauseAfter(err error, last time.Duration) time.Duration {
	if _, ok := errors.AsType[unstored](err); !ok {
		return 0
	}
	return min(max(2*last, keepPause), maxKeepPause)
}

// keepLast spends a moment on what is not durable yet before the process ends; the next one goes on.
func (f *Fleet) keepLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLastTime)
	defer cancel()
	if err := f.keepAll(ctx, f.layers()); err != nil {
		f.log.Info("checkpoints are not durable yet", "err", err)
	}
}

// keepAll stores what the rows of this host name, until one shows that nothing can be stored. All processes of
// the host do: they share the work by beginning with different sessions, and by looking, before a delta is
// stored, whether another one has stored it.
func (f *Fleet) keepAll(ctx context.Context, layers sandbox.Layers) error {
	rows, err := f.cfg.Store.LocalCheckpoints(ctx, f.cfg.Host)
	if err != nil {
		return unstored{err}
	}
	var sessions []outboard.SessionID
	of := map[outboard.SessionID][]outboard.Checkpoint{}
	for _, c := range rows {
		if of[c.Session] == nil {
			sessions = append(sessions, c.Session)
		}
		of[c.Session] = append(of[c.Session], c)
	}
	rand.Shuffle(len(sessions), func(i, j int) { sessions[i], sessions[j] = sessions[j], sessions[i] })
	var errs []error
	for _, id := range sessions {
		for _, c := range of[id] {
			err := f.keepNext(ctx, layers, c.ID)
			if err != nil {
				errs = append(errs, fmt.Errorf("checkpoint %s: %w", c.ID, err))
			}
			if _, all := errors.AsType[unstored](err); all || ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

// keepNext is keepOne of a checkpoint that another process may have stored since it was listed.
func (f *Fleet) keepNext(ctx context.Context, layers sandbox.Layers, id outboard.CheckpointID) error {
	c, err := f.cfg.Store.Checkpoint(ctx, id)
	if outboard.KindOf(err) == outboard.NotFound || err == nil && c.Host != f.cfg.Host {
		f.keeper.done(id)
		return nil
	}
	if err != nil {
		return unstored{err}
	}
	f.keeper.seen(id)
	return f.keepOne(ctx, layers, c)
}

// Keep makes a checkpoint of this host durable now; what it builds on must be. One of another host is left
// alone. The keeper may be at it as well: the row is settled once.
func (f *Fleet) Keep(ctx context.Context, c outboard.Checkpoint) error {
	layers := f.layers()
	if layers == nil || c.Host != f.cfg.Host || c.Durable() {
		return nil
	}
	return f.keepOne(ctx, layers, c)
}

// keepOne stores one delta and settles its row.
func (f *Fleet) keepOne(ctx context.Context, layers sandbox.Layers, c outboard.Checkpoint) error {
	f.keeper.done(c.ID)
	settle := func(parent outboard.CheckpointID, delta outboard.BlobRef) error {
		if err := f.cfg.Store.SettleCheckpoint(ctx, c.ID, parent, delta, f.now()); err != nil {
			return unstored{err}
		}
		return nil
	}
	lost := func(why error, over int64) error {
		f.log.Error("checkpoint lost before it was durable", "session", c.Session, "checkpoint", c.ID, "err", why)
		return settle(c.Parent, outboard.BlobRef{Size: over})
	}
	if c.Parent != "" {
		switch p, err := f.cfg.Store.Checkpoint(ctx, c.Parent); {
		case err != nil && outboard.KindOf(err) != outboard.NotFound:
			return err
		case err != nil || p.Lost() != nil:
			return lost(fmt.Errorf("it builds on %s, which is lost", c.Parent), p.Delta.Size)
		case !p.Durable():
			return nil // it failed just now; the next round begins with it
		}
	}
	ctx, cancel := context.WithTimeout(ctx, KeepTimeout)
	defer cancel()
	parent := c.Parent
	var packed error
	pack := func(w io.Writer) error {
		packed = layers.Pack(ctx, c.ID, parent, w)
		return packed
	}
	ref, err := f.pack(ctx, f.maxCheckpoint, pack)
	// only its parent's were dropped: it becomes the first of a chain
	if sandbox.Gone(err) && parent != "" && layers.Keeps(c.ID) {
		parent = ""
		ref, err = f.pack(ctx, f.maxCheckpoint, pack)
	}
	_, stopped := errors.AsType[unread](packed)
	switch {
	case sandbox.Gone(err):
		return lost(err, 0)
	case outboard.KindOf(err) == outboard.TooLarge:
		return lost(err, f.maxCheckpoint)
	case err != nil && (packed == nil || stopped):
		return unstored{err}
	case err != nil:
		return err
	}
	if err := settle(parent, ref); err != nil {
		return err
	}
	if ref.Size >= heavyDelta {
		f.keeper.heavy.Store(true)
	}
	f.log.Debug("checkpoint durable", "session", c.Session, "checkpoint", c.ID, "bytes", ref.Size, "dur", f.now().
		Sub(c.CreatedAt))
	return nil
}

// forgetHeavy is forgetLayers out of turn.
func (f *Fleet) forgetHeavy(ctx context.Context) error {
	rows, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, "")
	if err != nil {
		return err
	}
	return f.forgetLayers(ctx, rows)
}

// forgetLayers drops the layers of checkpoints that nobody will start from soon: durable ones whose session has no
// machine here, or has newer ones that are as much as may be here twice, and those that were never committed.
func (f *Fleet) forgetLayers(ctx context.Context, rows []outboard.Sandbox) error {
	layers := f.layers()
	if layers == nil {
		return nil
	}
	f.keeper.forgetting.Lock()
	defer f.keeper.forgetting.Unlock()
	here := map[outboard.SessionID]bool{}
	for _, row := range rows {
		here[row.Session] = true
	}
	of := map[outboard.SessionID][]outboard.Checkpoint{}
	ids, err := layers.Kept(ctx)
	if err != nil {
		return err
	}
	strange := map[outboard.CheckpointID]bool{}
	for _, id := range ids {
		k, err := f.cfg.Store.Checkpoint(ctx, id)
		switch {
		case outboard.KindOf(err) == outboard.NotFound:
			if !f.keeper.stale(id) {
				strange[id] = true
				continue
			}
		case err != nil:
			return err
		default:
			f.keeper.seen(id)
		}
		if err == nil {
			if k.Thinned() && !k.Durable() {
				if err := layers.Forget(ctx, id); err != nil {
					return err
				}
				continue
			}
			if here[k.Session] {
				of[k.Session] = append(of[k.Session], k)
				continue
			}
			if !k.Durable() && k.Host != "" {
				continue
			}
			if needed, err := f.needsLayers(ctx, &k); err != nil {
				return err
			} else if needed {
				continue
			}
		}
		if err := layers.Forget(ctx, id); err != nil {
			return err
		}
	}
	for session, list := range of {
		if err := f.trimLayers(ctx, layers, session, list); err != nil {
			return err
		}
	}
	f.keeper.known(strange, ids)
	return layers.Sweep(ctx)
}

// trimLayers drops the older states of a session whose machine is here, once they are stored: what their newest
// layers take is on the disk twice. It keeps the two newest, which may be the base of the next delta, what is not
// stored and its base, and the state that the session is in, which need not be a new one.
func (f *Fleet) trimLayers(
	ctx context.Context, layers sandbox.Layers, session outboard.SessionID, list []outboard.Checkpoint,
) error {
	slices.SortFunc(list, func(a, b outboard.Checkpoint) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(string(b.ID), string(a.ID)))
	})
	keep := map[outboard.CheckpointID]bool{}
	for i, k := range list {
		if !k.Durable() {
			keep[k.ID], keep[k.Parent] = true, true
		}
		keep[k.ID] = keep[k.ID] || i < 2
	}
	var sum int64
	var old []outboard.CheckpointID
	based := false
	for i, k := range list {
		w, err := f.weight(ctx, layers, k.ID)
		if err != nil {
			return err
		}
		if i > 0 && !based && layers.Above(list[0].ID, k.ID) { // the newest may be a copy, on which nothing is built
			based, keep[k.ID] = true, true
		}
		if sum += w; sum > f.keepLocal && !keep[k.ID] {
			old = append(old, k.ID)
		}
	}
	if len(old) == 0 {
		return nil
	}
	at, err := f.savedAt(ctx, session)
	if err != nil {
		return err
	}
	for _, id := range old {
		if id == at {
			continue
		}
		if err := layers.Forget(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// weight returns what the newest layer of a checkpoint takes, 0 where it is not here any more. It is asked for
// once: that it gets less does no harm.
func (f *Fleet) weight(ctx context.Context, layers sandbox.Layers, id outboard.CheckpointID) (int64, error) {
	f.keeper.mu.Lock()
	w, known := f.keeper.weights[id]
	f.keeper.mu.Unlock()
	if known {
		return w, nil
	}
	w, err := layers.Weigh(ctx, id)
	if err != nil && !sandbox.Gone(err) {
		return 0, err
	}
	f.keeper.mu.Lock()
	defer f.keeper.mu.Unlock()
	f.keeper.weights[id] = w
	return w, nil
}

// needsLayers reports whether a machine may have been made of a checkpoint's layers since the rows were read, or
// whether they are all that its session has: what is too large to be stored is here only.
func (f *Fleet) needsLayers(ctx context.Context, k *outboard.Checkpoint) (bool, error) {
	now, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, k.Session)
	if err != nil || len(now) > 0 || !k.TooLarge() {
		return len(now) > 0, err
	}
	h, err := f.cfg.Store.Session(ctx, k.Session)
	if outboard.KindOf(err) == outboard.NotFound || err == nil && h.Phase == outboard.PhaseTerminated {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	at, err := f.savedAt(ctx, k.Session)
	return at == k.ID, err
}

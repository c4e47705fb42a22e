package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/store"
)

// A session keeps all of its newest states, and of older ones the first of each chain of deltas: a later one of a
// chain cannot do without those before it, so to keep one in the middle saves next to nothing. Of the oldest
// chains it keeps one in ten. A state that anything begins with, or may, stays: what the session or a fork of it
// is in, what a fork began with, what a sandbox was made from, and what those build on.
//
// A state is first marked, so that nobody begins anything with it, and dropped when whoever had begun is done.
// What is stored of it goes with the next `outboard blob prune`.

// Retention says how many states a session keeps.
type Retention struct {
	States int   // the newest ones, all of which stay; 0 = all stay
	Bytes  int64 // what all states of a session may take; 0 = no bound. Beyond it fewer stay, down to minStates
}

// states is a set of checkpoints.
type states map[outboard.CheckpointID]bool

// thinning is what the last rounds came to.
type thinning struct {
	next time.Time                                    // of the next round
	seen map[outboard.SessionID]outboard.CheckpointID // the newest state when nothing was left to do
}

// thinLater is thin, not more often than thinEvery.
func (f *Fleet) thinLater(ctx context.Context) error {
	now := time.Now()
	if f.cfg.Retention == (Retention{}) || now.Before(f.thinning.next) {
		return nil
	}
	f.thinning.next = now.Add(thinEvery)
	return f.thin(ctx)
}

// thin gives up old states of all sessions.
func (f *Fleet) thin(ctx context.Context) error {
	most := f.cfg.Retention.States
	if f.cfg.Retention.Bytes > 0 || most == 0 {
		most = minStates
	}
	sessions, err := f.cfg.Store.SessionsToThin(ctx, most)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range sessions {
		if err := f.thinSession(ctx, id); err != nil && outboard.KindOf(err) != outboard.NotFound {
			errs = append(errs, fmt.Errorf("session %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// thinSession gives up old states of one session.
func (f *Fleet) thinSession(ctx context.Context, id outboard.SessionID) error {
	all, err := f.cfg.Store.Checkpoints(ctx, id)
	if err != nil {
		return err
	}
	// An ancestor's are its own business.
	all = slices.DeleteFunc(all, func(k outboard.Checkpoint) bool { return k.Session != id })
	if len(all) == 0 || f.thinning.seen[id] == all[len(all)-1].ID {
		return nil
	}
	held, err := f.heldStates(ctx, id, all)
	if err != nil {
		return err
	}
	stay, err := f.staying(ctx, all, held)
	if err != nil {
		return err
	}
	var mark, keep, drop []outboard.CheckpointID
	waiting := false
	for i := range all {
		k := &all[i]
		switch marked := !k.ThinnedAt.IsZero(); {
		case !k.Durable():
		case stay[k.ID] && marked:
			keep = append(keep, k.ID)
		case stay[k.ID]:
		case !marked:
			mark, waiting = append(mark, k.ID), true
		case f.now().Sub(k.ThinnedAt) >= thinGrace:
			drop = append(drop, k.ID)
		default:
			waiting = true
		}
	}
	if len(mark)+len(keep)+len(drop) > 0 {
		if err := f.cfg.Store.Thin(ctx, mark, keep, drop, f.now()); err != nil {
			return err
		}
		f.log.Info("old checkpoints given up", "session", id, "marked", len(mark), "dropped", len(drop), "kept",
			len(keep))
	}
	if !waiting {
		f.thinning.seen[id] = all[len(all)-1].ID
	}
	return nil
}

// heldStates returns the states that something is in, or was made from.
func (f *Fleet) heldStates(ctx context.Context, id outboard.SessionID, all []outboard.Checkpoint) (states, error) {
	held := states{}
	family, err := f.cfg.Store.Descendants(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, member := range append(family, id) {
		at, err := f.savedAt(ctx, member)
		if outboard.KindOf(err) == outboard.NotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		held[at] = true
		rows, err := f.cfg.Store.Sandboxes(ctx, "", member)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			held[row.Checkpoint] = true
		}
		forks := store.EventQuery{Limit: 1000, Types: []outboard.EventType{outboard.TypeSessionForked}}
		begun, err := f.cfg.Store.Events(ctx, member, forks)
		if err != nil {
			return nil, err
		}
		for i := range begun {
			p, err := begun[i].Decode()
			if err != nil {
				return nil, err
			}
			if fork, ok := p.(*outboard.SessionForked); ok {
				held[fork.Checkpoint] = true
			}
		}
	}
	for _, k := range all {
		if k.Host != "" { // not stored yet
			held[k.ID] = true
		}
	}
	return held, nil
}

// staying returns the states that are not given up. Where they take more than they may, fewer of the newest ones
// are sure to stay.
func (f *Fleet) staying(ctx context.Context, all []outboard.Checkpoint, held states) (states, error) {
	newest := f.cfg.Retention.States
	if newest == 0 {
		newest = len(all)
	}
	for {
		stay := retained(all, held, newest)
		if f.cfg.Retention.Bytes == 0 || newest <= minStates {
			return stay, nil
		}
		size, err := f.storedBytes(ctx, all, stay)
		if err != nil {
			return nil, err
		}
		if size <= f.cfg.Retention.Bytes {
			return stay, nil
		}
		newest = max(min(newest, len(all))/2, minStates)
	}
}

// retained returns which of a session's states stay, oldest first: the newest ones, the first of each chain before
// them, what is held, and whatever those build on.
func retained(all []outboard.Checkpoint, held states, newest int) states {
	of := map[outboard.CheckpointID]*outboard.Checkpoint{}
	stay := states{}
	add := func(id outboard.CheckpointID) {
		for k := of[id]; k != nil && !stay[k.ID]; k = of[k.Parent] {
			stay[k.ID] = true
		}
	}
	roots, live := 0, 0
	number := make([]int, len(all)) // of the chain, from the session's first: a state that stays once stays then
	for i := range all {
		of[all[i].ID] = &all[i]
		number[i] = roots
		if all[i].Parent == "" {
			roots++
		}
	}
	for i := range slices.Backward(all) {
		k := &all[i]
		switch {
		case held[k.ID]:
			add(k.ID)
		case !k.Durable() || !k.ThinnedAt.IsZero():
			continue
		case live < newest:
			add(k.ID)
		case k.Parent == "" && (roots-number[i] <= keepChains || number[i]%keepChains == 0):
			add(k.ID)
		}
		live++
	}
	return stay
}

// storedBytes returns what the states that stay take in the blob store together, before compression.
func (f *Fleet) storedBytes(ctx context.Context, all []outboard.Checkpoint, stay states) (int64, error) {
	var refs []outboard.BlobRef
	for _, k := range all {
		if stay[k.ID] && k.Durable() {
			refs = append(refs, k.Delta)
		}
	}
	return blob.Stored(ctx, f.cfg.Blob, refs)
}

// Retention returns what sessions keep.
func (f *Fleet) Retention() Retention { return f.cfg.Retention }

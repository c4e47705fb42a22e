//go:build linux

package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// saves gives a session checkpoints as the keeper leaves them: stored, in chains of some.
func (r *rig) saves(t *testing.T, id outboard.SessionID, n, chain int) (all []outboard.Checkpoint) {
	t.Helper()
	begin := time.Now().Add(-24 * time.Hour)
	for i := range n {
		ref, err := r.blob.Put(t.Context(), strings.NewReader(fmt.Sprintf("%-100d", i)), 0)
		if err != nil {
			t.Fatal(err)
		}
		at := begin.Add(time.Duration(i) * time.Second)
		k := outboard.Checkpoint{ID: outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint), Session: id,
			Depth: i % chain,
			Delta: ref, CreatedAt: at, DurableAt: at}
		if i > 0 {
			k.Prior = all[i-1].ID
		}
		if k.Depth > 0 {
			k.Parent = k.Prior
		}
		all = append(all, k)
		r.append(t, store.Commit{Session: id, Checkpoint: &k}, &outboard.CheckpointCreated{Checkpoint: k.ID,
			Bytes: ref.Size})
	}
	return all
}

// Broken if a long session keeps all of its states for as long as it lives, or if one is given up that the session
// or a fork is in, that a fork began with, that a sandbox was made from, or that another builds on; or before
// whoever had begun something with it is done.
func TestThin(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	f := r.fleet(func(c *Config) {
		c.Retention = Retention{States: 20}
		c.Now = func() time.Time { return now }
	})
	short, id := r.session(t), r.session(t)
	few, all := r.saves(t, short, 20, 7), r.saves(t, id, 1000, 8)
	fork := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread)}
	const forked, made, gone, late = 405, 503, 604, 703
	_, err := r.store.Fork(t.Context(), id, 700,
		[]store.Fork{{Header: fork, Events: []outboard.Event{outboard.NewEvent(fork.Thread,
			&outboard.SessionForked{Parent: id, Seq: 700, Checkpoint: all[forked].ID})}}})
	if err == nil {
		err = r.store.PutSandbox(t.Context(), outboard.Sandbox{ID: "sbx_of", Session: id, Host: "host-b", State: "live",
			Checkpoint: all[made].ID,
			CreatedAt:  now, UpdatedAt: now})
	}
	if err == nil {
		err = f.thin(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	marked, dropped := r.thinned(t, id)
	if marked == 0 || dropped != 0 {
		t.Errorf("%d are marked and %d dropped at once", marked, dropped)
	}
	// Who had looked just before goes back to one that is marked now.
	r.append(t, store.Commit{Session: id}, &outboard.SessionRewound{To: 1, Machine: true, Checkpoint: all[late].ID})
	f.thinning.seen = map[outboard.SessionID]outboard.CheckpointID{}
	now = now.Add(thinGrace)
	for range 3 { // the second and third change nothing
		if err := f.thin(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stay := map[outboard.CheckpointID]bool{}
	rows, err := r.store.Checkpoints(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range rows {
		if k.Thinned() == k.Durable() {
			t.Errorf("%s is thinned %v and stored %v", k.ID, k.Thinned(), k.Durable())
		}
		stay[k.ID] = k.Durable()
		if k.Durable() && k.Parent != "" && !stay[k.Parent] {
			t.Errorf("%s lost what it builds on", k.ID)
		}
	}
	// 80 begins the eleventh chain, 928 one of the ten newest
	for _, i := range []int{0, 80, forked, made, late, 928, 980, 999} {
		if !stay[all[i].ID] {
			t.Errorf("%d of %d is given up", i, len(all))
		}
	}
	for _, i := range []int{1, 8, 200, gone, 688, 929} {
		if stay[all[i].ID] {
			t.Errorf("%d of %d stays", i, len(all))
		}
	}
	if m, d := r.thinned(t, short); m+d != 0 {
		t.Errorf("of %d that all stay %d are given up", len(few), m+d)
	}
	if err := rows[1].Lost(); outboard.KindOf(err) != outboard.Conflict || !strings.Contains(err.Error(), "not kept") {
		t.Errorf("of one that is given up it is said: %v", err)
	}
}

// thinned counts the states that are marked, and those that are dropped.
func (r *rig) thinned(t *testing.T, id outboard.SessionID) (marked, dropped int) {
	t.Helper()
	rows, err := r.store.Checkpoints(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range rows {
		switch {
		case k.Thinned() && k.Durable():
			marked++
		case k.Thinned():
			dropped++
		}
	}
	return marked, dropped
}

// Broken if the bound on what a session's states take bounds nothing, or takes the newest.
func TestThinToSize(t *testing.T) {
	r := newRig(t)
	id := r.session(t)
	all := r.saves(t, id, 100, 4)
	for _, c := range []struct {
		bytes int64
		gone  bool
	}{{100 * 100, false}, {50 * 100, true}, {1, true}} {
		f := r.fleet(func(cfg *Config) { cfg.Retention = Retention{Bytes: c.bytes} })
		if err := f.thin(t.Context()); err != nil {
			t.Fatal(err)
		}
		rows, err := r.store.Checkpoints(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		var left []outboard.Checkpoint
		stay := map[outboard.CheckpointID]bool{}
		for _, k := range rows {
			if !k.Thinned() {
				left, stay[k.ID] = append(left, k), true
			}
		}
		size, err := f.storedBytes(t.Context(), rows, stay)
		if err != nil || (len(left) < len(all)) != c.gone || c.bytes > 1 && size > c.bytes || len(left) < minStates ||
			left[len(left)-1].ID != all[99].ID {
			t.Errorf("for %d bytes %d states stay, with %d: %v", c.bytes, len(left), size, err)
		}
	}
}

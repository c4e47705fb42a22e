//go:build linux

package fleet

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// machine makes a row and a machine for it step by step, as Acquire does, and stops where a kill would.
func (r *rig) machine(t *testing.T, session outboard.SessionID, state string, exists bool) outboard.SandboxID {
	t.Helper()
	row := outboard.Sandbox{
		ID:      outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox),
		Session: session, Provider: r.provider.Name(), Host: host, Generation: "gen", State: state,
		CreatedAt: time.Now(), UpdatedAt: time.Now(),
	}
	if state != "" {
		if err := r.store.PutSandbox(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	if exists {
		sb, err := r.provider.Create(t.Context(), sandbox.Spec{ID: row.ID, Generation: row.Generation})
		if err != nil {
			t.Fatal(err)
		}
		sb.Close()
	}
	return row.ID
}

// reapCases are the states that a kill, or a living process, may leave a machine in.
var reapCases = []struct {
	name   string
	state  string // of the row; "" = none
	exists bool   // the machine does
	then   func(t *testing.T, r *rig, s outboard.SessionID, id outboard.SandboxID)
	held   bool // by a living process
	keep   bool
}{
	{"killed after the row", stateCreating, false, nil, false, false},
	{"killed after the machine", stateCreating, true, nil, false, false},
	{"killed before the log", stateLive, true, nil, false, false},
	{"killed while destroying, machine first", stateLive, false, logReady, false, false},
	{"killed while destroying, row only", stateDestroyed, true, nil, false, false},
	{"machine without a row", "", true, nil, false, false},
	{"making it", stateCreating, true, nil, true, true},
	{"about to make it", stateCreating, false, nil, true, true},
	{"about to log it", stateLive, true, nil, true, true},
	{"in the log", stateLive, true, logReady, false, true},
	{"lost", stateLive, true, func(t *testing.T, r *rig, s outboard.SessionID, id outboard.SandboxID) {
		logReady(t, r, s, id)
		r.append(t, store.Commit{Session: s}, &outboard.SandboxLost{Sandbox: id})
	}, false, false},
	{"replaced", stateLive, true, func(t *testing.T, r *rig, s outboard.SessionID, id outboard.SandboxID) {
		logReady(t, r, s, id)
		logReady(t, r, s, "sbx_01other")
	}, false, false},
	{"archived", stateLive, true, func(t *testing.T, r *rig, s outboard.SessionID, id outboard.SandboxID) {
		logReady(t, r, s, id)
		r.append(t, store.Commit{Session: s}, &outboard.SessionArchived{})
	}, true, false},
	{"deleted", stateLive, true, func(t *testing.T, r *rig, s outboard.SessionID, id outboard.SandboxID) {
		logReady(t, r, s, id)
		if err := r.store.DeleteSession(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}, true, false},
}

func logReady(t *testing.T, r *rig, s outboard.SessionID, id outboard.SandboxID) {
	t.Helper()
	r.append(t, store.Commit{Session: s}, &outboard.SandboxReady{Sandbox: id, Generation: "gen"})
}

// Broken if a process killed at any step of a machine's life leaves it for ever, or the reaper takes one that is in use.
func TestReap(t *testing.T) {
	r := newRig(t)
	living := r.fleet()
	ids := make([]outboard.SandboxID, len(reapCases))
	for i, tt := range reapCases {
		s := r.session(t)
		ids[i] = r.machine(t, s, tt.state, tt.exists)
		if tt.then != nil {
			tt.then(t, r, s, ids[i])
		}
		if tt.held {
			h, err := living.hold(t.Context(), ids[i])
			if err != nil {
				t.Fatal(err)
			}
			defer living.letGo(h)
		}
	}
	f := r.fleet()
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	present := map[outboard.SandboxID]bool{}
	for _, id := range r.present(t) {
		present[id] = true
	}
	for i, tt := range reapCases {
		if want := tt.keep && tt.exists; present[ids[i]] != want {
			t.Errorf("%s: machine present %v, want %v", tt.name, present[ids[i]], want)
		}
		if tt.state == "" {
			continue
		}
		if state := r.row(t, ids[i]).State; tt.keep && state != tt.state || !tt.keep && state != stateDestroyed {
			t.Errorf("%s: row %s", tt.name, state)
		}
	}
}

// Broken if a process that ends keeps what it was making, or one that lives loses it.
func TestReapAfterItsOwner(t *testing.T) {
	r := newRig(t)
	f, owner := r.fleet(), r.fleet()
	id := r.session(t)
	b, err := owner.Acquire(t.Context(), r.request(t, id)) // not logged
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []*Fleet{f, owner} {
		if err := g.reap(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if out := r.bash(t, b, "echo alive"); out != "alive\n" {
		t.Errorf("%q", out)
	}
	release(t, owner, b)
	if err := f.reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ids, rows := r.present(t), r.rows(t, id); len(ids) != 0 || len(rows) != 0 {
		t.Errorf("left: %v %v", ids, rows)
	}
}

// Broken if, without a lock directory, a machine that another process may be making is taken away, or one from long ago stays.
func TestReapByAge(t *testing.T) {
	r := newRig(t)
	id := r.machine(t, r.session(t), stateCreating, true)
	now := time.Now()
	f := r.fleet(func(c *Config) { c.Dir, c.Now = "", func() time.Time { return now } })
	if err := f.reap(t.Context()); err != nil || len(r.present(t)) != 1 {
		t.Errorf("young: %v, %v", r.present(t), err)
	}
	now = now.Add(MakeTimeout + time.Second)
	if err := f.reap(t.Context()); err != nil || len(r.present(t)) != 0 || r.row(t, id).State != stateDestroyed {
		t.Errorf("old: %v, %v", r.present(t), err)
	}
}

// counting is a provider without machines that tells how often it was asked for them.
type counting struct {
	sandbox.Provider
	lists atomic.Int64
}

func (c *counting) List(context.Context) ([]outboard.SandboxID, error) {
	c.lists.Add(1)
	return nil, nil
}

// Broken if the timer does not run, or Stop leaves it running.
func TestReaperTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		c := &counting{Provider: r.provider}
		r.provider = c
		f := r.fleet()
		f.Stop() // before Start
		for range 2 {
			if err := f.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3*ReapEvery + time.Second) // of the bubble's clock
		if n := c.lists.Load(); n != 4 {
			t.Errorf("%d runs, want 4", n)
		}
		f.Stop()
		f.Stop()
		time.Sleep(3 * ReapEvery)
		if n := c.lists.Load(); n != 4 {
			t.Errorf("%d runs after Stop", n)
		}
	})
}

// Broken if a look at a sandbox that ended since its row was read leaves a lock, which nobody would ever remove.
func TestReapLeavesNoLock(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	s := r.session(t)
	row := r.row(t, r.machine(t, s, stateLive, true))
	if err := f.destroy(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := f.reapRow(t.Context(), row, false); err != nil { // as read before
		t.Fatal(err)
	}
	if left := r.locks(t); len(left) != 0 {
		t.Errorf("of a sandbox that has ended: %v", left)
	}
	id := r.machine(t, s, stateLive, true)
	h, err := f.hold(t.Context(), id) // the control
	if err != nil {
		t.Fatal(err)
	}
	defer f.letGo(h)
	if err := f.reapRow(t.Context(), r.row(t, id), true); err != nil || len(r.locks(t)) != 1 {
		t.Errorf("of one in use: %v, %v", r.locks(t), err)
	}
}

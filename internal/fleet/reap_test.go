//go:build linux

package fleet

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
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

// Broken if a process killed at any step of a machine's life leaves it for ever, or the reaper takes one that is
// in use.
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

// Broken if, without a lock directory, a machine that another process may be making is taken away, or one from
// long ago stays.
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

// If this fails, the sandboxes of a host that is gone count for ever, one that may go on is taken from its
// session, one whose host has a server is ended by another, or what was left of it lives on after the host has
// come back.
func TestHostThatIsGone(t *testing.T) {
	r := newRig(t)
	there, here := r.fleet(), r.fleet(func(c *Config) {
		c.Host, c.Dir, c.Provider = "host-b", t.TempDir(),
			sandboxtest.NewBare(t)
	})
	old := time.Now().Add(-2 * goneFor)
	made := func(session outboard.SessionID, at time.Time) outboard.SandboxID {
		id := r.machine(t, session, stateLive, true)
		row, err := r.store.Sandbox(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		row.UpdatedAt = at
		if err := r.store.PutSandbox(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		return id
	}
	s := r.session(t)
	left, young, current := made(s, old), made(s, time.Now()), made(s, old)
	logReady(t, r, s, current)
	box, err := there.CreateBox(t.Context(), outboard.Box{ID: outboard.NewBoxID(), Owner: "apikey_1",
		Env: outboard.EnvConfig{Kind: "cloud"}, EndAt: old}, outboard.BlobRef{})
	if err != nil {
		t.Fatal(err)
	}
	lasting, err := there.CreateBox(t.Context(), outboard.Box{ID: outboard.NewBoxID(), Owner: "apikey_1",
		Env: outboard.EnvConfig{Kind: "cloud"}, EndAt: time.Now().Add(time.Hour)}, outboard.BlobRef{})
	if err != nil {
		t.Fatal(err)
	}
	alive := func(what string, id outboard.SandboxID, want bool) {
		t.Helper()
		row, err := r.store.Sandbox(t.Context(), id)
		if err != nil || (row.State != stateDestroyed) != want {
			t.Errorf("%s: %+v, %v", what, row, err)
		}
	}
	boxes := func(id outboard.BoxID, want bool) {
		t.Helper()
		if _, err := r.store.Box(t.Context(), id); (err == nil) != want {
			t.Errorf("box %s: %v", id, err)
		}
	}
	refused := func(err error, hint string) {
		t.Helper()
		if e, ok := errors.AsType[*outboard.Error](err); !ok || e.Kind != outboard.Unavailable ||
			!strings.Contains(e.Hint, hint) || hint == "" && e.Hint != "" {
			t.Errorf("refused with %v, want the hint %q", err, hint)
		}
	}
	worker := outboard.WorkerID("wkr_there")
	if err := r.store.Register(t.Context(), worker, host+" kernel 1 1"); err != nil {
		t.Fatal(err)
	}
	if err := here.reapGone(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(here.KillSandbox(t.Context(), current, "ann"), "")
	refused(here.KillBox(t.Context(), lasting.ID), "")
	alive("with a server, left", left, true)
	boxes(box.ID, true)

	if err := r.store.Deregister(t.Context(), worker); err != nil {
		t.Fatal(err)
	}
	if err := here.reapGone(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive("nobody's", left, false)
	alive("nobody's, young", young, true)
	alive("its session's", current, true)
	boxes(box.ID, false)
	boxes(lasting.ID, true)
	_, err = here.StopSandbox(t.Context(), current, "ann")
	refused(err, "outboard sandbox kill "+string(current))
	_, err = here.UseBox(t.Context(), By{}, lasting.ID, true)
	refused(err, "outboard box rm "+string(lasting.ID))
	if err := errors.Join(here.KillSandbox(t.Context(), current, "ann"),
		here.KillBox(t.Context(), lasting.ID)); err != nil {
		t.Fatal(err)
	}
	alive("killed by name", current, false)
	alive("a box's, removed by name", lasting.Machine, false)

	if ids, err := r.provider.List(t.Context()); err != nil || len(ids) != 5 {
		t.Fatalf("there are %v, %v", ids, err)
	}
	there.Stop() // what it holds of boxes
	if err := r.fleet().reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ids, err := r.provider.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("after the host has come back there are %v, %v", ids, err)
	}
}

// Broken if a sandbox whose host had another name when it was made lives on here after its row was ended from another
// host.
func TestReapAfterTheHostWasRenamed(t *testing.T) {
	r := newRig(t)
	ended, living := r.machine(t, r.session(t), stateDestroyed, true), r.machine(t, r.session(t), stateLive, true)
	for _, id := range []outboard.SandboxID{ended, living} {
		row := r.row(t, id)
		row.Host = "former-name"
		if err := r.store.PutSandbox(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		if got := r.row(t, id).Host; got != row.Host {
			t.Fatalf("the control: the row says %q", got)
		}
	}
	f := r.fleet()
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	if got := r.present(t); len(got) != 1 || got[0] != living {
		t.Errorf("present are %v; want only %s, of which another server may know more", got, living)
	}
}

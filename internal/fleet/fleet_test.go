//go:build linux

package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// Broken if a session does not get a machine, keep it over turns, and lose it for good when it is destroyed.
func TestAcquireReleaseDestroy(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	if !b.New || b.Lost != nil || b.Ready.Sandbox != b.ID() || b.Ready.Generation != b.Generation() ||
		b.Ready.From != "" || b.Ready.Isolation == "" {
		t.Errorf("first: %+v", b)
	}
	row := r.row(t, b.ID())
	if row.State != stateLive || row.Session != id || row.Host != host || row.Provider != r.provider.Name() ||
		row.Generation != b.Generation() {
		t.Errorf("row %+v", row)
	}
	r.bash(t, b, "cd /tmp; export KEPT=yes")
	release(t, f, b)
	release(t, f, b) // twice is once
	if len(f.slots) != 0 || len(f.inUse) != 0 {
		t.Errorf("an idle session is remembered: %v %v", f.slots, f.inUse)
	}
	again := r.acquire(t, f, id)
	if again.New || again.Lost != nil || again.ID() != b.ID() {
		t.Errorf("second: %+v", again)
	}
	if out := r.bash(t, again, "echo $KEPT $PWD"); out != "yes /tmp\n" {
		t.Errorf("the shell was not the same: %q", out)
	}
	if err := f.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if ids := r.present(t); len(ids) != 0 || r.row(t, b.ID()).State != stateDestroyed {
		t.Errorf("after destroy: %v, %+v", ids, r.row(t, b.ID()))
	}
	if err := f.Destroy(t.Context(), id); err != nil {
		t.Errorf("destroying again: %v", err)
	}
}

// Broken if turns of one session in one process do not share a machine, or one closes it for the other.
func TestAcquireShared(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	r.acquire(t, f, id)
	boxes := make([]*Lease, 8)
	var wg sync.WaitGroup
	for i := range boxes {
		req := r.request(t, id)
		wg.Go(func() {
			b, err := f.Acquire(t.Context(), req)
			if err != nil {
				t.Error(err)
				return
			}
			boxes[i] = b
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i, b := range boxes {
		if out := r.bash(t, b, "echo here"); b.New || out != "here\n" {
			t.Errorf("box %d: new %v, %q", i, b.New, out)
		}
		release(t, f, b)
	}
	if ids := r.present(t); len(ids) != 1 {
		t.Errorf("machines %v", ids)
	}
}

// Broken if sessions wait for one another.
func TestAcquireManySessions(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	reqs := make([]Request, 6)
	for i := range reqs {
		reqs[i] = r.request(t, r.session(t))
	}
	var wg sync.WaitGroup
	for _, req := range reqs {
		wg.Go(func() {
			b, err := f.Acquire(t.Context(), req)
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(f.Release(t.Context(), b), f.Destroy(t.Context(), req.Session)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ids := r.present(t); len(ids) != 0 {
		t.Errorf("machines %v", ids)
	}
}

// outOfMemory is a provider whose sandboxes were ended by their limits.
type outOfMemory struct{ sandbox.Provider }

func (outOfMemory) Open(_ context.Context, id outboard.SandboxID) (sandbox.Sandbox, error) {
	return nil, outboard.Errorf(outboard.NotFound, "sandbox %s has ended: %w", id, sandbox.ErrMemory)
}

// Broken if a session goes on with a machine that is not its own, or does not learn why it has a new one.
func TestAcquireLost(t *testing.T) {
	other := func(c *Config) { c.Host = "host-b" }
	tests := []struct {
		name, reason string
		lose         func(t *testing.T, r *rig, f *Fleet, b *Lease)
		by           func(*Config)
	}{
		{"destroyed machine", "the machine is gone", func(t *testing.T, r *rig, f *Fleet, b *Lease) {
			if err := r.provider.Destroy(t.Context(), b.ID()); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"destroyed by the fleet", "it was destroyed", func(t *testing.T, r *rig, f *Fleet, b *Lease) {
			if err := f.Destroy(t.Context(), b.session); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"other host", "it is on another host, host-a", nil, other},
		{"other generation", "the machine was replaced", func(t *testing.T, r *rig, f *Fleet, b *Lease) {
			ready := b.Ready
			ready.Generation = "another"
			r.append(t, store.Commit{Session: b.session}, &ready)
		}, nil},
		{"no record", "it has no record here", func(t *testing.T, r *rig, f *Fleet, b *Lease) {
			ready := b.Ready
			ready.Sandbox = "sbx_01unknown"
			r.append(t, store.Commit{Session: b.session}, &ready)
		}, nil},
		{"out of memory", "its programs took more memory than its limit", nil,
			func(c *Config) { c.Provider = outOfMemory{c.Provider} }},
		{"other provider", "it was made by provider lost, ", func(t *testing.T, r *rig, f *Fleet, b *Lease) {
			row := r.row(t, b.ID())
			row.Provider = "lost"
			if err := r.store.PutSandbox(t.Context(), row); err != nil {
				t.Fatal(err)
			}
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			f := r.fleet()
			id := r.session(t)
			b := r.acquire(t, f, id)
			r.bash(t, b, "echo one > a")
			ckpt := r.checkpoint(t, f, b, id)
			r.bash(t, b, "echo two > a")
			release(t, f, b)
			if tt.lose != nil {
				tt.lose(t, r, f, b)
			}
			g := f
			if tt.by != nil {
				g = r.fleet(tt.by)
			}
			cur := r.state(t, id).Sandbox
			again := r.acquire(t, g, id)
			if again.Lost == nil || !strings.HasPrefix(again.Lost.Reason, tt.reason) || again.Lost.Restore != ckpt.ID ||
				again.Lost.Sandbox != cur.Sandbox || again.Lost.Generation != cur.Generation {
				t.Errorf("lost %+v", again.Lost)
			}
			if !again.New || again.ID() == b.ID() || again.Generation() == b.Generation() ||
				again.Ready.From != ckpt.ID {
				t.Errorf("new one %+v", again.Ready)
			}
			if out := r.bash(t, again, "cat a"); out != "one\n" {
				t.Errorf("restored %q", out)
			}
		})
	}
}

// Broken if a make that fails at any step leaves a machine, or a row that says there is one.
func TestAcquireFails(t *testing.T) {
	cause := outboard.Errorf(outboard.Unavailable, "the floor is wet")
	for name, tt := range map[string]struct {
		breaking
		missing bool // the checkpoint's bytes are gone
	}{
		"create": {breaking: breaking{create: cause}},
		"load":   {breaking: breaking{load: cause}},
		"mount":  {breaking: breaking{put: cause}},
		"blob":   {missing: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.session(t, r.upload(t, "data.csv", "1,2"))
			f := r.fleet()
			b := r.acquire(t, f, id)
			r.bash(t, b, "echo one > a")
			ckpt := r.checkpoint(t, f, b, id)
			release(t, f, b)
			if err := f.Destroy(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			tt.Provider = r.provider
			req := r.request(t, id)
			if tt.missing {
				bad := *ckpt
				bad.ID, bad.Delta.Digest = "ckpt_01bad", strings.Repeat("0", 64)
				r.append(t, store.Commit{Session: id, Checkpoint: &bad},
					&outboard.CheckpointCreated{Checkpoint: ckpt.ID})
				req.Checkpoint = bad.ID
			}
			_, err := r.fleet(func(c *Config) { c.Provider = &tt.breaking }).Acquire(t.Context(), req)
			if !tt.missing && !errors.Is(err, cause) || err == nil {
				t.Errorf("got %v", err)
			}
			if ids, rows := r.present(t), r.rows(t, id); len(ids) != 0 || len(rows) != 0 {
				t.Errorf("left: %v, %+v", ids, rows)
			}
			if b := r.acquire(t, f, id); !b.New { // control: nothing else is in the way
				t.Error("no new machine")
			}
		})
	}
}

// Broken if a turn whose lease is over can destroy or make a machine of the session.
func TestAcquireFenced(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	release(t, f, b)
	req := r.request(t, id)
	req.Epoch = 7 // the session's is 0: nobody has claimed it
	stale := *req.Current
	stale.Generation = "stale"
	req.Current = &stale
	if _, err := f.Acquire(t.Context(), req); !errors.Is(err, store.ErrFenced) {
		t.Errorf("with another machine in mind: %v", err)
	}
	req.Current = nil
	if _, err := f.Acquire(t.Context(), req); !errors.Is(err, store.ErrFenced) {
		t.Errorf("with none in mind: %v", err)
	}
	if ids := r.present(t); len(ids) != 1 || ids[0] != b.ID() {
		t.Errorf("machines %v", ids)
	}
	if again := r.acquire(t, f, id); again.ID() != b.ID() {
		t.Error("control: the machine was not kept")
	}
}

// Broken if a host that can isolate nothing fails unclearly, or only after something was written.
func TestAcquireUnavailable(t *testing.T) {
	r := newRig(t)
	id := r.session(t)
	f := r.fleet(func(c *Config) { c.Provider = nil })
	_, err := f.Acquire(t.Context(), r.request(t, id))
	if e, ok := errors.AsType[*outboard.Error](err); !ok || e.Kind != outboard.Unavailable ||
		!strings.Contains(e.Hint, "outboard doctor") {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(f.Start(t.Context()), f.Destroy(t.Context(), id)); err != nil {
		t.Errorf("without machines: %v", err)
	}
	f.Stop()
	req := r.request(t, id)
	req.Config.Env.Kind = "self_hosted"
	if _, err := r.fleet().Acquire(t.Context(), req); outboard.KindOf(err) != outboard.Unimplemented {
		t.Errorf("self-hosted: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.fleet().Acquire(ctx, r.request(t, id)); err == nil {
		t.Error("cancelled: no error")
	}
	if rows := r.rows(t, id); len(rows) != 0 {
		t.Errorf("rows %+v", rows)
	}
}

// Broken if file resources are not where a session's files belong, cannot be added later, or can be put anywhere else.
func TestMount(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	byName, byID := r.upload(t, "sub/data.csv", "1,2"), r.upload(t, "", "by id")
	deleted := r.upload(t, "deleted", "x")
	if err := r.store.DeleteFile(t.Context(), deleted.File); err != nil {
		t.Fatal(err)
	}
	id := r.session(t, byName, byID, deleted)
	b := r.acquire(t, f, id)
	uploads := r.files(t, b, sandbox.Uploads)
	if len(uploads) != 2 || uploads["sub/data.csv"] != "1,2" || uploads[string(byID.File)] != "by id" {
		t.Errorf("uploads %v", uploads)
	}
	release(t, f, b)
	cfg := r.state(t, id).Config
	cfg.Resources = append(cfg.Resources, r.upload(t, "/mnt/session/uploads/later", "added"))
	r.append(t, store.Commit{Session: id, Config: &cfg}, &outboard.SessionUpdated{Resources: &cfg.Resources})
	b = r.acquire(t, r.fleet(), id)
	if uploads = r.files(t, b, sandbox.Uploads); len(uploads) != 3 || uploads["later"] != "added" {
		t.Errorf("uploads %v", uploads)
	}
	for _, bad := range []string{"../../../etc/passwd", "/mnt/session/uploads/../outputs/x", "/mnt/session/uploads/",
		"a/../..", "a\x00b"} {
		if _, err := mountPath(outboard.Resource{MountPath: bad}); outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// files reads all files below a directory of a box.
func (r *rig) files(t *testing.T, b *Lease, dir string) map[string]string {
	t.Helper()
	stats, err := b.List(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, st := range stats {
		var s strings.Builder
		if err := b.Get(t.Context(), st.Path, &s); err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(st.Path, dir+"/")] = s.String()
	}
	return out
}

// Broken if a machine freezes under a running call or another process, stays awake when nobody uses it, or is
// not thawed.
func TestFreeze(t *testing.T) {
	r := newRig(t)
	z := &freezer{Provider: r.provider}
	r.provider = z
	f, g := r.fleet(), r.fleet() // two processes of one host
	id := r.session(t)
	b := r.acquire(t, f, id)
	release(t, f, b)
	if z.frozen.Load() != 1 {
		t.Error("not frozen after the turn")
	}
	mine, theirs := r.acquire(t, f, id), r.acquire(t, g, id)
	if z.frozen.Load() != 0 || z.thaws.Load() != 2 {
		t.Error("not thawed")
	}
	release(t, f, mine)
	if z.frozen.Load() != 0 {
		t.Error("frozen while another process uses it")
	}
	key := r.start(t, theirs, "read < <(sleep 1000)")
	release(t, g, theirs)
	if z.frozen.Load() != 0 {
		t.Error("frozen under a running call")
	}
	b = r.acquire(t, g, id)
	if _, err := b.Kill(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Wait(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	release(t, g, b)
	if z.frozen.Load() != 1 {
		t.Error("not frozen after the call")
	}
}

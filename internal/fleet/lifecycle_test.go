//go:build linux

package fleet

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// resting is a fleet whose sandboxes stop after an hour and are dropped after a day, by a clock that the test moves.
func (r *rig) resting(clock *time.Time) *Fleet {
	return r.fleet(func(c *Config) {
		c.Lifecycle = outboard.Lifecycle{StopAfterSec: 3600, DropAfterSec: 86400}
		c.Now = func() time.Time { return *clock }
	})
}

func restAll(t *testing.T, f *Fleet) {
	t.Helper()
	if err := errors.Join(f.reap(t.Context()), f.rest(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// Broken if a session that rests keeps its processes for ever, loses a file when they end, is not told what it
// lost, or cannot go on.
func TestStopAndDrop(t *testing.T) {
	r := newRig(t)
	here := nativeProvider(t)
	r.provider = here
	clock := time.Now()
	f := r.resting(&clock)
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "echo saved > /workspace/a; sleep 1000 &")
	first := r.checkpoint(t, f, b, id)
	r.bash(t, b, "echo late > /workspace/b") // as a process in the background might
	clock = clock.Add(2 * time.Hour)
	restAll(t, f)
	if row := r.row(t, b.ID()); row.State != stateLive {
		t.Fatalf("stopped while in use: %+v", row)
	}
	release(t, f, b)
	restAll(t, f)
	row, st := r.row(t, b.ID()), r.state(t, id)
	if row.State != stateStopped || len(r.present(t)) != 0 || st.Sandbox != nil {
		t.Fatalf("%+v, machines %v, in the log %+v", row, r.present(t), st.Sandbox)
	}
	last := st.Checkpoint
	if last == first.ID || !here.Keeps(last) {
		t.Errorf("stopped at %s, kept %v", last, here.Keeps(last))
	}
	note := st.History[len(st.History)-1].Content[0].Text
	if !strings.Contains(note, "stopped after 1h0m0s without a turn") ||
		!strings.Contains(note, "processes and shell state are gone") {
		t.Errorf("the model is told %q", note)
	}
	clock = clock.Add(48 * time.Hour)
	restAll(t, f)
	if row := r.row(t, b.ID()); row.State != stateStopped {
		t.Errorf("dropped before it was durable: %+v", row)
	}
	again := r.acquire(t, f, id)
	if out := r.bash(t, again, "cat /workspace/a /workspace/b; pgrep sleep || true"); out != "saved\nlate\n" ||
		again.Generation() == b.Generation() || again.Lost != nil {
		t.Errorf("resumed with %q, lost %+v", out, again.Lost)
	}
	restAll(t, f)
	if row := r.row(t, b.ID()); row.State != stateDestroyed {
		t.Errorf("the old one: %+v", row)
	}
	release(t, f, again)
	clock = clock.Add(2 * time.Hour)
	restAll(t, f)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	restAll(t, f)
	if row := r.row(t, again.ID()); row.State != stateStopped || !here.Keeps(last) {
		t.Fatalf("dropped too early: %+v", row)
	}
	clock = clock.Add(24 * time.Hour)
	restAll(t, f)
	restAll(t, f)
	if row := r.row(t, again.ID()); row.State != stateDestroyed || here.Keeps(last) {
		t.Errorf("not dropped: %+v, layers %v", row, here.Keeps(last))
	}
	if left := r.locks(t); len(left) != 0 {
		t.Errorf("locks of sandboxes that are no more: %v", left)
	}
	if out := r.bash(t, r.acquire(t, f, id), "cat /workspace/a /workspace/b"); out != "saved\nlate\n" {
		t.Errorf("from the checkpoint alone: %q", out)
	}
}

// Broken if a sandbox older than its environment allows, or one that is to be dropped without having been
// stopped, lives on, one whose environment switched stopping off is stopped, or a provider without layers loses
// files.
func TestLifecycleOfEnvironment(t *testing.T) {
	r := newRig(t)
	clock := time.Now()
	f := r.resting(&clock)
	lives := func(l outboard.Lifecycle) outboard.SandboxID {
		id := r.sessionIn(t, outboard.EnvConfig{Kind: "cloud", Lifecycle: l})
		b := r.acquire(t, f, id)
		r.bash(t, b, "echo kept > a")
		release(t, f, b)
		return b.ID()
	}
	off, old := lives(outboard.Lifecycle{StopAfterSec: -1,
		DropAfterSec: -1}), lives(outboard.Lifecycle{StopAfterSec: -1, DropAfterSec: -1, MaxAgeSec: 60})
	dropped := lives(outboard.Lifecycle{StopAfterSec: -1, DropAfterSec: 3600})
	for _, want := range []string{stateLive, stateDestroyed} {
		clock = clock.Add(31 * time.Minute)
		restAll(t, f)
		restAll(t, f)
		if row := r.row(t, dropped); row.State != want {
			t.Errorf("to be dropped after an hour, at %v: %+v, want it %s", clock, row, want)
		}
	}
	clock = clock.Add(time.Hour * 100)
	restAll(t, f)
	if a, b := r.row(t, off).State, r.row(t, old); a != stateLive || b.State != stateStopped ||
		!strings.Contains(b.Why, "older than 1m0s") {
		t.Errorf("switched off: %s, aged: %+v", a, b)
	}
	if out := r.bash(t, r.acquire(t, f, r.row(t, old).Session), "cat a"); out != "kept\n" {
		t.Errorf("restored %q", out)
	}
}

// stopSteps are what a process killed at each step of stopping leaves.
var stopSteps = []struct {
	name         string
	lost, exists bool   // the log says it, the machine is there
	reaped       string // the row's state when the next process has started
	rested       string // and when it has looked for what to stop
}{
	{"after the row", false, true, stateStopping, stateStopped},
	{"after the log", true, true, stateStopped, stateStopped},
	{"after the machine", true, false, stateStopped, stateStopped},
	{"and its machine died too", false, false, stateDestroyed, stateDestroyed},
}

// Broken if a process that is killed while it stops a sandbox leaves the machine for ever, or a session that
// does not go on.
func TestStopKilled(t *testing.T) {
	r := newRig(t)
	ids := make([]outboard.SandboxID, len(stopSteps))
	for i, tt := range stopSteps {
		s := r.session(t)
		ids[i] = r.machine(t, s, stateStopping, tt.exists)
		logReady(t, r, s, ids[i])
		if tt.lost {
			r.append(t, store.Commit{Session: s}, &outboard.SandboxLost{Sandbox: ids[i], Generation: "gen",
				Reason: "it was stopped"})
		}
	}
	f := r.fleet()
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	for i, tt := range stopSteps {
		if state := r.row(t, ids[i]).State; state != tt.reaped {
			t.Errorf("%s: %s after the start, want %s", tt.name, state, tt.reaped)
		}
	}
	if err := f.rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, tt := range stopSteps {
		if state := r.row(t, ids[i]).State; state != tt.rested {
			t.Errorf("%s: %s after the rest, want %s", tt.name, state, tt.rested)
		}
		b := r.acquire(t, f, r.row(t, ids[i]).Session)
		if !b.New || b.ID() == ids[i] {
			t.Errorf("%s: goes on in %s", tt.name, b.ID())
		}
	}
	if n := len(r.present(t)); n != len(stopSteps) {
		t.Errorf("%d machines of %d sessions", n, len(stopSteps))
	}
}

// Broken if a turn that comes before a killed stop is finished cannot use the machine, or has it taken away afterwards.
func TestStopKilledThenUsed(t *testing.T) {
	r := newRig(t)
	s := r.session(t)
	id := r.machine(t, s, stateStopping, true)
	logReady(t, r, s, id)
	f := r.fleet()
	b := r.acquire(t, f, s)
	if b.New || b.ID() != id || r.row(t, id).State != stateLive {
		t.Fatalf("new %v, %s, row %s", b.New, b.ID(), r.row(t, id).State)
	}
	release(t, f, b)
	restAll(t, f)
	if state := r.row(t, id).State; state != stateLive {
		t.Errorf("row %s", state)
	}
}

// Broken if a sandbox that a person killed lives on, or its session is not told who did it.
func TestKillSandbox(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	s := r.session(t)
	b := r.acquire(t, f, s)
	if _, err := f.StopSandbox(t.Context(), b.ID(), "anna"); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("stopped under a turn: %v", err)
	}
	if err := f.KillSandbox(t.Context(), b.ID(), "anna"); err != nil {
		t.Fatal(err)
	}
	if state := r.row(t, b.ID()).State; state != stateDestroyed || len(r.present(t)) != 0 {
		t.Errorf("row %s, machines %v", state, r.present(t))
	}
	if err := f.KillSandbox(t.Context(), b.ID(), "anna"); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("killed twice: %v", err)
	}
	again := r.acquire(t, f, s)
	if again.Lost == nil || again.Lost.Reason != "it was killed by anna" {
		t.Errorf("%+v", again.Lost)
	}
	release(t, f, again)
	row, err := f.StopSandbox(t.Context(), again.ID(), "anna")
	if err != nil || row.State != stateStopped {
		t.Errorf("stopped: %+v, %v", row, err)
	}
}

// Broken if sessions that begin at the same time get more sandboxes than an environment may have, a box is not
// counted, or who is refused is not told where the limit stands.
func TestQuota(t *testing.T) {
	r := newRig(t)
	f := r.fleet(func(c *Config) { c.Lifecycle.MaxSandboxes, c.MaxPerOwner = 3, 3 })
	var wg sync.WaitGroup
	made, refused := make(chan *Lease, 8), make(chan error, 8)
	for range 8 {
		id := r.session(t)
		req := r.request(t, id)
		req.Config.Environment, req.Config.Owner.Key = "env_1", outboard.KeyID(id)
		wg.Go(func() {
			b, err := f.Acquire(t.Context(), req)
			if err != nil {
				refused <- err
				return
			}
			made <- b
		})
	}
	wg.Wait()
	if len(made) != 3 || len(refused) != 5 {
		t.Fatalf("%d made, %d refused", len(made), len(refused))
	}
	if err := <-refused; outboard.KindOf(err) != outboard.Exhausted ||
		!strings.Contains(err.Error(), "environment env_1 has 3 sandboxes alive, and may have 3 "+
			"(sandbox.max_sandboxes_per_environment of the server") {
		t.Errorf("refused: %v", err)
	}
	own := r.request(t, r.session(t))
	own.Config.Environment, own.Config.Env.Lifecycle.MaxSandboxes = "env_1", 2
	if _, err := f.Acquire(t.Context(), own); err == nil || !strings.Contains(err.Error(),
		"may have 2 (config.outboard.lifecycle.max_sandboxes of the environment)") {
		t.Errorf("by the environment's own limit: %v", err)
	}
	req := r.request(t, r.session(t))
	req.Config.Environment, req.Config.Owner.Key = "env_2", "apikey_1"
	b, err := f.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	made <- b
	for i := range 3 {
		box := outboard.Box{ID: outboard.NewBoxID(), Owner: "apikey_1", Env: outboard.EnvConfig{Kind: "cloud"},
			EndAt: time.Now().Add(time.Hour)}
		_, err := f.CreateBox(t.Context(), box, outboard.BlobRef{})
		if full := i == 2; full != (outboard.KindOf(err) == outboard.Exhausted &&
			strings.Contains(err.Error(), "owner apikey_1 has 3")) {
			t.Errorf("box %d: %v", i, err)
		}
	}
	close(made)
	for b := range made {
		release(t, f, b)
	}
}

// locks are the lock files of sandboxes.
func (r *rig) locks(t *testing.T) []string {
	t.Helper()
	out, err := filepath.Glob(filepath.Join(r.dir, "*.lock"))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Broken if a sandbox is made for a session or a box and the audit does not have it, or one is made although
// there can be no record; or one that was refused for the sake of a quota leaves a record, a row or a lock, as
// if there had been one.
func TestMachineAudit(t *testing.T) {
	r := newRig(t)
	f := r.fleet(func(c *Config) { c.Lifecycle.MaxSandboxes = 1 })
	request := func() Request {
		req := r.request(t, r.session(t))
		req.Config.Environment, req.Config.Owner.Org = "env_1", "org_1"
		return req
	}
	b, err := f.Acquire(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	second := request()
	for range 3 {
		if _, err := f.Acquire(t.Context(), second); outboard.KindOf(err) != outboard.Exhausted {
			t.Fatalf("one too many: %v", err)
		}
	}
	box := r.box(t, f, func(b *outboard.Box) { b.Org = "org_1" })
	said, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range said {
		if strings.HasPrefix(a.Action, "sandbox.") {
			got = append(got, a.Org+" "+a.Action+" "+a.Actor+" "+a.Resource)
		}
	}
	want := []string{"org_1 sandbox.create " + string(b.session) + " " + string(b.ID()), "org_1 sandbox.create " +
		string(box.Machine) + " " + string(box.Machine)}
	if !slices.Equal(got, want) {
		t.Errorf("the audit says\n%q, want\n%q", got, want)
	}
	if rows := r.rows(t, second.Session); len(rows) != 0 {
		t.Errorf("of one that was refused: %+v", rows)
	}
	if locks := r.locks(t); len(locks) != 2 {
		t.Errorf("locks of two sandboxes: %v", locks)
	}
	release(t, f, b)
	r.store.SealAudit(errors.New("closed by the test"))
	second.Config.Environment = "env_2"
	if _, err := f.Acquire(t.Context(), second); err == nil || len(r.present(t)) != 2 {
		t.Errorf("made without a record: %v, %v", err, r.present(t))
	}
}

// restRecords are the audit's records about a sandbox: action and actor.
func (r *rig) restRecords(t *testing.T, id outboard.SandboxID) (out [][2]string) {
	t.Helper()
	all, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.Resource == string(id) && strings.HasPrefix(a.Action, "sandbox.") {
			out = append(out, [2]string{a.Action, a.Actor})
		}
	}
	return out
}

// Broken if the timer stops or drops a sandbox and the audit does not have it, or does it although there can be
// no record.
func TestRestAudit(t *testing.T) {
	r := newRig(t)
	clock := time.Now()
	f := r.resting(&clock)
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "echo kept > a")
	r.checkpoint(t, f, b, id)
	release(t, f, b)
	clock = clock.Add(2 * time.Hour)
	restAll(t, f)
	clock = clock.Add(48 * time.Hour)
	restAll(t, f)
	if row := r.row(t, b.ID()); row.State != stateDestroyed {
		t.Fatalf("not dropped: %+v", row)
	}
	want := [][2]string{{"sandbox.create", string(id)}, {"sandbox.stop", "server"}, {"sandbox.drop", "server"}}
	if got := r.restRecords(t, b.ID()); !slices.Equal(got, want) {
		t.Errorf("the audit says\n%v, want\n%v", got, want)
	}
	again := r.acquire(t, f, id)
	release(t, f, again)
	clock = clock.Add(2 * time.Hour)
	r.store.SealAudit(errors.New("closed by the test"))
	if err := f.rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if row := r.row(t, again.ID()); row.State != stateLive || len(r.present(t)) != 1 {
		t.Errorf("stopped without a record: %+v", row)
	}
}

// Broken if a session whose turn came and went between the timer's look and its hold loses its processes.
func TestRestLooksAgain(t *testing.T) {
	r := newRig(t)
	clock := time.Now()
	f := r.resting(&clock)
	id := r.session(t)
	b := r.acquire(t, f, id)
	release(t, f, b)
	clock = clock.Add(2 * time.Hour)
	looks := 0
	fresh := func(outboard.Sandbox, outboard.Header) string { looks++; return "" }
	if err := f.stop(t.Context(), b.ID(), timer, fresh); err != nil || looks != 1 {
		t.Fatalf("%v, looked %d times", err, looks)
	}
	if row := r.row(t, b.ID()); row.State != stateLive {
		t.Errorf("stopped though it was used: %+v", row)
	}
	restAll(t, f) // the control
	if row := r.row(t, b.ID()); row.State != stateStopped {
		t.Errorf("not stopped: %+v", row)
	}
}

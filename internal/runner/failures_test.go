//go:build linux

package runner

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
)

// The tests of this file are the rows of the protocol's failure table: what dies, how the session recovers, how
// often the command's effect happened.

// dieAt starts a runner that dies at a point.
func dieAt(r *rig, point int) *mortal {
	m := newMortal(point)
	r.start(func(c *Config) { c.fault, c.Fleet = m.fault, r.newFleet() })
	return m
}

// next lets the dead process's lease end and starts another process.
func (r *rig) next(m *mortal) *Runner {
	r.t.Helper()
	if m != nil {
		<-m.dead
		r.advance(outboard.LeaseTTL + time.Second)
	}
	return r.start(func(c *Config) { c.Fleet = r.newFleet() })
}

// ran asserts that a call has the outcome, and that its marked command ran n times.
func (r *rig) ran(id outboard.SessionID, call, n int, outcome outboard.Outcome) outboard.CallFinished {
	r.t.Helper()
	out := r.outcomes(id)
	if len(out) <= call || out[call].Outcome != outcome {
		r.t.Fatalf("call %d: want outcome %s\n%s", call, outcome, r.dump(id))
	}
	if got := r.marks()[outboard.CallKey(id, out[call].Call)]; got != n {
		r.t.Errorf("the command ran %d times, want %d\n%s", got, n, r.dump(id))
	}
	return out[call]
}

// The first turn of a steps session commits: (0,1) turn.started, (2,3) response, (4,5) sandbox.ready and
// intents, (6,7) outcomes.
const (
	beforeIntent  = 4
	afterIntent   = 5
	beforeOutcome = 6
	afterOutcome  = 7
)

// Worker dies before the intent: 0 effects, then 1. If this fails, a planned call is forgotten.
func TestWorkerDiesBeforeIntent(t *testing.T) {
	r := newRig(t, llm.Config{})
	m := dieAt(r, beforeIntent)
	id := r.steps("- bash: "+r.mark(), "- say: done")
	<-m.dead
	if n := len(payloads[*outboard.CallStarted](r, id)); n != 0 || len(r.marks()) != 0 {
		t.Fatalf("%d intents and %d effects before the death", n, len(r.marks()))
	}
	r.next(m)
	r.rests(id, "end_turn")
	r.ran(id, 0, 1, outboard.OutcomeOK)
}

// Worker dies after the intent, before the call is sent: 1 effect. If this fails, a call that was promised is
// lost or doubled.
func TestWorkerDiesAfterIntent(t *testing.T) {
	r := newRig(t, llm.Config{})
	m := dieAt(r, afterIntent)
	id := r.steps("- bash: "+r.mark(), "- say: done")
	<-m.dead
	if n := len(payloads[*outboard.CallStarted](r, id)); n != 1 || len(r.marks()) != 0 {
		t.Fatalf("%d intents and %d effects before the death, want 1 and 0", n, len(r.marks()))
	}
	r.next(m)
	r.rests(id, "end_turn")
	r.ran(id, 0, 1, outboard.OutcomeOK)
	if n := len(payloads[*outboard.CallStarted](r, id)); n != 1 {
		t.Errorf("%d intents, want the first one only", n)
	}
}

// Delayed or duplicated Start: 1 effect. If this fails, a message that was held up on its way runs a command a
// second time.
func TestDelayedStart(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- bash: "+r.mark(), "- say: done")
	r.rests(id, "end_turn")
	sent := payloads[*outboard.CallStarted](r, id)[0]
	req := payloads[*outboard.CallRequested](r, id)[0]
	box, err := r.boxes.Open(t.Context(), sent.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	def, _ := tool.Lookup("bash")
	start := def.Start(sent.Key, sent.Epoch, sent.Generation, "sthr_x", req.Input)
	if res, err := box.Start(t.Context(), start); err != nil || res.State != guest.StateDone {
		t.Errorf("a second Start of the same call: %+v, %v", res, err)
	}
	start.Epoch--
	if _, err := box.Start(t.Context(), start); !isFenced(err) {
		t.Errorf("a Start of an older lease: %v, want fenced", err)
	}
	start.Epoch, start.Generation = sent.Epoch, "another"
	if _, err := box.Start(t.Context(), start); !isGone(err) {
		t.Errorf("a Start for another machine: %v, want wrong generation", err)
	}
	r.ran(id, 0, 1, outboard.OutcomeOK)
}

// Worker dies while the call runs: attach and collect, 1 effect. The worker here is a zombie: it lives on, and
// its late outcome must be refused. If this fails, a paused process writes into a session that is no longer its
// own.
func TestWorkerDiesDuringTheRun(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	g := newGate(t)
	id := r.steps("- bash: "+r.mark()+"; echo > "+g.path+"; cat "+g.path+"; echo end", "- say: done")
	g.arrive()
	r.advance(outboard.LeaseTTL + time.Second)
	r.next(nil)
	h := r.row(id, func(h outboard.Header) bool { return h.Epoch == 2 })
	if h.Phase != outboard.PhaseRunning {
		t.Fatalf("phase %s", h.Phase)
	}
	g.pass()
	r.rests(id, "end_turn")
	if out := r.ran(id, 0, 1, outboard.OutcomeOK); finalText(out) != "end\n" {
		t.Errorf("output = %q", finalText(out))
	}
}

// row waits until the session's row fulfils cond.
func (r *rig) row(id outboard.SessionID, cond func(outboard.Header) bool) outboard.Header {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for {
		h, err := r.store.Session(ctx, id)
		if err != nil {
			r.t.Fatal(err)
		}
		if cond(h) {
			return h
		}
		r.store.WaitRunnable(ctx) // returns within PollFallback
	}
}

// Worker dies after the effect, before the outcome is durable: 1 effect. If this fails, a finished command runs again.
func TestWorkerDiesAfterEffect(t *testing.T) {
	for _, point := range []int{beforeOutcome, afterOutcome} {
		r := newRig(t, llm.Config{})
		m := dieAt(r, point)
		id := r.steps("- bash: echo out; "+r.mark(), "- say: done")
		<-m.dead
		r.next(m)
		r.rests(id, "end_turn")
		if out := r.ran(id, 0, 1, outboard.OutcomeOK); finalText(out) != "out\n" {
			t.Errorf("output = %q", finalText(out))
		}
	}
}

// The guest alone dies and comes back, its child alive: the outcome is unknown, at most 1 effect. If this fails,
// a command is guessed to have failed, or run again.
func TestGuestDiesAlone(t *testing.T) {
	r := newRig(t, llm.Config{})
	first := r.start(func(c *Config) { c.Grace = time.Millisecond })
	g := newGate(t)
	id := r.steps("- bash: "+r.mark()+"; echo > "+g.path+"; cat "+g.path, "- say: done")
	g.arrive()
	first.Stop()
	box := payloads[*outboard.CallStarted](r, id)[0].Sandbox
	if err := r.boxes.Crash(box); err != nil {
		t.Fatal(err)
	}
	if err := r.boxes.Restart(box); err != nil {
		t.Fatal(err)
	}
	r.next(nil)
	r.rests(id, "end_turn")
	r.ran(id, 0, 1, outboard.OutcomeUnknown)
	if slices.Contains(r.types(id), "sandbox.lost") {
		t.Error("the sandbox is said to be lost")
	}
	g.pass()
}

// The sandbox dies while a command runs: unknown, never sent again; the session gets a new machine and goes on.
// If this fails, an effect outside is doubled, or one lost machine ends the session.
func TestSandboxDies(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	g := newGate(t)
	id := r.steps("- bash: echo kept > kept", "- bash: echo gone > gone; "+r.mark()+"; echo > "+g.path+"; sleep 1000",
		"- bash: ls; "+r.mark(), "- say: done")
	g.arrive()
	if err := r.boxes.Crash(payloads[*outboard.CallStarted](r, id)[0].Sandbox); err != nil {
		t.Fatal(err)
	}
	r.rests(id, "end_turn")
	out := r.ran(id, 1, 1, outboard.OutcomeUnknown)
	if !out.IsError || !strings.Contains(finalText(out), "OUTCOME UNKNOWN") ||
		!strings.Contains(finalText(out), outboard.CallKey(id, out.Call)) {
		t.Errorf("the model is told %q", finalText(out))
	}
	lost, ready := payloads[*outboard.SandboxLost](r, id), payloads[*outboard.SandboxReady](r, id)
	if len(lost) != 1 || len(ready) != 2 || lost[0].Sandbox != ready[0].Sandbox ||
		ready[0].Generation == ready[1].Generation {
		t.Fatalf("lost %+v, ready %+v", lost, ready)
	}
	after := r.ran(id, 2, 1, outboard.OutcomeOK)
	if finalText(after) != "kept\n" || lost[0].Restore == "" || ready[1].From != lost[0].Restore {
		t.Errorf("in the new machine ls says %q; lost %+v, ready %+v", finalText(after), lost[0], ready[1])
	}
}

// The sandbox dies with calls that were promised and not yet sent: pure and idempotent ones run in the next
// machine under a new intent, a command does not. If this fails, either reads are lost for nothing or a command
// is sent twice.
func TestSandboxDiesBeforeTheCallsAreSent(t *testing.T) {
	r := newRig(t, llm.Config{})
	m := dieAt(r, afterIntent)
	id := r.steps("- parallel:", "  - bash: "+r.mark(), "  - write: {path: /workspace/f, content: new}",
		"  - glob: '*'", "- say: done")
	<-m.dead
	if err := r.boxes.Crash(payloads[*outboard.CallStarted](r, id)[0].Sandbox); err != nil {
		t.Fatal(err)
	}
	r.next(m)
	r.rests(id, "end_turn")
	r.ran(id, 0, 0, outboard.OutcomeUnknown)
	r.ran(id, 1, 0, outboard.OutcomeOK)
	r.ran(id, 2, 0, outboard.OutcomeOK)
	attempts := map[outboard.CallClass]int{}
	for _, s := range payloads[*outboard.CallStarted](r, id) {
		attempts[s.Class] = s.Attempt
	}
	if attempts[outboard.ClassEffect] != 1 || attempts[outboard.ClassIdempotent] != 2 ||
		attempts[outboard.ClassPure] != 2 {
		t.Errorf("attempts = %v", attempts)
	}
}

// A restored sandbox is another generation: receipts of the old one are gone, and a call of it is unknown. If
// this fails, a restore makes the platform believe that a command never ran.
func TestRestoredSandboxIsAnotherGeneration(t *testing.T) {
	r := newRig(t, llm.Config{})
	m := dieAt(r, 10) // before the outcome of the second command
	id := r.steps("- bash: echo a > a", "- bash: "+r.mark(), "- bash: cat a", "- say: done")
	<-m.dead
	if err := r.boxes.Crash(payloads[*outboard.CallStarted](r, id)[1].Sandbox); err != nil {
		t.Fatal(err)
	}
	r.next(m)
	r.rests(id, "end_turn")
	r.ran(id, 1, 1, outboard.OutcomeUnknown)
	if out := r.ran(id, 2, 0, outboard.OutcomeOK); finalText(out) != "a\n" {
		t.Errorf("file of the checkpoint: %q", finalText(out))
	}
}

// The database came back older than the sandbox: a lease's epoch is below what the guest has seen. If this
// fails, a process on a stale database acts beside the real one.
func TestStaleDatabaseIsFencedByTheGuest(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- bash: echo ready", "- say: done")
	s := r.rests(id, "end_turn")
	box, err := r.boxes.Open(t.Context(), s.Sandbox.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	if _, err := box.Kill(t.Context(), "another/call", 1000); err != nil {
		t.Fatal(err)
	}
	turn := len(payloads[*outboard.CallFinished](r, id))
	r.say(id, "- bash: "+r.mark(), "- say: never")
	r.until(id, "the intent",
		func(s *outboard.State) bool { return s.Turn == 2 && len(s.Calls) == 1 && s.Calls[0].Started != nil })
	if _, err := os.Stat(r.oracle); !os.IsNotExist(err) {
		t.Errorf("the command ran: %v", err)
	}
	if n := len(payloads[*outboard.CallFinished](r, id)); n != turn {
		t.Errorf("an outcome was recorded\n%s", r.dump(id))
	}
}

// A worker whose lease ended stops its turns and registers anew. If this fails, one long pause takes a process
// out of service, or leaves it working beside its successor.
func TestFencedWorkerStartsOver(t *testing.T) {
	r := newRig(t, llm.Config{})
	n := r.start(nil)
	id := r.steps("- sleep: 1h", "- say: never")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	r.advance(outboard.LeaseTTL + time.Second)
	h := r.row(id, func(h outboard.Header) bool { return h.Epoch > 1 }) // its own next claim finds the lease over
	if h.Worker == "" {
		t.Errorf("claimed by nobody: %+v", h)
	}
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	n.Stop()
}

// Stop lets a call go on in its sandbox and leaves the turn to the next process. If this fails, an upgrade kills
// or repeats what runs.
func TestStopHandsOver(t *testing.T) {
	r := newRig(t, llm.Config{})
	first := r.start(func(c *Config) { c.Grace = time.Millisecond })
	g := newGate(t)
	id := r.steps("- bash: "+r.mark()+"; echo > "+g.path+"; cat "+g.path+"; echo end", "- say: done")
	g.arrive()
	first.Stop()
	first.Stop()
	h, err := r.store.Session(t.Context(), id)
	if err != nil || h.Worker != "" || h.Phase != outboard.PhaseRunning {
		t.Fatalf("after Stop: lease %q, phase %s, %v", h.Worker, h.Phase, err)
	}
	r.next(nil)
	g.pass()
	r.rests(id, "end_turn")
	if out := r.ran(id, 0, 1, outboard.OutcomeOK); finalText(out) != "end\n" {
		t.Errorf("output = %q", finalText(out))
	}
}

// If this fails, Stop hangs before Start, or a runner runs after Stop.
func TestStopBeforeStart(t *testing.T) {
	r := newRig(t, llm.Config{})
	n := New(r.config())
	n.Stop()
	if err := n.Start(t.Context()); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("Start after Stop: %v", err)
	}
}

// If this fails, a database that is away when a turn gives up leaves its session with a worker that lives and
// does nothing for it.
func TestLeaseIsGivenUpLater(t *testing.T) {
	r := newRig(t, llm.Config{})
	var mu sync.Mutex
	left := map[string]int{"before commit": 1, "release": 2}
	r.start(func(c *Config) {
		c.fault = func(point string) error {
			mu.Lock()
			defer mu.Unlock()
			if left[point] == 0 {
				return nil
			}
			left[point]--
			return outboard.Errorf(outboard.Unavailable, "the database is away")
		}
	})
	id := r.session("script/steps", allTools)
	r.say(id, "- say: done")
	r.rests(id, "end_turn")
	mu.Lock()
	defer mu.Unlock()
	if left["before commit"]+left["release"] != 0 {
		t.Errorf("control: the database was not away: %v", left)
	}
}

// Fails if a session whose log is damaged counts as running for ever, its client is not told why, it cannot be
// deleted, or it is claimed in a circle; or if a session that another version has written to is taken from that
// version.
func TestDamagedLog(t *testing.T) {
	r := newRig(t, llm.Config{})
	put := func(e outboard.Event) outboard.SessionID {
		id := r.session("script/steps", allTools)
		r.send(id, &outboard.InputMessage{Content: []outboard.Content{outboard.Text("- say: hi")}})
		e.ID, e.Thread = outboard.NewID[outboard.EventID](outboard.PrefixEvent), "sthr_x"
		if _, err := r.store.Append(t.Context(), id, store.Any, store.Any, e); err != nil {
			t.Fatal(err)
		}
		return id
	}
	newer := put(outboard.Event{Type: "agent.novel", Data: outboard.Raw(`{}`)})
	damaged := put(outboard.Event{Type: outboard.TypeAgentMessage, Data: outboard.Raw(`[]`)})
	n := r.start(nil)
	after := int64(0)
	for turn := range 2 {
		var types []outboard.EventType
		for e, err := range r.store.Follow(t.Context(), damaged, after) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == outboard.TypeTurnFailed && !strings.Contains(string(e.Data),
				"(agent.message) of the session's log is damaged") {
				t.Errorf("the client is told %s", e.Data)
			}
			if types, after = append(types, e.Type), e.Seq; e.Type == outboard.TypeTurnEnded {
				break
			}
		}
		if got := types[len(types)-4:]; got[0] != outboard.TypeTurnResumed || got[1] != outboard.TypeInputProcessed ||
			got[2] != outboard.TypeTurnFailed {
			t.Errorf("turn %d ends with %v", turn, got)
		}
		h, err := r.store.Session(t.Context(), damaged)
		if err != nil || h.Phase != outboard.PhaseIdle || h.Runnable(r.now()) {
			t.Errorf("turn %d leaves %+v, %v", turn, h, err)
		}
		r.send(damaged, &outboard.InputMessage{Content: []outboard.Content{outboard.Text("- say: again")}})
	}
	n.Stop()
	if h, err := r.store.Session(t.Context(), newer); err != nil || h.Head != 3 || h.Epoch == 0 ||
		!h.Runnable(r.now()) {
		t.Errorf("the session of a newer version: %+v, %v", h, err)
	}
}

// noDisk is a provider whose disk is full.
type noDisk struct{ *sandboxtest.Bare }

func (noDisk) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) {
	return nil, outboard.FullDisk("preparing its files", &fs.PathError{Op: "write", Path: "/srv/secret/state",
		Err: syscall.ENOSPC})
}

// Broken if an agent whose sandbox cannot be made on a full disk is not told why, or is told a path of the host.
func TestFullDiskIsTold(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(func(cfg *Config) {
		cfg.Fleet = fleet.New(fleet.Config{Store: r.store, Blob: r.blob, Provider: noDisk{r.boxes}, Host: "here",
			Logger: r.log})
	})
	id := r.steps("- bash: 'true'", "- say: done")
	r.rests(id, "end_turn")
	said := finalText(r.outcomes(id)[0])
	for _, want := range []string{"the server's disk is full", "outboard blob prune"} {
		if !strings.Contains(said, want) {
			t.Errorf("the agent is told %q, without %q", said, want)
		}
	}
	if strings.Contains(said, "/srv/secret") {
		t.Errorf("the agent is told %q", said)
	}
}

//go:build linux

package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
)

// If this fails, the order in which a client sees a turn, or the number of its commits, is not what was promised.
func TestOneCallTurn(t *testing.T) {
	r := newRig(t, llm.Config{})
	id := r.session("script/steps", allTools)
	var commits atomicInt
	r.start(func(c *Config) {
		c.fault = func(point string) error {
			if point == "before commit" {
				commits.add(1)
			}
			return nil
		}
	})
	r.say(id, "- think: let me see", "- bash: echo hello", "- say: done")
	r.rests(id, "end_turn")
	want := []string{"input.message", "turn.started", "input.processed", "model.started", "agent.thinking",
		"call.requested",
		"model.finished", "sandbox.ready", "call.started", "call.finished", "checkpoint.created", "model.started", "agent.message", "model.finished", "turn.ended"}
	if got := r.types(id); !slices.Equal(got, want) {
		t.Errorf("log = %v\nwant  %v", got, want)
	}
	if out := r.outcomes(id); len(out) != 1 || out[0].Outcome != outboard.OutcomeOK || finalText(out[0]) != "hello\n" ||
		*out[0].ExitCode != 0 {
		t.Errorf("outcome = %+v", out)
	}
	if n := commits.get(); n != 5 {
		t.Errorf("first turn took %d commits, want 5: one more than a turn on a live sandbox", n)
	}
	commits.add(-commits.get())
	r.say(id, "- bash: echo again", "- say: done")
	r.until(id, "second turn", func(s *outboard.State) bool { return s.Turn == 2 && s.Phase == outboard.PhaseIdle })
	if n := commits.get(); n != 4 {
		t.Errorf("a turn on a live sandbox took %d commits, want 4\n%s", n, r.dump(id))
	}
	h, err := r.store.Session(t.Context(), id)
	if err != nil || h.Worker != "" {
		t.Errorf("after the turn the lease is %q, %v; want none", h.Worker, err)
	}
}

// If this fails, a shell forgets its state between calls, or parallel calls are lost.
func TestCallsOfOneThreadShareAShell(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- bash: export A=1; mkdir -p d && cd d", "- parallel:", "  - bash: echo $A > f", "  - bash: pwd",
		"  - read: {path: /workspace/none}", "- read: {path: /workspace/d/f}", "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if len(out) != 5 || !strings.HasSuffix(strings.TrimSpace(finalText(out[2])), "/d") || !out[3].IsError ||
		!strings.Contains(finalText(out[4]), "1") {
		t.Errorf("outcomes:\n%s", r.dump(id))
	}
}

// If this fails, a process drives more sessions than it has slots for, or forgets those that had to wait.
func TestSlots(t *testing.T) {
	r := newRig(t, llm.Config{})
	var ids []outboard.SessionID
	for range 5 {
		ids = append(ids, r.steps("- call: {name: none, input: {}}", "- say: done"))
	}
	var busy, most atomicInt
	r.start(func(c *Config) {
		c.Slots = 2
		c.Harness = counting{c.Harness, &busy, &most}
	})
	for _, id := range ids {
		r.rests(id, "end_turn")
	}
	if most.get() != 2 {
		t.Errorf("at most %d sessions were driven at a time, want 2", most.get())
	}
}

// counting is a harness that counts how many sessions are driven at a time.
type counting struct {
	harness.Harness
	busy, most *atomicInt
}

func (c counting) Run(ctx context.Context, t harness.Turn) error {
	c.busy.add(1)
	defer c.busy.add(-1)
	for n := c.busy.get(); n > c.most.get(); {
		c.most.add(1)
	}
	return c.Harness.Run(ctx, t)
}

// If this fails, a session whose model was taken out of the configuration fails in a circle, or without saying why.
func TestModelThatIsNotThere(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.session("nobody/nothing", allTools)
	r.say(id, "hello")
	r.rests(id, "retries_exhausted")
	wantTypes(t, r, id, outboard.TypeTurnStarted, "turn.started", "turn.failed", "input.processed", "turn.ended")
	if f := payloads[*outboard.TurnFailed](r, id)[0].Error; f.Type != llm.Failed ||
		!strings.Contains(f.Message, "nobody/nothing") {
		t.Errorf("failure = %+v", f)
	}
}

// If this fails, a turn does not hand on what it has folded, or hands it to two.
func TestStatesAreCachedForAWhile(t *testing.T) {
	r := newRig(t, llm.Config{})
	n := r.start(nil)
	id := r.steps("- say: one")
	r.rests(id, "end_turn")
	n.Stop() // the turn has been put away
	if s := n.states.take(t.Context(), id); s.Head != int64(len(r.events(id))) {
		t.Fatalf("kept a fold up to %d of %d events", s.Head, len(r.events(id)))
	}
	if again := n.states.take(t.Context(), id); again.Head != 0 {
		t.Error("one fold was given out twice")
	}
}

// A guest is told which outcomes are durable when its session pauses, and at once of those that have left it a
// large file. If this fails, each call waits for the acknowledgement of the one before, or outputs stay in the
// sandbox for good.
func TestAcknowledgedAfterTheTurn(t *testing.T) {
	r := newRig(t, llm.Config{})
	n := r.start(nil)
	id := r.steps("- bash: echo small", "- say: done")
	s := r.rests(id, "end_turn")
	epoch := func() int64 {
		t.Helper()
		h, err := r.store.Session(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return h.Epoch
	}
	lease, err := r.fleet.Acquire(t.Context(), fleet.Request{Session: id, Config: s.Config, Current: s.Sandbox,
		Checkpoint: s.Checkpoint, Epoch: epoch()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.fleet.Release(t.Context(), lease)
	small := r.outcomes(id)[0]
	left := func() string {
		t.Helper()
		res, err := lease.Wait(t.Context(), outboard.CallKey(id, small.Call), epoch())
		if err != nil {
			t.Fatal(err)
		}
		return string(res.Output)
	}
	if got := left(); got != "small\n" {
		t.Fatalf("right after its turn the guest has %q of the call's output", got)
	}
	n.Stop()
	if got := left(); got != "" {
		t.Errorf("the guest still has %q when nobody uses the sandbox any more", got)
	}

	n = r.start(nil)
	r.say(id, "- bash: echo small", fmt.Sprintf("- bash: head -c %d /dev/zero | tr '\\0' x", 2*outboard.MaxToolOutput),
		"- say: done")
	r.until(id, "the second turn",
		func(s *outboard.State) bool { return s.Phase == outboard.PhaseIdle && len(r.outcomes(id)) == 3 })
	small = r.outcomes(id)[1]
	var waits []string
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // that a turn was put away writes no event
		n.keepAlive.mu.Lock()
		l, put := n.keepAlive.kept[id]
		n.keepAlive.mu.Unlock()
		if waits = l.unacked; put {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the turn was not put away")
		}
	}
	if !r.outcomes(id)[2].Truncated || len(waits) != 0 || left() != "" {
		t.Errorf("after a call with a large file of output, %d calls wait to be acknowledged, and the guest has %q",
			len(waits), left())
	}
}

// If this fails, a program that talks to a session pays for a new connection with every message, or an idle
// session keeps its sandbox awake.
func TestSandboxIsKeptAlive(t *testing.T) {
	r := newRig(t, llm.Config{})
	n := r.start(nil)
	id := r.steps("- bash: 'true'", "- say: done")
	r.rests(id, "end_turn")
	other := r.steps("- say: no sandbox")
	r.rests(other, "end_turn")
	n.Stop()
	if left := n.keepAlive.expired(time.Now().Add(time.Hour)); len(left) != 0 {
		t.Errorf("%d boxes were left behind by Stop", len(left))
	}
	var l keepAlive
	boxes := make([]fleet.Lease, maxKeptAlive+2)
	for i := range maxKeptAlive {
		if over := l.keep(outboard.SessionID(strconv.Itoa(i)), keptLease{lease: &boxes[i]}); over != nil {
			t.Fatalf("box %d was not kept", i)
		}
	}
	if over := l.keep("more", keptLease{lease: &boxes[maxKeptAlive]}); over != &boxes[maxKeptAlive] {
		t.Error("more sandboxes are kept alive than may be")
	}
	if old := l.keep("0", keptLease{lease: &boxes[maxKeptAlive+1]}); old != &boxes[0] {
		t.Error("a session's older box was not given back")
	}
	if now := l.expired(time.Now()); len(now) != 0 {
		t.Errorf("%d boxes expired at once", len(now))
	}
	if all := l.expired(time.Now().Add(2 * keepAliveTime)); len(all) != maxKeptAlive {
		t.Errorf("%d boxes expired, want %d", len(all), maxKeptAlive)
	}
}

// If this fails, what a process goes on with after a turn is not what another one would read from the log.
func TestCachedStateIsTheLogs(t *testing.T) {
	r := newRig(t, llm.Config{})
	n := r.start(nil)
	id := r.session("script/steps", allTools)
	for turn := 1; turn <= 3; turn++ {
		r.say(id, "- parallel: [{bash: 'echo a > f'}, {bash: 'echo b'}, {read: /nowhere}]", "- think: hm",
			"- bash: 'false'", "- say: done")
		r.until(id, "the turn's end",
			func(s *outboard.State) bool { return s.Turn == turn && s.Phase == outboard.PhaseIdle })
	}
	n.Stop() // the turn has handed its fold over
	want, err := outboard.Fold(r.events(id))
	if err != nil {
		t.Fatal(err)
	}
	if got := n.states.take(t.Context(), id); !reflect.DeepEqual(got.Clone(), want.Clone()) {
		t.Errorf("the kept fold is\n%+v\nthe log's\n%+v", got, want)
	}
}

// If this fails, a person who watches learns nothing of a command until its end; or the line that is shown is kept,
// is shown to those
// who watch another session or after the end, or is not cleaned as the result is.
func TestCommandsAreWatchedWhileTheyRun(t *testing.T) {
	r := newRig(t, llm.Config{})
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	id := r.session("script/steps", allTools)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watched, other := r.hub.Follow(ctx, id), r.hub.Follow(ctx, "sesn_other")
	r.start(nil)
	r.say(id, `- bash: "printf 'at %s\\000\\377\\n' $((6*7)); read x < `+gate+`; echo $x"`, "- say: done")
	line := func(ch <-chan live.Delta) live.Delta {
		t.Helper()
		for d := range ch {
			if d.Kind == live.CallOutput {
				return d
			}
		}
		t.Fatalf("no line was shown\n%s", r.dump(id))
		return live.Delta{}
	}
	d := line(watched)
	started := r.until(id, "the call has started",
		func(s *outboard.State) bool { return len(s.Calls) == 1 && s.Calls[0].Started != nil })
	if want := "at 42\uFFFD\uFFFD"; d.Text != want || d.Event != started.Calls[0].ID || d.Session != id ||
		d.After != started.Head {
		t.Errorf("shown is %+v, want %q of call %s after %d", d, want, started.Calls[0].ID, started.Head)
	}
	if later := line(r.hub.Follow(ctx, id)); later.Text != d.Text {
		t.Errorf("a reader that came later is shown %q", later.Text)
	}
	for _, e := range r.events(id) {
		if strings.Contains(string(e.Data), "at 42") || e.Type == live.CallOutput {
			t.Errorf("a line is in the log: %s %s", e.Type, e.Data)
		}
	}
	if err := os.WriteFile(gate, []byte("go on\n"), 0); err != nil {
		t.Fatal(err)
	}
	r.rests(id, "end_turn")
	if out := r.outcomes(id); len(out) != 1 || finalText(out[0]) != "at 42\uFFFD\uFFFD\ngo on\n" {
		t.Errorf("the control: the result is %+v", out)
	}
	if late := r.hub.Follow(ctx, id); len(late) != 0 {
		t.Errorf("after its end the command is shown with %+v", <-late)
	}
	if len(other) != 0 {
		t.Errorf("another session's reader is shown %+v", <-other)
	}
}

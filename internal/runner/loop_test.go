//go:build linux

package runner

import (
	"github.com/outboard-dev/outboard/internal/harness"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// gate is a named pipe on which a command in a sandbox and the test meet.
type gate struct {
	t    testing.TB
	path string
}

func newGate(t testing.TB) *gate {
	t.Helper()
	g := &gate{t, filepath.Join(t.TempDir(), "gate")}
	if err := syscall.Mkfifo(g.path, 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

// meet waits until a command opens the other end of the gate, and closes it again.
func (g *gate) meet(flag int) {
	g.t.Helper()
	f, err := os.OpenFile(g.path, flag, 0)
	if err == nil && flag == os.O_RDONLY {
		_, err = io.Copy(io.Discard, f) // to the end, or its writer gets a signal
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// arrive waits until the command runs "echo > gate"; pass lets a command go on that runs "cat gate".
func (g *gate) arrive() { g.t.Helper(); g.meet(os.O_RDONLY) }
func (g *gate) pass()   { g.t.Helper(); g.meet(os.O_WRONLY) }

// tail is the log's types from the first event of a type on.
func tail(types []string, from outboard.EventType) []string {
	return types[max(0, slices.Index(types, string(from))):]
}

func wantTypes(t *testing.T, r *rig, id outboard.SessionID, from outboard.EventType, want ...string) {
	t.Helper()
	got := slices.DeleteFunc(tail(r.types(id), from),
		func(s string) bool { return s == string(outboard.TypeCheckpointCreated) })
	if !slices.Equal(got, want) {
		t.Errorf("log from %s = %v\nwant %v\n%s", from, got, want, r.dump(id))
	}
}

// If this fails, what a user sends while the agent works is lost, reordered, or comes only after the work is done.
func TestSteering(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	g := newGate(t)
	id := r.steps("- bash: cat "+g.path, "- say: first")
	r.until(id, "the call runs", func(s *outboard.State) bool { return len(s.Calls) == 1 && s.Calls[0].Started != nil })
	r.say(id, "- say: second")
	r.say(id, "- say: third")
	g.pass()
	r.rests(id, "end_turn")
	wantTypes(t, r, id, outboard.TypeCallStarted, "call.started", "input.message", "input.message", "call.finished",
		"input.processed",
		"input.processed", "model.started", "agent.message", "agent.message", "agent.message", "model.finished", "turn.ended")
}

// If this fails, a message that arrives during the last model call of a turn waits for ever or is answered in a
// turn of its own.
func TestMessageDuringTheLastModelCallContinuesTheTurn(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- sleep: 300ms", "- say: first")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	r.say(id, "- say: second")
	s := r.rests(id, "end_turn")
	wantTypes(t, r, id, outboard.TypeModelStarted, "model.started", "input.message", "agent.message", "model.finished",
		"input.processed",
		"model.started", "agent.message", "model.finished", "turn.ended")
	if s.Turn != 1 {
		t.Errorf("turn = %d, want 1", s.Turn)
	}
}

// If this fails, an interrupt does not stop a model that talks, its half response stays, or messages behind it
// are lost.
func TestInterruptCutsTheModel(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- sleep: 1h", "- say: never")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	r.say(id, "- say: next")
	r.send(id, &outboard.InputInterrupt{})
	r.until(id, "second turn", func(s *outboard.State) bool { return s.Turn == 2 && s.Phase == outboard.PhaseIdle })
	wantTypes(t, r, id, outboard.TypeModelStarted, "model.started", "input.message", "input.interrupt", "model.failed",
		"input.processed",
		"turn.ended", "turn.started", "input.processed", "model.started", "agent.message", "model.finished", "turn.ended")
	if f := payloads[*outboard.ModelFailed](r, id); f[0].Error.Type != "" {
		t.Errorf("the cut call is reported as %+v", f[0].Error)
	}
	if e := payloads[*outboard.TurnEnded](r, id); e[0].Stop.Type != "end_turn" {
		t.Errorf("the interrupted turn ended with %s", e[0].Stop.Type)
	}
}

// If this fails, an interrupt leaves commands running, loses what they printed, or falsifies the outcome of one
// that had ended.
func TestInterruptKillsRunningCalls(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	g := newGate(t)
	id := r.session("script/steps", asks("write"))
	r.say(id, "- parallel:", "  - glob: '*'",
		"  - bash: echo begun; "+r.mark()+"; echo > "+g.path+"; sleep 1000; "+r.mark(),
		"  - bash: "+r.mark(), "  - write: {path: /workspace/x, content: x}", "- say: never")
	g.arrive()
	r.until(id, "glob has ended",
		func(s *outboard.State) bool { return len(s.Calls) == 4 && s.Calls[0].Finished != nil })
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if out[1].Outcome != outboard.OutcomeCanceled || !strings.Contains(finalText(out[1]), "begun") || !out[1].IsError {
		t.Errorf("the running call: %+v", out[1])
	}
	if out[2].Outcome != outboard.OutcomeCanceled || out[3].Outcome != outboard.OutcomeCanceled {
		t.Errorf("the waiting calls: %s, %s", out[2].Outcome, out[3].Outcome)
	}
	if out[0].Outcome != outboard.OutcomeOK && !strings.Contains(finalText(out[0]), "unknown operation") {
		t.Errorf("the call that had ended: %+v", out[0])
	}
	if n := len(r.marks()); n != 1 {
		t.Errorf("%d calls ran, want only the first", n)
	}
}

// If this fails, an interrupt of a parked session leaves it waiting, or one of an idle session does something.
func TestInterruptOfARestingSession(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.session("script/steps", allTools)
	r.send(id, &outboard.InputInterrupt{})
	r.until(id, "it is taken in", func(s *outboard.State) bool { return len(s.Waiting) == 0 && s.Head > 1 })
	wantTypes(t, r, id, outboard.TypeInputInterrupt, "input.interrupt", "input.processed")

	r.say(id, "- parallel:", "  - call: {name: ticket, input: {}}", "  - call: {name: ticket, input: {a: 1}}",
		"- say: never")
	r.rests(id, "requires_action")
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	wantTypes(t, r, id, outboard.TypeCallRequested, "call.requested", "call.requested", "model.finished", "turn.ended",
		"input.interrupt",
		"input.processed", "call.finished", "call.finished", "turn.ended")
	for _, f := range r.outcomes(id) {
		if f.Outcome != outboard.OutcomeCanceled || !f.IsError {
			t.Errorf("a closed call: %+v", f)
		}
	}
}

// If this fails, a call that needs a person's word runs without it, or does not run with it; or a partial answer
// loses the rest.
func TestAsksAndCustomTools(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.session("script/steps", asks("bash"))
	r.say(id, "- parallel:", "  - glob: '*'", "  - bash: "+r.mark(), "  - bash: echo no; "+r.mark(),
		"  - call: {name: ticket, input: {title: x}}", "- say: done")
	s := r.rests(id, "requires_action")
	calls := []outboard.CallID{s.Calls[1].ID, s.Calls[2].ID, s.Calls[3].ID}
	if !slices.Equal(s.Stop.EventIDs, calls) || s.Calls[0].Finished == nil {
		t.Fatalf("parked on %v, want %v, with the allowed call finished: %v", s.Stop.EventIDs, calls,
			s.Calls[0].Finished)
	}
	if n := len(r.marks()); n != 0 {
		t.Fatalf("%d calls ran before they were allowed", n)
	}
	parkedOn := func(ids ...outboard.CallID) {
		t.Helper()
		r.until(id, "parked with the remainder", func(s *outboard.State) bool {
			return s.Parked() && slices.Equal(s.Stop.EventIDs, ids) && len(s.Waiting) == 0
		})
	}
	r.send(id, &outboard.InputConfirmation{Call: calls[0], Allow: true})
	parkedOn(calls[1], calls[2])
	r.send(id, &outboard.InputToolResult{Call: calls[2], Custom: true,
		Content: []outboard.Content{outboard.Text("T-1")}})
	parkedOn(calls[1])
	if n := len(r.marks()); n != 0 {
		t.Fatalf("an allowed call ran while the session was idle")
	}
	r.say(id, "- say: and more") // a message does not disturb a parked session
	r.send(id, &outboard.InputConfirmation{Call: calls[1], Allow: false, Message: "use the other one"})
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if out[1].Outcome != outboard.OutcomeOK || out[3].Outcome != outboard.OutcomeOK || finalText(out[3]) != "T-1" {
		t.Errorf("allowed call and custom tool: %+v, %+v", out[1], out[3])
	}
	if out[2].Outcome != outboard.OutcomeDenied || !out[2].IsError || !strings.Contains(finalText(out[2]),
		"use the other one") {
		t.Errorf("denied call: %+v", out[2])
	}
	if m := r.marks(); len(m) != 1 || m[outboard.CallKey(id, calls[0])] != 1 {
		t.Errorf("commands that ran: %v, want the allowed one once", m)
	}
	if n := len(payloads[*outboard.TurnResumed](r, id)); n != 1 {
		t.Errorf("%d turn.resumed, want 1", n)
	}
}

// If this fails, an answer that was sent before the session parked is forgotten, and the session waits for ever.
func TestAnswerBeforeTheTurnParks(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	g := newGate(t)
	id := r.steps("- parallel:", "  - bash: cat "+g.path, "  - call: {name: ticket, input: {}}", "- say: done")
	s := r.until(id, "the call runs",
		func(s *outboard.State) bool { return len(s.Calls) == 2 && s.Calls[0].Started != nil })
	r.send(id, &outboard.InputToolResult{Call: s.Calls[1].ID, Custom: true, IsError: true,
		Content: []outboard.Content{outboard.Text("down")}})
	g.pass()
	r.rests(id, "end_turn")
	if out := r.outcomes(id)[1]; !out.IsError || finalText(out) != "down" {
		t.Errorf("custom result: %+v", out)
	}
	if slices.Contains(r.types(id), "turn.resumed") {
		t.Errorf("the turn parked although the answer was there\n%s", r.dump(id))
	}
}

// If this fails, a model's mistake (a tool that is not there, arguments that do not fit) ends the turn instead
// of being told to it.
func TestModelMistakesAreToldToTheModel(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	sets := asks()
	sets[0].Configs = []outboard.ToolConfig{{Name: "grep"}}
	id := r.session("script/steps", sets)
	r.say(id, "- call: {name: rm, input: {}}", "- call: {name: bash, input: {cmd: ls}}",
		"- call: {name: grep, input: {pattern: x}}",
		"- call: {name: read, input: {file_path: 7}}", "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	for i, want := range []struct {
		outcome outboard.Outcome
		text    string
	}{{outboard.OutcomeDenied, `"rm"`}, {outboard.OutcomeError, `"cmd"`}, {outboard.OutcomeDenied,
		"disabled"}, {outboard.OutcomeError, "file_path"}} {
		if out[i].Outcome != want.outcome || !out[i].IsError || !strings.Contains(finalText(out[i]), want.text) {
			t.Errorf("call %d: %s %q, want %s naming %s", i, out[i].Outcome, finalText(out[i]), want.outcome, want.text)
		}
	}
	for _, c := range payloads[*outboard.CallRequested](r, id) {
		if c.Decision != outboard.Deny || c.Policy != "" {
			t.Errorf("%s: decision %s by %q", c.Name, c.Decision, c.Policy)
		}
	}
	if slices.Contains(r.types(id), "sandbox.ready") {
		t.Error("a sandbox was made for calls that never ran")
	}
}

// If this fails, a passing fault of a provider ends the user's turn, or a lasting one is retried for ever.
func TestRetries(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(func(c *Config) {
		c.Harness = &harness.Builtin{Now: r.now,
			Backoff: func(attempt int) time.Duration { return time.Duration(max(0, attempt-4)) * time.Hour }}
	})
	id := r.steps("- fail: {status: 529, times: 2}", "- say: done")
	r.rests(id, "end_turn")
	wantTypes(t, r, id, outboard.TypeTurnStarted, "turn.started", "input.processed", "model.started", "model.failed",
		"turn.retrying",
		"turn.resumed", "model.started", "model.failed", "turn.retrying", "turn.resumed", "model.started", "agent.message", "model.finished",
		"turn.ended")
	if f := payloads[*outboard.ModelFailed](r, id)[1]; f.Error.Type != llm.Overloaded || f.Error.Retry != "retrying" {
		t.Errorf("failure = %+v", f.Error)
	}

	cases := map[string]struct {
		step     string
		attempts int
		kind     string
	}{
		"lasting":        {"- fail: {status: 429, times: 99}", 5, llm.RateLimited},
		"not retryable":  {"- fail: 400", 1, llm.Failed},
		"not in reach":   {"- fail: {status: 429, retry_after: 1h}", 1, llm.RateLimited},
		"connection":     {"- fail: {status: connection, times: 99}", 5, llm.Failed},
		"no such script": {"not a list", 1, llm.Failed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			id := r.steps(c.step, "- say: never")
			r.rests(id, "retries_exhausted")
			if n := len(payloads[*outboard.ModelStarted](r, id)); n != c.attempts {
				t.Errorf("%d attempts, want %d", n, c.attempts)
			}
			f := payloads[*outboard.TurnFailed](r, id)
			if len(f) != 1 || f[0].Error.Type != c.kind || f[0].Error.Retry != "exhausted" || f[0].Error.Message == "" {
				t.Errorf("turn.failed = %+v", f)
			}
			r.say(id, "- say: hello again")
			r.rests(id, "end_turn")
		})
	}
}

// If this fails, an outage of a model's provider of half an hour ends a session, one without an end never does,
// or its time is forgotten when another process goes on.
func TestAModelThatIsAwayIsWaitedFor(t *testing.T) {
	r := newRig(t, llm.Config{})
	patient := func(c *Config) {
		c.Harness = &harness.Builtin{Now: r.now, Backoff: func(int) time.Duration { return 4 * time.Minute }}
	}
	first := r.start(patient)
	passing, lasting := r.steps("- fail: {status: 503, times: 8}",
		"- say: back"), r.steps("- fail: {status: 529, times: 99}", "- say: never")
	for n := 1; n <= 11; n++ {
		for _, id := range []outboard.SessionID{passing, lasting} {
			if id == lasting || n <= 8 {
				r.until(id, "waiting",
					func(s *outboard.State) bool { return s.Phase == outboard.PhaseRetrying && s.Attempt == n })
			}
		}
		if n == 3 {
			first.Stop()
			r.start(patient)
		}
		r.advance(4*time.Minute + time.Second)
	}
	r.rests(passing, "end_turn")
	r.rests(lasting, "retries_exhausted")
	if f := payloads[*outboard.TurnFailed](r, lasting)[0]; !strings.Contains(f.Error.Message,
		"tried 12 times in 44m") || f.Error.Retry != "exhausted" {
		t.Errorf("failure = %+v", f.Error)
	}
	for _, e := range payloads[*outboard.TurnRetrying](r, lasting) {
		if e.Error.Retry != "retrying" {
			t.Errorf("while it waits: %+v", e.Error)
		}
	}
}

// If this fails, an answer that breaks off after a piece of it was shown ends the session, or both pieces are in
// the log.
func TestAnAnswerThatBreaksOffIsMadeAgain(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	for _, status := range []string{"529", "connection"} {
		id := r.steps("- fail: {status: "+status+", after: 4, times: 6}", "- say: hello there")
		r.rests(id, "end_turn")
		m := payloads[*outboard.AgentMessage](r, id)
		if len(m) != 1 || outboard.PlainText(m[0].Content) != "hello there" {
			t.Errorf("%s: the log has %d messages", status, len(m))
		}
		if n := len(payloads[*outboard.TurnRetrying](r, id)); n != 6 {
			t.Errorf("%s: %d retries, want 6", status, n)
		}
		for _, f := range payloads[*outboard.ModelFailed](r, id) {
			if f.Usage.Tokens() == 0 {
				t.Errorf("%s: what was shown is not paid for", status)
			}
		}
	}
}

// If this fails, a call is lost because a model writes a tool's name in capitals, or it runs a tool that is not meant.
func TestToolNamesInAnotherCase(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	sets := append(slices.Clone(allTools), outboard.Toolset{Kind: "custom", Name: "Ticket",
		InputSchema: outboard.Raw(`{"type":"object"}`)})
	id := r.session("script/steps", sets)
	r.say(id, "- call: {name: Bash, input: {command: echo hi}}", "- call: {name: READ, input: {file_path: none}}",
		"- call: {name: TICKET, input: {}}", "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if finalText(out[0]) != "hi\n" || !strings.Contains(finalText(out[1]), "no such file") ||
		out[2].Outcome != outboard.OutcomeDenied {
		t.Errorf("outcomes: %+v", out)
	}
	if c := payloads[*outboard.CallRequested](r, id)[0]; c.Name != "bash" {
		t.Errorf("on record as %q", c.Name)
	}
}

// If this fails, a retrying session holds a worker, is woken by messages, or cannot be interrupted.
func TestRetryingIsRowsOnly(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- fail: {status: 529, retry_after: 10m}", "- say: done")
	retrying := func(s *outboard.State) bool { return s.Phase == outboard.PhaseRetrying }
	r.until(id, "retrying", retrying)
	r.say(id, "- say: me too")
	h, err := r.store.Session(t.Context(), id)
	if err != nil || h.Phase != outboard.PhaseRetrying || h.Worker != "" || h.Inbox != 1 {
		t.Fatalf("while retrying: phase %s, lease %q, inbox %d, %v", h.Phase, h.Worker, h.Inbox, err)
	}
	r.advance(11 * 60 * 1e9)
	r.rests(id, "end_turn")
	wantTypes(t, r, id, outboard.TypeTurnRetrying, "turn.retrying", "input.message", "turn.resumed", "input.processed",
		"model.started",
		"agent.message", "agent.message", "model.finished", "turn.ended")

	id = r.steps("- fail: {status: 529, retry_after: 10m}", "- say: never")
	r.until(id, "retrying", retrying)
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	wantTypes(t, r, id, outboard.TypeTurnRetrying, "turn.retrying", "input.interrupt", "input.processed", "turn.ended")
}

// If this fails, a failed turn leaves messages in the inbox that would start it again at once, or the model
// never reads them.
func TestFailedTurnFlushesItsInbox(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- sleep: 300ms", "- fail: 400")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	r.say(id, "- say: flushed")
	r.until(id, "the end", func(s *outboard.State) bool { return s.Phase == outboard.PhaseIdle && s.Turn == 1 })
	wantTypes(t, r, id, outboard.TypeModelStarted, "model.started", "input.message", "model.failed", "turn.failed",
		"input.processed",
		"turn.ended")
	r.say(id, "- say: next")
	s := r.rests(id, "end_turn")
	var read []string
	for _, m := range s.History {
		if m.Role == "user" {
			read = append(read, outboard.PlainText(m.Content))
		}
	}
	if !slices.Equal(read[1:], []string{"- say: flushed", "- say: next"}) {
		t.Errorf("the model reads %q", read)
	}
	if said := payloads[*outboard.AgentMessage](r, id); len(said) != 1 ||
		outboard.PlainText(said[0].Content) != "next" {
		t.Errorf("the model said %+v", said)
	}
}

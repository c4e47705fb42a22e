package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// record is what the harness of the test knows about one session from outside: which messages the API
// acknowledged, and what the last look into the workspace found. Everything else is read from the log.
type record struct {
	acked   []outboard.EventID // ids of messages the API accepted
	effects []effect           // lines of the effects file, in order
}

// effect is one line a command left in its workspace: the call key it ran under, and the sandbox it ran in.
type effect struct{ key, sandbox string }

// parseEffects reads the effects file. A line that is not "KEY SANDBOX" is kept with an empty sandbox and will
// not verify.
func parseEffects(text string) []effect {
	var out []effect
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, sandbox, _ := strings.Cut(line, " ")
		out = append(out, effect{key, sandbox})
	}
	return out
}

// history is the log of one session, indexed for the checks.
type history struct {
	id        outboard.SessionID
	events    []outboard.Event
	payloads  []outboard.Payload
	requested map[outboard.CallID]*outboard.CallRequested
	started   map[outboard.CallID][]*outboard.CallStarted
	finished  map[outboard.CallID][]*outboard.CallFinished
	lost      map[outboard.SandboxID]bool
	parted    map[outboard.SandboxID]parting
	processed map[outboard.EventID]int
}

// parting is what the log says about the end of a sandbox.
type parting struct {
	restore outboard.CheckpointID
	again   bool // another sandbox came after it
}

func index(id outboard.SessionID, events []outboard.Event) (*history, error) {
	h := &history{id: id, events: events,
		requested: map[outboard.CallID]*outboard.CallRequested{}, started: map[outboard.CallID][]*outboard.CallStarted{},
		finished: map[outboard.CallID][]*outboard.CallFinished{}, lost: map[outboard.SandboxID]bool{}, parted: map[outboard.SandboxID]parting{}, processed: map[outboard.EventID]int{}}
	var last outboard.SandboxID // the newest that was lost
	for i := range events {
		p, err := events[i].Decode()
		if err != nil {
			return nil, err
		}
		h.payloads = append(h.payloads, p)
		switch p := p.(type) {
		case *outboard.CallRequested:
			h.requested[events[i].ID] = p
		case *outboard.CallStarted:
			h.started[p.Call] = append(h.started[p.Call], p)
		case *outboard.CallFinished:
			h.finished[p.Call] = append(h.finished[p.Call], p)
		case *outboard.SandboxLost:
			h.lost[p.Sandbox] = true
			h.parted[p.Sandbox] = parting{restore: p.Restore}
			last = p.Sandbox
		case *outboard.SandboxReady:
			if at, ok := h.parted[last]; ok {
				at.again = true
				h.parted[last] = at
			}
		case *outboard.InputProcessed:
			h.processed[p.Input]++
		}
	}
	return h, nil
}

// verify returns every claim of the platform that the session's log and workspace contradict.
func verify(h *history, r record) []string {
	var bad []string
	fail := func(format string, args ...any) {
		bad = append(bad, string(h.id)+": "+fmt.Sprintf(format, args...))
	}
	h.checkLog(fail)
	h.checkInputs(r, fail)
	h.checkCalls(fail)
	h.checkEffects(r, fail)
	return bad
}

type failf func(format string, args ...any)

// checkLog: no event lost, none twice, and the fold ends idle with nothing left to do.
func (h *history) checkLog(fail failf) {
	ids := map[outboard.EventID]bool{}
	for i, e := range h.events {
		if e.Seq != int64(i)+1 {
			fail("gap in the log: seq %d at position %d", e.Seq, i+1)
			return
		}
		if ids[e.ID] {
			fail("event %s stands twice", e.ID)
		}
		ids[e.ID] = true
	}
	s, err := outboard.Fold(h.events)
	if err != nil {
		fail("the log does not fold: %v", err)
		return
	}
	if s.Phase != outboard.PhaseIdle || s.Stop == nil || s.Stop.Type != "end_turn" || len(s.Waiting) > 0 ||
		len(s.Calls) > 0 {
		fail("did not reach its end: phase %s, stop %v, %d waiting, %d open calls", s.Phase, s.Stop, len(s.Waiting),
			len(s.Calls))
	}
}

// checkInputs: what the API acknowledged is in the log, and was processed once.
func (h *history) checkInputs(r record, fail failf) {
	in := map[outboard.EventID]bool{}
	for _, e := range h.events {
		in[e.ID] = true
	}
	for _, id := range r.acked {
		if !in[id] {
			fail("acknowledged message %s is not in the log", id)
		}
		if n := h.processed[id]; n != 1 {
			fail("message %s was processed %d times", id, n)
		}
	}
}

// checkCalls: every call has one outcome; a call that acts has one intent; an unknown outcome has a lost sandbox
// behind it; and however many are killed, a sandbox is had for each.
func (h *history) checkCalls(fail failf) {
	for _, id := range slices.Sorted(maps.Keys(h.requested)) {
		finished, started := h.finished[id], h.started[id]
		if len(finished) != 1 {
			fail("call %s has %d outcomes", id, len(finished))
			continue
		}
		for i, s := range started {
			if s.Class == outboard.ClassEffect && i > 0 {
				fail("call %s of class effect was started %d times", id, len(started))
			}
		}
		if finished[0].Outcome == outboard.OutcomeUnknown &&
			(len(started) == 0 || !h.lost[started[len(started)-1].Sandbox]) {
			fail("call %s is marked unknown, but no sandbox was lost with it", id)
		}
		if finished[0].Outcome == outboard.OutcomeOK && len(started) == 0 {
			fail("call %s has a result but no intent", id)
		}
		if finished[0].Outcome == outboard.OutcomeError && len(started) == 0 {
			fail("call %s was given up without an intent: %s", id, said(finished[0]))
		}
	}
	for id := range h.finished {
		if h.requested[id] == nil {
			fail("call %s has an outcome but was never requested", id)
		}
	}
}

// said is what the model was told of a call.
func said(f *outboard.CallFinished) string {
	for _, c := range f.Content {
		if c.Text != "" {
			return c.Text
		}
	}
	return "nothing"
}

// checkEffects: what the workspace says happened is what the log says happened. A command runs at most once,
// only in a sandbox its intent names, and one that is recorded to have ended well has left its mark. A sandbox's
// processes die one after the other: when its guest still saw the command die, the log says so (exit code 137),
// and there need not be a mark.
func (h *history) checkEffects(r record, fail failf) {
	count := map[string]int{}
	for _, e := range r.effects {
		count[e.key]++
		call := outboard.CallID(strings.TrimPrefix(e.key, string(h.id)+"/"))
		if h.requested[call] == nil {
			fail("the workspace names call %q, which the log does not have", e.key)
			continue
		}
		if !slices.ContainsFunc(h.started[call],
			func(s *outboard.CallStarted) bool { return string(s.Sandbox) == e.sandbox }) {
			fail("call %s ran in sandbox %q, which no intent names", call, e.sandbox)
		}
	}
	for call, req := range h.requested {
		if !marks(req) || len(h.finished[call]) != 1 {
			continue
		}
		n := count[outboard.CallKey(h.id, call)]
		switch fin := h.finished[call][0]; {
		case n > 1:
			fail("call %s was executed %d times", call, n)
		case n == 0 && fin.Outcome == outboard.OutcomeOK && !killed(fin):
			fail("call %s is recorded as done, but its effect is not in the workspace", call)
		}
	}
}

// killed reports whether the command is recorded to have died of SIGKILL.
func killed(fin *outboard.CallFinished) bool {
	return fin.IsError && fin.ExitCode != nil && *fin.ExitCode == 128+9
}

// marks reports whether the call writes a line into the effects file.
func marks(r *outboard.CallRequested) bool {
	return r.Name == "bash" && strings.Contains(string(r.Input), "OUTBOARD_CALL_KEY")
}

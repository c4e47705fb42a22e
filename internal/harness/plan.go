package harness

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// action is what is to be done once everything a plan appends is durable.
type action int

const (
	actRest     action = iota // nothing: idle, parked, retrying or terminated
	actAgain                  // look again after the append
	actGenerate               // make the model call State.Request
	actCompact                // have the conversation summarised
	actRun                    // run the runnable calls
	actStop                   // kill the started calls: an interrupt waits
	actBudget                 // a model call is due, and its budget not asked for yet
)

const (
	// maxBatch bounds the events one plan adds, well under MaxAppend, so that staged ones fit beside them.
	maxBatch = 100
	// maxUrgent bounds the interrupts and answers one plan takes in; each may also finish a call.
	maxUrgent = 40
	// maxCompactions bounds compactions in a row that bought at most one model call each.
	maxCompactions = 3
	// maxCalls bounds the calls of one response, so that it and their refusals fit one append.
	maxCalls = 64
	// maxBlocks bounds the blocks of one response, calls included.
	maxBlocks = 120
)

// Texts a model reads as the result of a call that did not run to its end.
const (
	textInterrupted = "The user interrupted before this call ran. It was not executed."
	textFailed      = "The turn failed before this call ran. It was not executed."
	textUnknown     = "The turn failed while this call was running. Its outcome is unknown: it ran at most once, " +
		"and its effects may " +
		"have happened."
	textExpired  = "Nobody approved this call in time. It was not executed."
	textRejected = "The user rejected this call. It was not executed."
)

// planner decides what to append from a state, one step at a time, on a copy that it advances.
type planner struct {
	l      *loop
	now    time.Time
	v      *outboard.State
	events []outboard.Event
}

func (l *loop) planner(s *outboard.State) *planner {
	return &planner{l: l, now: l.now(), v: s.Clone()}
}

// plan returns what to append to a log in state s, and what to do after that. It is a function of s, the model's
// window, what the model just said of the conversation's length, and the clock.
func (l *loop) plan(s *outboard.State) ([]outboard.Event, action) {
	p := l.planner(s)
	for {
		act, done := p.next()
		if done {
			return p.events, act
		}
		if len(p.events) >= maxBatch {
			return p.events, actAgain
		}
	}
}

func (p *planner) add(payload outboard.Payload) {
	e := outboard.NewEvent(p.v.Thread, payload)
	p.v.Assume(e)
	p.events = append(p.events, e)
}

// next takes one step. It reports the action and true when an action is due before anything more can be decided.
func (p *planner) next() (action, bool) {
	v := p.v
	switch {
	case v.Phase == outboard.PhaseTerminated:
		return actRest, true
	case v.Failed != nil:
		p.giveUp()
	case len(p.waiting(outboard.EventType.IsUrgent)) > 0:
		if p.interrupted() && slices.ContainsFunc(v.Calls,
			func(c *outboard.Call) bool { return c.Started != nil && c.Finished == nil }) {
			return actStop, true
		}
		p.settle()
	case v.Parked() && !v.WakeAt.IsZero() && !v.WakeAt.After(p.now):
		p.expire()
	case v.Broke() && !v.WakeAt.IsZero() && !v.WakeAt.After(p.now):
		p.add(&outboard.TurnResumed{Turn: v.Turn})
	case v.Parked(), v.Broke(), v.Phase == outboard.PhaseRetrying &&
		v.WakeAt.After(p.now), v.Phase == outboard.PhaseIdle && len(v.Waiting) == 0:
		return actRest, true
	case v.Phase == outboard.PhaseIdle:
		p.add(&outboard.TurnStarted{Turn: v.Turn + 1, Harness: p.l.Name(), Version: p.l.Version()})
	case v.Phase == outboard.PhaseRetrying:
		p.add(&outboard.TurnResumed{Turn: v.Turn})
	case v.Request != "":
		return actGenerate, true
	case len(v.Calls) > 0:
		return p.calls()
	default:
		return p.converse()
	}
	return actAgain, false
}

// calls decides about the open calls of the last response: those the platform can run are run first, then the
// turn parks.
func (p *planner) calls() (action, bool) {
	if slices.ContainsFunc(p.v.Calls, (*outboard.Call).Runnable) {
		return actRun, true
	}
	p.park()
	return actAgain, false
}

func (p *planner) park() {
	end := &outboard.TurnEnded{Turn: p.v.Turn, Stop: outboard.StopReason{Type: "requires_action",
		EventIDs: pending(p.v)}}
	for _, c := range p.v.Calls {
		at := c.Requested.ExpiresAt
		if c.WaitsForClient() && c.Answer == nil && !at.IsZero() && (end.WakeAt.IsZero() || at.Before(end.WakeAt)) {
			end.WakeAt = at
		}
	}
	p.add(end)
}

// expire denies the asks that nobody answered in time, and goes on once nothing is waited for.
func (p *planner) expire() {
	for _, c := range slices.Clone(p.v.Calls) {
		if c.Expired(p.now) {
			p.finish(c.ID, outboard.OutcomeDenied, textExpired)
		}
	}
	if len(pending(p.v)) == 0 {
		p.add(&outboard.TurnResumed{Turn: p.v.Turn})
		return
	}
	p.park()
}

// pending lists the calls that only a client can move.
func pending(s *outboard.State) []outboard.EventID {
	var ids []outboard.EventID
	for _, c := range s.Calls {
		if c.WaitsForClient() {
			ids = append(ids, c.WaitsAs())
		}
	}
	return ids
}

// converse decides between the end of the turn and one more model call.
func (p *planner) converse() (action, bool) {
	v := p.v
	switch {
	case v.Final != nil && (len(v.Waiting) == 0 || v.Final.Stop == "refusal"):
		stop := outboard.StopReason{Type: "end_turn"}
		if v.Final.Stop == "refusal" {
			stop.Type = "refusal"
		}
		p.add(&outboard.TurnEnded{Turn: v.Turn, Stop: stop, Details: v.Final.Details})
	case v.ModelCalls >= cmp.Or(p.l.MaxCalls, outboard.MaxModelCalls):
		p.fail(toolLimit, fmt.Sprintf("the turn reached its limit of %d model calls (limits.model_calls) without "+
			"coming to an end; a message such as "+
			`"go on" begins the next turn`, v.ModelCalls))
	case v.Futile >= outboard.MaxFutile:
		p.fail(llm.Failed, fmt.Sprintf("the model made only tool calls that cannot be made in %d responses in a "+
			"row, although it was told what "+
			"is wrong with each: there is no such tool, or its arguments do not fit", v.Futile))
	case p.l.modelErr != nil:
		e := unresolved(p.l.modelErr)
		p.fail(e.Type, e.Message)
	case p.l.metered && !p.l.budgeted:
		return actBudget, true
	case p.l.budget.Broke != "":
		p.add(&outboard.TurnEnded{Turn: v.Turn, Stop: outboard.StopReason{Type: outboard.StopBudget}})
	case p.l.full(v):
		if v.Compactions >= maxCompactions {
			p.fail(compactionLimit, "the conversation fills the model's context again right after being summarised")
			break
		}
		return actCompact, true
	case len(v.Waiting) > 0:
		p.drain()
	default:
		p.add(&outboard.ModelStarted{Model: p.l.model.Info().ID, Attempt: v.Attempt + 1})
	}
	return actAgain, false
}

func (p *planner) fail(kind, message string) {
	p.add(&outboard.TurnFailed{Turn: p.v.Turn, Error: outboard.Failure{Type: kind, Message: message,
		Retry: "exhausted"}})
}

// drain takes waiting messages into the conversation, in order.
func (p *planner) drain() {
	for _, in := range slices.Clone(p.v.Waiting[:min(len(p.v.Waiting), maxBatch/2)]) {
		p.process(in)
	}
}

func (p *planner) process(in outboard.Input) {
	p.add(&outboard.InputProcessed{Input: in.Event.ID, Of: in.Event.Type})
}

// giveUp ends a failed turn: what waits is flushed, what is open is closed, and the session goes idle. A flushed
// message starts no turn, which would fail like this one; it stays in the conversation, because its sender sees
// it there, and the next model call reads it.
func (p *planner) giveUp() {
	if len(p.v.Waiting) > 0 {
		p.drain()
		return
	}
	if p.v.Request != "" {
		p.add(&outboard.ModelFailed{Request: p.v.Request, Error: outboard.Failure{Message: p.v.Failed.Error.Message}})
	}
	p.closeCalls(textFailed)
	p.add(&outboard.TurnEnded{Turn: p.v.Turn, Stop: outboard.StopReason{Type: "retries_exhausted"}})
}

// closeCalls gives every open call an error result; text is for those that never started.
func (p *planner) closeCalls(text string) {
	for _, c := range slices.Clone(p.v.Calls) {
		switch {
		case c.Finished != nil:
		case c.Started != nil:
			p.finish(c.ID, outboard.OutcomeUnknown, textUnknown)
		default:
			p.finish(c.ID, outboard.OutcomeCanceled, text)
		}
	}
}

func (p *planner) finish(call outboard.CallID, outcome outboard.Outcome, text string) {
	p.add(refused(call, outcome, text))
}

func refused(call outboard.CallID, outcome outboard.Outcome, text string) *outboard.CallFinished {
	return &outboard.CallFinished{Call: call, Outcome: outcome, IsError: true,
		Content: []outboard.Content{outboard.Text(text)}}
}

// waiting returns the waiting inputs of a kind, in order.
func (p *planner) waiting(kind func(outboard.EventType) bool) []outboard.Input {
	var out []outboard.Input
	for _, in := range p.v.Waiting {
		if kind(in.Event.Type) {
			out = append(out, in)
		}
	}
	return out
}

func (p *planner) interrupted() bool {
	return len(p.waiting(func(t outboard.EventType) bool { return t == outboard.TypeInputInterrupt })) > 0
}

// settle takes in answers and interrupts. An interrupt ends the turn; answers let a parked turn go on once none
// is missing.
func (p *planner) settle() {
	before := pending(p.v)
	parked := p.v.Parked()
	interrupt := false
	urgent := p.waiting(outboard.EventType.IsUrgent)
	for _, in := range urgent[:min(len(urgent), maxUrgent)] {
		p.answer(in)
		interrupt = interrupt || in.Event.Type == outboard.TypeInputInterrupt
	}
	if interrupt {
		p.interrupt()
		return
	}
	if after := pending(p.v); parked && len(after) == 0 {
		p.add(&outboard.TurnResumed{Turn: p.v.Turn})
	} else if parked && len(after) < len(before) {
		p.park() // idle again, with the remainder
	}
}

// answer lets one input have its effect. An answer to a call that is not open, or has one already, has none.
func (p *planner) answer(in outboard.Input) {
	switch a := in.Payload.(type) {
	case *outboard.InputConfirmation:
		c := p.v.Call(a.Call)
		asked := c != nil && c.Finished == nil && c.Requested.Decision == outboard.Ask && c.Answer == nil
		p.process(in)
		if asked && !a.Allow {
			text := textRejected
			if a.Message != "" {
				text += " They said: " + a.Message
			}
			p.finish(a.Call, outboard.OutcomeDenied, text)
		}
	case *outboard.InputToolResult:
		c := p.v.Call(a.Call)
		open := c != nil && c.Finished == nil && c.ForClient()
		p.process(in)
		if !open {
			return
		}
		fin := &outboard.CallFinished{Call: a.Call, Outcome: outboard.OutcomeOK, Content: a.Content, IsError: a.IsError}
		if a.IsError {
			fin.Outcome = outboard.OutcomeError
		}
		p.add(fin)
	default:
		p.process(in)
	}
}

// interrupt ends what is going on. Messages that wait are left to the next turn; on an idle session nothing happens.
func (p *planner) interrupt() {
	if p.v.Request != "" {
		p.add(&outboard.ModelFailed{Request: p.v.Request, Error: outboard.Failure{Message: ErrInterrupted.Message}})
	}
	p.closeCalls(textInterrupted)
	if p.v.InTurn {
		p.add(&outboard.TurnEnded{Turn: p.v.Turn, Stop: outboard.StopReason{Type: "end_turn"}})
	}
}

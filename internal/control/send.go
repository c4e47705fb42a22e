package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// maxSystemBlocks bounds a system message. Managed Agents wire.
const maxSystemBlocks = 1000

// maxDenyMessage bounds what a person says with a deny. Managed Agents wire.
const maxDenyMessage = 10_000

// Send queues inputs, all or none, and returns their events in the order given. An answer that repeats, word for
// word, the answer its call already has is not queued again: its first event is returned, so that a client may
// resend after a lost reply.
func (c *Control) Send(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	ps []outboard.Payload) ([]outboard.Event, error) {
	if err := sends(by, ps); err != nil {
		return nil, err
	}
	if len(ps) == 0 || len(ps) > outboard.MaxSendEvents {
		return nil, invalid("events must have 1 to %d entries, not %d", outboard.MaxSendEvents, len(ps))
	}
	h, err := c.header(ctx, by, id)
	if err != nil {
		return nil, err
	}
	if err := c.actsFor(ctx, &h); err != nil {
		return nil, err
	}
	if err := c.aliveSession(ctx, id); err != nil {
		return nil, err
	}
	if ps, err = c.resolve(ctx, id, ps); err != nil {
		return nil, err
	}
	events, err := c.spillAll(ctx, h.Org, h.Thread, ps)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		plan, err := c.plan(ctx, by, &h, ps, events)
		if err != nil {
			return nil, err
		}
		out, err := plan.commit(ctx, c.store, &h)
		again := errors.Is(err, store.ErrMoved) || errors.Is(err, store.ErrDuplicate)
		if err == nil || !again || try == editTries {
			if errors.Is(err, store.ErrDuplicate) {
				return nil, invalid("one of the calls was answered already, by another request").
					WithCode(outboard.CodeAnswered)
			}
			if err != nil {
				return nil, commitErr(id, err)
			}
			return out, nil
		}
		if h, err = c.header(ctx, by, id); err != nil {
			return nil, err
		}
	}
}

// resolve names the call in results that name it by its offer. The caller's payloads stay as they are.
func (c *Control) resolve(ctx context.Context, id outboard.SessionID,
	ps []outboard.Payload) ([]outboard.Payload, error) {
	ps = slices.Clone(ps)
	for i, p := range ps {
		r, ok := p.(*outboard.InputToolResult)
		if !ok {
			continue
		}
		call, err := c.callOf(ctx, id, r.Call)
		if err != nil {
			return nil, err
		}
		if call != r.Call {
			named := *r
			named.Call, named.As = call, r.Call
			ps[i] = &named
		}
	}
	return ps, nil
}

// callOf returns the call that a client names: by the id of its offer, or by its own, which may be no call's.
func (c *Control) callOf(ctx context.Context, id outboard.SessionID, named outboard.EventID) (outboard.CallID, error) {
	if !outboard.ValidID(outboard.PrefixEvent, string(named)) {
		return named, nil
	}
	ev, err := c.store.Event(ctx, id, named)
	switch {
	case err != nil && outboard.KindOf(err) != outboard.NotFound:
		return "", outboard.Errorf(outboard.KindOf(err), "reading event %s: %w", named, err)
	case err == nil && ev.Type == outboard.TypeCallOffered:
		return ev.Ref, nil
	}
	return named, nil
}

// sends refuses callers who may not send these inputs: an answer to an approval needs another scope than the rest.
func sends(by outboard.Caller, ps []outboard.Payload) error {
	if err := requireDeveloper(by, scopeSessions); err != nil &&
		(len(ps) == 0 || requireDeveloper(by, scopeApprovals) != nil) {
		return err
	}
	for _, p := range ps {
		scope := scopeSessions
		if p.EventType() == outboard.TypeInputConfirmation {
			scope = scopeApprovals
		}
		if err := requireDeveloper(by, scope); err != nil {
			return err
		}
	}
	return nil
}

// sendPlan is a checked request: each event is either new or the recorded one it repeats.
type sendPlan struct {
	events  []outboard.Event
	old     []bool // this entry of events is recorded already
	answers bool   // one of the new events answers a call, so nothing may move in between
	given   []outboard.Answer
}

func (p *sendPlan) commit(ctx context.Context, st *store.Store, h *outboard.Header) ([]outboard.Event, error) {
	var fresh []outboard.Event
	for i, ev := range p.events {
		if !p.old[i] {
			fresh = append(fresh, ev)
		}
	}
	if len(fresh) == 0 {
		store.Unchanged(ctx)
		return p.events, nil
	}
	expect := int64(store.Any)
	if p.answers {
		expect = h.Head
	}
	done, err := st.Commit(ctx, store.Commit{Session: h.ID, Expect: expect, Events: fresh, Answers: p.given})
	if err != nil {
		return nil, err
	}
	out := make([]outboard.Event, 0, len(p.events))
	for i, ev := range p.events {
		if !p.old[i] {
			ev, done = done[0], done[1:]
		}
		out = append(out, ev)
	}
	return out, nil
}

// plan checks a request against the session as it is.
func (c *Control) plan(ctx context.Context, by outboard.Caller, h *outboard.Header, ps []outboard.Payload,
	events []outboard.Event) (*sendPlan, error) {
	if h.Phase == outboard.PhaseTerminated {
		return nil, archived(h.ID)
	}
	if waiting := h.Inbox + h.Urgent; waiting+len(ps) > outboard.MaxInbox {
		return nil, outboard.Errorf(outboard.Exhausted, "session %s has %d unprocessed events, and at most %d may wait",
			h.ID, waiting, outboard.MaxInbox)
	}
	if h.Broke() && h.WakeAt.IsZero() {
		if err := checkBroke(h, ps); err != nil {
			return nil, err
		}
	}
	plan := &sendPlan{events: append([]outboard.Event(nil), events...), old: make([]bool, len(events))}
	answered := map[outboard.CallID]bool{}
	for i, p := range ps {
		var err error
		switch p := p.(type) {
		case *outboard.InputMessage:
			if len(p.Content) == 0 {
				err = invalid("events[%d]: content must not be empty", i)
			} else if !interrupts(ps[:i]) {
				err = c.checkParked(ctx, h, answered, i)
			}
		case *outboard.InputSystem:
			err = checkSystem(h, ps, i, p)
		case *outboard.InputInterrupt:
			if p.Scope != "" && p.Scope != h.Thread {
				err = invalid("events[%d]: session %s has no thread %s", i, h.ID, quote(string(p.Scope)))
			}
			plan.old[i] = h.Broke() && h.WakeAt.IsZero() // taken and ignored: there is nothing to stop
		case *outboard.InputConfirmation, *outboard.InputToolResult:
			err = c.planAnswer(ctx, by, h, plan, i, p, answered)
		default:
			err = invalid("events[%d]: %s is not an input", i, p.EventType())
		}
		if err != nil {
			return nil, err
		}
	}
	return plan, nil
}

// interrupts reports whether one of the inputs ends what the session waits for.
func interrupts(ps []outboard.Payload) bool {
	return slices.ContainsFunc(ps,
		func(p outboard.Payload) bool { return p.EventType() == outboard.TypeInputInterrupt })
}

// checkParked refuses a message while the session waits for answers other than those before it in the request. The text
// is the wire's: clients go by it.
func (c *Control) checkParked(ctx context.Context, h *outboard.Header, answered map[outboard.CallID]bool, i int) error {
	if !h.Parked() {
		return nil
	}
	if h.Urgent > 0 {
		waiting, err := c.store.Waiting(ctx, h.ID)
		if err != nil {
			return wrapLookup("session", string(h.ID), err)
		}
		if slices.ContainsFunc(waiting, func(e outboard.Event) bool { return e.Type == outboard.TypeInputInterrupt }) {
			return nil
		}
	}
	var open []string
	for _, id := range h.Stop.EventIDs {
		call, err := c.callOf(ctx, h.ID, id)
		if err != nil {
			return err
		}
		if answered[call] {
			continue
		}
		if settled, err := c.settledCall(ctx, h, id, call); err != nil {
			return err
		} else if !settled {
			open = append(open, string(id))
		}
	}
	if len(open) == 0 {
		return nil
	}
	return invalid("Invalid user.message event at events[%d]: waiting on responses to events [%s]; only "+
		"user.tool_confirmation, "+
		"user.custom_tool_result, user.tool_result, or user.interrupt may be sent", i, strings.Join(open, ", ")).
		WithHint("answer the calls, or send user.interrupt before the message: in the same request, or in one of " +
			"its own")
}

// settledCall reports whether what the session waits for under an event's id has come: a result where it is the offer
// of a call or a custom tool's, else the answer of a person.
func (c *Control) settledCall(ctx context.Context, h *outboard.Header, id outboard.EventID,
	call outboard.CallID) (bool, error) {
	req, err := c.call(ctx, h.ID, call)
	if err != nil {
		return false, err
	}
	want := outboard.TypeInputConfirmation
	if id != call || req.Decision != outboard.Ask {
		want = outboard.TypeInputToolResult
	}
	about, err := c.store.EventsAbout(ctx, h.ID, call)
	if err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "reading call %s: %w", call, err)
	}
	return slices.ContainsFunc(about,
		func(e outboard.Event) bool { return e.Type == want || e.Type == outboard.TypeCallFinished }), nil
}

// checkSystem holds a system message to its place: the last of the request, right behind what it accompanies.
func checkSystem(h *outboard.Header, ps []outboard.Payload, i int, p *outboard.InputSystem) error {
	if len(p.Content) == 0 || len(p.Content) > maxSystemBlocks {
		return invalid("events[%d]: system.message must have 1 to %d text blocks, not %d", i, maxSystemBlocks,
			len(p.Content))
	}
	if i != len(ps)-1 {
		return invalid("events[%d]: system.message must be the last event of the request, and the only one of its type",
			i)
	}
	if i == 0 {
		return invalid("events[0]: system.message must follow a user.message or a tool result in the same request")
	}
	switch ps[i-1].EventType() {
	case outboard.TypeInputToolResult:
		return nil
	case outboard.TypeInputMessage:
		if h.Parked() {
			return invalid("events[%d]: while the session waits for answers, system.message may only follow a tool "+
				"result", i)
		}
		return nil
	}
	return invalid("events[%d]: system.message must directly follow a user.message or a tool result", i)
}

// planAnswer checks an answer to a call and puts it, or the recorded answer it repeats, in the plan.
func (c *Control) planAnswer(ctx context.Context, by outboard.Caller, h *outboard.Header, plan *sendPlan, i int,
	p outboard.Payload, answered map[outboard.CallID]bool) error {
	id := p.RefID()
	if answered[id] {
		return invalid("events[%d]: call %s is answered twice in one request", i, id)
	}
	answered[id] = true
	call, err := c.call(ctx, h.ID, id)
	if err != nil {
		if outboard.KindOf(err) == outboard.NotFound {
			return invalid("events[%d]: session %s has no tool use %s", i, h.ID, quote(string(id)))
		}
		return err
	}
	switch p := p.(type) {
	case *outboard.InputConfirmation:
		if err = checkConfirmation(call, p, i); err == nil {
			err = c.checkApprover(ctx, by, h.ID, call, p, i)
		}
		p.By, p.Key, p.Digest = by.Name, by.Key, call.Digest
		plan.events[i].Data = outboard.NewEvent(h.Thread, p).Data
	case *outboard.InputToolResult:
		err = checkResult(call, p, i)
	}
	if err != nil {
		return err
	}
	about, err := c.store.EventsAbout(ctx, h.ID, id)
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "reading call %s: %w", id, err)
	}
	if r, ok := p.(*outboard.InputToolResult); ok && call.Decision == outboard.Ask && r.As == "" {
		return invalid("events[%d]: tool use %s waits for an approval first, and is then offered as an "+
			"agent.custom_tool_use: send "+
			"user.tool_confirmation, and the result to that", i, r.Call)
	}
	if err := plan.place(i, p, about); err != nil {
		return err
	}
	if a, ok := p.(*outboard.InputConfirmation); ok && !plan.old[i] {
		if call.Needs > 1 && a.Allow {
			if enough, err := c.voteForCall(ctx, by, h, plan, i, a); err != nil || !enough {
				return err
			}
		}
		plan.given = append(plan.given, outboard.Answer{Call: a.Call, Allow: a.Allow, Key: a.Key, Name: a.By,
			Message: a.Message, At: c.clock()})
		what := outboard.Deny
		if a.Allow {
			what = outboard.Allow
		}
		return c.record(ctx, by, "approval."+string(what), string(h.ID)+" "+string(a.Call),
			map[string]string{"digest": a.Digest, "tool": call.Name})
	}
	return nil
}

// place decides between a new answer and a repeated one.
func (p *sendPlan) place(i int, answer outboard.Payload, about []outboard.Event) error {
	for _, ev := range about {
		if ev.Type == answer.EventType() {
			if !sameAnswer(&ev, &p.events[i]) {
				return invalid("events[%d]: tool use %s was answered already, differently", i, ev.Ref).
					WithCode(outboard.CodeAnswered).WithHint("the first answer stands")
			}
			p.events[i], p.old[i] = ev, true
			return nil
		}
	}
	for _, ev := range about {
		if ev.Type == outboard.TypeCallFinished {
			return invalid("events[%d]: tool use %s has ended and takes no answer", i, ev.Ref)
		}
	}
	p.answers = true
	return nil
}

// sameAnswer reports whether two answers say the same, whoever gives them.
func sameAnswer(a, b *outboard.Event) bool {
	pa, err := a.Decode()
	if err != nil {
		return false
	}
	pb, err := b.Decode()
	if err != nil {
		return false
	}
	if x, ok := pa.(*outboard.InputConfirmation); ok {
		y, ok := pb.(*outboard.InputConfirmation)
		return ok && x.Allow == y.Allow && x.Message == y.Message
	}
	return bytes.Equal(compact(a.Data), compact(b.Data))
}

func compact(b []byte) []byte {
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return b
	}
	return out.Bytes()
}

// call returns the payload of a call.requested event.
func (c *Control) call(ctx context.Context, id outboard.SessionID,
	call outboard.CallID) (*outboard.CallRequested, error) {
	if !outboard.ValidID(outboard.PrefixEvent, string(call)) {
		return nil, notFound("tool use", string(call))
	}
	ev, err := c.store.Event(ctx, id, call)
	if err != nil {
		return nil, wrapLookup("tool use", string(call), err)
	}
	p, err := ev.Decode()
	if err != nil {
		return nil, err
	}
	req, ok := p.(*outboard.CallRequested)
	if !ok {
		return nil, notFound("tool use", string(call))
	}
	return req, nil
}

func checkConfirmation(call *outboard.CallRequested, p *outboard.InputConfirmation, i int) error {
	if p.Allow && p.Message != "" {
		return invalid("events[%d]: deny_message is only for result deny", i)
	}
	if err := length("deny_message", p.Message, 0, maxDenyMessage); err != nil {
		return err
	}
	if call.Kind == "custom" && call.Decision != outboard.Ask {
		return invalid("events[%d]: tool use %s is a custom tool's and takes user.custom_tool_result", i, p.Call)
	}
	if call.Decision != outboard.Ask {
		return invalid("events[%d]: tool use %s needs no confirmation, its policy said %s", i, p.Call, call.Decision)
	}
	return nil
}

func checkResult(call *outboard.CallRequested, p *outboard.InputToolResult, i int) error {
	if !p.Custom {
		return invalid("events[%d]: user.tool_result is only for self_hosted environments; this session's tools run "+
			"on the server", i)
	}
	if call.Kind != "custom" {
		return invalid("events[%d]: tool use %s is not a custom tool's", i, p.Call)
	}
	if call.Decision == outboard.Deny {
		return invalid("events[%d]: tool use %s was refused before it ran (%s) and takes no result", i, p.Call,
			call.Reason)
	}
	return nil
}

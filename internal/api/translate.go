package api

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
)

// source answers what the translation of an event needs beyond the event itself: the events it refers to, and
// what the log adds up to at its position.
type source interface {
	Event(ctx context.Context, id outboard.EventID) (outboard.Event, error)
	UsageAt(ctx context.Context, seq int64) (outboard.Header, error)
	ConfigAt(ctx context.Context, seq int64) (outboard.SessionConfig, error)
	Load(ctx context.Context, ref outboard.BlobRef) ([]byte, error)
}

// wireEvent is one event of the wire. fields holds what is besides id, type, processed_at and seq.
type wireEvent struct {
	id     outboard.EventID
	kind   string
	at     time.Time // zero while queued
	seq    int64     // of the log event; shown only with Outboard's own
	fields map[string]any
	bare   bool // a queued event in the reply to its own sending has no processed_at at all
	own    bool // show seq and, of a queued event, when it came
	came   time.Time
}

// MarshalJSON implements json.Marshaler.
func (w wireEvent) MarshalJSON() ([]byte, error) {
	m := maps.Clone(w.fields)
	if m == nil {
		m = map[string]any{}
	}
	m["id"], m["type"] = w.id, w.kind
	if !w.bare || !w.at.IsZero() {
		m["processed_at"] = stampOrNull(w.at)
	}
	if w.own {
		m["seq"] = w.seq
		if w.at.IsZero() {
			m["received_at"] = stampOrNull(w.came)
		}
	}
	return json.Marshal(m)
}

// translator turns the log of one session into wire events. It has no state: the same event always gives the
// same result.
type translator struct {
	src    source
	thread outboard.ThreadID
	agent  string // its name
	own    bool   // Outboard's own events too
}

// batch collects the wire events of one log event: the first keeps its id and time, the others have an id
// derived from it and a time one microsecond later each.
type batch struct {
	e   *outboard.Event
	own bool
	out []wireEvent
}

func (b *batch) add(kind string, fields map[string]any) {
	id := b.e.ID
	if len(b.out) > 0 {
		id = outboard.DeriveID[outboard.EventID](outboard.PrefixEvent, string(b.e.ID), kind)
	}
	b.addAs(id, kind, fields)
}

func (b *batch) addAs(id outboard.EventID, kind string, fields map[string]any) {
	at := b.e.Time.Add(time.Duration(len(b.out)) * time.Microsecond)
	b.out = append(b.out, wireEvent{id: id, kind: kind, at: at, seq: b.e.Seq, fields: fields, own: b.own})
}

// ownTypes are the log events that Outboard shows under their own names to clients that ask for it: what the
// wire leaves out.
var ownTypes = []outboard.EventType{outboard.TypeTurnStarted, outboard.TypeTurnResumed, outboard.TypeTurnRetrying,
	outboard.TypeTurnEnded, outboard.TypeTurnFailed, outboard.TypeModelStarted, outboard.TypeModelFinished, outboard.TypeModelFailed, outboard.TypeAgentThinking,
	outboard.TypeContextCompacted, outboard.TypeCallJudged, outboard.TypeCallStarted, outboard.TypeCallFinished, outboard.TypeSandboxReady,
	outboard.TypeSandboxLost, outboard.TypeCheckpointCreated, outboard.TypeFileHarvested, outboard.TypeSessionForked,
	outboard.TypeSessionRewound}

const ownPrefix = "outboard."

// events returns the wire events of one log event, in order.
func (t *translator) events(ctx context.Context, e *outboard.Event) ([]wireEvent, error) {
	b := &batch{e: e, own: t.own}
	p, err := e.Decode()
	if err != nil {
		return nil, err
	}
	if err := t.translate(ctx, b, p); err != nil {
		return nil, err
	}
	if t.own && slices.Contains(ownTypes, e.Type) {
		payload, err := ownPayload(e)
		if err != nil {
			return nil, err
		}
		b.add(ownPrefix+string(e.Type), map[string]any{"payload": payload})
	}
	return b.out, nil
}

// hidden are the fields of payloads that the wire shows elsewhere, and those that are of use to nobody but the
// model and the fold.
var hidden = map[outboard.EventType][]string{outboard.TypeCallFinished: {"content"},
	outboard.TypeSessionForked:    {"config"},
	outboard.TypeContextCompacted: {"base"}, outboard.TypeModelFinished: {"raw", "raw_blob"}}

// ownPayload is an event's payload without what is hidden of it.
func ownPayload(e *outboard.Event) (any, error) {
	hide := hidden[e.Type]
	if len(hide) == 0 {
		return e.Data, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(e.Data, &m); err != nil {
		return nil, outboard.Errorf(outboard.Internal, "decoding event %s: %w", e.ID, err)
	}
	for _, name := range hide {
		delete(m, name)
	}
	return m, nil
}

// translate adds the wire events of one payload.
func (t *translator) translate(ctx context.Context, b *batch, p outboard.Payload) error {
	switch p := p.(type) {
	case *outboard.TurnStarted, *outboard.TurnResumed:
		b.add("session.status_running", nil)
		b.add("session.thread_status_running", t.threadFields(nil))
	case *outboard.TurnRetrying:
		b.add("session.error", map[string]any{"error": showFailure(p.Error)})
		b.add("session.thread_status_rescheduled", t.threadFields(nil))
		b.add("session.status_rescheduled", nil)
	case *outboard.TurnFailed:
		b.add("session.error", map[string]any{"error": showFailure(p.Error)})
	case *outboard.TurnEnded:
		return t.ended(ctx, b, p)
	case *outboard.ModelStarted:
		b.add("span.model_request_start", nil)
	case *outboard.ModelFinished:
		b.add("span.model_request_end", spanEnd(p.Request, p.Usage, false))
	case *outboard.ModelFailed:
		b.add("span.model_request_end", spanEnd(p.Request, p.Usage, true))
	case *outboard.AgentThinking:
		b.add("agent.thinking", nil)
	case *outboard.ContextCompacted:
		b.add("agent.thread_context_compacted", nil)
	case *outboard.SessionArchived:
		b.add("session.thread_status_terminated", t.threadFields(nil))
		b.add("session.status_terminated", nil)
	case *outboard.AgentMessage:
		blocks, err := showContent(ctx, t.src.Load, p.Content)
		if err != nil {
			return err
		}
		b.add("agent.message", map[string]any{"content": blocks})
	case *outboard.CallRequested:
		return t.requested(ctx, b, p)
	case *outboard.CallOffered:
		return t.offered(ctx, b, p)
	case *outboard.CallFinished:
		return t.finished(ctx, b, p)
	case *outboard.InputProcessed:
		return t.processed(ctx, b, p)
	case *outboard.InputToolResult: // processed on receipt
		kind, fields, err := t.input(ctx, p)
		if err != nil {
			return err
		}
		b.add(kind, fields)
	case *outboard.SessionUpdated:
		return t.updated(ctx, b, p)
	}
	return nil
}

func (t *translator) threadFields(more map[string]any) map[string]any {
	m := map[string]any{"session_thread_id": t.thread, "agent_name": t.agent}
	maps.Copy(m, more)
	return m
}

// ended is a turn's end: the thread goes idle, then the usage so far, then the session goes idle.
func (t *translator) ended(ctx context.Context, b *batch, p *outboard.TurnEnded) error {
	h, err := t.src.UsageAt(ctx, b.e.Seq)
	if err != nil {
		return err
	}
	stop := map[string]any{"type": p.Stop.Type}
	if p.Stop.Type == "requires_action" {
		stop["event_ids"] = some(p.Stop.EventIDs)
	}
	why := map[string]any{"stop_reason": stop, "stop_details": nil}
	if len(p.Details) > 0 {
		why["stop_details"] = p.Details
	}
	b.add("session.thread_status_idle", t.threadFields(why))
	cfg, err := t.src.ConfigAt(ctx, b.e.Seq)
	if err != nil {
		return err
	}
	b.add("session.usage", map[string]any{"usage": showUsage(&h, b.e.Time), "budget": showLimit(cfg.Budget)})
	b.add("session.status_idle", why)
	return nil
}

func spanEnd(start outboard.EventID, u outboard.Usage, failed bool) map[string]any {
	return map[string]any{"model_request_start_id": start, "is_error": failed, "model_usage": map[string]int64{
		"input_tokens": u.Input, "output_tokens": u.Output, "cache_read_input_tokens": u.CacheRead,
		"cache_creation_input_tokens": u.CacheWrite5m + u.CacheWrite1h}}
}

// plainErrors are the session.error types that carry nothing besides a message.
var plainErrors = []string{"model_overloaded_error", "model_rate_limited_error", "model_request_failed_error",
	"billing_error",
	"tool_use_limit_reached_error", "compaction_limit_reached_error"}

func showFailure(f outboard.Failure) map[string]any {
	kind, retry := f.Type, f.Retry
	if !slices.Contains(plainErrors, kind) {
		kind = "unknown_error"
	}
	if !slices.Contains([]string{"retrying", "exhausted", "terminal"}, retry) {
		retry = "exhausted"
	}
	return map[string]any{"type": kind, "message": f.Message, "retry_status": typeOut{retry}}
}

// heldPrefix begins the name under which a custom tool's call is shown while it is asked about. Clients that run
// an agent.tool_use of a name they know, once its user.tool_confirmation allowed it, would run the call then,
// and again when it is offered.
const heldPrefix = "custom:"

func (t *translator) requested(ctx context.Context, b *batch, p *outboard.CallRequested) error {
	fields, err := t.use(ctx, p)
	if err != nil {
		return err
	}
	if forClient(p) {
		b.add("agent.custom_tool_use", fields)
		return nil
	}
	if isHeld(p) {
		fields["name"] = heldPrefix + p.Name
	}
	fields["evaluated_permission"] = p.Decision
	if e := showEvaluation(p); e != nil {
		fields["evaluation"] = e
	}
	b.add("agent.tool_use", fields)
	return nil
}

// noName is shown for a call that names no tool.
const noName = "unnamed_tool"

// use is what a call is, for whoever runs it.
func (t *translator) use(ctx context.Context, p *outboard.CallRequested) (map[string]any, error) {
	input := p.Input
	if p.InputBlob != nil {
		var err error
		if input, err = t.src.Load(ctx, *p.InputBlob); err != nil {
			return nil, err
		}
	}
	return map[string]any{"name": cmp.Or(p.Name, noName), "input": showInput(input)}, nil
}

// offered is a custom tool's call that was asked about and allowed: it is the client's from here on.
func (t *translator) offered(ctx context.Context, b *batch, p *outboard.CallOffered) error {
	call, err := t.call(ctx, p.Call)
	if err != nil {
		return err
	}
	fields, err := t.use(ctx, call)
	if err != nil {
		return err
	}
	b.add("agent.custom_tool_use", fields)
	return nil
}

// forClient reports whether a request is a client's to run. A call of a custom tool that was refused, or is
// asked about, is not: clients run an agent.custom_tool_use as soon as they see it, so it is shown as an
// agent.tool_use, which they leave alone, and its result as the agent's own.
func forClient(p *outboard.CallRequested) bool {
	return p.Kind == "custom" && p.Decision == outboard.Allow
}

// isHeld reports whether a request is a client's to run only once it is offered.
func isHeld(p *outboard.CallRequested) bool {
	return p.Kind == "custom" && p.Decision == outboard.Ask
}

// showEvaluation is which permission decided, and for auto what its judge came to. A policy that denies or asks
// beside it is not of the wire: then only evaluated_permission tells.
func showEvaluation(p *outboard.CallRequested) any {
	switch p.Policy {
	case "":
		return nil
	case outboard.AutoPolicy:
	default:
		return typeOut{string(p.Policy)}
	}
	verdict := map[string]any{"type": outboard.Ask, "reason_code": "indeterminate"}
	switch p.Verdict {
	case outboard.Allow:
		verdict = map[string]any{"type": outboard.Allow}
	case outboard.Deny:
		verdict = map[string]any{"type": outboard.Deny, "reason_code": "high_risk"}
	}
	return map[string]any{"type": outboard.AutoPolicy, "evaluated_permission": verdict}
}

// showInput is a call's input, which the wire wants to be an object: a model that sent anything else is shown
// under one key.
func showInput(in outboard.Raw) any {
	var m map[string]json.RawMessage
	if json.Unmarshal(in, &m) == nil && m != nil {
		return m
	}
	if !json.Valid(in) {
		return map[string]any{"invalid": string(in)}
	}
	return map[string]any{"invalid": in}
}

// finished is a call's result: one for every agent.tool_use. That of an agent.custom_tool_use was shown as the
// client's own event.
func (t *translator) finished(ctx context.Context, b *batch, p *outboard.CallFinished) error {
	call, err := t.call(ctx, p.Call)
	if err != nil {
		return err
	}
	if forClient(call) {
		return nil
	}
	blocks, err := showContent(ctx, t.src.Load, p.Content)
	if err != nil {
		return err
	}
	b.add("agent.tool_result", map[string]any{"tool_use_id": p.Call, "content": blocks, "is_error": p.IsError})
	return nil
}

// call returns the request of a call.
func (t *translator) call(ctx context.Context, id outboard.CallID) (*outboard.CallRequested, error) {
	p, err := t.lookUp(ctx, id)
	if err != nil {
		return nil, err
	}
	c, ok := p.(*outboard.CallRequested)
	if !ok {
		return nil, outboard.Errorf(outboard.Internal, "%s is not a call but a %s", id, p.EventType())
	}
	return c, nil
}

func (t *translator) lookUp(ctx context.Context, id outboard.EventID) (outboard.Payload, error) {
	e, err := t.src.Event(ctx, id)
	if err != nil {
		return nil, err
	}
	return e.Decode()
}

// processed is the echo of an input: the event the client sent, under its own id, now with a time.
func (t *translator) processed(ctx context.Context, b *batch, p *outboard.InputProcessed) error {
	if p.Of == outboard.TypeInputToolResult {
		return nil // shown when it came in
	}
	in, err := t.lookUp(ctx, p.Input)
	if err != nil {
		return err
	}
	kind, fields, err := t.input(ctx, in)
	if err != nil {
		return err
	}
	b.addAs(p.Input, kind, fields)
	return nil
}

// input is the wire form of an input.
func (t *translator) input(ctx context.Context, p outboard.Payload) (kind string, fields map[string]any, err error) {
	fields = map[string]any{}
	switch p := p.(type) {
	case *outboard.InputMessage:
		kind = "user.message"
		fields["content"], err = showContent(ctx, t.src.Load, p.Content)
	case *outboard.InputSystem:
		kind = "system.message"
		fields["content"], err = showContent(ctx, t.src.Load, p.Content)
	case *outboard.InputInterrupt:
		kind = "user.interrupt"
		if p.Scope != "" {
			fields["session_thread_id"] = p.Scope
		}
	case *outboard.InputConfirmation:
		kind = "user.tool_confirmation"
		fields["tool_use_id"], fields["result"] = p.Call, outboard.Deny
		if p.Allow {
			fields["result"] = outboard.Allow
		}
		if p.Message != "" {
			fields["deny_message"] = p.Message
		}
	case *outboard.InputToolResult:
		kind = "user.tool_result"
		name := "tool_use_id"
		if p.Custom {
			kind, name = "user.custom_tool_result", "custom_tool_use_id"
		}
		fields[name], fields["is_error"] = cmp.Or(p.As, p.Call), p.IsError
		fields["content"], err = showContent(ctx, t.src.Load, p.Content)
	default:
		err = outboard.Errorf(outboard.Internal, "%s is not an input", p.EventType())
	}
	return kind, fields, err
}

// queued is an input that waits. bare leaves out processed_at, as the reply to a send does.
func (t *translator) queued(ctx context.Context, e *outboard.Event, bare bool) (wireEvent, error) {
	p, err := e.Decode()
	if err != nil {
		return wireEvent{}, err
	}
	kind, fields, err := t.input(ctx, p)
	w := wireEvent{id: e.ID, kind: kind, seq: e.Seq, fields: fields, bare: bare, own: t.own, came: e.Time}
	if e.Type == outboard.TypeInputToolResult {
		w.at = e.Time // processed on receipt
	}
	return w, err
}

// updated is a change of the session; one that touches only resources is not shown on the wire.
func (t *translator) updated(ctx context.Context, b *batch, p *outboard.SessionUpdated) error {
	fields := map[string]any{}
	if p.Title != nil {
		fields["title"] = textOrNull(*p.Title)
	}
	if len(p.Metadata) > 0 {
		fields["metadata"] = p.Metadata
	}
	if p.Tools != nil || p.MCPServers != nil {
		cfg, err := t.src.ConfigAt(ctx, b.e.Seq)
		if err != nil {
			return err
		}
		fields["agent"] = showSessionAgent(&cfg.Agent)
	}
	if p.Budget != nil {
		fields["budget"] = showLimit(*p.Budget)
	}
	if p.Title == nil && p.Metadata == nil && p.Budget == nil && fields["agent"] == nil {
		return nil
	}
	b.add("session.updated", fields)
	return nil
}

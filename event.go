package outboard

import (
	"encoding/json"
	"sync"
	"time"
)

// Event is one immutable row of a session's log.
type Event struct {
	ID      EventID   `json:"id"`
	Session SessionID `json:"session_id"`
	Seq     int64     `json:"seq"` // from 1, without gaps
	Thread  ThreadID  `json:"thread_id"`
	Type    EventType `json:"type"`
	Ref     EventID   `json:"ref,omitempty"` // the event this one is about, indexed: see each payload
	Time    time.Time `json:"time"`          // µs; at least EventSpacing after the event before it
	Data    Raw       `json:"data"`          // the payload's JSON, at most Type.MaxData

	folded *folded // of an event that NewEvent made, shared by its copies
}

// folded is an event's payload as folds use it. An event is folded several times on its way into the log, and
// nobody changes what a fold holds, so they share it.
type folded struct {
	once sync.Once
	p    Payload
	err  error
}

// EventSpacing is the least distance of two events' times. One log event may be shown as several on a wire, each a
// microsecond apart, so there is room for 64 of them.
const EventSpacing = 64 * time.Microsecond

// EventType names a payload type.
type EventType string

// The event types. input.* events are appended by control without a lease and wait in the inbox until input.processed;
// everything else but session.* is appended by the runner that holds the lease.
const (
	TypeSessionCreated    EventType = "session.created"
	TypeSessionUpdated    EventType = "session.updated"
	TypeSessionArchived   EventType = "session.archived"
	TypeSessionForked     EventType = "session.forked"
	TypeSessionRewound    EventType = "session.rewound"
	TypeInputMessage      EventType = "input.message"
	TypeInputSystem       EventType = "input.system"
	TypeInputInterrupt    EventType = "input.interrupt"
	TypeInputConfirmation EventType = "input.confirmation"
	TypeInputToolResult   EventType = "input.tool_result"
	TypeInputProcessed    EventType = "input.processed"
	TypeTurnStarted       EventType = "turn.started"
	TypeTurnResumed       EventType = "turn.resumed"
	TypeTurnRetrying      EventType = "turn.retrying"
	TypeTurnEnded         EventType = "turn.ended"
	TypeTurnFailed        EventType = "turn.failed"
	TypeModelStarted      EventType = "model.started"
	TypeModelFinished     EventType = "model.finished"
	TypeModelFailed       EventType = "model.failed"
	TypeAgentThinking     EventType = "agent.thinking"
	TypeAgentMessage      EventType = "agent.message"
	TypeContextCompacted  EventType = "context.compacted"
	TypeCallRequested     EventType = "call.requested"
	TypeCallJudged        EventType = "call.judged"
	TypeCallOffered       EventType = "call.offered"
	TypeCallStarted       EventType = "call.started"
	TypeCallFinished      EventType = "call.finished"
	TypeSandboxReady      EventType = "sandbox.ready"
	TypeSandboxLost       EventType = "sandbox.lost"
	TypeCheckpointCreated EventType = "checkpoint.created"
	TypeFileHarvested     EventType = "file.harvested"
)

// Payload is the typed content of an event. Ref returns the event it is about, or "".
type Payload interface {
	EventType() EventType
	RefID() EventID
}

// NewEvent makes an event that is ready to append. The store sets Seq and Time.
func NewEvent(thread ThreadID, p Payload) Event {
	data, err := json.Marshal(p)
	if err != nil {
		panic("outboard: encoding " + string(p.EventType()) + ": " + err.Error()) // payloads are plain structs of ours
	}
	return Event{ID: NewID[EventID](PrefixEvent), Thread: thread, Type: p.EventType(), Ref: p.RefID(), Data: data,
		folded: new(folded)}
}

// payload is Decode for folds: what it returns may be shared, and must not be changed.
func (e *Event) payload() (Payload, error) {
	f := e.folded
	if f == nil {
		return e.Decode()
	}
	f.once.Do(func() { f.p, f.err = e.Decode() })
	return f.p, f.err
}

// CodeAnswered is the code of the error for a call that has another answer already. Its kind is Invalid, as on the
// wire.
const CodeAnswered = "already_answered"

// Codes of the errors of an event that cannot be decoded.
const (
	CodeEventUnknown = "event_unknown" // of a type that this program does not know: another version wrote it
	CodeEventDamaged = "event_damaged"
)

// Decode returns the typed payload of an event, as a pointer to one of the structs below.
func (e *Event) Decode() (Payload, error) {
	mk, ok := payloads[e.Type]
	if !ok {
		return nil, Errorf(Internal, "event %s has unknown type %q", e.ID, e.Type).WithCode(CodeEventUnknown).
			WithPublic("event %s of the session's log has the type %q, which this server does not know", e.ID, e.Type).
			WithHint("another version of Outboard wrote it: use that one, or a newer one")
	}
	p := mk()
	if err := json.Unmarshal(e.Data, p); err != nil {
		return nil, Errorf(Internal, "decoding event %s (%s): %w", e.ID, e.Type, err).WithCode(CodeEventDamaged).
			WithPublic("event %s (%s) of the session's log is damaged", e.ID, e.Type)
	}
	return p, nil
}

// MaxData is the most bytes that the payload of an event of this type has.
func (t EventType) MaxData() int {
	switch t {
	case TypeSessionCreated, TypeSessionForked, TypeSessionUpdated:
		return MaxConfigData
	}
	return MaxEventData
}

// IsInput reports whether events of this type wait in the inbox.
func (t EventType) IsInput() bool {
	return t == TypeInputMessage || t == TypeInputSystem || t.IsUrgent()
}

// IsUrgent reports whether an input of this type wakes a session that is parked or retrying. Messages wait their turn.
func (t EventType) IsUrgent() bool {
	return t == TypeInputInterrupt || t == TypeInputConfirmation || t == TypeInputToolResult
}

// SessionCreated is the first event of every log.
type SessionCreated struct {
	Config SessionConfig `json:"config"`
}

// SessionUpdated names only what changed.
type SessionUpdated struct {
	Title *string `json:"title,omitempty"`
	// the whole map after the merge, {} when cleared; nil when unchanged
	Metadata   map[string]string `json:"metadata,omitzero"`
	Tools      *[]Toolset        `json:"tools,omitempty"`
	MCPServers *[]MCPServer      `json:"mcp_servers,omitempty"`
	Resources  *[]Resource       `json:"resources,omitempty"` // the whole list after the change
	Budget     *Cost             `json:"budget,omitempty"`    // the session's own, 0 = removed
	// a budget over it was raised or removed: a turn that waits for that goes on
	Funded bool `json:"funded,omitempty"`
}

// SessionArchived ends a session for good; the log stays readable.
type SessionArchived struct{}

// InputMessage is a user's message.
type InputMessage struct {
	Content []Content `json:"content"`
}

// InputSystem is a mid-conversation system message.
type InputSystem struct {
	Content []Content `json:"content"`
}

// InputInterrupt asks the session to stop what it does and go idle. Wire-visible thread scoping is kept in Thread.
type InputInterrupt struct {
	Scope ThreadID `json:"scope,omitempty"` // "" = the whole session
}

// InputConfirmation answers an ask. Ref: the call.
type InputConfirmation struct {
	Call    CallID `json:"call"`
	Allow   bool   `json:"allow"`
	Message string `json:"message,omitempty"` // on deny
	By      string `json:"by,omitempty"`      // the caller's name
	Key     KeyID  `json:"key,omitempty"`     // the caller's key: it must still be valid when the call is sent
	Digest  string `json:"digest,omitempty"`  // of the request that was shown
	// of everybody who allowed it, the caller too, where it needs several people
	Votes []Vote `json:"votes,omitempty"`
}

// InputToolResult is a client's result of a custom tool (or, in a self-hosted environment, of any tool). Ref: the call.
type InputToolResult struct {
	Call CallID `json:"call"`
	// what the client knows the call by: the id of its CallOffered; "" = the call's own
	As      EventID   `json:"as,omitempty"`
	Content []Content `json:"content,omitempty"`
	IsError bool      `json:"is_error,omitempty"`
	Custom  bool      `json:"custom"`
}

// InputProcessed takes one input out of the inbox: it is now part of the conversation (or has had its effect).
// Ref: the input.
type InputProcessed struct {
	Input EventID   `json:"input"`
	Of    EventType `json:"of"` // the input's type
}

// TurnStarted begins a turn. The next events say what it takes in.
type TurnStarted struct {
	Turn    int    `json:"turn"` // from 1
	Harness string `json:"harness"`
	Version string `json:"version"` // of the harness
}

// TurnResumed continues a turn that was parked (answers arrived) or retrying (its timer fired).
type TurnResumed struct {
	Turn int `json:"turn"`
}

// TurnRetrying schedules the turn's next attempt after a transient error and releases the session until then.
type TurnRetrying struct {
	Turn    int       `json:"turn"`
	Attempt int       `json:"attempt"`        // failed attempts so far, from 1
	At      time.Time `json:"at"`             // not before
	Since   time.Time `json:"since,omitzero"` // when the first of the attempts failed
	Error   Failure   `json:"error"`
	Usage   Usage     `json:"usage,omitzero"` // of a summary that failed, which has no ModelFailed
}

// TurnEnded makes the session idle. Stop.Type requires_action means parked: the turn continues when its calls
// are answered.
type TurnEnded struct {
	Turn    int        `json:"turn"`
	Stop    StopReason `json:"stop"`
	Details Raw        `json:"details,omitempty"` // wire stop_details of a refusal
	WakeAt  time.Time  `json:"wake_at,omitzero"`  // of requires_action: when the first ask expires
}

// TurnFailed records an error that ended the turn; a TurnEnded (retries_exhausted) or SessionArchived follows it.
type TurnFailed struct {
	Turn  int     `json:"turn"`
	Error Failure `json:"error"`
	Usage Usage   `json:"usage,omitzero"` // as TurnRetrying's
}

// Failure is an error as the log and the wire show it.
type Failure struct {
	Type    string `json:"type"` // a session.error type of the wire, e.g. model_overloaded_error
	Message string `json:"message"`
	Retry   string `json:"retry"` // retrying, exhausted, terminal
}

// ModelStarted is the intent of one model call. Its event id is the request's id.
type ModelStarted struct {
	Model   string `json:"model"` // resolved "provider/name"
	Attempt int    `json:"attempt"`
}

// ModelFinished is a whole model response. The agent.* and call.requested events of the response are in the same
// append, before it. Ref: the ModelStarted.
type ModelFinished struct {
	Request EventID `json:"request"`
	// wire family that Raw belongs to: anthropic, openai-responses, openai-chat, script
	Provider string   `json:"provider"`
	Raw      Raw      `json:"raw,omitempty"`      // the provider's own assistant blocks, byte-exact
	RawBlob  *BlobRef `json:"raw_blob,omitempty"` // instead of Raw when it is large
	Stop     string   `json:"stop"`               // end_turn, tool_use, max_tokens, refusal, interrupted
	Usage    Usage    `json:"usage"`
	Details  Raw      `json:"details,omitempty"` // of a refusal
}

// ModelFailed ends a model call that gave no usable response. Ref: the ModelStarted.
type ModelFailed struct {
	Request EventID `json:"request"`
	Error   Failure `json:"error"`
	Usage   Usage   `json:"usage"`
	// Pictures says that the provider refused a picture or document: those since the last response, or where
	// there are none there all of them, are left out of the conversation from here on.
	Pictures bool `json:"pictures,omitempty"`
}

// AgentThinking is one reasoning block of a response. Its text stays in the log; the wire shows only that it happened.
type AgentThinking struct {
	Text string   `json:"text,omitempty"`
	Blob *BlobRef `json:"blob,omitempty"`
}

// AgentMessage is the text of a response.
type AgentMessage struct {
	Content []Content `json:"content"`
}

// ContextCompacted replaces the conversation up to its own position, for the model only, by a summary.
type ContextCompacted struct {
	Summary string `json:"summary"`
	Usage   Usage  `json:"usage"`
	Base    *Base  `json:"base,omitempty"` // nil in older logs, and where there was none
}

// CallRequested is a tool call the model asked for, with the policy's decision. Its event id is the call's id.
type CallRequested struct {
	ToolUseID string `json:"tool_use_id"` // the provider's own id, returned to it with the result
	Name      string `json:"name"`
	Kind      string `json:"kind"` // builtin, custom, mcp
	Input     Raw    `json:"input"`
	// of a built-in tool: the path or address in the one form that was judged
	Opens     string     `json:"opens,omitempty"`
	InputBlob *BlobRef   `json:"input_blob,omitempty"` // instead of Input when it is large
	Decision  Decision   `json:"decision"`
	Policy    Permission `json:"policy,omitempty"`  // which permission policy decided; "" when none was reached
	Reason    string     `json:"reason,omitempty"`  // of a deny or an ask
	Rules     []string   `json:"rules,omitempty"`   // ids of the policies that decided, "level/id"
	Grant     GrantID    `json:"grant,omitempty"`   // the grant that met an ask
	Verdict   Decision   `json:"verdict,omitempty"` // the judge's, of an auto permission; "" = none

	// Of an ask.
	Digest    string    `json:"digest,omitempty"` // of tool and input: what is approved
	Approver  Approver  `json:"approver,omitempty"`
	Needs     int       `json:"needs,omitempty"`     // how many people must allow it, from 2; 0 = one
	ExpiresAt time.Time `json:"expires_at,omitzero"` // denied if nobody has answered by then
}

// Futile reports whether the call was refused for what it is: there is no such tool, or its arguments are none
// of the tool's.
func (p *CallRequested) Futile() bool {
	return p.Decision == Deny && p.Policy == "" && len(p.Rules) == 0
}

// CallJudged is what a second model said about a call under the permission auto. Ref: the call.
type CallJudged struct {
	Call    CallID   `json:"call"`
	Model   string   `json:"model"`
	Verdict Decision `json:"verdict,omitempty"` // "" = none, which asks
	Reason  string   `json:"reason,omitempty"`
	Usage   Usage    `json:"usage"`
}

// CallOffered hands a custom tool's call that was asked about to the client: after it, and only after it, the
// client is shown the call and runs it. Its event id is OfferedID(Call), and what the client answers by. A call
// that need not be asked about is offered by its request. Ref: the call.
type CallOffered struct {
	Call CallID `json:"call"`
}

// OfferedID is the id under which a client is offered a call that was asked about. The call's own id names the
// question.
func OfferedID(c CallID) EventID {
	return DeriveID[EventID](PrefixEvent, string(c), string(TypeCallOffered))
}

// NewOffer is NewEvent for a CallOffered.
func NewOffer(thread ThreadID, c CallID) Event {
	e := NewEvent(thread, &CallOffered{c})
	e.ID = OfferedID(c)
	return e
}

// Decision is the policy's answer for one call.
type Decision string

// The decisions.
const (
	Allow Decision = "allow"
	Ask   Decision = "ask"
	Deny  Decision = "deny"
)

// CallStarted is the durable intent of a call that acts: after it, and only after it, the call may be sent. Ref:
// the call.
type CallStarted struct {
	Call   CallID    `json:"call"`
	Key    string    `json:"key"`    // the call key; CallKey(session, call)
	Digest string    `json:"digest"` // hex SHA-256 of tool name and input
	Class  CallClass `json:"class"`
	// the path or address that was judged, with its links followed, and nothing else is opened
	Opens string `json:"opens,omitempty"`
	// by a person or a grant, also one that counted only when it was sent: whoever goes on with it keeps to that
	Allowed    bool      `json:"allowed,omitempty"`
	Epoch      int64     `json:"epoch"`             // of the lease that wrote it
	Sandbox    SandboxID `json:"sandbox,omitempty"` // "" for a call that runs in the control plane
	Generation string    `json:"generation,omitempty"`
	Attempt    int       `json:"attempt"` // from 1; above 1 only for pure and idempotent classes
	Deadline   time.Time `json:"deadline,omitzero"`
}

// CallClass says what may be done about a call whose outcome is unknown.
type CallClass string

// The classes. Only pure and idempotent calls may be sent again, in a new generation.
const (
	ClassPure       CallClass = "pure"
	ClassIdempotent CallClass = "idempotent"
	ClassEffect     CallClass = "effect"
)

// CallKey is the idempotency key of a call: unique over all sessions, and the value of OUTBOARD_CALL_KEY inside.
func CallKey(s SessionID, c CallID) string { return string(s) + "/" + string(c) }

// Outcome is how a call ended.
type Outcome string

// The outcomes. Unknown: the sandbox was lost with the call, and its effects happened at most once, outside knowledge.
const (
	OutcomeOK       Outcome = "ok"       // ran to an end; a non-zero exit status is still ok
	OutcomeError    Outcome = "error"    // refused or failed before or while running, known to the tool
	OutcomeDenied   Outcome = "denied"   // by policy or by a person; never started
	OutcomeCanceled Outcome = "canceled" // by an interrupt
	OutcomeUnknown  Outcome = "unknown"
)

// CallFinished is a call's outcome: at most one per call. Ref: the call.
type CallFinished struct {
	Call       CallID       `json:"call"`
	Outcome    Outcome      `json:"outcome"`
	Content    []Content    `json:"content,omitempty"` // what the model sees, at most MaxToolOutput
	IsError    bool         `json:"is_error,omitempty"`
	ExitCode   *int         `json:"exit_code,omitempty"`
	Truncated  bool         `json:"truncated,omitempty"`
	FullOutput string       `json:"full_output,omitempty"` // path in the sandbox of the whole output, when truncated
	DurationUs int64        `json:"duration_us,omitempty"`
	Checkpoint CheckpointID `json:"checkpoint,omitempty"` // the machine state it left behind
	// where its result comes from, and whether it could carry data outside
	Taint Taint `json:"taint,omitzero"`
}

// SandboxReady says which machine the session's calls run on from here. From is set when it was restored.
type SandboxReady struct {
	Sandbox    SandboxID    `json:"sandbox"`
	Generation string       `json:"generation"`
	Provider   string       `json:"provider"`
	Isolation  string       `json:"isolation"`
	From       CheckpointID `json:"from,omitempty"`
	// of the image or template, whom tools run as; "" = the sandbox's own
	User    string `json:"user,omitempty"`
	Workdir string `json:"workdir,omitempty"` // where tools begin; "" = /workspace
	Note    string `json:"note,omitempty"`    // what of the image or template does not hold here
}

// SandboxLost says that a machine is gone, with every process and every file newer than Restore.
type SandboxLost struct {
	Sandbox    SandboxID    `json:"sandbox"`
	Generation string       `json:"generation"`
	Reason     string       `json:"reason"`
	Restore    CheckpointID `json:"restore,omitempty"` // what the next one will start from; "" = empty workspace
}

// CheckpointCreated binds a checkpoint to the log. Ref: the call it follows.
type CheckpointCreated struct {
	Checkpoint CheckpointID `json:"checkpoint"`
	Call       CallID       `json:"call,omitempty"`
	Bytes      int64        `json:"bytes"` // of the delta
}

// FileHarvested names a deliverable that was found under /mnt/session/outputs.
type FileHarvested struct {
	File FileID `json:"file"`
	Path string `json:"path"`
}

var payloads = map[EventType]func() Payload{
	TypeSessionCreated:    func() Payload { return new(SessionCreated) },
	TypeSessionUpdated:    func() Payload { return new(SessionUpdated) },
	TypeSessionArchived:   func() Payload { return new(SessionArchived) },
	TypeSessionForked:     func() Payload { return new(SessionForked) },
	TypeSessionRewound:    func() Payload { return new(SessionRewound) },
	TypeInputMessage:      func() Payload { return new(InputMessage) },
	TypeInputSystem:       func() Payload { return new(InputSystem) },
	TypeInputInterrupt:    func() Payload { return new(InputInterrupt) },
	TypeInputConfirmation: func() Payload { return new(InputConfirmation) },
	TypeInputToolResult:   func() Payload { return new(InputToolResult) },
	TypeInputProcessed:    func() Payload { return new(InputProcessed) },
	TypeTurnStarted:       func() Payload { return new(TurnStarted) },
	TypeTurnResumed:       func() Payload { return new(TurnResumed) },
	TypeTurnRetrying:      func() Payload { return new(TurnRetrying) },
	TypeTurnEnded:         func() Payload { return new(TurnEnded) },
	TypeTurnFailed:        func() Payload { return new(TurnFailed) },
	TypeModelStarted:      func() Payload { return new(ModelStarted) },
	TypeModelFinished:     func() Payload { return new(ModelFinished) },
	TypeModelFailed:       func() Payload { return new(ModelFailed) },
	TypeAgentThinking:     func() Payload { return new(AgentThinking) },
	TypeAgentMessage:      func() Payload { return new(AgentMessage) },
	TypeContextCompacted:  func() Payload { return new(ContextCompacted) },
	TypeCallRequested:     func() Payload { return new(CallRequested) },
	TypeCallJudged:        func() Payload { return new(CallJudged) },
	TypeCallOffered:       func() Payload { return new(CallOffered) },
	TypeCallStarted:       func() Payload { return new(CallStarted) },
	TypeCallFinished:      func() Payload { return new(CallFinished) },
	TypeSandboxReady:      func() Payload { return new(SandboxReady) },
	TypeSandboxLost:       func() Payload { return new(SandboxLost) },
	TypeCheckpointCreated: func() Payload { return new(CheckpointCreated) },
	TypeFileHarvested:     func() Payload { return new(FileHarvested) },
}

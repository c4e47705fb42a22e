// Package llm speaks to models. Model is the one interface. The wires (Anthropic Messages, OpenAI
// Responses, OpenAI Chat Completions) and the deterministic script model implement it.
//
// Invariants: the provider's own form of a response is kept byte for byte, and no type of a
// vendor's module leaves the package.
//
// It never retries and never stores: the harness decides, from Error, whether a call is made again.
//
// Start reading at Model and Registry.
package llm

import (
	"context"
	"encoding/json"
	"time"

	"github.com/outboard-dev/outboard"
)

// Model produces one response at a time. Implementations are safe for concurrent use.
type Model interface {
	// Info says what the model is.
	Info() Info
	// Generate sends the conversation and returns the whole response. emit, when not nil, is called from the
	// calling goroutine for each piece of text or reasoning as it arrives. On failure the error is an *Error (or
	// ctx's cause); a partial response is never returned as a whole one, except after an interrupt by ctx, when
	// the caller discards it.
	Generate(ctx context.Context, req Request, emit func(Delta)) (*Response, error)
}

// Info describes a model.
type Info struct {
	ID       string // canonical "provider/name"
	Provider string // wire family: anthropic, openai-responses, openai-chat, script
	Context  int64  // context window in tokens
	Output   int64  // most output tokens per response
	Price    *Price // nil = unknown
	Alias    string // in the list of models: the entry is this alias of ID
}

// Request is one model call. History is outboard's conversation; Raw of an assistant message is replayed
// byte-exact when its Provider is the model's own, else rebuilt from the normalised view with foreign reasoning
// dropped.
type Request struct {
	Model   string // as configured in the agent, for the script model
	System  string
	Tools   []Tool
	History []*outboard.Message
	Effort  string
	Speed   string
	Geo     string // ModelConfig.Geo
	// Load returns the bytes of a blob reference in History (images, documents, large text, RawBlob).
	Load func(ctx context.Context, ref outboard.BlobRef) ([]byte, error)
	// CacheKey groups requests that share a prefix (the thread id), for wires with explicit cache routing.
	CacheKey string
	// MaxOutput bounds output tokens; 0 = Info.Output.
	MaxOutput int64
	// Attempt is how many attempts of this very call have failed already (State.Attempt). Only the script model
	// looks at it.
	Attempt int
	// TurnSeq is State.TurnSeq: messages of History with a lower Seq belong to earlier turns. Only the script
	// model looks at it.
	TurnSeq int64
	// Purpose is PurposeSummary when History is to be summarised for compaction, else "".
	Purpose string
}

// PurposeSummary marks a request for a summary that will replace History (ContextCompacted). The script model
// answers it with what it needs to go on afterwards; the other models treat it as any request, so the caller
// appends its instruction.
const PurposeSummary = "summary"

// Tool is one tool offered to the model.
type Tool struct {
	Name        string
	Description string
	InputSchema json.RawMessage // JSON Schema of an object
}

// Delta is a piece of a block. Kind is "text" or "thinking"; Start marks the first piece of a block.
type Delta struct {
	Kind  string
	Start bool
	Text  string
}

// Response is a whole model response.
type Response struct {
	Blocks   []Block
	Provider string
	Raw      json.RawMessage // the provider's own blocks, as needed to replay the turn
	Stop     string          // end_turn, tool_use, max_tokens, refusal
	Usage    outboard.Usage
	Details  json.RawMessage // of a refusal
}

// Block is one normalised block. Kind is "text" (Text), "thinking" (Text, may be empty) or "tool_use"
// (ToolUseID, which is not "" and no other call's in Response and History; Name as the model wrote it, "" where
// it wrote none; Input: a JSON object; where the model wrote none, the other JSON value that it wrote, or its
// text as a JSON string).
type Block struct {
	Kind      string
	Text      string
	ToolUseID string
	Name      string
	Input     json.RawMessage
}

// complete reports whether a call has all that makes one. One that does not, at the very end of a response, was
// cut off there.
func (b *Block) complete() bool { return b.Name != "" && isObject(b.Input) }

// Failure kinds of an Error.
const (
	Overloaded  = "model_overloaded_error"
	RateLimited = "model_rate_limited_error"
	Failed      = "model_request_failed_error"
	Billing     = "billing_error"
)

// Error is a failed model call.
type Error struct {
	Type       string        // a session.error type of the wire: one of the constants above
	Status     int           // HTTP status, 0 for a connection error
	Message    string        // fit for the user: names provider and reason, never a credential
	Retryable  bool          // 429, 5xx, 529, connection errors; false for 4xx and garbage
	RetryAfter time.Duration // what the provider asked for, 0 if nothing
	Emitted    bool          // content had arrived before it failed
	Picture    bool          // a picture or document of the conversation was refused
	TooLong    bool          // the conversation, with the room asked for the response, is more than the model takes
	Err        error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

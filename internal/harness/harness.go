// Package harness holds the loop that drives a model. A harness is a transaction script over a Turn: it looks at the folded
// state, does the one next thing, appends what happened, and looks again, so that any process can continue it after any
// append. It holds no state of its own between two appends.
package harness

import (
	"context"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// Harness runs turns. Name and Version are recorded by every turn.started.
type Harness interface {
	Name() string
	Version() string
	// Run continues the session until it has nothing to do: idle, parked, retrying or terminated in the log. It returns nil
	// then. An error means the turn cannot go on in this process (lease lost, shutdown, store down); the log is consistent and
	// another claim continues.
	Run(ctx context.Context, t Turn) error
}

// Turn is what the runner gives a harness: one claimed session. It is used from one goroutine.
type Turn interface {
	// State is the fold of everything durable so far, including inputs that arrived meanwhile as of the last Append or Sync.
	State() *outboard.State
	// Sync reads events other processes appended.
	Sync(ctx context.Context) error
	// Append makes events durable in one commit and applies them, first folding what others appended meanwhile. If still is not
	// nil and returns false after that folding, nothing is appended and Append returns false: the caller looks again.
	Append(ctx context.Context, still func(*outboard.State) bool, events ...outboard.Event) (bool, error)
	// Model resolves the session's model.
	Model() (llm.Model, error)
	// Tools lists what the model is offered.
	Tools() []llm.Tool
	// System is the full system prompt.
	System() string
	// Load returns the bytes of a blob.
	Load(ctx context.Context, ref outboard.BlobRef) ([]byte, error)
	// Spill stores bytes as a blob.
	Spill(ctx context.Context, b []byte) (outboard.BlobRef, error)
	// Decide is the policy's decision for a call the model made; pure.
	Decide(name string, input outboard.Raw) outboard.CallRequested
	// RunCalls runs every allowed unfinished call of the state to its outcome: intent, effect, outcome, in parallel up to the
	// limit. It returns when none of them is left, or early when ctx is cancelled (their outcomes are then recorded).
	RunCalls(ctx context.Context) error
	// Interrupted returns a context that is cancelled with cause ErrInterrupted as soon as an input.interrupt is in the log.
	Interrupted(ctx context.Context) (context.Context, context.CancelFunc)
	// Emit broadcasts live output under the id that its event will have.
	Emit(id outboard.EventID, kind outboard.EventType, start bool, text string)
}

// ErrInterrupted is the cause of a context that an input.interrupt cancelled.
var ErrInterrupted = outboard.Errorf(outboard.Canceled, "interrupted by the user")

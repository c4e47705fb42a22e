// Package harness owns the loop that drives a model. A harness is a transaction script over a Turn:
// it looks at the folded state, does the one next thing, appends what happened, and looks again.
//
// Invariants: any process can continue it after any append, and it holds no state between two
// appends.
//
// It never sends a call, judges one, or reads the store: the Turn does.
//
// Start reading at Harness and Turn, then at the pure plan in plan.go.
package harness

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// Harness runs turns. Name and Version are recorded by every turn.started.
type Harness interface {
	Name() string
	Version() string
	// Run continues the session until it has nothing to do: idle, parked, retrying or terminated in the log. It
	// returns nil then. An error means the turn cannot go on in this process (lease lost, shutdown, store down);
	// the log is consistent and another claim continues.
	Run(ctx context.Context, t Turn) error
}

// Turn is what the runner gives a harness: one claimed session. It is used from one goroutine.
//
// Events can be staged: they count in State at once, but become durable only with the next Append or RunCalls,
// in one commit with what is decided then. That is how a response, the intents of its calls and the next model
// call share commits. Nothing outside may depend on a staged event; a staged event that a crash takes was never
// there, and its cause is found again.
type Turn interface {
	// State is the fold of everything durable and staged, including inputs that arrived meanwhile as of the last
	// Append or Sync. The caller must not change it, and must not keep it over a call of Stage, Append, Sync or
	// RunCalls.
	State() *outboard.State
	// Held reports whether the session is still this turn's. Append gives it up in the commit after which there
	// is nothing to do.
	Held() bool
	// Sync reads events other processes appended.
	Sync(ctx context.Context) error
	// Stage adds events to the next commit.
	Stage(events ...outboard.Event)
	// Append makes what is staged and what plan adds durable in one commit. plan (nil adds nothing) decides from
	// the state alone: when others have appended meanwhile it is asked again. Append reports whether there was
	// anything to append; where all of it is too much for one commit it appends a part, and the caller looks
	// again.
	Append(ctx context.Context, plan func(*outboard.State) []outboard.Event) (bool, error)
	// Budget reserves what the next model call may use up, of every budget over the session; need is asked for
	// that where there is one. It waits while others have reserved what is left. Every model call is made after
	// a Budget that is not Broke; an error means that nobody knows what was spent, and no call is made.
	Budget(ctx context.Context, need func() Need) (Budget, error)
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
	// Decide is the policies' decision for a call the model made. For a call that may not even be asked about,
	// the outcome is not "": denied (no such tool, disabled, forbidden) or error (arguments outside the schema),
	// and Reason is what the model is told. Where the permission is auto, judged is what the model that judges
	// said; Call is left to the caller. An interrupt cuts the judging. used is what the response that makes the
	// call came to, with what judged its calls before: none of it is staged yet, and budgets pay for it. An
	// error says that nobody could decide, as where the database is away.
	Decide(ctx context.Context, name string, input outboard.Raw, used outboard.Usage) (call outboard.CallRequested,
		over outboard.Outcome, judged *outboard.CallJudged, err error)
	// RunCalls brings every runnable call of the state to its outcome: intent, effect, outcome, in parallel up
	// to the limit. What is staged becomes durable with the intents. All outcomes are durable when it returns,
	// except the last ones: they are staged, to share a commit with what follows from them. A custom tool's call
	// that was asked about is offered to the client instead. When ctx is cancelled by ErrInterrupted no further
	// call starts or is offered, running ones are killed, and their true outcomes recorded.
	RunCalls(ctx context.Context) error
	// Interrupted returns a context that is cancelled with cause ErrInterrupted as soon as an input.interrupt is
	// in the log. The caller must call the cancel function before anything else of the Turn that takes a
	// context, RunCalls excepted.
	Interrupted(ctx context.Context) (context.Context, context.CancelFunc)
	// Emit broadcasts live output under the id that its event will have.
	Emit(id outboard.EventID, kind outboard.EventType, start bool, text string)
}

// Need is what a model call may come to, in tokens. Input is a guess.
type Need struct{ Input, Output int64 }

// Budget is the answer to a Need. The zero value says that nothing is limited.
type Budget struct {
	Broke     string    // what is used up; "" = the call may be made
	MaxOutput int64     // most output tokens that are paid for; 0 = the model's own limit
	Until     time.Time // when the running time is used up; zero = never
}

// ErrInterrupted is the cause of a context that an input.interrupt cancelled.
var ErrInterrupted = outboard.Errorf(outboard.Canceled, "interrupted by the user")

// Package outboard holds the nouns of the system: sessions, events, calls, agents, environments, checkpoints, errors, ids
// and limits. It imports the standard library only, and every other package may import it.
//
// # The picture
//
// A harness (the loop that drives a model) runs outside the sandbox (the machine where its tools act). They meet in a
// session log: an append-only list of events with a per-session sequence number. Whoever wants something to happen appends
// an event; whoever must act claims the session under a lease and folds its events; whoever must watch follows it. Nothing a
// kill -9 may take is kept anywhere else.
//
//	client -> api -> control -> store.Append            (input.message)
//	runner -> store.Claim, Fold -> harness -> llm       (turn.started ... call.requested)
//	runner -> policy.Decide -> fleet.Acquire -> guest   (call.started ... call.finished)
//	store.Follow -> api -> client                       (all of them, as they commit)
//
// # Words
//
// One word per idea, in Go, SQL, events, API and documentation: agent, environment, session, thread, event, turn, call,
// sandbox, checkpoint, file. See docs/reference/events.md for every event type.
//
// # An effect is three events
//
// A call that acts on a sandbox is call.requested (with the policy's decision), call.started (the durable intent, carrying
// the call key, the sandbox, its generation and the lease epoch) and call.finished (the outcome). Where the outcome cannot be
// known, call.finished says so: OutcomeUnknown. It is never guessed and never silently repeated.
package outboard

// Package outboard holds the nouns of the system: sessions, events, calls, agents, environments,
// checkpoints, errors, ids and limits. It imports the standard library only, and every other
// package can import it. It holds no vendor's words and does no input or output.
//
// This page is the architecture. docs/design/0000-architecture.md has the same with its reasons.
//
// # The picture
//
// A harness is the loop that drives a model. It runs on the server, outside the sandbox, which is
// the disposable machine where its tools act. They meet in the log of a session: an append-only
// list of events, numbered from 1. To make something happen, append an event. To act, claim the
// session under a lease and fold its events. To watch, follow it. Nothing that a kill -9 must not
// lose is kept anywhere else.
//
//	client -> api -> control -> store.Append            (input.message)
//	runner -> store.Claim, Fold -> harness -> llm       (turn.started ... call.requested)
//	runner -> policy.Decide -> fleet.Acquire -> guest   (call.started ... call.finished)
//	store.Follow -> api -> client                       (all of them, as they commit)
//
// # Who owns what
//
//   - Doors: api (our HTTP API), e2b, bridge and sshd. A door decodes, makes one call of control
//     and encodes.
//   - control owns the verbs: it checks the caller, audits, validates and stores.
//   - runner owns turns. harness plans them, llm speaks to models, tool describes tools, schema
//     checks inputs of custom ones, live shows what is being produced.
//   - policy decides what a session can do, kill what is stopped.
//   - fleet owns live sandboxes, image what they begin with. sandbox is the interface of
//     providers: sandbox/native, and sandbox/container with sandbox/oci and sandbox/docker. guest
//     is the program inside, with the protocol to it.
//   - egress owns the only way out of a sandbox. netrule holds its rules, outbound dials.
//   - vault owns secrets, login sign-in, notify notices of approvals.
//   - store owns every row, blob all content, audit what the audit log commits to.
//   - cmd/outboard puts the parts together, and is the command line: client, worktree, term.
//
// runner, control and egress do not import one another: they meet in the store. The import table
// in arch_test.go is the law, docs/design/0003-import-table.md gives its reasons.
//
// # An effect is three events
//
// A call that acts on a sandbox is call.requested (with the policy's decision), call.started (the
// durable intent, with the call key, the sandbox, its generation and the lease epoch) and
// call.finished (the outcome). An outcome that cannot be known is OutcomeUnknown. It is never
// guessed and never silently repeated.
//
// # Words
//
// One word per idea, in Go, SQL, events, API and documentation:
//
//   - agent: what runs: model, prompt, tools. environment: where its tools act.
//   - session: one log and its fold. turn: one claim: model calls, tool calls, release.
//   - call: one use of a tool. event: one row of a log.
//   - sandbox: the live, disposable machine. box: a durable computer that a client owns, with at
//     most one sandbox. lease: a sandbox in a turn's hands.
//   - checkpoint: the saved files of a sandbox, bound to a position of a log.
//
// docs/reference/events.md describes every event, docs/design/0059-words.md the banned synonyms.
//
// # Where to start reading
//
// Read event.go and fold.go here: the fold is the only definition of where a session stands. Then
// follow one message: Control.Send, Store.Append, the drive loop of runner, the plan of harness,
// Fleet.Acquire, and the Client of guest.
package outboard

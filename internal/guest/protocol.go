// Package guest is the agent inside a sandbox and the framed protocol between it and the host: both
// ends. cmd/outboard-guest is the only program made from its server half. It uses the standard
// library only and must stay small.
//
// Invariants:
//   - The host trusts nothing that a guest says: frames are bounded, strings are bytes, sizes are
//     checked. No claim of a guest is used outside its own sandbox.
//   - The guest trusts its host, and nothing inside the sandbox.
//   - A call runs at most once in a generation.
//
// It never decides what a tool is allowed to do.
//
// Start reading at Client for the host's half, and at Serve for the sandbox's.
//
// # Calls
//
// Start(key, epoch, generation, ...) is idempotent. The guest works in this order:
//
//   - It refuses another generation (WrongGeneration).
//   - It refuses an epoch below the highest it has seen (Fenced), and makes a higher one durable.
//   - It looks up the receipt of the key. If there is one, it answers with its state (Conflict when
//     the digest differs) and starts nothing.
//   - Otherwise it makes a receipt durable, and only then runs the call.
//
// The answer to Start carries the outcome when the call ends at once; otherwise Wait does. Output
// is written to files, not to the connection. The exit status is made durable before it is told. A
// call outlives the connection that started it. Kill of a key that was never started leaves a
// tombstone that a late Start finds. Ack lets the guest drop the output; the receipt stays for the
// life of the generation.
//
// Wait can ask for the newest line that the call has written: Client.Follow does. It is for people
// who watch, and best effort. Line frames come at most four times a second, only when the line has
// changed, and are left out while the connection is busy.
//
// # Operations
//
//   - Op "bash": Input {command, restart, timeout_ms}. It runs in the persistent shell named Shell:
//     directory, environment and background jobs survive between calls.
//   - "read", "write", "edit", "glob", "grep": the file tools, with the inputs of package
//     tool/registry and the tool's identity.
//   - "exec": Input {argv, env, cwd}. One process without a shell.
//   - OpSettle: Input {dir}. Later shells and relative names begin there, instead of in the
//     workspace. It must be a saved directory, or below one.
//
// # Processes, files, ports
//
// Beside calls there are long-lived processes of clients ("process."), operations on files with a
// user's identity ("fs.") and connections to the sandbox's own ports ("dial"). They have no
// receipts: they are for people and programs that watch what happens. Output of a process is kept
// up to a bound and numbered by a cursor, so that any number of attachments read it, at once or
// again.
//
// # Wire
//
// Both sides send frames: length of the rest (4 bytes, big endian), kind (1), id (4), length of the
// head (4), head (a message of package form; of Hello, JSON), body (bytes). The host opens an
// exchange with a request under a new id; a response or a failure ends it. In between each side can
// send data frames, at most 64 KiB each and 16 ahead of the other's consumption, which credit
// frames acknowledge by eights, and one end frame. A cancel frame says that the host gave up. A
// line frame (from the guest, at most 200 bytes) can come before the answer to a wait that asks for
// it. Any number of exchanges share a connection, and a guest takes any number of connections.
// Anything that does not fit this closes the connection. Lists that are sent as data are JSON.
package guest

import (
	"encoding/json"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// ProtocolVersion is exchanged in Hello; host and guest must agree. It is that of the messages too: what a field
// means is its place.
const ProtocolVersion = form.Version

// Start asks for one call.
type Start struct {
	Key         string
	Epoch       int64
	Generation  string
	Digest      string
	Op          string
	Input       json.RawMessage `form:"-"` // travels as the body, see Client.Start
	Shell       string
	TimeoutMs   int64
	OutputLimit int // bytes of output returned; the rest stays in a file
}

// OncePrefix begins the names of shells that run one call and end after it; what the call left in the background
// goes on.
const OncePrefix = "once/"

// OpSettle says where tools begin. It is for who makes a sandbox, before its first call.
const OpSettle = "settle"

// States of a call.
const (
	StateAccepted = "accepted" // receipt durable, not known to run: after a guest restart, outcome unknown
	StateRunning  = "running"
	StateDone     = "done"
	// killed before it was started, a tombstone; a killed running call is done with Cause "killed"
	StateKilled = "killed"
)

// Result is a call's state and, once done, its outcome.
type Result struct {
	Key        string
	State      string
	Cause      string // exited, timeout, killed, error (refused by the tool: Output says why)
	ExitCode   *int   // of bash and exec when exited; 128+n for a signal
	Output     []byte `form:"-"` // stdout and stderr in order, head and tail when over the limit
	Truncated  bool
	FullPath   string // file in the sandbox that holds all of it, when truncated
	DurationUs int64

	// MemoryLimit is the sandbox's limit, in bytes, where it was hit while the call ran and the kernel ended a
	// program for it; 0 = it was not, or that is not known. The host sets it.
	MemoryLimit int64 `form:"-"`
}

// Causes of a done call.
const (
	causeExited  = "exited"
	causeTimeout = "timeout"
	causeKilled  = "killed"
	causeError   = "error"
)

// Save asks for the workspace as a tar.
type Save struct {
	Epoch int64
	Base  string // label of the state the caller has; "" or one the guest does not know = everything
	Next  string // label of the state that results
}

// Saved answers Save, after the tar. With Changed false nothing was written and Base stays current.
type Saved struct {
	Changed bool
	Full    bool // the tar is the whole workspace, not a delta to Base
	Entries int
	Bytes   int64
}

// Hello is the guest's first answer.
type Hello struct {
	Version    int    `json:"version"`
	Generation string `json:"generation"`
	MaxEpoch   int64  `json:"max_epoch"`
	Pid        int    `json:"pid"`
}

// Stat describes one file.
type Stat struct {
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	Mode    uint32 `json:"mode"` // Go's fs.FileMode bits
	ModTime int64  `json:"mod_time_us"`
}

// Error is a refusal by the guest.
type Error struct {
	Code    string
	Message string
}

// Error returns code and message.
func (e *Error) Error() string { return "guest: " + e.Code + ": " + e.Message }

// Codes of an Error.
const (
	WrongGeneration = "wrong_generation"
	Fenced          = "fenced"
	Conflict        = "conflict"
	NotFound        = "not_found"
	Invalid         = "invalid"
	Internal        = "internal"
	Denied          = "denied" // no such user of the sandbox
	Full            = "full"   // no space is left
	TooLarge        = "too_large"
	Busy            = "busy" // too many calls under way; nothing was recorded, the same Start may work later
)

// Package egress owns the only way from a sandbox to the network. It accepts the connections that
// processes inside make, ends their TLS, judges each request, and forwards what is allowed with the
// credentials that belong to it.
//
// # One request
//
// Identify the sandbox by the listener, which lies in its network namespace. Bring the target into
// one form. Ask the Gate (kill switch, budgets), the rules, the Policy and the Credentials. Write a
// durable audit record. Dial a checked address. Forward, and scrub what comes back.
//
// Invariants:
//   - Every step fails closed: an error is a 4xx or 5xx from the gateway, and nothing is forwarded.
//   - There is no way around: the sandbox has no other network.
//   - The keys of certificate authorities, and the credentials of a request under way, are here and
//     never inside a sandbox.
//
// It never opens the vault: credentials come through an interface that it defines.
//
// Start reading at Gateway, then at serve in serve.go.
package egress

import (
	"context"
	"net/http"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Subject is who makes a request: known from the socket it arrived on, never from what it says.
type Subject struct {
	Sandbox outboard.SandboxID
	Session outboard.SessionID // "" for a raw sandbox
	Box     outboard.BoxID     // whose sandbox it is; "" for a session's and for one that builds
	Org     string
	Config  outboard.SessionConfig // as the session has it: environment, agent, vaults
}

// Request is one HTTP request in canonical form: what is judged is what is forwarded.
type Request struct {
	Subject Subject
	Scheme  string // http or https
	Method  string
	Host    string // lower-case, without final dot or port
	Port    int
	Path    string // decoded, absolute, without dot segments
	Odd     string // why servers could read the path in different ways; "" = it is clean
	Query   string // raw, without "?"
	// WebSocket says that the request opens one.
	WebSocket bool
	// Also are the requests that a server could take this one for, besides what it is: of another method, say,
	// that a header names. They may go out as well, or this one does not.
	Also []Request
	// Headers are what the box's row says of headers to set, as of when the request was judged; for Credentials.
	Headers outboard.BoxHeaders
}

// Verdict is an answer to a request.
type Verdict struct {
	Allow  bool
	Rule   string // what decided, for the audit and for whoever was refused
	Reason string // why, in one sentence; for a refusal
	Hint   string // how to change that: a command, when there is one
	// Ask is of a refusal that a person may lift for later requests; nil = nobody is asked.
	Ask *Question
	// While is the log by which a request was allowed, where that may have grown unnoticed since. The record of
	// the request is written only while it is so; else Again, which is then not nil, judges the same request by
	// what the log says now.
	While store.Mark
	Again func(context.Context, Request) (Verdict, error)
	// Still, when set, is asked again and again for as long as an allowed request lasts, whether it still is. An
	// error ends the request.
	Still func(context.Context) error
}

// Question is what a person is asked about a refused request.
type Question struct {
	Why      string
	Rules    []string // that refused it
	Policy   bool     // they are of the policies, else the host is on no list
	Approver outboard.Approver
	Needs    int           // how many people must allow it; 0 = one
	Timeout  time.Duration // 0 = the usual one
}

// Asked is what became of a question.
type Asked struct {
	Approval outboard.ApprovalID // "" = nobody was asked
	Denied   bool                // somebody has said no
}

// Asker puts questions to people. It never waits for an answer: a request is refused at once, and one that comes
// after an allow passes. However much a sandbox asks for, it keeps the number of open questions small. It may be
// called from any goroutine.
type Asker interface {
	Ask(ctx context.Context, r Request, q Question) (Asked, error)
}

// Policy judges a request that the network rules allow. An error is a refusal, and one that is Unavailable a
// refusal for the moment. It may be called from any goroutine.
type Policy interface {
	Decide(ctx context.Context, r Request) (Verdict, error)
}

// Gate says whether an effect of a subject may happen now: the one place for a kill switch and for budgets. It
// is asked before every request, and again every second for as long as one lasts; an error ends it.
type Gate interface {
	May(ctx context.Context, s Subject) error
}

// Credentials finds what a request is to be sent with. It may be called from any goroutine. An error of any kind
// keeps the request from being sent: a request that should carry a credential never leaves without it. Its text
// is shown inside the sandbox.
type Credentials interface {
	For(ctx context.Context, r Request) (Injection, error)
}

// Injection is what happens to one request on its way out, and to its answer.
type Injection struct {
	// Names are the credentials in use, for the audit: names or ids, never values.
	Names []string
	// AnyPath says that the credential is for every path of the host. Else a request whose path is odd is refused.
	AnyPath bool
	// Refuse are values that must not be in this request's headers or query: placeholders that belong elsewhere.
	Refuse []string
	// Set replaces headers: whatever the client sent under the name is gone.
	Set map[string]string
	// Strip removes headers and query parameters by which a client could bring a credential of its own. Headers
	// that hold a placeholder of Replace stay.
	Strip      []string
	StripQuery []string
	// RefuseBody are the names in a body, of JSON or a form, whose value may be a placeholder of Replace and no
	// key of the client's own; such a request is refused.
	RefuseBody []string
	// RefuseShapes are beginnings of keys, for bodies that have no names (protocol buffers): a longer word that
	// begins so is refused likewise.
	RefuseShapes []string
	// Replace puts values in the place of placeholders, in the surfaces it names.
	Replace []Placeholder
	// Sign, when set, is called last with the request as it will be sent, and may change its headers and URL only.
	Sign func(ctx context.Context, r *SignRequest) error
	// Scrub are the values that must not come back in an answer, in any usual encoding. Values shorter than
	// MinScrub are left.
	Scrub []string
	// Still, when set, is asked every second for as long as the request lasts, whether the credentials are still
	// for it. An error ends the request.
	Still func(ctx context.Context) error
	// Refused, when set, is called when the server answers 401. It must not block.
	Refused func()

	override func(method string) bool // whether a body may name a method to be taken for; nil = nobody looks
}

// refused tells whose credentials they are that a server did not take them.
func (inj *Injection) refused(status int) {
	if status == http.StatusUnauthorized && inj.Refused != nil {
		inj.Refused()
	}
}

// Placeholder is a value that a tool holds in the place of a secret.
type Placeholder struct {
	Placeholder string
	Value       string
	Name        string // for whoever is refused: the variable that holds it
	Header      bool   // substitute in header values, Basic authorization included
	Query       bool   // substitute in the query
	Body        bool   // substitute in a body, which is streamed
	Path        bool   // substitute in the path, of which it was judged
}

// SignRequest is what a signer sees and may change.
type SignRequest struct {
	Method string
	URL    string // absolute; a signer may add query parameters
	Header http.Header
	Body   []byte
	Held   bool // Body is the whole body; else it is too long (MaxSigned) or of unknown length, and is streamed
}

// Package vault keeps secrets and decides where each can be sent. It is the only package that opens
// one.
//
// A credential's secret is sealed with AES-256-GCM under its organization's data key, and bound to
// its id, vault, version and rule: a row that was moved, edited or replaced by an older one does
// not open. The data key is wrapped by a key that is never in the database (Wrapper): a file of
// mode 0600, a passphrase, or a key management service. A tag over every credential's id and
// version and a rising sequence show deletion and rollback. The highest sequence is also kept
// beside the database.
//
// Invariants:
//   - A secret leaves this package only inside an Injection, a token for one URL, or a model's key,
//     each to be used at once; and not before a durable audit row says so (Keeper.Use and its
//     siblings check, audit and open in one function).
//   - What is cached is sealed. An edit by another process is seen within Freshness.
//   - When the key, the store or the audit is missing, the answer is an error, never a request
//     without its credential.
//
// It never shows a secret: its API is write-only.
//
// Start reading at Keeper.Use, then at seal.go.
package vault

import "time"

// Limits, with their reasons.
const (
	// Freshness is how long a session's credentials are used without asking the store: rotation and revocation
	// by another process must reach a running session within a second.
	Freshness = 250 * time.Millisecond
	// MaxCredentials bounds the living credentials of one vault. Managed Agents wire: 20.
	MaxCredentials = 20
	// MaxSessionVaults bounds the vaults of one session, so that a request looks at a bounded number of credentials.
	MaxSessionVaults = 20
	// maxSessions bounds the sessions whose credentials are cached.
	maxSessions = 4096
	// maxSigned bounds a request body that has to be held to sign its hash.
	maxSigned = 16 << 20
	// renewBefore is how long before its end a token is renewed, so that no request leaves with one that expires
	// on the way.
	renewBefore = time.Minute
	// renewTTL is how long one process may take to renew a token before another tries.
	renewTTL = 30 * time.Second
	// issuerTimeout bounds one exchange with a token issuer or an MCP server.
	issuerTimeout = 20 * time.Second
	// maxIssued bounds what an issuer may answer.
	maxIssued = 64 << 10
	// maxShown is how much of an answer a validation repeats.
	maxShown = 1024
)

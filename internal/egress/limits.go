package egress

import "time"

const (
	// MaxSigned is the longest body that a signer sees; longer ones are streamed and cannot be part of a signature.
	MaxSigned = 4 << 20
	// MinScrub is the shortest value that is looked for in answers: shorter ones are in ordinary text.
	MinScrub = 8
	// minKey is the shortest word beside a placeholder that could be somebody's key; the words of user names and
	// addresses are shorter.
	minKey = 20

	// maxConns bounds the connections of one sandbox: what its file limit allows would exhaust the server's.
	maxConns = 512
	// helloTimeout is how long a connection may take to say its first byte, and a request its head.
	helloTimeout = 10 * time.Second
	// idleTimeout closes kept-alive connections, on both sides.
	idleTimeout = 2 * time.Minute
	// answerTimeout is how long a server may think: models take minutes.
	answerTimeout = 10 * time.Minute
	// defaultIdle ends requests under way that carry nothing: as long as a server may think.
	defaultIdle = answerTimeout
	// defaultLife ends connections that go on for ever: longer than any transfer or conversation of a day's work.
	defaultLife = 24 * time.Hour
	// maxStreams bounds the requests under way of one sandbox: one connection of HTTP/2 alone may carry hundreds.
	maxStreams = 1024
	// maxHeader bounds the head of an answer, and of a request while it is read.
	maxHeader = 256 << 10
	// Of a request that is sent: maxTarget bounds its path and query, maxFields how many headers it has,
	// maxField each of them and maxHead all together. Servers take less as a rule, and what is longer is data on
	// its way out.
	maxTarget = 32 << 10
	maxFields = 200
	maxField  = 32 << 10
	maxHead   = 64 << 10
	// maxAuditPath bounds a path in a record, so that what stands beside it is whole.
	maxAuditPath = 3 << 10
	// maxInterim bounds the answers of 1xx before an answer.
	maxInterim = 16
	// maxIdle bounds kept connections per server and sandbox. Where more requests are under way at once than
	// this, each of the others pays for a connection of its own.
	maxIdle = 128
	// maxHeld is the longest request body that is read whole before it is sent.
	maxHeld = 32 << 10
	// maxCoded is the longest compressed body, and the longest message of gRPC, that is looked at: it is held
	// while that is done, with at most maxCodedAtOnce others of its sandbox. maxDecoded is how long it may
	// become: a bomb ends there. maxWindow is what a decoder may ask for.
	maxCoded       = 4 << 20
	maxCodedAtOnce = 8
	maxDecoded     = 64 << 20
	maxWindow      = 8 << 20
	// maxDepth is how deep messages of protocol buffers in messages are looked at, and jsonFactor how often over
	// the length of one its JSON.
	maxDepth   = 1000
	jsonFactor = 4
	// maxBoundary bounds what separates the parts of a body (RFC 2046), and maxPartHead the head of one.
	maxBoundary = 70
	maxPartHead = 8 << 10
	// copyBuffer is what is read of a body at a time: four records of TLS.
	copyBuffer = 64 << 10
	// dialWait bounds finding and reaching a server.
	dialWait = 30 * time.Second
	// endWait is how long the client of a request that was ended may take to read what it is told.
	endWait = 200 * time.Millisecond
	// gateEvery is how often the gate is asked about requests that last: what somebody takes back ends within a second.
	gateEvery = 500 * time.Millisecond

	// caLife is how long a sandbox's certificate authority is valid, and caRenew when it is replaced.
	caLife  = 24 * time.Hour
	caRenew = 12 * time.Hour
	// maxLeaves bounds the certificates kept per sandbox.
	maxLeaves = 512
	// attachRetry is the pause after a sandbox's listener failed though the sandbox lives.
	attachRetry = time.Second

	// The budget of a session that sets none: room for any honest day of work, far from a bulk export.
	defaultRequests = 100_000
	defaultBytes    = 2 << 30
	defaultHosts    = 500

	// askAgain is how long the answer to a question is believed, and maxAsked how many are remembered per
	// sandbox: a tool that tries the same host again and again costs nothing.
	askAgain = 2 * time.Second
	maxAsked = 64

	// maxMoved is how often a request is judged again because its session's log has grown meanwhile: a log grows
	// by events, of which each took longer than a request's record.
	maxMoved = 8

	// chunkRequests and chunkBytes are what a gateway takes of a large budget at a time: one write for so much.
	chunkRequests = 256
	chunkBytes    = 4 << 20
	// chunkLasts is how long a chunk of requests should last. Where one does not, the next is twice as many, up
	// to maxChunks of chunkRequests: while it is taken all requests of the session wait.
	chunkLasts = time.Second
	maxChunks  = 16
	// takeTimeout bounds the wait for one: what cannot be counted does not go.
	takeTimeout = 5 * time.Second
)

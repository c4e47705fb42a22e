package outboard

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"strings"
	"time"
)

// Typed ids. Each is a prefix, "01" and 22 base-58 characters (128 bits); they are opaque and never parsed for
// meaning beyond the prefix. They name, and never authorise: nothing secret is made by NewID.
type (
	// AgentID names an agent over all its versions.
	AgentID string
	// EnvironmentID names an environment.
	EnvironmentID string
	// SessionID names a session.
	SessionID string
	// ThreadID names one conversation inside a session.
	ThreadID string
	// EventID names one event. A call's id is the id of its call.requested event.
	EventID string
	// CallID is the EventID of the call.requested event that introduced a call.
	CallID = EventID
	// ResourceID names a resource attached to a session.
	ResourceID string
	// FileID names an uploaded or harvested file.
	FileID string
	// SandboxID names one disposable machine.
	SandboxID string
	// CheckpointID names one saved workspace state.
	CheckpointID string
	// KeyID names an API key (not its secret).
	KeyID string
	// NetGrantID names a host that a session was let reach.
	NetGrantID string
	// PolicyID names the policy of one level and target, over all its versions.
	PolicyID string
	// ApprovalID names a call that waits, or waited, for a person.
	ApprovalID string
	// GrantID names a grant.
	GrantID string
	// OrgID names an organization; DefaultOrg, or one that NewID made.
	OrgID string
	// UserID names a person in an organization.
	UserID string
	// KillID names a use of the kill switch.
	KillID string
	// WorkerID names one process that claims sessions; new at every start of that process.
	WorkerID string
)

// Prefixes of the ids above, without the underscore.
const (
	PrefixAgent       = "agent"
	PrefixEnvironment = "env"
	PrefixSession     = "sesn"
	PrefixThread      = "sthr"
	PrefixEvent       = "sevt"
	PrefixResource    = "sesrsc"
	PrefixFile        = "file"
	PrefixSandbox     = "sbx"
	PrefixCheckpoint  = "ckpt"
	PrefixKey         = "apikey"
	PrefixWorker      = "wkr"
	PrefixNetGrant    = "ngrt"
	PrefixRequest     = "req"
	PrefixPolicy      = "pol"
	PrefixApproval    = "apr"
	PrefixGrant       = "grant"
	PrefixOrg         = "org"
	PrefixUser        = "user"
	PrefixKill        = "kill"
)

const base58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// NewID returns a fresh id with the given prefix: 48 bits of time in milliseconds, then 80 random bits. Ids that
// are made one after the other sort that way, but for those of one millisecond, so that an index on them grows
// at one end.
func NewID[T ~string](prefix string) T {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixMilli())<<16)
	rand.Read(b[6:])
	return T(prefix + "_01" + encode58(b))
}

// MadeAt returns when an id of NewID was made, to the millisecond. Of an id of DeriveID it reports false, or a
// time that means nothing: ask only about ids that are known to be new ones.
func MadeAt(id string) (time.Time, bool) {
	_, digits, ok := strings.Cut(id, "_01")
	if !ok || len(digits) != 22 {
		return time.Time{}, false
	}
	var hi, lo uint64
	for i := range len(digits) {
		d := strings.IndexByte(base58, digits[i])
		if d < 0 {
			return time.Time{}, false
		}
		over, low := bits.Mul64(lo, 58)
		sum, carry := bits.Add64(low, uint64(d), 0)
		hi, lo = hi*58+over+carry, sum
	}
	return time.UnixMilli(int64(hi >> 16)), true
}

// DeriveID returns the id that is a pure function of parent and label: the same inputs give the same id in every
// process. It is used where one log event is shown as several events on a wire.
func DeriveID[T ~string](prefix, parent, label string) T {
	sum := sha256.Sum256([]byte(prefix + "\x00" + parent + "\x00" + label))
	return T(prefix + "_01" + encode58([16]byte(sum[:16])))
}

// ValidID reports whether s has the shape of an id with this prefix. It says nothing about existence.
func ValidID(prefix, s string) bool {
	rest, ok := strings.CutPrefix(s, prefix+"_")
	if !ok || len(rest) < 2 || len(rest) > 64 {
		return false
	}
	for i := range len(rest) {
		c := rest[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// encode58 writes 128 bits as exactly 22 base-58 digits, most significant first.
func encode58(b [16]byte) string {
	var out [22]byte
	hi, lo := binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
	for i := len(out) - 1; i >= 0; i-- {
		var digit uint64
		lo, digit = bits.Div64(hi%58, lo, 58)
		hi /= 58
		out[i] = base58[digit]
	}
	return string(out[:])
}

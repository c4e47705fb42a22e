package outboard

import (
	"cmp"
	"time"
)

// OrgShare is what one organization may have of a bound of the whole installation: so many hundredths, and at
// least one. percent 0 = DefaultOrgPercent.
func OrgShare[N int | int64](total N, percent int) N {
	return max(1, N(float64(total)*float64(cmp.Or(percent, DefaultOrgPercent))/100))
}

// Every numeric limit of the system, with its reason. A limit that a wire defines names the wire.
const (
	// MaxBody bounds one API request body. Managed Agents wire: 32 MB JSON bodies.
	MaxBody = 32 << 20
	// MaxFile bounds one uploaded file. Managed Agents wire: 500 MB.
	MaxFile = 500 << 20
	// MaxSavedFile bounds one file that is read out of a checkpoint: the 8 GiB that a checkpoint may hold, and
	// the 64 GiB of holes that the guest leaves out of one.
	MaxSavedFile = 72 << 30
	// MaxEventData bounds one event's payload in the log; larger content goes to blob and leaves a reference.
	// 256 KiB keeps a row well under what SQLite and Postgres handle without overflow storms.
	MaxEventData = 256 << 10
	// MaxDefinition bounds an agent, an environment's config, and the resources of a session, each as JSON. A system
	// prompt of 100,000 characters in any script, 256 tools with long descriptions and 1 MiB of schemas fit; no model
	// reads more.
	MaxDefinition = 4 << 20
	// MaxConfigData is MaxEventData of the events that hold a session's config, which is its agent, its environment and
	// its resources. A fold reads no blobs, so the config is in the event.
	MaxConfigData = 3*MaxDefinition + 1<<20
	// MaxInlineContent is the size above which one text or base64 block moves to blob.
	MaxInlineContent = 64 << 10
	// MaxToolOutput is how much of a tool's output, in bytes, reaches the model; the rest stays in a file in the
	// sandbox. Managed Agents wire: 100,000 characters.
	MaxToolOutput = 100_000
	// MaxAppend bounds the events of one append, so that a commit's size stays bounded.
	MaxAppend = 256
	// MaxSendEvents bounds the events of one send request.
	MaxSendEvents = 100
	// MaxInitialEvents bounds initial_events of a session. Managed Agents wire: 50.
	MaxInitialEvents = 50
	// MaxForks bounds the sessions one fork makes, which are one transaction.
	MaxForks = 100
	// MaxInbox bounds inputs waiting in one session, so that a stuck session cannot grow without end.
	MaxInbox = 1000
	// MaxParallelCalls bounds the calls of one model response that run at the same time.
	MaxParallelCalls = 16
	// MaxModelCalls bounds the model calls of one turn, against a model that never ends, where the configuration
	// says nothing else.
	MaxModelCalls = 500
	// MaxFutile bounds the model calls of one turn in a row that gave only tool calls which cannot be made. A
	// model that has read what is wrong with its calls as often as that does not find out any more.
	MaxFutile = 20
	// MaxModelOutput bounds the bytes one model response may stream.
	MaxModelOutput = 16 << 20

	// MinMemoryBytes is the least memory limit of a sandbox: what the guest and a shell need for themselves, and
	// no less would start.
	MinMemoryBytes = 8 << 20
	// MaxMemoryBytes bounds it, above what machines have.
	MaxMemoryBytes = 64 << 40
	// MinCPUs is the least share of a processor: the kernel gives no less than a millisecond of its period of a
	// tenth of a second.
	MinCPUs = .01
	// MaxCPUs bounds it, above what machines have.
	MaxCPUs = 1024
	// MinPids is the least limit on processes and threads: a shell with a pipe, and a program with some threads.
	MinPids = 16
	// MaxPids bounds it, below the number of processes that a kernel knows apart.
	MaxPids = 1_000_000
	// MinDiskBytes is the least limit on a disk: what a file system and a shell need for themselves.
	MinDiskBytes = 16 << 20
	// MaxDiskBytes bounds it: a file in which the disk is kept cannot be larger than 16 TiB on ext4, itself included.
	MaxDiskBytes = 8 << 40

	// DefaultOrgPercent is what OrgShare gives where the configuration does not say: three others find room beside it.
	DefaultOrgPercent = 25
	// MaxStreams bounds the streams that one process answers at a time, where the configuration says nothing else: each
	// is a connection, and some 50 KiB of memory.
	MaxStreams = 10_000
	// MaxFiles is how many files an installation is made for, where the configuration says nothing else: what one
	// organization has is counted with each upload.
	MaxFiles = 1_000_000

	// LeaseTTL is how long a silent worker keeps its sessions. The epoch, not the clock, is what makes this safe.
	LeaseTTL = 15 * time.Second
	// RenewEvery leaves two renewals to miss before a lease ends.
	RenewEvery = 5 * time.Second
	// PollFallback is how long a lost wake-up can go unnoticed.
	PollFallback = time.Second

	// DefaultBashTimeout and MaxBashTimeout bound one bash call. Managed Agents executor: 120 s default.
	DefaultBashTimeout = 120 * time.Second
	MaxBashTimeout     = 60 * time.Minute
	// ModelIdleTimeout is how long a model stream may be silent before it counts as dead.
	ModelIdleTimeout = 5 * time.Minute
)

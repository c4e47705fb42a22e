package native

import (
	"time"

	"github.com/outboard-dev/outboard/internal/sandbox"
)

// What a sandbox gets when its Spec does not say, and what bounds the provider's own work.
const (
	// DefaultMemory, DefaultPids and DefaultCPUs suit a build or a test run without letting one sandbox starve a
	// small host.
	DefaultMemory = 2 << 30
	DefaultPids   = sandbox.DefaultPids
	DefaultCPUs   = 2

	// guestPids is room above the pids limit that tools cannot take, so that the guest can still start a thread
	// to kill them.
	guestPids = 64
	// maxFiles and minFiles bound RLIMIT_NOFILE inside: enough for any build tool, and no less than one needs.
	maxFiles = 65536
	minFiles = 4096
	// filesShare is the part of all files that the host can have open which the processes of one sandbox may
	// have together: then no sandbox alone keeps the host from opening any.
	filesShare = 0.5
	// shmShare is the part of the memory limit that files in memory may take, which count against it.
	shmShare = 2

	// uidBase and uidRange place the uid ranges: above what distributions hand out to users, each as large as
	// 16-bit uids need.
	uidBase   = 1 << 20
	uidRange  = 1 << 16
	uidRanges = (1<<31 - uidBase) / uidRange

	// toolUID is the identity of tools where the guest has its own.
	toolUID = 1000

	// createTimeout bounds one Create beyond its context: a guest that has not answered by then never will.
	createTimeout = 30 * time.Second
	// helloTimeout bounds the answer of a living guest in Open.
	helloTimeout = 10 * time.Second
	// dyingTimeout is how long a guest that closed its connections may take to be gone. It never closes one otherwise.
	dyingTimeout = time.Second
	// destroyTimeout bounds how long Destroy waits for the kernel to finish with killed processes.
	destroyTimeout = 30 * time.Second
	// freezeLooks is after how many looks, some 30 ms, freezing that has not come to an end is begun again.
	freezeLooks = 8
	// freezeSpins is how often one look asks before it sleeps: some 300 us.
	freezeSpins = 80
	// pollEvery is how often the kernel is asked about something it has no event for (a freezer's state, a busy
	// cgroup, a lock).
	pollEvery = 2 * time.Millisecond

	// maxAhead and maxKinds bound the places made ahead: each costs a network namespace and four cgroups, some
	// 400 KiB of kernel memory.
	maxAhead = 64
	maxKinds = 4
	// aheadDelay is how long a first call may take without an overlay being made for the checkpoint after it: it
	// takes longer to make one.
	aheadDelay = 20 * time.Millisecond
	// refillDelay is how long what was taken waits to be made again: who took it is about to use it, and needs
	// the processors.
	refillDelay = 100 * time.Millisecond
	// slotPause is how long a kind of places is put off of which one could not be made; each time twice as long
	// as before, up to maxSlotPause: so soon it is noticed that it can be.
	slotPause    = time.Second
	maxSlotPause = 10 * time.Minute
	// maxWarm bounds the guests that wait: each has some 3 MiB with its shell.
	maxWarm = 64

	// skeletonMaxAge is how old the check of the host's /etc may be when a sandbox is made from it.
	skeletonMaxAge = 30 * time.Second
	// layerMaxIdle is how long an unused host layer is kept; processes that use one touch it every skeletonMaxAge.
	layerMaxIdle = time.Hour
	// maxEtcFile bounds one file copied from the host's /etc; certificate bundles are the largest, well under a MiB.
	maxEtcFile = 8 << 20
	// maxTarEntries and maxTarBytes bound an unpacked root file system, against an archive made to fill the disk.
	maxTarEntries = 2_000_000
	maxTarBytes   = 64 << 30
	// maxCopyBytes, maxCopyEntries and maxCopyDepth bound what one checkpoint copies while the sandbox is
	// frozen, because a process holds its workspace: about a second of work. Beyond it there is no checkpoint
	// until the process lets go.
	maxCopyBytes   = 256 << 20
	maxCopyEntries = 50_000
	maxCopyDepth   = 512
	// maxLayers bounds a stack. The kernel takes 500 layers, but each makes a mount and a look-up of a missing
	// name a little dearer.
	maxLayers = 128
	// flattenAt is how high a stack is when it is shortened in the background. What is between it and maxLayers
	// is for what happens while that is going on.
	flattenAt = 32
	// maxPackEntries bounds what is packed as one delta: what the guest's own limit on files is.
	maxPackEntries = 1_000_000
	// copyGrain is more than the tick of any kernel's coarse clock, which a file's times are taken from.
	copyGrain = 20 * time.Millisecond
	// maxAccounts bounds a passwd or group file read from a root file system.
	maxAccounts = 1 << 20
)

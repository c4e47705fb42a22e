package fleet

import (
	"time"

	"github.com/outboard-dev/outboard/internal/store"
)

// Deadlines of calls to a provider or a sandbox, so that a hung machine cannot hold a turn, and bounds on what
// is taken from one.
const (
	// OpenTimeout bounds connecting to a living machine. It answers in milliseconds; a busy host may need
	// seconds, and taking a slow machine for a lost one costs the session its processes.
	OpenTimeout = 20 * time.Second
	// CreateTimeout bounds making a machine, the unpacking of a root file system included.
	CreateTimeout = 2 * time.Minute
	// PrepareTimeout bounds pulling an image and installing packages, which come before a machine is made: a
	// large image over a slow line, a compiler's worth of packages.
	PrepareTimeout = 30 * time.Minute
	// MakeTimeout bounds all of it: making, restoring and mounting. A row that has been creating for longer
	// belongs to nobody.
	MakeTimeout = 10 * time.Minute
	// BeginBuildTimeout is how long a host may take from the row of a build to its begin: some questions to the
	// database.
	BeginBuildTimeout = time.Minute
	// lockGrace is how old a lock file that nobody has locked must be to be removed: whoever has just made it is
	// about to.
	lockGrace = time.Minute
	// DestroyTimeout bounds killing and removing one machine.
	DestroyTimeout = time.Minute
	// unmakePatience is how long who asked for a machine waits for the removal of one that could not be made.
	unmakePatience = 2 * time.Second
	// CallTimeout bounds the short requests: start, kill, acknowledge, list, freeze, thaw.
	CallTimeout = 20 * time.Second
	// TransferTimeout bounds moving one file or one workspace in or out: 500 MB at 2 MB/s.
	TransferTimeout = 250 * time.Second
	// WaitGrace is how much longer than the longest call a wait may take before the guest counts as hung.
	WaitGrace = time.Minute

	// stopPatience is how long Stop waits for whoever uses a sandbox: a turn that has just ended keeps its
	// connection for two seconds.
	stopPatience = 5 * time.Second
	stopLook     = 100 * time.Millisecond

	// ReapEvery is how long garbage may stay where Config.RestEvery does not say otherwise. Nothing waits for it.
	ReapEvery = 30 * time.Second

	// BoxTick is how late a box may end, and SampleEvery how often what a box uses is looked at.
	BoxTick     = time.Second
	SampleEvery = 5 * time.Second
	// MaxSamples keeps an hour of them, and MaxBoxLog the newest lines of a box's log, with so much of each
	// field; both are in memory.
	MaxSamples  = 720
	MaxBoxLog   = 1000
	maxBoxField = 1 << 10
	// WakeTTL is the least time a box has that was woken by a visit.
	WakeTTL = 5 * time.Minute
	// MaxRunningBoxes bounds the boxes of one host that run: a host of this size has less memory than they need.
	MaxRunningBoxes = 2000
	// MaxBoxes bounds all boxes, the paused ones included.
	MaxBoxes = store.MaxBoxes

	// DurableWait is how long a restore waits for another host that has the newest checkpoint: storing a small
	// delta takes a fraction of it, and a host that is dead takes all of it, once.
	DurableWait = 10 * time.Second
	// KeepTimeout bounds storing one delta: MaxCheckpoint at 5 MB/s.
	KeepTimeout = 30 * time.Minute
	// keepLocal is how many bytes of a session's stored states may be on this host as well, for rewinds and forks
	// that need not unpack them. heavyDelta is how large a delta is after whose storing the host looks for layers
	// at once that need not stay.
	keepLocal  = 512 << 20
	heavyDelta = 64 << 20
	// thinEvery is how often old states are looked at, and thinGrace how long one is marked before it is dropped:
	// whoever had begun something with it, a fork or a rewind, has long recorded that. minStates stay whatever they
	// take. Of the chains of deltas before the newest states, keepChains keep their first state, and then one in as
	// many.
	thinEvery  = 10 * time.Minute
	thinGrace  = 10 * time.Minute
	minStates  = 10
	keepChains = 10
	// keepLastTime is how much longer a server takes to stop for the sake of checkpoints.
	keepLastTime = 5 * time.Second
	// keepEvery is how soon the keeper looks for a row that is about to be committed.
	keepEvery = 50 * time.Millisecond
	// keepPause is how long the keeper waits where nothing can be stored, a disk being full or a bucket away;
	// each time twice as long as before, up to maxKeepPause: so soon it is noticed that it can be.
	keepPause    = time.Second
	maxKeepPause = 10 * time.Second

	// BuildTimeout bounds building one template, its image and packages included. MaxBuilds bounds those that
	// one process is at: each has a sandbox that does what it can.
	BuildTimeout = 2 * PrepareTimeout
	MaxBuilds    = 4
	// maxOrgBuilds bounds those of one organization that go on at a time, and maxOrgQueue and maxQueue those
	// that wait as well, by organization and by process: each looks at the database twice a second.
	maxOrgBuilds = 2
	maxOrgQueue  = 16
	maxQueue     = 64
	// removedEvery is how soon a build notices that its template was removed by another process: within a second.
	removedEvery = 500 * time.Millisecond
	// ReadyTimeout bounds how long a template's ready command may say no; readyEvery is how often it is asked.
	ReadyTimeout = 2 * time.Minute
	readyEvery   = 100 * time.Millisecond
	// MaxTemplateLog bounds the log of one build, logEvery is how late it may be, and maxLogLine where a line is
	// broken.
	MaxTemplateLog = 4 << 20
	logEvery       = 300 * time.Millisecond
	maxLogLine     = 4 << 10
	// maxTemplateEnv bounds the variables of a template: they are in the environment of every process.
	maxTemplateEnv = 256
	// maxCopyBytes, maxCopyEntries and maxCopyName bound the files of one COPY step, against archives made to
	// fill a disk.
	maxCopyBytes   = 4 << 30
	maxCopyEntries = 200_000
	maxCopyName    = 4096
	// maxCopyNames bounds all names and targets of links of one archive, which are in memory: 300 bytes for each
	// of so many files.
	maxCopyNames = 64 << 20

	// MaxChain is how many deltas a restore may have to apply; the checkpoint after that is a whole workspace again.
	MaxChain = 32
	// MaxCheckpoint bounds one delta. A sandbox that holds more than this in its workspace cannot be restored.
	MaxCheckpoint = 8 << 30
	// MaxOutputs bounds the files of one session that are harvested, so that a loop in a sandbox cannot fill the
	// database.
	MaxOutputs = 1000
	// MaxOutputPath bounds a deliverable's path, as file systems do.
	MaxOutputPath = 1024
	// maxHarvests bounds the boxes whose harvested files are remembered; a forgotten one is read again and
	// compared by digest.
	maxHarvests = 256
)

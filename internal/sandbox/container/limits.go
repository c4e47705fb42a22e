package container

import "time"

const (
	// createTimeout bounds one Create beyond its context: a guest that has not answered by then never will. A
	// user-space kernel on a busy machine takes seconds.
	createTimeout = 60 * time.Second
	// helloTimeout bounds the answer of a living guest in Open.
	helloTimeout = 10 * time.Second
	// destroyTimeout bounds how long Destroy waits for killed processes and for the technology.
	destroyTimeout = 60 * time.Second
	// minWatches and maxWatches bound the directories that a guest watches: a limit on files that is too low for
	// the one is too low for the rest of a sandbox, and trees of packages seldom have more than the other, which
	// costs the host some 64,000 open files.
	minWatches = 64
	maxWatches = 32768
	// maxLastWords is how much of a failed guest's log is shown.
	maxLastWords = 2 << 10
	// maxTrees bounds the names shown from the host, as for native sandboxes.
	maxTrees = 200
)

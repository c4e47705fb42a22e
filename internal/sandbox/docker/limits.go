package docker

import "time"

const (
	// callTimeout bounds one request beyond its context. An engine that starts or ends many containers at once
	// takes seconds for each.
	callTimeout = 60 * time.Second
	// importTimeout bounds the making of an image, which copies a root file system.
	importTimeout = 10 * time.Minute
	// maxAnswer bounds what is read of an answer; the list of all containers is the longest.
	maxAnswer = 16 << 20
	// maxWords bounds what is read of a container's output.
	maxWords = 8 << 10
	// maxRefusal bounds what is read of an answer that says no: it may name a path as deep as a sandbox made it.
	// maxSaid is what is shown.
	maxRefusal = 1 << 20
	maxSaid    = 500
	// maxImageFiles bounds an image, as an unpacked root file system is bounded.
	maxImageFiles = 2_000_000

	// oldest is the first version of the engine's interface that has what is needed: Docker 20.10. newest is
	// the last that is asked for: engines speak older versions than their own as well.
	oldest = "1.41"
	newest = "1.47"
)

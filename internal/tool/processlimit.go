package tool

import (
	"bytes"
	"fmt"
	"regexp"
)

// processLimit matches what programs say when the kernel gives them no further process or thread: shells and
// make of fork, others of what they call it. What fails is told in other words a few lines away at most.
var processLimit = regexp.MustCompile(`(?is)(?:fork|clone|spawn|pthread_create|thread).{0,300}?(?:resource temporarily unavailable|EAGAIN)` +
	`|can't start new thread|unable to create (?:new )?native thread`)

// processLimitHint explains a failure to start a process, which names no limit by itself, or is "". The kernel
// keeps no count of what a limit per user refuses, so the output is all there is to go by, and the hint says no
// more than that it may be so.
func processLimitHint(output []byte, pids int) string {
	low := bytes.ToLower(output)
	for _, word := range []string{"temporarily unavailable", "eagain", "new thread", "native thread"} {
		if bytes.Contains(low, []byte(word)) && processLimit.Match(low) {
			return fmt.Sprintf("(if a process or thread could not be started: this sandbox may have %d at a time, "+
				"those in the background included)", pids)
		}
	}
	return ""
}

// unfit is what programs say when what they write does not fit: the kernel's words for it, and its name.
var unfit = regexp.MustCompile(`(?i)no space left on device|disk quota exceeded|\bENOSPC\b|\bEDQUOT\b`)

// held is what a shell says of a program that the server has ended because the disk has only room that sandboxes leave.
var held = regexp.MustCompile(`(?i)file size limit exceeded`)

// fullHint explains a write that did not fit, which names no limit by itself, or is "". disk is the limit on the
// sandbox's disk, 0 = none.
func fullHint(output []byte, disk int64) string {
	if held.Match(output) {
		return "(if a program was ended while it wrote: the server's disk has only room that sandboxes leave; " +
			"remove files before you write more)"
	}
	if !unfit.Match(output) || bytes.Contains(output, []byte("disk_bytes")) { // or a tool of the guest has said it
		return ""
	}
	limit := "it has no disk_bytes, so the server's disk is full or keeps its last room"
	if disk > 0 {
		limit = "its limit disk_bytes is " + bytesText(disk)
	}
	return "(if a file did not fit: /tmp, /workspace and all else are on the sandbox's disk, and " + limit +
		"; only /dev/shm, and /tmp with gvisor, is memory, of which files may take half of memory_bytes)"
}

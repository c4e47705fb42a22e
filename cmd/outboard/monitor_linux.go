package main

import (
	"fmt"
	"os"
	"strconv"
)

// monitorSlack is by how many nanoseconds the Go runtime's monitor may be late. It looks every 20 us whether a
// system call holds a processor that others wait for, as long as the program does anything; with the kernel's
// usual slack of 50 us that is fourteen thousand times a second. Where a processor is itself virtual each time
// costs tens of microseconds: a twelfth of all the time of a crowd of sandboxes, a tenth of a turn. No more than
// this, since a commit holds a processor until the monitor takes it back.
const monitorSlack = 200_000

// seldom has the monitor look less often. It is the first thread that the runtime starts, and threads are
// numbered in the order they are started in. Where that is not so, or is not allowed, which takes the rights of
// root, all is well, and slower.
func seldom() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	own, monitor := os.Getpid(), 0
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil && id > own && (monitor == 0 || id < monitor) {
			monitor = id
		}
	}
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/timerslack_ns", monitor), []byte(strconv.Itoa(monitorSlack)), 0)
}

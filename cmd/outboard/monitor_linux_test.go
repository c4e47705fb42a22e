package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// If this fails, the runtime's monitor goes on as often as ever, or another thread's timers are late in its place.
func TestSeldom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may say how late another thread's timers may be")
	}
	if late := lateThreads(t); len(late) != 0 {
		t.Fatalf("control: threads %v are late already", late)
	}
	seldom()
	late := lateThreads(t)
	if len(late) != 1 {
		t.Fatalf("threads %v may be late", late)
	}
	defer os.WriteFile("/proc/"+late[0]+"/timerslack_ns", []byte("50000"), 0)
	// The monitor is the thread that wakes while nothing happens but that somebody computes.
	before := wakes(t, late[0])
	for begin := time.Now(); wakes(t, late[0]) < before+20; {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("thread %s woke %d times in ten seconds: it is no monitor", late[0], wakes(t, late[0])-before)
		}
		for spin := time.Now(); time.Since(spin) < 10*time.Millisecond; {
		}
	}
}

// lateThreads are those of this process with the monitor's slack.
func lateThreads(t *testing.T) (ids []string) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if err == nil && string(slack) == fmt.Sprintf("%d\n", monitorSlack) {
			ids = append(ids, thread.Name())
		}
	}
	return ids
}

// wakes is how often a thread of this process has gone to sleep.
func wakes(t *testing.T, id string) (n int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/task/" + id + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// crashEnv makes this test binary crash: "plain", or "safe" after noCoreDumps.
const crashEnv = "OUTBOARD_TEST_CRASH"

func init() {
	switch os.Getenv(crashEnv) {
	case "":
		return
	case "safe":
		if err := noCoreDumps(); err != nil {
			panic(err)
		}
	}
	syscall.Kill(os.Getpid(), syscall.SIGABRT)
	select {}
}

// If this fails, a crash writes the server's memory, and the secrets in it, to a file or to a crash collector.
func TestNoCoreDumps(t *testing.T) {
	if testing.Short() {
		t.Skip("with the race detector a process is too large to leave a core file, and that is what -short runs with")
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit); err != nil || limit.Max == 0 {
		t.Skipf("this process may write no core files itself: %+v, %v", limit, err)
	}
	for _, how := range []string{"plain", "safe"} {
		cmd := exec.Command("/bin/sh", "-c", `ulimit -S -c "$(ulimit -H -c)"; exec "$0" "$@"`, os.Args[0],
			"-test.run=^TestNoCoreDumps$")
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), crashEnv+"="+how, "GOTRACEBACK=crash")
		out, _ := cmd.CombinedOutput() // it dies
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || !status.Signaled() {
			t.Fatalf("%s: it did not die of a signal: %v\n%s", how, cmd.ProcessState, out)
		}
		switch dumped := status.CoreDump(); {
		case how == "plain" && !dumped: // the positive control
			t.Skip("this host writes no core files, whatever a program does")
		case how == "safe" && dumped:
			t.Error("it dumped core")
		}
	}
}

// If this fails, each command takes as much memory as the server's collector is told of, and the time to clear it.
func TestHeapReserveIsNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("with the race detector a process is larger than the reserve anyway, and that is what -short runs with")
	}
	for range 8 { // it depends on where the heap begins
		cmd := exec.Command(os.Args[0], "version")
		cmd.Env = append(os.Environ(), mainEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		// Count the pages it has touched. Its maximum resident size is no measure: before its exec it shared this
		// process's memory, and the kernel counts that.
		if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); !ok ||
			used.Minflt*int64(os.Getpagesize()) >= heapReserveSize {
			t.Fatalf("a command touched %d pages", used.Minflt)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	heapReserve.Grow(heapReserveSize) // the control: this process has none yet, and the collector counts it
	defer heapReserve.Reset()
	runtime.ReadMemStats(&after)
	if after.HeapAlloc < before.HeapAlloc+heapReserveSize/2 {
		t.Errorf("%d bytes of heap became %d", before.HeapAlloc, after.HeapAlloc)
	}
}

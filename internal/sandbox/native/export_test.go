package native

import (
	"os"
	"testing"
)

// SecondRun is the variable that tells a test process that it is the ordinary user's run of the suite, started
// by root's.
const SecondRun = "OUTBOARD_TEST_NATIVE_BINARIES"

// NeedRoot is for tests of what only root has. In CI the suite must have been started as root, so that both
// modes are covered.
func NeedRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, os.Getenv(SecondRun) != "", "needs root")
	}
}

// missing skips a test for want of something of the host, or fails it where nothing may be missing.
func missing(t *testing.T, expected bool, what string) {
	t.Helper()
	if os.Getenv("CI") != "" && !expected {
		t.Fatalf("CI must have this: %s", what)
	}
	t.Skip(what)
}

package blob

import (
	"os"
	"testing"
)

// need skips a test for want of something on this host, except in CI, where that is a failure.
func need(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("CI must have " + what)
	}
	t.Skip("needs " + what)
}

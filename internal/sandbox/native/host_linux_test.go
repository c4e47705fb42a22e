package native

import "testing"

// TestShareFiles: the processes of one sandbox could open every file that the host can have open, or a build
// could not open enough.
func TestShareFiles(t *testing.T) {
	for _, c := range []struct {
		host uint64
		pids int
		want uint64
	}{
		{1 << 62, 512, maxFiles},   // a host without a limit to speak of
		{2_466_177, 64, 9633},      // half of it, over 64 processes and the guest's
		{2_466_177, 512, minFiles}, // a build needs that much
		{100_000, 512, minFiles},
		{0, 0, minFiles},
	} {
		if got := shareFiles(c.host, c.pids); got != c.want {
			t.Errorf("%d files, %d processes: %d each, want %d", c.host, c.pids, got, c.want)
		}
	}
}

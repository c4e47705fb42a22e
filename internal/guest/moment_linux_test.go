package guest

import (
	"os/exec"
	"testing"
)

// Broken if, where /proc/loadavg does not tell the newest process, the end of a command takes along a job that
// was started just before it, in the same tick of the clock, or leaves one that it started itself.
func TestMomentWithoutLastPid(t *testing.T) {
	start := func() procStat {
		t.Helper()
		c := exec.Command("sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.Process.Kill()
			c.Wait()
		})
		s, ok := readStat(c.Process.Pid)
		if !ok {
			t.Fatalf("no stat of %d", c.Process.Pid)
		}
		return s
	}
	for _, loadavg := range []string{"0.00 0.00 0.00 0/0 0\n", ""} {
		job := start()
		m := moment{tick: job.started, last: lastPid([]byte(loadavg), job.started)}
		if job.after(m) {
			t.Errorf("%q: %d counts as started after %+v", loadavg, job.pid, m)
		}
		own := start()
		if m.tick = own.started; !own.after(m) {
			t.Errorf("%q: %d does not count as started after %+v", loadavg, own.pid, m)
		}
	}
	if last := lastPid([]byte("0.10 0.20 0.30 1/234 5678\n"), 0); last != 5678 {
		t.Errorf("the newest is 5678, not %d", last)
	}
}

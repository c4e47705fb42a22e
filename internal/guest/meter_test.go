//go:build linux

package guest

import (
	"testing"
	"time"
)

// TestMeter: a flood of output would go on at full speed, or a command that writes much, slowly, would be held up.
func TestMeter(t *testing.T) {
	now := time.Unix(1000, 0)
	var m meter
	for range maxStored >> 15 {
		if wait := m.take(32<<10, now); wait != 0 {
			t.Fatalf("what is kept waits %s", wait)
		}
	}
	var waited time.Duration
	const seconds = 10
	for range seconds * floodRate >> 15 {
		wait := m.take(32<<10, now)
		if wait > 10*time.Millisecond {
			t.Fatalf("one read waits %s", wait)
		}
		waited, now = waited+wait, now.Add(wait)
	}
	if !m.slowed || waited < (seconds-1)*time.Second || waited > (seconds+1)*time.Second {
		t.Errorf("%d seconds' worth of output came in %s", seconds, waited)
	}
	m = meter{total: maxStored}
	for range 1000 { // control: half as fast
		now = now.Add(2 * time.Second * (32 << 10) / floodRate)
		if wait := m.take(32<<10, now); wait != 0 || m.slowed {
			t.Fatalf("a slow command waits %s", wait)
		}
	}
	now = now.Add(time.Hour) // which earns nothing
	waited = 0
	for range 2 * floodRate >> 15 {
		wait := m.take(32<<10, now)
		waited, now = waited+wait, now.Add(wait)
	}
	if waited < time.Second {
		t.Errorf("after an hour of rest two seconds' worth came in %s", waited)
	}
}
